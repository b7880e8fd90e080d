"""Algorithm 1 of the paper, slot by slot: slow, plain and readable. Every fast path is compared with this.

Letters as in the paper: ``g`` the gradient of all parameters as one long vector, ``topC`` the size of the memory, ``decay``
what priorities are multiplied with, ``aggr`` how memory and gradient are combined. Everything is float64.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

MASK = 0xFFFFFFFF


def mix32(x: int) -> int:
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
    priority: float
    norm: float
    born: int
    gradient: Tensor


class ReferenceMemory:
    """The memory of one vector."""

    def __init__(
        self,
        topC=5,
        decay=0.7,
        aggr="mean",
        kappa=1.0,
        rho=0.3,
        policy="KotH",
        every=10,
        max_age=None,
        seed=0,
        stream=0,
    ):
        self.topC, self.decay, self.aggr, self.kappa, self.rho = topC, decay, aggr, kappa, rho
        self.policy, self.every, self.max_age, self.seed, self.stream = policy, every, max_age, seed, stream
        self.entries: list[Entry | None] = [None] * topC  # the place in the list is the slot
        self.t = 0

    @property
    def live(self) -> list[Entry]:
        return [entry for entry in self.entries if entry is not None]

    # -- step 1: the direction ----------------------------------------------------------------------------------------

    def direction(self, g: Tensor) -> Tensor:
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
        if self.aggr == "min":
            picked = by_norm[0]
        elif self.aggr == "median":
            picked = by_norm[(n - 1) // 2]
        else:
            picked = min(M, key=lambda entry: (-entry.norm, entry.born))
        return g + self.kappa * picked.gradient

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
        """Returns the slot that was written."""
        norm = float(g.norm())
        if not torch.isfinite(g.norm()):
            return None
        self.t += 1
        slot = self.choose(g, norm) if norm > 0 else None
        if slot is not None:
            priority = min(1 / norm, torch.finfo(g.dtype).max) if self.policy == "bottomC" else norm
            self.entries[slot] = Entry(priority, norm, self.t, g.clone())
        for entry in self.live:
            entry.priority *= self.decay
        return slot

    def choose(self, g: Tensor, norm: float) -> int | None:
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
        return coin < ((1 - cos) / 2 if self.policy == "CDS" else (1 + cos) / 2)

    def victim(self) -> int:
        draw = uniform(self.seed, self.t, self.stream, 1)
        if self.policy in ("FIFO", "sparse"):
            return min(range(self.topC), key=lambda k: self.entries[k].born)
        if self.policy == "RR":
            return min(int(draw * self.topC), self.topC - 1)
        if self.policy == "NCPR":
            threshold = draw * sum(entry.norm for entry in self.entries)
            running = 0.0
            for k, entry in enumerate(self.entries):
                running += entry.norm
                if running > threshold:
                    return k
            return self.topC - 1
        return min(range(self.topC), key=lambda k: (self.entries[k].priority, self.entries[k].born))


class ReferenceOptimizer:
    """A base optimizer with a reference memory in front, for parameters that are plain float64 tensors.

    ``base`` is a function ``params -> optimizer``. A parameter without a gradient counts as zero and is not updated.
    """

    def __init__(self, params: list[Tensor], base, scope="global", **options):
        self.params = params
        self.optimizer = base(params)
        self.by_tensor = scope == "tensor"
        if self.by_tensor:
            self.memories = [ReferenceMemory(**options, stream=(1 << 20) + i) for i in range(len(params))]
        else:
            self.memories = [ReferenceMemory(**options, stream=1 if scope == "group" else 0)]

    def step(self) -> list[int | None]:
        grads = [torch.zeros_like(p) if p.grad is None else p.grad.clone() for p in self.params]
        vectors = [g.reshape(-1) for g in grads] if self.by_tensor else [torch.cat([g.reshape(-1) for g in grads])]
        directions = [memory.direction(g) for memory, g in zip(self.memories, vectors)]
        flat = torch.cat(directions)
        at = 0
        for p in self.params:
            if p.grad is not None:
                p.grad = flat[at : at + p.numel()].reshape(p.shape).clone()
            at += p.numel()
        self.optimizer.step()
        return [memory.insert(g) for memory, g in zip(self.memories, vectors)]
