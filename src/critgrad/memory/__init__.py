"""The memory as a part of its own: what is stored, which gradients, how they are used. It knows no optimizer."""

from .keys import BORN, CLOCK, GRAM, INSERTED, KEYS, NORM, PRIORITY, SCALE, SLOTS, SUM, TABLE_KEYS
from .memory import Memory

__all__ = ["BORN", "CLOCK", "GRAM", "INSERTED", "KEYS", "NORM", "PRIORITY", "SCALE", "SLOTS", "SUM", "TABLE_KEYS"]
__all__ += ["Memory"]
