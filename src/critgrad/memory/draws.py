"""Random numbers without a generator, for policies that draw."""

from __future__ import annotations

import torch
from torch import Tensor

_MASK32 = 0xFFFFFFFF

# What a random number is drawn for: part of the counter, so that the two draws of one step are independent.
ADMISSION, EVICTION = 0, 1


def _mix32(x: Tensor) -> Tensor:
    """A bijective scrambling of 32-bit integers held in int64 (two multiply-xorshift rounds)."""
    x = ((x ^ (x >> 16)) * 0x7FEB352D) & _MASK32
    x = ((x ^ (x >> 15)) * 0x846CA68B) & _MASK32
    return x ^ (x >> 16)


def uniform(seed: int, t: Tensor, stream: Tensor, purpose: int) -> Tensor:
    """A number in [0, 1), float64, hashed from its counters: every rank draws alike and resuming needs no generator.

    >>> t, stream = torch.tensor([1, 2]), torch.tensor([0, 0])
    >>> bool((uniform(0, t, stream, 0) == uniform(0, t, stream, 0)).all())
    True
    """
    h = _mix32((t & _MASK32) ^ (seed & _MASK32))
    h = _mix32(h ^ (t >> 32) ^ ((seed >> 32) & _MASK32))
    h = _mix32((h + stream * 2 + purpose) & _MASK32)
    return h.to(torch.float64) * 2.0**-32
