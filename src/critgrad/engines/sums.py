"""The numbers that a step is decided by, with torch's operations: squared norms and inner products of a store's blocks.

Sums are float64 across pieces and blocks; within a piece of at most 64 k values they are in the working dtype.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..memory.store import Block, Store

PIECE = 1 << 16
SMALL = 1 << 14  # a matrix product adds up in fewer lanes than a dot product: this piece is as exact as that one
ROW = 256
DEVICE_PIECE = 1 << 23  # of products with all slots: few launches; what is summed in float64 is bounded by ROW

Vectors = Sequence[Tensor | None]  # flat, one for each block; None counts as zero


def on_host(tensor: Tensor) -> bool:
    """Whether values may be looked at without waiting for a device or breaking a compiled graph."""
    return tensor.device.type == "cpu" and not torch.compiler.is_compiling()


def may_round_products() -> bool:
    """Whether matrix products of single precision may be computed in less: TF32, if somebody has asked for it."""
    return torch.get_float32_matmul_precision() != "highest"


@dataclass
class Sums:
    """All float64; ``(rows,)``, those with every slot ``(rows, C)``."""

    square: Tensor  # |g|^2 over every block
    g_dot_sum: Tensor | None = None  # g times the memory's sum, and the sum's square: rules with a cosine
    sum_sq: Tensor | None = None
    own_square: Tensor | None = None  # |g|^2 as it would be stored, over the blocks that damp
    dots: Tensor | None = None  # G g
    row: Tensor | None = None  # G g, with g as it would be stored
    all_dots: Tensor | None = None  # G g over every block, whatever it does with them: rules with needs_dots


class Columns:
    """Which columns of the table of sums hold what, for a store as it is now."""

    def __init__(self, store: Store) -> None:
        C, damps = store.topC, store.damps
        self.damps, self.dots = damps, store.needs_dots
        self.cosine = store.needs_cosine and any(not block.damps for block in store.blocks)
        self.rounded = damps and any(block.damps and not block.slots.is_exact for block in store.blocks)
        widths = [1, 2 * self.cosine, damps, C * damps, C * self.rounded, C * self.dots]
        self.ends = [sum(widths[: i + 1]) for i in range(len(widths))]

    def read(self, table: Tensor, store: Store) -> Sums:
        """The table's columns by name."""
        square, cosine, own, dots, row, all_dots = (table[:, a:b] for a, b in zip([0, *self.ends], self.ends))
        sums = Sums(square[:, 0])
        if self.cosine:
            sums.g_dot_sum, sums.sum_sq = cosine[:, 0], cosine[:, 1]
        if self.damps:
            sums.own_square, sums.dots, sums.row = own[:, 0], dots, row if self.rounded else dots
        if self.dots:  # of the blocks that damp they are there already
            sums.all_dots = all_dots if sums.dots is None else all_dots + sums.dots
        if store.needs_cosine and sums.dots is not None:
            # g times the sum is the sum of G g; the sum's square is 1'K1.
            assert store.gram is not None
            mine = sums.dots.sum(-1), store.gram.sum((-2, -1))
            sums.g_dot_sum = mine[0] if sums.g_dot_sum is None else sums.g_dot_sum + mine[0]
            sums.sum_sq = mine[1] if sums.sum_sq is None else sums.sum_sq + mine[1]
        return sums


def measure(store: Store, g: Vectors, columns: Columns) -> Tensor:
    """Everything that is decided by, float64 ``(rows, columns)``; this rank's share of it."""
    device, C = store.device, store.topC
    zero = torch.zeros((), dtype=torch.float64, device=device)
    none = zero.expand(C)
    square = squares(g, store.blocks, device)
    table = []
    for i, (block, v) in enumerate(zip(store.blocks, g)):
        numbers = [square[i, None]]
        counted = v is not None and block.counts
        if columns.cosine:
            total = block.sum if block.counts and not block.damps else None
            against = zero if total is None or v is None else dot(v, total, block.work).to(device)
            numbers += [torch.stack([against, zero if total is None else dot(total, total, block.work).to(device)])]
        a, r, own = none, none, zero
        if counted and (block.damps or columns.dots):
            assert v is not None
            a, r, own = (number.to(device) for number in row_dots(block, v, square[i]))
        if columns.damps:
            mine = (own[None], a, r) if block.damps else (zero[None], none, none)
            numbers += mine if columns.rounded else mine[:2]
        if columns.dots:
            numbers.append(none if block.damps else a)
        table.append(torch.cat(numbers) if len(numbers) > 1 else numbers[0])
    whole = torch.stack(table)
    return whole if store.by_tensor else whole.sum(0, keepdim=True)


