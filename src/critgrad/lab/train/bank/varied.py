"""Damping in variants: memories of many models, all of one ``Variant`` with one base, worked on together.

Row ``r`` of the Gram matrices is part ``r % B`` of model ``r // B``; with one part it is ``memories.Memories`` to the bit.
The tables of the selection have a row for each model, or one for each part that decides for itself.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from typing import Any

import torch
from torch import Tensor

from critgrad.aggregate import damping_weights, insert_in_gram
from critgrad.policies import Policy, Tables

from ..variants import Variant
from .families import GRADIENT, Dampable, Update
from .members import VARIED
from .memories import BLOCK
from .roots import SMALLEST_RHO, redundancy, root_weights
from .rows import Rows
from .selection import Rule, Selection, column

NOISE_DECAY = 0.99  # of the running mean gradient that stands for the signal
LARGEST_SIGNAL = 10.0  # times the power of the slots
_NEVER = torch.iinfo(torch.int64).max


@dataclass(frozen=True)
class Run:
    """What a memory knows of the run: the number of the step that is being taken, how many there are, who clips."""

    number: Tensor
    steps: int
    clips: bool


def parts_of(blocks: str, names: Sequence[str], shapes: Sequence[torch.Size]) -> list[slice]:
    """The parts of the flat parameters that are damped apart, for an option ``blocks`` of a variant.

    >>> shapes = [torch.Size((2, 3, 1, 1)), torch.Size((2,)), torch.Size((4, 2)), torch.Size((4,)), torch.Size((1, 4))]
    >>> names = ["conv.weight", "conv.bias", "inner.weight", "inner.bias", "outer.weight"]
    >>> [len(parts_of(blocks, names, shapes)) for blocks in ("all", "kinds", "layers", "tensors")]
    [1, 2, 3, 5]
    """
    layers = [name.rpartition(".")[0] for name in names]
    keys: list[Any] = [None] * len(names)
    if blocks == "tensors":
        keys = list(range(len(names)))
    elif blocks == "layers":
        keys = list(layers)
    elif blocks == "kinds":
        rank: dict[str, int] = {}
        for layer, shape in zip(layers, shapes):
            rank[layer] = max(rank.get(layer, 0), len(shape))
        kind = 0
        for i, layer in enumerate(layers):
            kind = rank[layer] if rank[layer] > 1 else kind  # a norm belongs to what it follows
            keys[i] = kind
    parts, at = [], 0
    for _, group in groupby(zip(keys, shapes), key=lambda pair: pair[0]):
        size = sum(math.prod(shape) for _, shape in group)
        parts.append(slice(at, at + size))
        at += size
    return parts


class Varied(Selection):
    """The memories of ``n`` models with one variant. A step is ``d = look(g)``, the base's update, ``insert(g, t)``.

    Where the gradient is not what is damped, ``look`` gives it back as it is and the base asks for ``damp``.
    """

    kind = VARIED

    def __init__(
        self,
        variant: Variant,
        options: Sequence[Mapping[str, Any]],
        like: Tensor,
        parts: Sequence[slice],
        update: Update,
        run: Run,
    ) -> None:
        self.variant, self.parts, self.update, self.run = variant, list(parts), update, run
        self.n, self.B = len(options), len(parts)
        self.own = variant.select == "block"  # each part decides for itself
        rows = [o for o in options for _ in parts] if self.own else list(options)
        super().__init__(rows, [None] * len(rows), like)
        n, B, C, P, device = self.n, self.B, self.C, like.shape[1], like.device
        wide: dict[str, Any] = {"dtype": torch.float64, "device": device}
        self.slots = torch.zeros(n, C, P, dtype=like.dtype, device=device)
        self.first = torch.arange(n, device=device) * C
        self.gram = torch.zeros(n * B, C, C, **wide)
        self.dots = torch.zeros(n * B, C, **wide)  # of what asks for a place (own metric: of what was damped last)
        self.squares = torch.zeros(n * B, **wide)  # of its parts
        self.weights = torch.zeros(n * B, C, **wide)
        self.base_rho = column([o["rho"] for o in options], torch.float64, device)[:, 0]
        self.rho = self.base_rho.clone()
        self.kappa: Any = self._for_parts(column([o["kappa"] for o in options], torch.float64, device))
        if self.own:
            self.stream.copy_(torch.arange(B, device=device).repeat(n) + (1 << 20))  # those of scope="tensor"
        self.own_metric = variant.metric == "adam"
        self.raw = torch.zeros_like(like) if variant.before_clip and run.clips else None
        if variant.rho_rule == "noise":
            self.mean = torch.zeros_like(like)
            self.mean_square, self.weight, self.weight_square = (torch.zeros(n, **wide) for _ in range(3))
        if isinstance(update, Dampable) and variant.apply != GRADIENT:
            update.damper, update.place = self.damp, variant.apply
            update.own_metric = self.own_metric

    # -- rows of models, of parts, of the selection --------------------------------------------------------------------

    def _for_parts(self, by_model: Tensor) -> Tensor:
        """A model's values for each of its parts."""
        if self.B == 1:
            return by_model
        return by_model[:, None].expand(self.n, self.B, *by_model.shape[1:]).reshape(-1, *by_model.shape[1:])

    def _chosen_for_parts(self, by_row: Tensor) -> Tensor:
        """The selection's values for each part."""
        return by_row if self.own else self._for_parts(by_row)

    def _for_selection(self, by_part: Tensor) -> Tensor:
        """Sums over the parts that are selected together."""
        return by_part if self.own or self.B == 1 else by_part.view(self.n, self.B, *by_part.shape[1:]).sum(1)

    def _for_models(self, by_row: Tensor) -> Tensor:
        """The selection's values, summed for each model."""
        return by_row.view(self.n, -1).sum(1)

    # -- directions ----------------------------------------------------------------------------------------------------

    def before_clipping(self, g: Tensor) -> None:
        """Keep the gradients as they are before they are clipped, if that is what is stored."""
        if self.raw is not None:
            self.raw.copy_(g)

    def look(self, g: Tensor) -> Tensor:
        """The directions of the gradients ``g [n, P]``: damped, or as they are where the base asks for ``damp``."""
        stored = g if self.raw is None else self.raw
        self._measure(stored)
        if not self.own_metric:
            self._dots(stored, self.dots)
        self._set_rho()
        if self.variant.apply != GRADIENT:
            return g
        scale = None
        if self.own_metric:  # that of the last step: this step's second moment needs the direction first
            before = (self.run.number - 1).clamp(min=1).double()
            scale = self.update.denominator(before)  # type: ignore[attr-defined]
        return self.damp(g, scale)

    def damp(self, x: Tensor, scale: Tensor | None) -> Tensor:
        """``x [n, P]`` with what lies along the memory damped; ``scale`` is that of the base's metric."""
        if self.own_metric:
            assert scale is not None
            self._weigh(x, scale)
            dots = self.dots
        elif self.variant.apply == GRADIENT and self.raw is None:
            dots = self.dots  # x is what asks for a place
        else:
            dots = torch.empty_like(self.dots)
            self._dots(x, dots)
        solve = damping_weights if self.variant.power == 1 else root_weights
        rho: Any = self._for_parts(self.rho)[:, None, None]
        self.weights.copy_(solve(self.gram, dots, rho, self.kappa, self._chosen_for_parts(self.finite)))
        w = self.weights.to(x.dtype).view(self.n, self.B, 1, self.C)
        pieces = [
            torch.baddbmm(x[:, None, part], w[:, b], self.slots[:, :, part], alpha=-1).squeeze(1)
            for b, part in enumerate(self.parts)
        ]
        return pieces[0] if self.B == 1 else torch.cat(pieces, 1)

    def _measure(self, stored: Tensor) -> None:
        if self.B > 1:
            norms = [torch.linalg.vector_norm(stored[:, part], dim=1, dtype=torch.float64) for part in self.parts]
            self.squares.copy_(torch.stack(norms, 1).square_().view(-1))
        if self.own:
            self.measure(self.squares.sqrt())
        else:
            self.measure(torch.linalg.vector_norm(stored, dim=1, dtype=torch.float64))
        if self.B == 1:
            self.squares.copy_(self.square)

    def _dots(self, x: Tensor, into: Tensor) -> None:
        """The slots times ``x``, part by part; sums of more than ``BLOCK`` values in float64."""
        table = into.view(self.n, self.B, self.C)
        table.zero_()
        for b, start, stop in self._stretches():
            table[:, b].add_(torch.bmm(self.slots[:, :, start:stop], x[:, start:stop, None]).squeeze(-1))

    def _weigh(self, x: Tensor, scale: Tensor) -> None:
        """Gram matrices and dots anew, with each coordinate divided by its scale."""
        gram, dots = self.gram.view(self.n, self.B, self.C, self.C), self.dots.view(self.n, self.B, self.C)
        gram.zero_()
        dots.zero_()
        for b, start, stop in self._stretches():
            slots = self.slots[:, :, start:stop]
            weighed = slots / scale[:, None, start:stop]
            gram[:, b].add_(torch.bmm(weighed, slots.mT))
            dots[:, b].add_(torch.bmm(weighed, x[:, start:stop, None]).squeeze(-1))

    def _stretches(self) -> list[tuple[int, int, int]]:
        """``(part, start, stop)`` of stretches of at most ``BLOCK`` values."""
        return [
            (b, start, min(start + BLOCK, part.stop))
            for b, part in enumerate(self.parts)
            for start in range(part.start, part.stop, BLOCK)
        ]

    # -- rho -----------------------------------------------------------------------------------------------------------

    def _set_rho(self) -> None:
        """Set the rho of the step: like all of the memory, a function of the past alone."""
        rule = self.variant.rho_rule
        if rule == "fixed":
            return
        if rule == "noise":
            self.rho.copy_((self.base_rho * self._signal()).clamp(min=SMALLEST_RHO))
            return
        way = (self.run.number - 1).double() / self.run.steps
        left = 1 - way if rule == "linear" else (1 + torch.cos(torch.pi * way)) / 2
        self.rho.copy_(self.base_rho * left + SMALLEST_RHO)

    def _signal(self) -> Tensor:
        """``|mean gradient|^2`` over the mean square of the stored norms, per model.

        A mean of noise has a length, too: its expectation, the sum of squared weights times the mean square of the
        gradients' norms, is taken off.
        """
        tiny = torch.finfo(torch.float64).tiny
        weight = self.weight.clamp(min=tiny)
        length = torch.linalg.vector_norm(self.mean, dim=1, dtype=torch.float64).square() / weight.square()
        share = self.weight_square / weight.square()
        signal = (length - share * self.mean_square / weight) / (1 - share).clamp(min=tiny)
        live = self.born > 0
        power = (self.norm.double().square() * live).sum(-1) / live.sum(-1).clamp(min=1)
        ratio = signal / self._for_models(power).clamp(min=tiny)
        return torch.where(share < 1, ratio, 0.0).clamp(0, LARGEST_SIGNAL)

    def _follow_mean(self, stored: Tensor) -> None:
        whole = self._for_models((~self.finite).long()) == 0
        new = (1 - NOISE_DECAY) * whole.double()
        keep = 1 - new
        self.mean.mul_(keep.to(self.mean.dtype)[:, None])
        self.mean.add_(torch.where(whole[:, None], stored, 0.0) * new.to(self.mean.dtype)[:, None])
        square = torch.where(whole, self._for_models(self.square), 0.0)
        self.mean_square.mul_(keep).add_(square * new)
        self.weight.mul_(keep).add_(new)
        self.weight_square.mul_(keep.square()).add_(new.square())

    # -- insertion -----------------------------------------------------------------------------------------------------

    def insert(self, g: Tensor, step: Tensor) -> None:
        """Decide, store, decay, tick."""
        stored = g if self.raw is None else self.raw
        self.decide(stored)
        if self.own:
            self._write_parts(stored)
        else:
            slots, place = self.slots.view(self.n * self.C, -1), self.first + self.slot
            slots.index_copy_(0, place, torch.where(self.accept[:, None], stored, slots.index_select(0, place)))
        if not self.own_metric:
            accept, slot = self._chosen_for_parts(self.accept), self._chosen_for_parts(self.slot)
            self.gram.copy_(insert_in_gram(self.gram, self.dots, self.squares, accept, slot))
        if self.variant.rho_rule == "noise":
            self._follow_mean(stored)
        self.tick()

    def _write_parts(self, stored: Tensor) -> None:
        accept, slot = self.accept.view(self.n, self.B), self.slot.view(self.n, self.B)
        for b, part in enumerate(self.parts):
            slots, size = self.slots[:, :, part], part.stop - part.start
            index = slot[:, b, None, None].expand(self.n, 1, size)
            new = torch.where(accept[:, b, None, None], stored[:, None, part], slots.gather(1, index))
            slots.scatter_(1, index, new)

    def policy(self, rule: Rule) -> Policy:
        """The rule's policy, with this variant's eviction."""
        if self.variant.evict == "policy":
            return rule.policy
        return replace(rule.policy, evict=partial(self._most_redundant, rule))

    def _most_redundant(self, rule: Rule, tables: Tables) -> Tensor:
        width = rule.width
        gram = rule.rows.of(self._for_selection(self.gram))[:, :width, :width]
        share = redundancy(gram, rule.rows.of(self.born)[:, :width] > 0)
        most = share.amax(-1, keepdim=True)
        return torch.where(share == most, tables.born, _NEVER).argmin(-1)

    def cosine(self, rows: Rows, g: Tensor) -> tuple[Tensor, Tensor]:
        """The gradient times the memory's sum, and the sum's square."""
        dots, gram = self._for_selection(self.dots), self._for_selection(self.gram)
        return rows.of(dots).sum(-1), rows.of(gram).sum((-2, -1))
