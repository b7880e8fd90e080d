"""Optimizers of the lab's own, to compare with, and how any optimizer's model is evaluated."""

from .learnt import learnt
from .lion import Lion
from .muon import Muon

__all__ = ["Lion", "Muon", "learnt"]
