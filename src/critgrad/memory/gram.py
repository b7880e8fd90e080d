"""The Gram matrix ``K = G G'`` of a memory that damps, from its slots: derived state, made anew where it is doubtful."""

from __future__ import annotations

import torch
from torch import Tensor

from .reducing import all_reduce_
from .store import Store

BLOCK = 1 << 14  # values of each slot at a time
# How far a kept inner product may be from one made anew, both summed in float32 within blocks.
GRAM_ROUNDING = 1e-5


def pending(gram: Tensor) -> Tensor:
    """Which entries have inner products that are not known yet: ``(rows, C)``; see keys.py, NOTE [pending]."""
    return gram.diagonal(dim1=-2, dim2=-1).isnan()


def settled(store: Store) -> Tensor:
    """The Gram matrix with what is pending worked out from the slots; waits for the device."""
    assert store.gram is not None
    if store.gram.is_meta or not bool(pending(store.gram).any()):
        return store.gram
    return torch.where(store.gram.isnan(), gram_from_slots(store), store.gram)


def settle(store: Store) -> None:
    """The same in place: whenever another engine than the one that left something pending goes on."""
    if store.gram is not None:
        store.gram.copy_(settled(store))


def gram_from_slots(store: Store) -> Tensor:
    """``K`` over the parts that damp and that this rank counts, from the slots: ``(rows, C, C)``."""
    gram = torch.zeros(store.rows, store.topC, store.topC, dtype=torch.float64, device=store.device)
    for block in store.blocks:
        for start in range(0, block.length if block.damps and block.counts else 0, BLOCK):
            G = block.slots.columns(start, min(start + BLOCK, block.length)).double()
            gram[block.row] += (G @ G.T).to(store.device)
    return all_reduce_(gram.view(store.rows, -1), store).view_as(gram)


def agrees(gram: Tensor, made: Tensor) -> bool:
    """Whether a kept matrix counts what the one made anew does: under another scope, or before a part left, it counted more.

    Only what an engine leaves pending may be unknown.
    """
    waits = pending(gram)
    unknown = waits[..., :, None] | waits[..., None, :]
    as_left = torch.equal(~torch.isfinite(gram), unknown) and bool((waits.sum(-1) <= 1).all())
    found, squares = (torch.diagonal(matrix, dim1=-2, dim2=-1) for matrix in (gram, made))
    return as_left and bool((waits | ((found - squares).abs() <= GRAM_ROUNDING * squares)).all())
