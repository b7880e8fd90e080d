"""Algorithm 1 of the paper, slot by slot: slow, plain and readable. Read this first; every engine is tested equal to it.

One step, with any optimizer ``O``::

    d = memory.direction(g)       # 1. aggr(g, M), with the memory before this step's insertion
    theta = O(d, theta)           # 2. the optimizer's own step
    memory.insert(g)              # 3. and 4. admission and eviction, then every priority times decay

Letters as in the paper: ``g`` the gradient of all parameters as one long vector, ``topC`` the size of the memory, ``decay``
what priorities are multiplied with, ``aggr`` how memory and gradient are combined. Everything is float64.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

MASK = 0xFFFFFFFF


def mix32(x: int) -> int:
    """A scrambling of 32-bit integers."""
    x = ((x ^ (x >> 16)) * 0x7FEB352D) & MASK
    x = ((x ^ (x >> 15)) * 0x846CA68B) & MASK
    return x ^ (x >> 16)


def uniform(seed: int, t: int, stream: int, purpose: int) -> float:
    """The counter-based random number of a step, in plain integers."""
    h = mix32((t & MASK) ^ (seed & MASK))
    h = mix32(h ^ (t >> 32) ^ ((seed >> 32) & MASK))
    h = mix32((h + stream * 2 + purpose) & MASK)
    return h / 2**32


@dataclass
class Entry:
    """One stored gradient."""

    priority: float  # its norm (bottomC: one over it), times decay in each step since
    norm: float  # when it was stored
    born: int  # the number of that step, from 1
    gradient: Tensor


class ReferenceMemory:
    """The memory of one vector."""

    def __init__(
        self,
        topC: int = 5,
        decay: float = 0.7,
        aggr: str = "mean",
        kappa: float = 1.0,
        rho: float = 0.3,
        policy: str = "KotH",
        every: int = 10,
        max_age: int | None = None,
        seed: int = 0,
        stream: int = 0,
    ) -> None:
        self.topC, self.decay, self.aggr, self.kappa, self.rho = topC, decay, aggr, kappa, rho
        self.policy, self.every, self.max_age, self.seed, self.stream = policy, every, max_age, seed, stream
        self.entries: list[Entry | None] = [None] * topC  # the place in the list is the slot
        self.t = 0

    @property
    def live(self) -> list[Entry]:
        """What is held, in the order of the slots."""
        return [entry for entry in self.entries if entry is not None]

    # -- step 1: the direction ----------------------------------------------------------------------------------------

    def direction(self, g: Tensor) -> Tensor:
        """``aggr(g, M)``; ``g`` itself while nothing is held, and where ``g`` is not finite."""
        M = self.live
        n = len(M)
        if n == 0 or not torch.isfinite(g).all():
            return g
        total = torch.stack([entry.gradient for entry in M]).sum(0)
        if self.aggr == "mean":
            return (g + self.kappa * total) / (1 + self.kappa * n)
        if self.aggr == "sum":
            return g + self.kappa * total / n
        if self.aggr == "mid":
            return (g + self.kappa * total / n) / (1 + self.kappa)
        if self.aggr == "fisher":
            return self.damped(g)
        by_norm = sorted(M, key=lambda entry: (entry.norm, entry.born))
        largest_first = sorted(M, key=lambda entry: (-entry.norm, entry.born))
        picks = {"min": by_norm[0], "median": by_norm[(n - 1) // 2], "max": largest_first[0]}
        return g + self.kappa * picks[self.aggr].gradient

    def damped(self, g: Tensor) -> Tensor:
        """As the formula reads: build the d x d matrix and solve it."""
        G = torch.stack([entry.gradient for entry in self.live])
        lam = self.rho * (G * G).sum()
        if lam == 0:
            return g
        identity = torch.eye(g.numel(), dtype=g.dtype)
        whole = torch.linalg.solve(identity + G.T @ G / lam, g)  # kappa = 1
        return g - self.kappa * (g - whole)

    # -- steps 3 and 4: insertion and decay ------------------------------------------------------------------------------

    def insert(self, g: Tensor) -> int | None:
        """Store ``g`` if it is admitted, let priorities decay; the slot that was written. Nothing for a bad gradient."""
        norm = self.norm(g)
        if not math.isfinite(norm):
            return None
        self.t += 1
        slot = self.choose(g, norm) if norm > 0 else None
        if slot is not None:
            priority = min(1 / norm, torch.finfo(g.dtype).max) if self.policy == "bottomC" else norm
            self.entries[slot] = Entry(priority, norm, self.t, g.clone())
        for entry in self.live:
            entry.priority *= self.decay
        return slot

    def norm(self, g: Tensor) -> float:
        """The length of ``g``."""
        return float(g.norm())

    def choose(self, g: Tensor, norm: float) -> int | None:
        """The slot for a gradient that is finite and not zero: an expired one, a free one, the victim, or none."""
        if self.max_age is not None:
            expired = [
                (entry.born, k)
                for k, entry in enumerate(self.entries)
                if entry is not None and self.t - entry.born >= self.max_age
            ]
            if expired:
                return min(expired)[1]
        full = len(self.live) == self.topC
        if (full or self.policy in ("random", "sparse")) and not self.admits(g, norm):
            return None
        return self.victim() if full else self.entries.index(None)

    def admits(self, g: Tensor, norm: float) -> bool:
        """May it replace another?"""
        coin = uniform(self.seed, self.t, self.stream, 0)
        M = self.live
        if self.policy in ("KotH", "RR", "NCPR"):
            return norm > min(entry.priority for entry in M)
        if self.policy == "bottomC":
            return 1 / norm > min(entry.priority for entry in M)
        if self.policy == "FIFO":
            return True
        if self.policy == "random":
            return coin < 0.5
        if self.policy == "sparse":
            return (self.t - 1) % self.every == 0
        if self.policy == "MNDS":
            mean = sum(entry.norm for entry in M) / len(M)
            return coin < min(1.0, abs(norm - mean) / mean)
        total = torch.stack([entry.gradient for entry in M]).sum(0)
        length = float(total.norm()) * norm
        cos = float(g @ total) / length if length > 0 else 0.0
        return coin < {"CDS": (1 - cos) / 2, "CSS": (1 + cos) / 2}[self.policy]

    def victim(self) -> int:
        """The slot that goes, of a memory that is full."""
        M = self.live
        draw = uniform(self.seed, self.t, self.stream, 1)
        if self.policy in ("FIFO", "sparse"):
            return min(range(self.topC), key=lambda k: M[k].born)
        if self.policy == "RR":
            return min(int(draw * self.topC), self.topC - 1)
        if self.policy == "NCPR":
            threshold = draw * sum(entry.norm for entry in M)
            running = 0.0
            for k, entry in enumerate(M):
                running += entry.norm
                if running > threshold:
                    return k
            return self.topC - 1
        return min(range(self.topC), key=lambda k: (M[k].priority, M[k].born))
