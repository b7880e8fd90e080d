"""Large tensors on a CPU, in blocks that stay in a core's cache: the plain path's arithmetic where it takes the time.

Every operation of torch's goes over the whole of its operands. So a block is taken through all that is to be done with it
before the next one is fetched. Directions are made backwards: the gradients, read forwards for the norm just now, and the
slots that a damping memory has read with them are then still in the last level of cache, as far as they fit.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .memory import Part
from .slots import SCALE_BLOCK, saturate

BLOCK = 1 << 17  # values: four arrays of them are about what a core can keep in cache
PRODUCT_BLOCK = 1 << 20  # of products with all slots: few calls, each with work for all threads
COLUMNS = 1 << 14  # of one product among those


def scratch_like(part: Part, g: Tensor) -> Tensor:
    """A direction's place, kept from step to step: on a CPU fresh memory costs more than the arithmetic."""
    kept = part.scratch
    if kept is None or kept.dtype != g.dtype or kept.numel() != g.numel():
        kept = part.scratch = torch.empty_like(g)
    return kept


def add(part: Part, g: Tensor, source: Tensor, weights: tuple[float, float], slot: int | None) -> Tensor:
    """``d = scale * (g + share * source)``; with a ``slot`` (then ``source`` is the running sum) also the insertion.

    NOTE [stored early]: the step was decided before, and nothing reads this row or this sum until the next one, so
    direction and insertion can be made in one visit. The tables follow in ``insert``, after the base's step.
    """
    scale, share = weights
    d = scratch_like(part, g)
    blocks = [tensor.split(BLOCK) for tensor in (d, g, source)]
    if g.dtype != part.work:
        for into, g_, x in zip(*blocks):
            into.copy_(saturate(torch.add(g_.to(part.work), x, alpha=share).mul_(scale), g.dtype))
        return d
    olds = None if slot is None else part.slots.values[slot].split(BLOCK)
    factor = torch.tensor(scale, dtype=part.work, device="cpu")  # a Python number would be converted for every block
    for i in range(len(blocks[0]) - 1, -1, -1):
        into, g_, x = (tensor[i] for tensor in blocks)
        torch.add(g_, x, alpha=share, out=into)
        if olds is not None:
            if share == 1:
                torch.sub(into, olds[i], out=x)
            else:
                x.sub_(olds[i]).add_(g_)
            olds[i].copy_(g_)
        if scale != 1:
            into.mul_(factor)
    return d


def damp(part: Part, g: Tensor, w: Tensor, slot: int | None) -> Tensor:
    """``d = g - sum_i w_i G_i``: the second pass over the slots; with a ``slot`` also the insertion."""
    slots, (C, length) = part.slots, part.slots.values.shape
    block = PRODUCT_BLOCK
    if not slots.is_exact:  # room for 4 MB of decoded values
        block = -(-(1 << 20) // C // SCALE_BLOCK) * SCALE_BLOCK
    d = scratch_like(part, g)
    for start in reversed(range(0, length, block)):
        stop = min(start + block, length)
        G, g_, into = slots.columns(start, stop), g[start:stop], d[start:stop]
        if g.dtype == part.work:
            _subtract(g_, G, w, into)
        else:
            wide = g_.to(part.work)
            into.copy_(saturate(_subtract(wide, G, w, torch.empty_like(wide)), g.dtype))
        if slot is not None:
            slots.values[slot, start:stop].copy_(g_)
    return d


def _subtract(g: Tensor, G: Tensor, w: Tensor, into: Tensor) -> Tensor:
    """``into = g - w G``, as many short products in one call: torch gives these to its threads, and a long one to one."""
    count = g.numel() // COLUMNS
    whole = count * COLUMNS
    if count:
        shape = (count, 1, COLUMNS)
        columns = G[:, :whole].unflatten(1, (count, COLUMNS)).transpose(0, 1)
        rows = w.expand(count, 1, -1)
        torch.baddbmm(g[:whole].view(shape), rows, columns, alpha=-1, out=into[:whole].view(shape))
    if whole < g.numel():
        torch.addmv(g[whole:], G[:, whole:].t(), w, alpha=-1, out=into[whole:])
    return into


def store(part: Part, g: Tensor | None, k: int) -> None:
    """Row ``k`` becomes ``g`` (``None``: zero) as the row can hold it, and the running sum follows."""
    slots, length = part.slots, part.layout.length
    block = BLOCK if part.device.type == "cpu" else max(length, 1)  # rows offloaded to the host: one copy, not many
    for start in range(0, length, block):
        stop = min(start + block, length)
        new = torch.zeros(stop - start, dtype=part.work, device=part.device) if g is None else g[start:stop]
        total = None if part.sum is None else part.sum[start:stop]
        if slots.is_exact and new.dtype == part.work:
            row = slots.values[k, start:stop]
            if total is not None:
                total.sub_(row).add_(new)
            row.copy_(new)
            continue
        values, scale = slots.encode(new)
        if total is not None:
            total.sub_(slots.row(k, start, stop)).add_(slots.decode(values, scale))
        slots.write(k, values, scale, start)
