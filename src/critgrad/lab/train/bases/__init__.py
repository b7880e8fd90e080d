"""Base optimizers that the lab brings itself, to put a memory on: plain loops over tensors, made to be read."""

from .lion import Lion
from .muon import Muon
from .schedule_free import ScheduleFree, learnt

__all__ = ["Lion", "Muon", "ScheduleFree", "learnt"]
