"""The decision in Python numbers: where a memory's tables lie on a CPU, a torch operation on five numbers costs more than
the arithmetic. The twin of ``policies.decide`` and ``policies.advance`` for one row, and the same decision bit for bit:
only comparisons, and products and quotients that are rounded as torch rounds them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from ctypes import c_float
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from .policies import ADMISSION, EVICTION, POLICIES

if TYPE_CHECKING:
    from .memory import Memory

_MASK32 = 0xFFFFFFFF
_LARGEST = {torch.float32: torch.finfo(torch.float32).max, torch.float64: torch.finfo(torch.float64).max}


def _mix32(x: int) -> int:
    x = ((x ^ (x >> 16)) * 0x7FEB352D) & _MASK32
    x = ((x ^ (x >> 15)) * 0x846CA68B) & _MASK32
    return x ^ (x >> 16)


def uniform(seed: int, t: int, stream: int, purpose: int) -> float:
    """The twin of ``policies.uniform``.

    >>> from critgrad import policies
    >>> uniform(7, 2, 3, 1) == float(policies.uniform(7, torch.tensor(2), torch.tensor(3), 1))
    True
    """
    h = _mix32((t & _MASK32) ^ (seed & _MASK32))
    h = _mix32(h ^ (t >> 32) ^ ((seed >> 32) & _MASK32))
    return _mix32((h + stream * 2 + purpose) & _MASK32) * 2.0**-32


@dataclass
class _Case:
    """What a rule may look at, as ``policies.Tables``: a full memory, unless the rule is asked while it fills."""

    memory: Memory
    priority: list[float]
    born: list[int]
    t: int
    entry: float  # the priority that the gradient would have

    def draw(self, purpose: int) -> float:
        return uniform(self.memory.seed, self.t, self.memory.streams[0], purpose)

    def oldest(self) -> int:
        return min((b, k) for k, b in enumerate(self.born) if b > 0)[1]

    def weakest(self) -> int:
        return min(zip(self.priority, self.born, range(len(self.born))))[2]

    def any_of_them(self) -> int:
        return min(int(self.draw(EVICTION) * len(self.born)), len(self.born) - 1)


Rule = Callable[[_Case], bool]
Choice = Callable[[_Case], int]

# Policies whose rules add nothing up (the order of a sum is torch's own affair): admission, eviction.
_RULES: dict[str, tuple[Rule, Choice]] = {
    "KotH": (lambda case: case.entry > min(case.priority), _Case.weakest),
    "bottomC": (lambda case: case.entry > min(case.priority), _Case.weakest),
    "FIFO": (lambda case: True, _Case.oldest),
    "random": (lambda case: case.draw(ADMISSION) < 0.5, _Case.weakest),
    "RR": (lambda case: case.entry > min(case.priority), _Case.any_of_them),
    "sparse": (lambda case: (case.t - 1) % case.memory.every == 0, _Case.oldest),
}


def knows(memory: Memory) -> bool:
    """Whether the decision of a memory can be taken here."""
    return memory.rows == 1 and memory.policy.name in _RULES and memory.policy is POLICIES[memory.policy.name]


class HostDecision:
    """One step's decision: made when the norm is known, written to the tables by ``advance``."""

    def __init__(self, memory: Memory, square: Tensor) -> None:
        self.memory = memory
        self.narrow = memory.dtype == torch.float32
        born = memory.born.tolist()[0]
        self.t = memory.clock.tolist()[0] + 1
        self.live = len(born) - born.count(0)
        self.g_norm = square.to(memory.dtype).sqrt().tolist()[0]  # torch's own root: not always the nearest number
        self.finite = math.isfinite(self.g_norm)
        self.accept, self.slot, self.entry = False, 0, self.g_norm
        if self.finite and self.g_norm > 0:
            if memory.policy.name == "bottomC":
                self.entry = min(self._round(1 / self.g_norm), _LARGEST[memory.dtype])
            self._choose(_Case(memory, memory.priority.tolist()[0], born, self.t, self.entry))

    def _round(self, value: float) -> float:
        return c_float(value).value if self.narrow else value

    def _choose(self, case: _Case) -> None:
        policy, max_age, born = self.memory.policy, self.memory.max_age, case.born
        admit, evict = _RULES[policy.name]
        full = self.live == len(born)
        expired = max_age is not None and self.live > 0 and case.t - born[case.oldest()] >= max_age
        self.accept = expired or (not full and not policy.also_while_filling) or admit(case)
        if self.accept:
            self.slot = case.oldest() if expired else evict(case) if full else born.index(0)

    def advance(self) -> None:
        """The tables after the insertion, every priority decayed, the new one included."""
        memory = self.memory
        if not self.finite:
            return
        if self.accept:
            for table, value in ((memory.priority, self.entry), (memory.norm, self.g_norm), (memory.born, self.t)):
                table[0, self.slot] = value
            memory.inserted.add_(1)
        memory.priority.mul_(memory.decay)
        memory.clock.add_(1)
