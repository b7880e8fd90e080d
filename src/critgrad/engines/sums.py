"""The numbers that a step is decided by, with torch's operations: squared norms and inner products of a store's blocks.

Sums are float64 across pieces and blocks; within a piece of at most 64 k values they are in the working dtype.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..memory.layout import on_host
from ..memory.store import Block, Store
from .products import PIECE, dot, row_dots

Vectors = Sequence[Tensor | None]  # flat, one for each block; None counts as zero


@dataclass
class Sums:
    """What is decided by, by name; all float64, ``(rows,)``, those with every slot ``(rows, C)``."""

    square: Tensor  # |g|^2 over every block
    own_square: Tensor  # |g|^2 as it would be stored, over the blocks that damp
    dots: Tensor  # G g over those blocks
    row: Tensor  # the same with g as it would be stored
    all_dots: Tensor | None  # G g over every block, whatever it does with them: rules with needs_dots
    g_dot_sum: Tensor | None  # g times the memory's sum, and the sum's square: rules with a cosine
    sum_sq: Tensor | None


def measure(store: Store, g: Vectors) -> Tensor:
    """The share of this rank in all sums, a row of the table for each memory; ``read`` gives them names."""
    C, cosine, every_dot = store.topC, store.needs_cosine, store.needs_dots
    square = squares(g, store.blocks, store.device)
    table = torch.zeros(len(store.blocks), 4 + 3 * C, dtype=torch.float64, device=store.device)
    table[:, 0] = square
    asked = cosine or every_dot or store.damps
    for block, v, mine, known in zip(store.blocks, g, table, square) if asked else ():
        if block.counts and cosine and block.sum is not None:
            mine[2] = dot(block.sum, block.sum, block.work)
            if v is not None:
                mine[1] = dot(v, block.sum, block.work)
        if block.counts and v is not None and (block.damps or every_dot):
            a, r, own = row_dots(block, v, known)
            if block.damps:
                mine[3], mine[4 : 4 + C], mine[4 + C : 4 + 2 * C] = own, a, r
            else:
                mine[4 + 2 * C :] = a
    return table if store.by_tensor else table.sum(0, keepdim=True)


def read(table: Tensor, store: Store) -> Sums:
    """The columns of a table of sums by name."""
    square, against, sum_sq, own_square = table[:, :4].unbind(1)
    dots, row, other = table[:, 4:].split(store.topC, 1)
    if store.gram is not None:  # of what damps: g times the sum is the sum of G g, the sum's square is 1'K1
        against, sum_sq = against + dots.sum(-1), sum_sq + store.gram.sum((-2, -1))
    all_dots = dots + other if store.needs_dots else None
    cosine = (against, sum_sq) if store.needs_cosine else (None, None)
    return Sums(square, own_square, dots, row, all_dots, *cosine)


def squares(vectors: Vectors, blocks: Sequence[Block], device: torch.device) -> Tensor:
    """The squared norm of each vector, float64; 0 for a missing one.

    What another rank counts adds 0 here, but NaN if it is not finite: a copy may be bad where the original is not.
    """
    present = [(i, v) for i, v in enumerate(vectors) if v is not None]
    counts = [float(block.counts) for block in blocks]
    if all(on_host(v) for _, v in present):
        total = [0.0] * len(blocks)
        # In Python numbers, which are float64; torch.dot runs at the speed of memory, the norms do not.
        for i, v in present:
            for piece in v.split(PIECE) if v.numel() > PIECE else (v,):
                piece = piece.to(blocks[i].work)
                total[i] += torch.dot(piece, piece).item() * counts[i]
        return torch.tensor(total, dtype=torch.float64, device=device)
    out = [torch.zeros((), dtype=torch.float64, device=device)] * len(blocks)
    for work in {blocks[i].work for i, _ in present}:
        chosen = [(i, v) for i, v in present if blocks[i].work == work]
        for (i, _), norm in zip(chosen, torch._foreach_norm([v for _, v in chosen], 2, dtype=work)):
            out[i] = norm.to(device).double().square() * counts[i]
    return torch.stack(out)
