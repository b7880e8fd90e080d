"""The numbers that a step is decided by, with torch's operations: squared norms and inner products of a store's blocks.

Sums are float64 across pieces and blocks; within a piece of at most 64 k values they are in the working dtype.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

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


def _widths(store: Store) -> dict[str, int]:
    """Columns of the table of sums; of what nobody asks for there are none, and ranks exchange nothing."""
    C, damps = store.topC, store.damps
    cosine = int(store.needs("cosine") and any(not block.damps for block in store.blocks))
    rounded = any(block.damps and not block.slots.is_exact for block in store.blocks)
    return {
        "square": 1,
        "against": cosine,
        "sum_sq": cosine,
        "own": int(damps),
        "dots": C * damps,
        "row": C * rounded,
        "other dots": C * store.needs("dots"),
    }


def measure(store: Store, g: Vectors) -> Tensor:
    """The share of this rank in all sums, a row of the table for each memory; ``read`` gives them names."""
    widths = _widths(store)
    table = torch.zeros(len(store.blocks), sum(widths.values()), dtype=torch.float64, device=store.device)
    table[:, 0] = square = squares(g, store.blocks, store.device)
    products = table.shape[1] > 1
    ends = zip(widths.items(), accumulate(widths.values())) if products else ()
    found = {name: table[:, end - width : end] for (name, width), end in ends}
    for i, (block, v) in enumerate(zip(store.blocks, g)) if products else ():
        if not block.counts:
            continue
        if block.sum is not None and widths["sum_sq"]:
            found["sum_sq"][i] = dot(block.sum, block.sum, block.work)
            if v is not None:
                found["against"][i] = dot(v, block.sum, block.work)
        if v is not None and (block.damps or widths["other dots"]):
            a, r, own = row_dots(block, v, square[i])
            found["dots" if block.damps else "other dots"][i] = a
            if block.damps:
                found["own"][i] = own
            if block.damps and widths["row"]:
                found["row"][i] = r
    return table if store.by_tensor else table.sum(0, keepdim=True)


def read(table: Tensor, store: Store) -> Sums:
    """The columns of a table of sums by name."""
    widths = _widths(store)
    square, against, sum_sq, own, dots, row, all_dots = table.split(list(widths.values()), 1)
    against, sum_sq = against.sum(1), sum_sq.sum(1)
    if store.gram is not None:  # of what damps: g times the sum is the sum of G g, the sum's square is 1'K1
        against, sum_sq = against + dots.sum(-1), sum_sq + store.gram.sum((-2, -1))
        all_dots = all_dots + dots if widths["other dots"] else all_dots
    return Sums(
        square[:, 0],
        own.sum(1),
        dots,
        row if widths["row"] else dots,
        all_dots if widths["other dots"] else None,
        *((against, sum_sq) if store.needs("cosine") else (None, None)),
    )


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
