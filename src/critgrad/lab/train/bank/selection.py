"""Whose gradients are kept: the small tables of many memories, and the decisions that are taken on them at once.

The rules are the library's own (``critgrad.memory.policies``), which take a row for each memory. A row is a model's memory, or
the memory of one part of a model; the slots themselves belong to whoever owns the tables. Nothing looks at a value on
the host, so a CUDA graph can hold a step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from critgrad.memory.policies import POLICIES, Decision, Policy, Tables, advance, decide

# Policies whose rules leave slots alone that are dressed as live, infinitely strong and born in the far future: models
# of different topC are then decided at once. The others count slots, and are decided apart for each topC.
MASKABLE = frozenset({"KotH", "bottomC", "FIFO", "random", "CDS", "CSS", "sparse"})
_FUTURE = 1 << 62
_NO_AGE = 1 << 62


class Rows:
    """Rows of tensors whose first axis is the model: a view where they are neighbours, a gather where they are not.

    >>> table = torch.arange(4)
    >>> Rows([1, 2], "cpu").of(table).tolist(), Rows([0, 3], "cpu").of(table).tolist()
    ([1, 2], [0, 3])
    """

    def __init__(self, numbers: Sequence[int], device: torch.device | str) -> None:
        self.numbers = list(numbers)
        self.span: slice | None = None
        if self.numbers == list(range(self.numbers[0], self.numbers[-1] + 1)):
            self.span = slice(self.numbers[0], self.numbers[-1] + 1)
        self.index = torch.tensor(self.numbers, device=device)

    def of(self, table: Tensor) -> Tensor:
        """These rows of ``table``."""
        return table[self.span] if self.span is not None else table.index_select(0, self.index)

    def put(self, table: Tensor, values: Tensor) -> None:
        """Write ``values`` into these rows of ``table``; columns that ``values`` lacks become 0."""
        if values.dim() > 1 and values.shape[1] < table.shape[1]:
            values = torch.nn.functional.pad(values, (0, table.shape[1] - values.shape[1]))
        if self.span is not None:
            table[self.span].copy_(values)
        else:
            table.index_copy_(0, self.index, values.to(table.dtype))


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


class Selection:
    """The tables of several memories, one row each, and how they change in a step."""

    def __init__(self, options: Sequence[Mapping[str, Any]], donors: Sequence[int | None], like: Tensor) -> None:
        self.options = options
        n, device = len(options), like.device
        self.C = C = max(o["topC"] for o in options)
        table = torch.float64 if like.dtype == torch.float64 else torch.float32
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
        self.rules = _rules(options, donors, C, self.priority)
        self.needs_cosine = any(rule.policy.needs_cosine for rule in self.rules)

    def measure(self, norm: Tensor) -> None:
        """Note the norms (float64) of the gradients that ask for a place."""
        self.square.copy_(norm.square_())
        self.g_norm.copy_(self.square.to(self.g_norm.dtype).sqrt())
        self.finite.copy_(torch.isfinite(self.g_norm))

    def decide(self, g: Tensor) -> None:
        """Steps 3 and 4 of Algorithm 1 on the tables: whether each gradient enters, and in whose place."""
        for rule in self.rules:
            self._decide(rule, g)

    def tick(self) -> None:
        """Count the step."""
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
            tables.g_dot_sum, tables.sum_sq = self.cosine(rows, g)
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

    def add_products(self) -> None:
        """Tables for damping: the products of the stored gradients with one another and with the step's gradient."""
        wide: dict[str, Any] = {"dtype": torch.float64, "device": self.priority.device}
        n, C = self.priority.shape
        self.gram = torch.zeros(n, C, C, **wide)
        self.dots, self.weights = torch.zeros(n, C, **wide), torch.zeros(n, C, **wide)
        self.rho: Any = column([o["rho"] for o in self.options], **wide)[..., None]
        self.kappa: Any = column([o["kappa"] for o in self.options], **wide)

    def cosine(self, rows: Rows, g: Tensor) -> tuple[Tensor, Tensor]:
        """The gradient times the memory's sum, and the sum's square; asked for by policies that look at angles."""
        return rows.of(self.dots).sum(-1), rows.of(self.gram).sum((-2, -1))

    def last_slot(self) -> Tensor:
        """The slot that the last counted step wrote, or -1: ``[n]``."""
        hit = (self.born == self.clock[:, None]) & (self.born > 0)
        return torch.where(hit.any(-1), hit.int().argmax(-1), -1)


def column(values: Sequence[Any], dtype: torch.dtype, device: torch.device) -> Tensor:
    """One value for each row, ``[rows, 1]``."""
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
                decay=column([o["decay"] for o in mine], priority.dtype, device),
                max_age=None
                if all(age is None for age in ages)
                else column([_NO_AGE if age is None else age for age in ages], torch.int64, device),
                seed=column([_as_int64(o["seed"]) for o in mine], torch.int64, device)[:, 0],
                every=column([o["every"] for o in mine], torch.int64, device)[:, 0],
                donors=torch.tensor([donors[i] for i in numbers], device=device) if yoked else None,
            )
        )
    return rules
