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
from ..memory.formats import SCALE_BLOCK, saturate, scale_blocks
from ..memory.gram import settle
from ..memory.layout import on_host
from ..memory.policies import Decision, decide
from ..memory.store import Block, Store
from . import unseen
from .products import DEVICE_PIECE, may_round_products
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
        if not torch.compiler.is_compiling():
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
        self.g = [joined(block, [flats[part.number] for part in block.parts]) for block in store.blocks]
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
        """``(of the gradient, of what is added, which slot that is)`` by row, for a block's options; see ``_direction``."""
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
        for block, g, weights in zip(self.store.blocks, self.g, self.weights) if directions else ():
            used = not self.host or (self.counts[block.row] > 0 and self.finite[block.row])
            if g is not None and used:
                room = self.scratch if not fresh and on_host(g) and len(block.parts) == 1 else None
                d = torch.empty_like(g) if room is None else room.flats[block.number]
                self._direction(block, g, *weights, d)
                for part in [part for part in block.parts if self.present[part.number]]:
                    out[part.number] = part.layout.unflatten(d[part.start : part.start + part.length])
        if offer:
            self._offer()
        return out

    @torch.no_grad()
    def _offer(self) -> None:
        """What was admitted takes its place; tables and inner products go on."""
        store, decision, sums = self.store, self.decision, self.sums
        if store.gram is not None:
            store.gram.copy_(insert_in_gram(store.gram, sums.row, sums.own_square, decision.accept, decision.slot))
        store.advance(self.tables, decision)
        for block, g in zip(store.blocks, self.g):
            if not self.host:
                k, accept = (field[block.row].to(block.device) for field in (decision.slot, decision.accept))
                unseen.insert(block, g, k, accept)
            elif self.accept[block.row]:
                self._store(block, g, self.slot[block.row])
            if block.sum is not None:
                self._refresh(block)

    def _direction(
        self, block: Block, g: Tensor, scale: Tensor, share: Tensor, picked: Tensor | None, d: Tensor
    ) -> None:
        """``d = of_gradient * g + ...``: one row (the sum, or a pick), or every slot by its own weight."""
        scale, share = (weight[block.row].to(block.device, block.work) for weight in (scale, share))
        source = None if share.dim() else block.sum
        if picked is not None:
            k = picked[block.row]
            source = block.slots.row(int(k)) if self.host else unseen.row(block.slots, k.to(block.device))
        finite = self.decision.finite[block.row].to(block.device)
        C, length = block.slots.values.shape
        if source is not None and g.dtype == block.work and not on_host(g) and not torch.is_grad_enabled():
            torch.addcmul(g, source, share, out=d).mul_(scale)
            return
        size = HOST_PIECE if on_host(g) else DEVICE_PIECE
        for start in range(0, length, size):
            stop = min(start + size, length)
            x = g[start:stop].to(block.work)
            if source is not None:
                x = torch.addcmul(x, source[start:stop], share).mul_(scale)
            else:
                x, G = x if block.damps else x * scale, block.slots.columns(start, stop)
                if on_host(g) or not may_round_products():
                    x = torch.addmv(x, G.t(), share)
                else:
                    for i in range(C):
                        x = torch.addcmul(x, G[i], share[i])
            if g.dtype == block.work:
                d[start:stop] = x
            else:  # a sum of two half values may be too large for one; a gradient that was not finite stays as it is
                d[start:stop] = torch.where(finite, saturate(x, g.dtype), g[start:stop])

    def _store(self, block: Block, g: Tensor | None, k: int) -> None:
        """Row ``k`` becomes ``g`` (``None``: zero) as the row can hold it, and the running sum follows."""
        slots, length = block.slots, block.length
        size = HOST_PIECE if block.device.type == "cpu" else max(length, 1)  # rows offloaded to the host: one copy
        for start in range(0, length, size):
            stop = min(start + size, length)
            new = torch.zeros(stop - start, dtype=block.work, device=block.device) if g is None else g[start:stop]
            values, scale = slots.encode(new)
            if block.sum is not None:
                block.sum[start:stop].sub_(slots.row(k, start, stop)).add_(slots.decode(values, scale))
            slots.write(k, values, scale, start)

    def _refresh(self, block: Block) -> None:
        """NOTE [refresh]: the slice is a function of the clock alone, so a resumed run refreshes the same slices."""
        assert block.sum is not None
        length, steps = block.refresh_span()
        length = min(length, block.length)
        if length == 0 or (self.host and not self.finite[block.row]):
            return
        clock = self.store.clock[block.row]
        if not self.host:
            unseen.refresh(block, clock.to(block.device), length, steps)
            return
        begin = (int(clock) + block.number) % steps * length
        end = min(begin + length, block.length)
        if begin < end:
            block.sum[begin:end] = block.slots.columns(begin, end).sum(0)


def joined(block: Block, grads: Sequence[Tensor | None]) -> Tensor | None:
    """The gradient of a block: its one part's, or those of all of them as they lie in the buffer."""
    if len(block.parts) == 1 or all(g is None for g in grads):
        return grads[0]
    pieces = []
    for part, g in zip(block.parts, grads):
        pieces.append(torch.zeros(part.length, dtype=part.dtype, device=part.device) if g is None else g)
        gap = scale_blocks(part.length) * SCALE_BLOCK - part.length
        if gap:
            pieces.append(torch.zeros(gap, dtype=part.dtype, device=part.device))
    return torch.cat(pieces)
