"""Storing without looking: on accelerators and in compiled steps, where only the device knows which slot, and whether.

The work is the same in every step; what must not be written is written back.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..memory.formats import SCALE_BLOCK, Slots, scale_blocks
from ..memory.store import Block


def joined(block: Block, grads: Sequence[Tensor | None]) -> Tensor | None:
    """The gradient of a block, from those of all parts of its store: its one part's, or many as they lie in the buffer."""
    mine = [grads[part.number] for part in block.parts]
    if len(mine) == 1 or all(g is None for g in mine):
        return mine[0]
    pieces = []
    for part, g in zip(block.parts, mine):
        pieces.append(torch.zeros(part.length, dtype=part.dtype, device=part.device) if g is None else g)
        gap = scale_blocks(part.length) * SCALE_BLOCK - part.length
        if gap:
            pieces.append(torch.zeros(gap, dtype=part.dtype, device=part.device))
    return torch.cat(pieces)


def row(slots: Slots, k: Tensor) -> Tensor:
    """Row ``k`` as the memory sees it."""
    codes = slots.codes.index_select(0, k.view(1))[0].view(slots.values.dtype)
    return slots.decode(codes, None if slots.scale is None else slots.scale.index_select(0, k.view(1))[0])


def insert(block: Block, g: Tensor | None, k: Tensor, accept: Tensor) -> None:
    """Row ``k`` becomes ``g`` (``None``: zero) as the row can hold it, if ``accept``, and the running sum follows."""
    slots, old = block.slots, row(block.slots, k)
    if g is None:
        g = torch.zeros(block.length, dtype=block.work, device=block.device)
    if slots.is_exact:
        new = torch.where(accept, g.to(block.work), old)
        slots.values.index_copy_(0, k.view(1), new[None])
    else:
        values, scale = slots.encode(g)
        new = torch.where(accept, slots.decode(values, scale), old)
        for rows, mine in ((slots.codes, values.view(slots.codes.dtype)), (slots.scale, scale)):
            if rows is not None and mine is not None:
                rows.index_copy_(0, k.view(1), torch.where(accept, mine[None], rows.index_select(0, k.view(1))))
    if block.sum is not None:
        block.sum.add_(new.sub_(old))


def refresh(block: Block, clock: Tensor, length: int, steps: int) -> None:
    """Sum the slice whose turn it is anew. Beyond the last slice that one is summed once more."""
    assert block.sum is not None
    slots, last = block.slots, -(-block.length // length) - 1
    start = ((clock + block.number) % steps).clamp(max=last) * length
    index = (start + torch.arange(length, device=block.device)).clamp(max=block.length - 1)
    values = slots.codes.index_select(1, index).view(slots.values.dtype).to(slots.device, slots.work)
    if slots.scale is not None:
        values = values * slots.scale.index_select(1, index // SCALE_BLOCK).to(slots.device, slots.work)
    block.sum.index_copy_(0, index, values.sum(0))
