"""The plain path: a memory's part of a step in ordinary torch operations.

Two twins. Where the tables can be read (a CPU), the decision is taken to the host: a gradient that is not stored costs
nothing, and big tensors are worked through in blocks that stay in cache (blocks.py). On an accelerator and under
``torch.compile`` nothing is looked at: every choice is a ``where``, every slot an index that only the device knows.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from . import blocks
from .aggregate import PICKS, adding_weights, damping_weights, insert_in_gram, pick
from .host import HostDecision, knows
from .layout import like
from .measure import Sums, measure, on_host
from .memory import REFRESH_STEPS_PER_SLOT, SMALLEST_REFRESH, Memory, Part
from .policies import Decision, Tables, advance, decide
from .slots import SCALE_BLOCK, saturate

DEVICE_BLOCK = 1 << 20  # values
_FEW = 1 << 14  # values of a tensor that is worked on in a list with others


class Visit:
    """One step of one memory: made when the gradients are there, asked for directions, then told to insert."""

    def __init__(self, memory: Memory, grads: Sequence[Tensor | None]) -> None:
        self.memory = memory
        parts = memory.parts
        # Slots in host memory cannot be reached by an index on the device: then the decision is waited for.
        offloaded = any(part.slots.values.device != part.device for part in parts)
        self.host = not torch.compiler.is_compiling() and (on_host(memory.born) or offloaded)
        self._decision: Decision | None = None
        self._weights: dict[Any, Any] = {}
        self.stored: set[Part] = set()  # whose insertion is done
        with torch.no_grad():
            self.grads = [None if g is None else part.layout.flat(g.detach()) for part, g in zip(parts, grads)]
            self.sums: Sums = measure(memory, self.grads)
            known = self.host and on_host(memory.born) and knows(memory)
            self.by_host = HostDecision(memory, self.sums.square) if known else None
            if self.by_host is not None:
                found = self.by_host
                self.finite, self.accept, self.slot = [found.finite], [found.accept], [found.slot]
                self.live = [found.live]
            else:
                self._decide()

    def _decide(self) -> None:
        memory = self.memory
        self.tables = Tables(
            priority=memory.priority,
            norm=memory.norm,
            born=memory.born,
            t=memory.clock + 1,
            g_norm=self.sums.square.to(memory.dtype).sqrt(),
            stream=memory.stream,
            seed=memory.seed,
            every=memory.every,
            g_dot_sum=self.sums.g_dot_sum,
            sum_sq=self.sums.sum_sq,
            g_dot_slots=self.sums.all_dots,
            policy=memory.policy.name,
        )
        self._decision = decide(memory.policy, self.tables, memory.max_age)
        if self.host:
            self.finite, self.accept, self.slot = (field.tolist() for field in self._decision)
            self.live = self.tables.live.sum(-1).tolist()

    @property
    def decision(self) -> Decision:
        """As tensors, wherever it was taken."""
        if self._decision is None:
            fields = (self.finite, self.accept, self.slot)
            self._decision = Decision(*(torch.tensor(field, device="cpu") for field in fields))
        return self._decision

    # -- directions ----------------------------------------------------------------------------------------------------

    def directions(self) -> list[Tensor | None]:
        """For each part what the base optimizer is to see instead of its gradient; ``None``: the gradient itself."""
        with torch.no_grad():
            flats = self._flat_directions()
            return [
                None if d is None else like(part.param, part.layout.unflatten(d))
                for part, d in zip(self.memory.parts, flats)
            ]

    def _flat_directions(self) -> list[Tensor | None]:
        out: list[Tensor | None] = [None] * len(self.grads)
        few: list[int] = []
        for i in range(len(self.grads) - 1, -1, -1):  # backwards: see blocks.py
            part, g = self.memory.parts[i], self.grads[i]
            if g is None or (self.host and not self._has_entries(part)):
                continue
            if not part.damps and part.layout.length <= _FEW and self._in_lists(part, g):
                few.append(i)
            elif self.host and on_host(g):
                out[i] = self._in_blocks(part, g)
            else:
                out[i] = self._damped(part, g) if part.damps else self._added(part, g)
        for i, d in zip(few, self._added_in_lists(few)):
            out[i] = d
        return out

    def _in_blocks(self, part: Part, g: Tensor) -> Tensor:
        """On a CPU: the direction, and in the same visit the insertion where nothing is rounded for it."""
        early = self.accept[part.row] and part.slots.is_exact and g.dtype == part.work
        source = None if part.damps else self._source(part)
        early = early and (part.damps or source is part.sum)
        slot = self.slot[part.row] if early else None
        if early:
            self.stored.add(part)
        if source is None:
            return blocks.damp(part, g, self._damping(part).to(part.device, part.work), slot)
        return blocks.add(part, g, source, self._adding(part), slot)

    def _has_entries(self, part: Part) -> bool:
        return self.live[part.row] > 0 and self.finite[part.row]

    def _in_lists(self, part: Part, g: Tensor) -> bool:
        return g.dtype == part.work and part.options["aggr"] not in PICKS

    def _adding(self, part: Part) -> tuple[Any, Any]:
        """``(scale, share)`` of the part's row: floats on the host, 0-dim tensors elsewhere."""
        key = (part.options["aggr"], part.options["kappa"])
        if self.host:
            weights = self.memory.adding_weights(*key)
            return weights[self.live[part.row] if self.finite[part.row] else 0]
        if key not in self._weights:
            self._weights[key] = adding_weights(*key, self.tables.live.sum(-1), self.decision.finite)
        scale, share = self._weights[key]
        return scale[part.row].to(part.device, part.work), share[part.row].to(part.device, part.work)

    def _source(self, part: Part) -> Tensor:
        """What is added: the memory's sum, or the one gradient that the aggregation picks."""
        aggr = part.options["aggr"]
        if aggr not in PICKS:
            assert part.sum is not None
            return part.sum
        if ("pick", aggr) not in self._weights:
            picked = pick(aggr, self.memory.norm, self.memory.born)
            self._weights["pick", aggr] = picked.tolist() if self.host else picked
        k = self._weights["pick", aggr][part.row]
        return part.slots.row(k) if self.host else part.slots.row_at(k.to(part.device))

    def _added_in_lists(self, few: list[int]) -> list[Tensor]:
        """Small tensors together: three calls for all of them."""
        if not few:
            return []
        parts = [self.memory.parts[i] for i in few]
        grads = [g for i in few if (g := self.grads[i]) is not None]
        weights = [self._adding(part) for part in parts]
        sums = [self._source(part) for part in parts]
        if self.host and len(set(weights)) == 1:
            scale, share = weights[0]
            d = list(torch._foreach_add(grads, sums, alpha=share))
            if scale != 1:
                torch._foreach_mul_(d, scale)
            return d
        d = list(torch._foreach_mul(sums, [share for _, share in weights]))
        torch._foreach_add_(d, grads)
        torch._foreach_mul_(d, [scale for scale, _ in weights])
        return d

    def _added(self, part: Part, g: Tensor) -> Tensor:
        scale, share = self._adding(part)
        d = self._source(part) * share
        d.add_(g).mul_(scale)
        if d.dtype == g.dtype:
            return d
        # A sum of two half values may be too large for one; a gradient that was not finite stays as it is.
        return torch.where(self.decision.finite[part.row].to(part.device), saturate(d, g.dtype), g)

    def _damped(self, part: Part, g: Tensor) -> Tensor:
        """``d = g - sum_i w_i G_i``: the second pass over the slots, in blocks of columns."""
        w = self._damping(part).to(part.device, part.work)
        C, length = part.slots.values.shape
        finite = self.decision.finite[part.row].to(part.device)
        d = torch.empty_like(g)
        for start in range(0, length, DEVICE_BLOCK):
            stop = min(start + DEVICE_BLOCK, length)
            G = part.slots.columns(start, stop)
            g_ = g[start:stop].to(part.work)
            for i in range(C):  # row by row: a matrix product may round to TF32
                g_ = torch.addcmul(g_, G[i], w[i], value=-1)
            d[start:stop].copy_(torch.where(finite, saturate(g_, g.dtype), g[start:stop]))
        return d

    def _damping(self, part: Part) -> Tensor:
        key = ("fisher", part.options["rho"], part.options["kappa"])
        if key not in self._weights:
            assert self.memory.gram is not None
            assert self.sums.dots is not None
            usable = self.decision.finite
            self._weights[key] = damping_weights(self.memory.gram, self.sums.dots, key[1], key[2], usable)
        return self._weights[key][part.row]

    def differentiable_directions(self, grads: Sequence[Tensor | None]) -> list[Tensor | None]:
        """The directions as functions of the gradients that autograd can follow; the memory is a constant."""
        parts = self.memory.parts
        flats = [None if g is None else part.layout.flat(g) for part, g in zip(parts, grads)]
        # Copies: the slots are written in later steps, and backward comes after those.
        rows = [part.slots.columns(0, part.layout.length).clone() if part.damps else None for part in parts]
        dots: list[Any] = [0.0] * self.memory.rows
        for part, g, G in zip(parts, flats, rows):
            if G is not None and g is not None:
                dots[part.row] = dots[part.row] + (G * g).sum(-1, dtype=torch.float64)
        out: list[Tensor | None] = []
        for part, g, G in zip(parts, flats, rows):
            if g is None:
                out.append(None)
                continue
            if G is not None:
                assert self.memory.gram is not None
                here = slice(part.row, part.row + 1)
                w = damping_weights(
                    self.memory.gram[here],
                    dots[part.row][None],
                    part.options["rho"],
                    part.options["kappa"],
                    self.decision.finite[here],
                )
                d = g - (w[0].to(part.work)[:, None] * G).sum(0)
            else:
                scale, share = self._adding(part)
                d = (g + self._source(part) * share) * scale
            out.append(part.layout.unflatten(d.to(g.dtype)))
        return out

    # -- insertion -----------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def insert(self) -> None:
        """Steps 3 and 4 of Algorithm 1: store the gradient if it was admitted, decay every priority, tick."""
        memory = self.memory
        if self.host and not any(self.finite):
            return
        if self.host:
            self._store_small_ones()
        for part, g in zip(memory.parts, self.grads):
            if not self.host:
                self._insert(part, g)
            elif self.accept[part.row] and part not in self.stored:
                blocks.store(part, g, self.slot[part.row])
        if memory.gram is not None and not (self.host and not any(self.accept)):
            row, square, decision = self.sums.row, self.sums.own_square, self.decision
            assert row is not None
            assert square is not None
            memory.gram.copy_(insert_in_gram(memory.gram, row, square, decision.accept, decision.slot))
        if self.by_host is not None:
            self.by_host.advance()
        else:
            self._advance()
        if self.host and not memory.by_tensor:
            self._refresh_rolling()
            return
        for part in memory.parts:
            if part.sum is not None:
                self._refresh_on_host(part) if self.host else self._refresh(part)

    def _advance(self) -> None:
        memory, decision = self.memory, self.decision
        tables = advance(memory.policy, self.tables, decision, memory.decay)
        for table, new in zip((memory.priority, memory.norm, memory.born), tables):
            table.copy_(new)
        memory.clock.add_(decision.finite)
        memory.inserted.add_(decision.accept)

    def _store_small_ones(self) -> None:
        """Small exact tensors together: three calls for all of them."""
        chosen = [
            (part, g)
            for part, g in zip(self.memory.parts, self.grads)
            if g is not None
            and self.accept[part.row]
            and part.layout.length <= _FEW
            and part.slots.is_exact
            and g.dtype == part.work
        ]
        if not chosen:
            return
        rows = [part.slots.values[self.slot[part.row]] for part, _ in chosen]
        grads = [g for _, g in chosen]
        sums = [(part.sum, row, g) for (part, g), row in zip(chosen, rows) if part.sum is not None]
        if sums:
            totals, olds, news = (list(column) for column in zip(*sums))
            torch._foreach_sub_(totals, olds)
            torch._foreach_add_(totals, news)
        torch._foreach_copy_(rows, grads)
        self.stored.update(part for part, _ in chosen)

    def _insert(self, part: Part, g: Tensor | None) -> None:
        slots = part.slots
        k = self.decision.slot[part.row].to(part.device)
        accept = self.decision.accept[part.row].to(part.device)
        if g is None:
            g = torch.zeros(part.layout.length, dtype=part.work, device=part.device)
        values, scale = slots.encode(g)
        if part.sum is not None:
            old = slots.row_at(k)
            part.sum.add_(torch.where(accept, slots.decode(values, scale) - old, 0.0))
        slots.write_at(k, accept, values, scale)

    def _refresh_rolling(self) -> None:
        """One slice of all sums, laid end to end: the same bytes as a slice of each, in one or two operations."""
        ends, parts = self.memory.summed
        if not parts:
            return
        steps = REFRESH_STEPS_PER_SLOT * self.memory.topC
        length = max(-(-ends[-1] // steps), SMALLEST_REFRESH)
        start = self._clock(0) % steps * length
        for i in range(bisect_right(ends, start), len(parts)):
            first = ends[i] - parts[i].layout.length
            if first >= start + length:
                break
            total = parts[i].sum
            assert total is not None
            begin = max(start - first, 0) // SCALE_BLOCK * SCALE_BLOCK
            stop = min(start + length - first, parts[i].layout.length)
            torch.sum(parts[i].slots.columns(begin, stop), 0, out=total[begin:stop])

    def _refresh_on_host(self, part: Part) -> None:
        """NOTE [refresh]: the slice is a function of the clock alone, so a resumed run refreshes the same slices."""
        length, steps = part.refresh_span()
        start = (self._clock(part.row) + part.number) % steps * length
        if start < part.layout.length and part.sum is not None:
            stop = min(start + length, part.layout.length)
            part.sum[start:stop] = part.slots.columns(start, stop).sum(0)

    def _clock(self, row: int) -> int:
        """After this step."""
        if self.by_host is not None:
            return self.by_host.t
        if "clock" not in self._weights:
            self._weights["clock"] = self.memory.clock.tolist()
        return int(self._weights["clock"][row])

    def _refresh(self, part: Part) -> None:
        assert part.sum is not None
        length, steps = part.refresh_span()
        length = min(length, part.layout.length)
        if length == 0:
            return
        clock = self.memory.clock[part.row].to(part.device)
        slices = -(-part.layout.length // length)
        # Beyond the last slice the last one is summed once more: the work must be the same in every step.
        start = ((clock + part.number) % steps).clamp(max=slices - 1) * length
        index = (start + torch.arange(length, device=part.device)).clamp(max=part.layout.length - 1)
        part.sum.index_copy_(0, index, part.slots.columns_at(index).sum(0))
