"""The engine that needs torch alone: a store's part of a step in ordinary operations, on whatever device.

Where the tables can be read (a CPU), the decision is taken to the host, and a gradient that is not stored costs nothing. On
an accelerator and under ``torch.compile`` nothing is looked at: every choice is a ``where``, every slot an index that only
the device knows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..memory.aggregations import Linear, Pick, adding_weights
from ..memory.damping import damping_weights, insert_in_gram
from ..memory.formats import saturate
from ..memory.gram import settle
from ..memory.layout import on_host
from ..memory.policies import Decision, decide
from ..memory.store import Block, Store
from . import unseen
from .products import DEVICE_PIECE, add_rows
from .scratch import Scratch, scratch_for
from .sums import Sums, measure, read

HOST_PIECE = 1 << 17  # values: four arrays of them are about what a core can keep in cache


class TorchOps:
    """One step of one store, in the order of ``prepared.run``: ``measure``, ``decide``, ``apply``.

    NOTE [differentiable]: with autograd switched on (bases with ``differentiable=True``) directions are functions of the
    gradients; what was held before the step is a constant.
    """

    name, stepped = "torch", False  # the base always steps by itself

    def __init__(self, store: Store, epilogue: Any = None) -> None:
        self.store = store
        self.scratch: Scratch | None = None
        settle(store)

    # -- measuring and deciding ----------------------------------------------------------------------------------------

    def measure(self, grads: Sequence[Tensor | None]) -> Tensor:
        """The sums of this rank; ``grads`` are one for each part, ``None`` where there is none."""
        store = self.store
        self.present = [g is not None for g in grads]
        flats = [None if g is None else part.layout.flat(g) for part, g in zip(store.parts, grads)]
        # Slots in host memory cannot be reached by an index on the device: then the decision is waited for.
        offloaded = any(part.offloaded for part in store.parts)
        self.host = not torch.compiler.is_compiling() and (on_host(store.born) or offloaded)
        self.g: list[Tensor | None] = [
            flats[b.number] if len(b.parts) == 1 else unseen.joined(b, flats) for b in store.blocks
        ]
        return measure(store, self.g)

    def decide(self, sums: Tensor, priority: Tensor | None) -> None:
        """Which slots are written, and the weights of the direction."""
        store, found = self.store, read(sums, self.store)
        self.sums: Sums = found
        with torch.no_grad():
            self.tables = store.asks(
                found.square, priority, g_dot_sum=found.g_dot_sum, sum_sq=found.sum_sq, g_dot_slots=found.all_dots
            )
            self.decision: Decision = decide(store.policy, self.tables, store.options["max_age"])
            self.live = self.tables.live.sum(-1)
        groups = {id(block.options): block for block in store.blocks}
        weights = {key: self._weights(block) for key, block in groups.items()}  # once for all blocks of a group
        self.weights = [weights[id(block.options)] for block in store.blocks]
        if self.host:
            self.finite, self.accept, self.slot = (field.tolist() for field in self.decision)
            self.counts = self.live.tolist()

    def _weights(self, block: Block) -> tuple[Tensor, Tensor, Tensor | None]:
        """``(of the gradient, of what is added, which slot that is)`` by row, for a block's options; see ``_visit``."""
        store, options = self.store, block.options
        aggregation, usable = block.parts[0].aggregation, self.decision.finite
        if isinstance(aggregation, (Linear, Pick)):
            picked = aggregation.weights(store.norm, store.born) if isinstance(aggregation, Pick) else None
            return *adding_weights(aggregation, options["kappa"], self.live, usable), picked
        if aggregation.damps:
            assert store.gram is not None
            w = damping_weights(store.gram, self.sums.dots, options["rho"], options["kappa"], usable, store.dtype)
            return torch.ones_like(w[:, 0]), -w, None
        return *aggregation.slot_weights(self.tables, usable), None

    # -- directions and insertion --------------------------------------------------------------------------------------

    def apply(self, fresh: bool, directions: bool = True, offer: bool = True) -> list[Tensor | None]:
        """For each part its direction, shaped; ``None``: the gradient itself. Then what was admitted is stored.

        ``fresh``: in memory of their own, for callers who may keep them.
        """
        out: list[Tensor | None] = [None] * len(self.store.parts)
        fresh |= torch.is_grad_enabled()
        if directions and not fresh and on_host(self.store.born) and any(self.counts):
            self.scratch = scratch_for(self.store.parts, self.scratch)
        for block, g, weights in zip(self.store.blocks, self.g, self.weights):
            d, k = None, self.slot[block.row] if offer and self.host and self.accept[block.row] else None
            used = not self.host or (self.counts[block.row] > 0 and self.finite[block.row])
            if directions and used and g is not None:
                room = self.scratch if not fresh and on_host(g) and len(block.parts) == 1 else None
                d = torch.empty_like(g) if room is None else room.flats[block.number]
                for part in [part for part in block.parts if self.present[part.number]]:
                    out[part.number] = part.layout.unflatten(d[part.start : part.start + part.length])
            if d is not None or k is not None:
                self._visit(block, g, d, k, *weights)
        if offer:
            self._offer()
        self.g = []  # views: zero_grad() is to free the gradients
        return out

    def _visit(self, block: Block, g: Any, d: Any, k: int | None, scale: Tensor, share: Tensor, picked: Any) -> None:
        """Into ``d`` the direction, then into row ``k`` the gradient, unless ``None``; on a CPU while both are in the cache.

        The direction is ``scale * (g + share * source)``, the source the sum or a pick; or each slot has a share of its own.
        """
        scale, share = (weight[block.row].to(block.device, block.work) for weight in (scale, share))
        source = None if share.dim() else block.sum
        if picked is not None:
            pick = picked[block.row]
            source = block.slots.row(int(pick)) if self.host else unseen.row(block.slots, pick.to(block.device))
        # That takes no room beside the direction.
        whole = source is not None and d is not None and d.dtype == block.work
        host = self.host and block.device.type == "cpu"
        size = HOST_PIECE if host else max(block.length, 1) if whole else DEVICE_PIECE
        for start in range(0, block.length, size):
            stop = min(start + size, block.length)
            if d is not None:
                x, piece = g[start:stop].to(block.work), d[start:stop]
                # Straight to where it belongs, or over a wider copy of the gradient; autograd wants neither.
                out = None if torch.is_grad_enabled() else piece if d.dtype == block.work else x
                if source is not None:
                    x = torch.addcmul(x, source[start:stop], share, out=out).mul_(scale)
                else:
                    x = add_rows(x if block.damps else x * scale, block.slots.columns(start, stop), share, out)
                if d.dtype != block.work:
                    # A sum of two half values may be too large for one; a gradient that was not finite stays as it is.
                    finite = self.decision.finite[block.row].to(block.device)
                    x = torch.where(finite, saturate(x, d.dtype), g[start:stop])
                if x is not piece:
                    piece.copy_(x)
            if k is not None:
                self._store(block, g, k, start, stop)

    @torch.no_grad()
    def _offer(self) -> None:
        """Tables and inner products go on; without looking, what was admitted also takes its place only here."""
        store, decision, sums = self.store, self.decision, self.sums
        if store.gram is not None:
            store.gram.copy_(insert_in_gram(store.gram, sums.row, sums.own_square, decision.accept, decision.slot))
        store.advance(self.tables, decision)
        for block, g in zip(store.blocks, self.g):
            if not self.host:
                k, accept = (field[block.row].to(block.device) for field in (decision.slot, decision.accept))
                unseen.insert(block, g, k, accept)
            if block.sum is not None and not (self.host and not self.finite[block.row]):
                self._refresh(block)

    def _store(self, block: Block, g: Tensor | None, k: int, start: int, stop: int) -> None:
        """A piece of row ``k`` becomes that of ``g`` (``None``: zero) as the row can hold it, and the running sum follows."""
        new = torch.zeros(stop - start, dtype=block.work, device=block.device) if g is None else g[start:stop].detach()
        values, scale = block.slots.encode(new)
        if block.sum is not None:
            old = block.slots.row(k, start, stop)
            block.sum[start:stop].sub_(old).add_(block.slots.decode(values, scale))
        block.slots.write(k, values, scale, start)

    def _refresh(self, block: Block) -> None:
        """NOTE [refresh]: the slice is a function of the clock alone, so a resumed run refreshes the same slices."""
        assert block.sum is not None
        length, steps = block.refresh_span()
        length, clock = min(length, block.length), self.store.clock[block.row]
        if self.host:
            begin = (int(clock) + block.number) % steps * length
            end = min(begin + length, block.length)
            if begin < end:
                block.sum[begin:end] = block.slots.columns(begin, end).sum(0)
        elif length > 0:
            unseen.refresh(block, clock.to(block.device), length, steps)
