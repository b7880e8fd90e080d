"""The memories of a bank: one for each model, of one kind, worked on together.

The rules are the library's own (``critgrad.policies``, ``critgrad.aggregate``), which take a row for each memory. Here
are only the slots, ``[n, C, P]`` with ``C`` the largest ``topC``, and what is derived from them: the running sums, or
the Gram matrices. Nothing looks at a value on the host, so a CUDA graph can hold a step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from critgrad.aggregate import adding_weights, damping_weights, insert_in_gram, pick
from critgrad.policies import POLICIES, Decision, Policy, Tables, advance, decide

from .members import DAMPS, PICKED, SUMS
from .rows import Rows

# Policies whose rules leave slots alone that are dressed as live, infinitely strong and born in the far future: models
# of different topC are then decided at once. The others count slots, and are decided apart for each topC.
MASKABLE = frozenset({"KotH", "bottomC", "FIFO", "random", "CDS", "CSS", "sparse"})
_FUTURE = 1 << 62
_NO_AGE = 1 << 62

# A slice of the running sums is summed anew in each step; once round takes this many steps per slot.
REFRESH_STEPS_PER_SLOT = 16
SMALLEST_REFRESH = 256

# Values of a dot product that are summed in the working dtype; the rest of the sum is float64.
BLOCK = 1 << 16


@dataclass
class Rule:
    """Memories that are decided at once: the same policy, and the same ``topC`` unless the policy is maskable."""

    policy: Policy
    rows: Rows
    width: int  # slots that the policy is shown
    beyond: Tensor | None  # [rows, width]: slots that a model does not have
    decay: Any  # [rows, 1]
    max_age: Any  # [rows, 1] or None
    seed: Any  # [rows]
    every: Any  # [rows]
    donors: Tensor | None = None  # yoked models: the rows that decide for them


@dataclass
class Aggregation:
    """Memories with the same aggregation."""

    aggr: str
    rows: Rows
    kappa: Any  # [rows]


class Memories:
    """The memories of ``n`` models of one kind (``SUMS``, ``PICKED`` or ``DAMPS``).

    A step is ``d = look(g)``, the base's update, ``insert(g, t)``.
    """

    def __init__(
        self, kind: str, options: Sequence[Mapping[str, Any]], donors: Sequence[int | None], like: Tensor
    ) -> None:
        self.kind = kind
        self.options = options
        n, P, device = len(options), like.shape[1], like.device
        topC = [o["topC"] for o in options]
        self.C = C = max(topC)
        self.wide = like.dtype == torch.float64
        table = torch.float64 if self.wide else torch.float32
        self.slots = torch.zeros(n * C, P, dtype=like.dtype, device=device)
        self.first = torch.arange(n, device=device) * C  # of each model's slots
        self.priority = torch.zeros(n, C, dtype=table, device=device)
        self.norm = torch.zeros(n, C, dtype=table, device=device)
        self.born = torch.zeros(n, C, dtype=torch.int64, device=device)
        self.clock = torch.zeros(n, dtype=torch.int64, device=device)
        self.inserted = torch.zeros(n, dtype=torch.int64, device=device)
        self.stream = torch.zeros(n, dtype=torch.int64, device=device)  # that of scope="global"
        # Of the step that is being taken, and readable after it.
        self.square = torch.zeros(n, dtype=torch.float64, device=device)
        self.g_norm = torch.zeros(n, dtype=table, device=device)
        self.finite = torch.zeros(n, dtype=torch.bool, device=device)
        self.accept = torch.zeros(n, dtype=torch.bool, device=device)
        self.slot = torch.zeros(n, dtype=torch.int64, device=device)
        self.scale = torch.ones(n, dtype=torch.float64, device=device)
        self.share = torch.zeros(n, dtype=torch.float64, device=device)
        self.picked = torch.zeros(n, dtype=torch.int64, device=device)
        self.rules = _rules(options, donors, C, self.priority)
        self.aggregations = _aggregations(options, device)
        self.needs_cosine = any(rule.policy.needs_cosine for rule in self.rules)
        self.sum: Tensor | None = None
        if kind == SUMS or (kind == PICKED and self.needs_cosine):
            self.sum = torch.zeros(n, P, dtype=like.dtype, device=device)
            self.slice = torch.arange(
                max(-(-P // (REFRESH_STEPS_PER_SLOT * C)), min(SMALLEST_REFRESH, P)), device=device
            )
        if kind == DAMPS:
            self.gram = torch.zeros(n, C, C, dtype=torch.float64, device=device)
            self.dots = torch.zeros(n, C, dtype=torch.float64, device=device)
            self.weights = torch.zeros(n, C, dtype=torch.float64, device=device)
            self.rho: Any = _column([o["rho"] for o in options], torch.float64, device)[..., None]
            self.kappa: Any = _column([o["kappa"] for o in options], torch.float64, device)

    @property
    def by_model(self) -> Tensor:
        """The slots as ``[n, C, P]``."""
        return self.slots.view(-1, self.C, self.slots.shape[1])

    # -- directions ----------------------------------------------------------------------------------------------------

    def look(self, g: Tensor) -> Tensor:
        """Step 1 of Algorithm 1: the directions ``d`` of the gradients ``g [n, P]``, as a new tensor."""
        self.square.copy_(torch.linalg.vector_norm(g, dim=1, dtype=torch.float64).square_())
        self.g_norm.copy_(self.square.to(self.g_norm.dtype).sqrt())
        self.finite.copy_(torch.isfinite(self.g_norm))
        return self._damped(g) if self.kind == DAMPS else self._added(g)

    def _added(self, g: Tensor) -> Tensor:
        n = (self.born > 0).sum(-1)
        for group in self.aggregations:
            rows = group.rows
            weights = adding_weights(group.aggr, group.kappa, rows.of(n), rows.of(self.finite))
            for into, values in zip((self.scale, self.share), weights):
                rows.put(into, values)
            if self.kind == PICKED:
                rows.put(self.picked, pick(group.aggr, rows.of(self.norm), rows.of(self.born)))
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
        for rule in self.rules:
            self._decide(rule, g)
        place = self.first + self.slot
        old = self.slots.index_select(0, place)
        new = torch.where(self.accept[:, None], g, old)
        self.slots.index_copy_(0, place, new)
        if self.sum is not None:
            self.sum.add_(new.sub_(old))
            self._refresh(self.sum, step)
        if self.kind == DAMPS:
            self.gram.copy_(insert_in_gram(self.gram, self.dots, self.square, self.accept, self.slot))
        self.clock.add_(self.finite)
        self.inserted.add_(self.accept)

    def _decide(self, rule: Rule, g: Tensor) -> None:
        rows, width = rule.rows, rule.width
        priority, norm, born = (rows.of(table)[:, :width] for table in (self.priority, self.norm, self.born))
        if rule.beyond is not None:
            priority = torch.where(rule.beyond, torch.inf, priority)
            born = torch.where(rule.beyond, _FUTURE, born)
        tables = Tables(
            priority=priority,
            norm=norm,
            born=born,
            t=rows.of(self.clock) + 1,
            g_norm=rows.of(self.g_norm),
            stream=rows.of(self.stream),
            seed=rule.seed,
            every=rule.every,
        )
        if rule.policy.needs_cosine:
            tables.g_dot_sum, tables.sum_sq = self._cosine(rows, g)
        if rule.donors is None:
            decision = decide(rule.policy, tables, rule.max_age)
        else:
            finite = rows.of(self.finite)
            accept = self.accept.index_select(0, rule.donors) & finite & (tables.g_norm > 0)
            decision = Decision(finite, accept, self.slot.index_select(0, rule.donors))
        for into, values in zip((self.accept, self.slot), (decision.accept, decision.slot)):
            rows.put(into, values)
        priority, norm, born = advance(rule.policy, tables, decision, rule.decay)
        if rule.beyond is not None:
            priority, born = priority.masked_fill(rule.beyond, 0), born.masked_fill(rule.beyond, 0)
        for table, values in zip((self.priority, self.norm, self.born), (priority, norm, born)):
            rows.put(table, values)

    def _cosine(self, rows: Rows, g: Tensor) -> tuple[Tensor, Tensor]:
        """The gradient times the memory's sum, and the sum's square."""
        if self.kind == DAMPS:
            return rows.of(self.dots).sum(-1), rows.of(self.gram).sum((-2, -1))
        assert self.sum is not None
        total, g = rows.of(self.sum), rows.of(g)
        return (total * g).sum(-1, dtype=torch.float64), total.square().sum(-1, dtype=torch.float64)

    def _refresh(self, total: Tensor, step: Tensor) -> None:
        """Sum one slice anew, so that rounding errors cannot pile up."""
        columns = (step * self.slice.shape[0] + self.slice) % total.shape[1]
        total.index_copy_(1, columns, self.by_model.index_select(2, columns).sum(1))

    def last_slot(self) -> Tensor:
        """The slot that the last counted step wrote, or -1: ``[n]``."""
        hit = (self.born == self.clock[:, None]) & (self.born > 0)
        return torch.where(hit.any(-1), hit.int().argmax(-1), -1)


def _column(values: Sequence[Any], dtype: torch.dtype, device: torch.device) -> Tensor:
    return torch.tensor(values, dtype=dtype, device=device)[:, None]


def _as_int64(seed: int) -> int:
    """The 64 bits of a seed that draws depend on, as torch holds them."""
    seed &= (1 << 64) - 1
    return seed - (1 << 64) if seed >> 63 else seed


def _rules(options: Sequence[Mapping[str, Any]], donors: Sequence[int | None], C: int, priority: Tensor) -> list[Rule]:
    device = priority.device
    groups: dict[tuple[bool, str, int], list[int]] = {}
    for i, o in enumerate(options):
        yoked = donors[i] is not None
        width = C if yoked or o["policy"] in MASKABLE else o["topC"]
        groups.setdefault((yoked, "" if yoked else o["policy"], width), []).append(i)
    rules = []
    for (yoked, name, width), numbers in sorted(groups.items()):  # the yoked last: their donors decide before them
        mine = [options[i] for i in numbers]
        ages = [o["max_age"] for o in mine]
        beyond = torch.arange(width) >= torch.tensor([o["topC"] for o in mine])[:, None]
        rules.append(
            Rule(
                # A replayed memory keeps plain norms as its priorities; nobody asks them.
                policy=POLICIES["KotH" if yoked else name],
                rows=Rows(numbers, device),
                width=width,
                beyond=beyond.to(device) if bool(beyond.any()) else None,
                decay=_column([o["decay"] for o in mine], priority.dtype, device),
                max_age=None
                if all(age is None for age in ages)
                else _column([_NO_AGE if age is None else age for age in ages], torch.int64, device),
                seed=_column([_as_int64(o["seed"]) for o in mine], torch.int64, device)[:, 0],
                every=_column([o["every"] for o in mine], torch.int64, device)[:, 0],
                donors=torch.tensor([donors[i] for i in numbers], device=device) if yoked else None,
            )
        )
    return rules


def _aggregations(options: Sequence[Mapping[str, Any]], device: torch.device) -> list[Aggregation]:
    groups: dict[str, list[int]] = {}
    for i, o in enumerate(options):
        groups.setdefault(o["aggr"], []).append(i)
    return [
        Aggregation(aggr, Rows(rows, device), _column([options[i]["kappa"] for i in rows], torch.float64, device)[:, 0])
        for aggr, rows in groups.items()
    ]
