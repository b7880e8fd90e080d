"""Optimizers that train at another point than what they have learnt (schedule-free ones): ``eval()`` and ``train()``."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def learnt(optimizer: Any) -> Iterator[None]:
    """For an evaluation: the parameters are what was learnt. Other optimizers have no such methods, and need none."""
    if not (hasattr(optimizer, "eval") and hasattr(optimizer, "train")):
        yield
        return
    optimizer.eval()
    try:
        yield
    finally:
        optimizer.train()