def squares(vectors: Vectors, blocks: Sequence[Block], device: torch.device) -> Tensor:
    """The squared norm of each vector, float64; 0 for a missing one.

    What another rank counts adds 0 here, but NaN if it is not finite: a copy may be bad where the original is not.
    """
    present = [(i, v) for i, v in enumerate(vectors) if v is not None]
    counts = [float(block.counts) for block in blocks]
    if all(on_host(v) for _, v in present):
        total = [0.0] * len(blocks)
        for (
            i,
            v,
        ) in present:  # in Python numbers, which are float64; torch.dot runs at the speed of memory, the norms do not
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


def dot(a: Tensor, b: Tensor, work: torch.dtype) -> Tensor:
    """The inner product of two flat tensors, float64."""
    if not on_host(a):
        pieces = zip(a.split(DEVICE_PIECE), b.split(DEVICE_PIECE))
        return torch.stack([dots for x, y in pieces for dots in _dots(x.to(work)[None], y.to(work), False)]).sum()
    pieces = zip(a.split(PIECE), b.split(PIECE))
    return torch.stack([torch.dot(x.to(work), y.to(work)) for x, y in pieces]).sum(dtype=torch.float64)


def row_dots(block: Block, g: Tensor, square: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """``(G g, G ĝ, |ĝ|^2)`` of one block, ``ĝ`` the gradient as it would be stored; one pass over the slots.

    ``square`` is ``|g|^2`` as it is known already.
    """
    slots, length = block.slots, block.length
    host, exact = on_host(g), block.slots.is_exact
    if exact and not host:  # there the norm was summed in float32
        square = dot(g, g, block.work)
    size = (length if exact else PIECE) if host else DEVICE_PIECE
    dots: list[Tensor] = []
    rows: list[Tensor] = []
    own: list[Tensor] = []
    for start in range(0, length, max(size, 1)):
        stop = min(start + size, length)
        G, x = slots.columns(start, stop), g[start:stop]
        dots += _dots(G, x.to(block.work), host)
        if not exact:
            y = slots.decode(*slots.encode(x))
            rows += _dots(G, y, host)
            own.append(dot(y, y, block.work))
    nothing = torch.zeros(slots.values.shape[0], dtype=torch.float64, device=block.device)
    a = torch.stack(dots).sum(0) if dots else nothing
    r = torch.stack(rows).sum(0) if rows else a
    return a, r, torch.stack(own).sum() if own else square


def _dots(G: Tensor, x: Tensor, host: bool) -> list[Tensor]:
    """Vectors ``(C,)``, float64, that add up to ``G x``."""
    if not host:  # there a matrix product would add up too much in single precision
        products = G * x
        whole = products.shape[-1] // ROW * ROW
        rows = products[:, :whole].unflatten(-1, (-1, ROW)).sum(-1)  # many short sums: few long ones leave a GPU idle
        return [rows.sum(-1, dtype=torch.float64), products[:, whole:].sum(-1, dtype=torch.float64)]
    # One call for all pieces: it reads at the speed of memory, with all threads. A call for each would start them anew.
    count = x.numel() // SMALL
    whole = count * SMALL
    out = [torch.mv(G[:, whole:], x[whole:]).double()] if whole < x.numel() else []
    if count:
        columns = G[:, :whole].unflatten(1, (count, SMALL)).permute(1, 2, 0)
        out.append(torch.bmm(x[:whole].view(count, 1, SMALL), columns).sum((0, 1), dtype=torch.float64))
    return out
