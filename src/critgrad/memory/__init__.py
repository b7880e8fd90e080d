"""The memory as a part of its own: what is stored, which gradients, how they are used. It knows no optimizer."""

from .memory import Memory
from .store import BORN, CLOCK, GRAM, INSERTED, KEYS, NORM, PRIORITY, SCALE, SLOTS, SUM, TABLE_KEYS

__all__ = [
    "BORN",
    "CLOCK",
    "GRAM",
    "INSERTED",
    "KEYS",
    "NORM",
    "PRIORITY",
    "SCALE",
    "SLOTS",
    "SUM",
    "TABLE_KEYS",
    "Memory",
]
