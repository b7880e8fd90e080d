"""The Gram matrix ``K = G G'`` of a memory that damps, from its slots: derived state, made anew where it is doubtful."""

from __future__ import annotations

from collections.abc import Iterator

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
    """``K`` over the parts that damp, from the slots: ``(rows, C, C)``."""
    gram = torch.zeros(store.rows, store.topC, store.topC, dtype=torch.float64, device=store.device)
    for row, G in _damping_slots(store):
        gram[row] += (G @ G.T).to(store.device)
    return all_reduce_(gram.view(store.rows, -1), store).view_as(gram)


def is_of_these_slots(gram: Tensor, store: Store) -> bool:
    """Whether the matrix counts these slots and no others: under another scope, or before one left, it counted more."""
    squares = torch.zeros(store.rows, store.topC, dtype=torch.float64, device=store.device)
    for row, G in _damping_slots(store):
        squares[row] += G.square().sum(1).to(store.device)
    squares = all_reduce_(squares, store)
    found = torch.diagonal(gram, dim1=-2, dim2=-1)
    return bool((found.isnan() | ((found - squares).abs() <= GRAM_ROUNDING * squares)).all())


def _damping_slots(store: Store) -> Iterator[tuple[int, Tensor]]:
    """``(row, columns of its slots)`` in float64, piece by piece, of the blocks that damp and that this rank counts."""
    for block in store.blocks:
        if block.damps and block.counts:
            for start in range(0, block.length, BLOCK):
                yield block.row, block.slots.columns(start, min(start + BLOCK, block.length)).double()
