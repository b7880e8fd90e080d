"""What the tests of ``critgrad.Memory`` share: the reference with a priority of the caller's, and ways to drive both."""

from __future__ import annotations

import math

import torch
from helpers import GradientStream
from torch import Tensor

from critgrad.reference import Entry, ReferenceMemory

TINIEST, LARGEST = 5e-324, torch.finfo(torch.float64).max
OF_OWN_NORM = ("MNDS", "CDS", "CSS")  # admissions that look at the vectors themselves, whatever priority is given


class RankedMemory(ReferenceMemory):
    """The reference, with the caller's priority in the place of the norm that asks for a place."""

    offered: float | None = None

    def insert(self, g: Tensor, priority: float | None = None) -> int | None:
        if priority is None:
            self.offered = None
            return super().insert(g)
        norm = float(g.norm())
        if not math.isfinite(norm):
            return None
        self.t += 1
        priority = priority or (TINIEST if self.policy == "bottomC" else 0.0)  # Python divides by no zero
        slot, self.offered = None, priority
        if norm > 0 and math.isfinite(priority) and priority >= 0:
            slot = self.choose(g, norm)
        if slot is not None:
            rank = min(1 / priority, LARGEST) if self.policy == "bottomC" else priority
            self.entries[slot] = Entry(rank, norm, self.t, g.clone())
        for entry in self.live:
            entry.priority *= self.decay
        return slot

    def admits(self, g: Tensor, norm: float) -> bool:
        own = self.offered is None or self.policy in OF_OWN_NORM
        return super().admits(g, norm if own else self.offered)


def vectors_at(stream: GradientStream, t: int, dtype: torch.dtype) -> list[Tensor | None]:
    return [None if g is None else g.to(dtype) for g in stream.at(t)]


def long_vector(vectors: list[Tensor | None], params: list[Tensor]) -> Tensor:
    """All of them as the reference takes them: one vector in float64, zeros for what is missing."""
    return torch.cat(
        [(torch.zeros_like(p) if v is None else v).detach().double().view(-1) for v, p in zip(vectors, params)]
    )


def in_pieces(flat: Tensor, vectors: list[Tensor | None], params: list[Tensor]) -> list[Tensor | None]:
    """The reference's vector in the parameters' shapes; ``None`` where the vector is."""
    pieces = flat.split([p.numel() for p in params])
    return [None if v is None else piece.view(p.shape) for piece, v, p in zip(pieces, vectors, params)]


def assert_directions(ours: list[Tensor | None], theirs: list[Tensor | None], dtype: torch.dtype) -> None:
    tolerance = {"rtol": 1e-9, "atol": 1e-11} if dtype == torch.float64 else {"rtol": 2e-4, "atol": 2e-5}
    assert [d is None for d in ours] == [d is None for d in theirs]
    for d, wanted in zip(ours, theirs):
        if d is not None:
            assert d.dtype == dtype
            torch.testing.assert_close(d.double(), wanted, equal_nan=True, **tolerance)


def assert_holds(state: dict[str, Tensor], reference: ReferenceMemory, dtype: torch.dtype) -> None:
    """Whether the tables of one parameter's state are the reference's, slot by slot."""
    rtol = 1e-9 if dtype == torch.float64 else 1e-4
    born = [0 if entry is None else entry.born for entry in reference.entries]
    assert state["critical_born"].tolist() == born
    assert int(state["critical_clock"]) == reference.t
    for key, field in (("critical_priority", "priority"), ("critical_norm", "norm")):
        wanted = torch.tensor([0.0 if e is None else getattr(e, field) for e in reference.entries], dtype=torch.float64)
        torch.testing.assert_close(state[key].double(), wanted, rtol=rtol, atol=1e-30)
