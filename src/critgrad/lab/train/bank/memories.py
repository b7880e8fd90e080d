"""The memories of a bank: one for each model, of one kind, worked on together.

Which gradients are kept is ``selection.py``; the weights are the library's own (``critgrad.memory.aggregations``). Here are
only the slots, ``[n, C, P]`` with ``C`` the largest ``topC``, and what is derived from them: the running sums, or
the Gram matrices. Nothing looks at a value on the host, so a CUDA graph can hold a step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from critgrad.memory.aggregations import adding_weights, aggregation_of
from critgrad.memory.damping import damping_weights, insert_in_gram

from .members import DAMPS, PICKED, SUMS
from .selection import Rows, Selection, column

# A slice of the running sums is summed anew in each step; once round takes this many steps per slot.
REFRESH_STEPS_PER_SLOT = 16
SMALLEST_REFRESH = 256

# Values of a dot product that are summed in the working dtype; the rest of the sum is float64.
BLOCK = 1 << 16


@dataclass
class BankAggregation:
    """Memories with the same aggregation."""

    aggr: str
    rows: Rows
    kappa: Any  # [rows]


class Memories(Selection):
    """The memories of ``n`` models of one kind (``SUMS``, ``PICKED`` or ``DAMPS``).

    A step is ``d = look(g)``, the base's update, ``insert(g, t)``.
    """

    def __init__(
        self, kind: str, options: Sequence[Mapping[str, Any]], donors: Sequence[int | None], like: Tensor
    ) -> None:
        super().__init__(options, donors, like)
        self.kind = kind
        n, C, P, device = len(options), self.C, like.shape[1], like.device
        self.slots = torch.zeros(n * C, P, dtype=like.dtype, device=device)
        self.first = torch.arange(n, device=device) * C  # of each model's slots
        self.scale = torch.ones(n, dtype=torch.float64, device=device)
        self.share = torch.zeros(n, dtype=torch.float64, device=device)
        self.picked = torch.zeros(n, dtype=torch.int64, device=device)
        self.aggregations = _aggregations(options, device)
        self.sum: Tensor | None = None
        if kind == SUMS or (kind == PICKED and self.needs_cosine):
            self.sum = torch.zeros(n, P, dtype=like.dtype, device=device)
            self.slice = torch.arange(
                max(-(-P // (REFRESH_STEPS_PER_SLOT * C)), min(SMALLEST_REFRESH, P)), device=device
            )
        if kind == DAMPS:
            self.add_products()

    @property
    def by_model(self) -> Tensor:
        """The slots as ``[n, C, P]``."""
        return self.slots.view(-1, self.C, self.slots.shape[1])

    # -- directions ----------------------------------------------------------------------------------------------------

    def look(self, g: Tensor) -> Tensor:
        """Step 1 of Algorithm 1: the directions ``d`` of the gradients ``g [n, P]``, as a new tensor."""
        self.measure(torch.linalg.vector_norm(g, dim=1, dtype=torch.float64))
        return self._damped(g) if self.kind == DAMPS else self._added(g)

    def _added(self, g: Tensor) -> Tensor:
        n = (self.born > 0).sum(-1)
        for group in self.aggregations:
            rows = group.rows
            weights = adding_weights(group.aggr, group.kappa, rows.of(n), rows.of(self.finite))
            for into, values in zip((self.scale, self.share), weights):
                rows.put(into, values)
            if self.kind == PICKED:
                aggregation: Any = aggregation_of(group.aggr)
                rows.put(self.picked, aggregation.weights(rows.of(self.norm), rows.of(self.born)))
        source = self.sum if self.kind == SUMS else self.slots.index_select(0, self.first + self.picked)
        assert source is not None
        d = torch.addcmul(g, source, self.share.to(g.dtype)[:, None])
        return d.mul_(self.scale.to(g.dtype)[:, None])

    def _damped(self, g: Tensor) -> Tensor:
        """NOTE [TF32]: products of matrices round to it if torch is told to; by default it is not."""
        slots = self.by_model
        self.dots.zero_()
        for start in range(0, g.shape[1], BLOCK):
            part = slice(start, start + BLOCK)
            self.dots.add_(torch.bmm(slots[:, :, part], g[:, part, None]).squeeze(-1))
        self.weights.copy_(damping_weights(self.gram, self.dots, self.rho, self.kappa, self.finite))
        w = self.weights.to(g.dtype)
        return torch.baddbmm(g[:, None], w[:, None], slots, alpha=-1).squeeze(1)

    # -- insertion -----------------------------------------------------------------------------------------------------

    def insert(self, g: Tensor, step: Tensor) -> None:
        """Steps 3 and 4: decide, store, decay, tick. ``step``, any counter of steps, only moves the refreshing on."""
        self.decide(g)
        place = self.first + self.slot
        old = self.slots.index_select(0, place)
        new = torch.where(self.accept[:, None], g, old)
        self.slots.index_copy_(0, place, new)
        if self.sum is not None:
            self.sum.add_(new.sub_(old))
            self._refresh(self.sum, step)
        if self.kind == DAMPS:
            self.gram.copy_(insert_in_gram(self.gram, self.dots, self.square, self.accept, self.slot))
        self.tick()

    def cosine(self, rows: Rows, g: Tensor) -> tuple[Tensor, Tensor]:
        """The gradient times the memory's sum, and the sum's square."""
        if self.kind == DAMPS:
            return super().cosine(rows, g)
        assert self.sum is not None
        total, g = rows.of(self.sum), rows.of(g)
        return (total * g).sum(-1, dtype=torch.float64), total.square().sum(-1, dtype=torch.float64)

    def _refresh(self, total: Tensor, step: Tensor) -> None:
        """Sum one slice anew, so that rounding errors cannot pile up."""
        columns = (step * self.slice.shape[0] + self.slice) % total.shape[1]
        total.index_copy_(1, columns, self.by_model.index_select(2, columns).sum(1))


def _aggregations(options: Sequence[Mapping[str, Any]], device: torch.device) -> list[BankAggregation]:
    groups: dict[str, list[int]] = {}
    for i, o in enumerate(options):
        groups.setdefault(o["aggr"], []).append(i)
    return [
        BankAggregation(
            aggr, Rows(rows, device), column([options[i]["kappa"] for i in rows], torch.float64, device)[:, 0]
        )
        for aggr, rows in groups.items()
    ]
