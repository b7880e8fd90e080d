"""Inner products with torch's operations: of two vectors, and of a gradient with every slot of a block."""

from __future__ import annotations

import torch
from torch import Tensor

from ..memory.layout import on_host
from ..memory.store import Block

PIECE = 1 << 16
SMALL = 1 << 14  # a matrix product adds up in fewer lanes than a dot product: this piece is as exact as that one
ROW = 256
DEVICE_PIECE = 1 << 23  # of products with all slots: few launches; what is summed in float64 is bounded by ROW


def may_round_products(device: torch.device) -> bool:
    """Whether matrix products of single precision may be computed in less there (TF32, bfloat16): somebody has asked for it."""
    if torch.amp.is_autocast_available(device.type) and torch.is_autocast_enabled(device.type):
        return True  # a step within torch.autocast
    library = torch.backends.cuda if device.type == "cuda" else torch.backends.mkldnn
    # Who asks in torch's newer way (since 2.9) makes the older question an error, which is all that dynamo knows.
    newer = None if torch.compiler.is_compiling() else getattr(library, "matmul", None)
    asked = getattr(newer, "fp32_precision", None)
    return torch.get_float32_matmul_precision() != "highest" if asked is None else asked not in ("none", "ieee")


def dot(a: Tensor, b: Tensor, work: torch.dtype) -> Tensor:
    """The inner product of two flat tensors, float64."""
    if not on_host(a):
        pieces = zip(a.split(DEVICE_PIECE), b.split(DEVICE_PIECE))
        return torch.stack([dots for x, y in pieces for dots in _dots(x.to(work)[None], y.to(work))]).sum()
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
    for start in range(0, max(length, 1), max(size, 1)):
        stop = min(start + size, length)
        G, x = slots.columns(start, stop), g[start:stop]
        dots += _dots(G, x.to(block.work))
        if not exact:
            y = slots.decode(*slots.encode(x))
            rows += _dots(G, y)
            own.append(dot(y, y, block.work))
    a = torch.stack(dots).sum(0)
    return a, torch.stack(rows).sum(0) if rows else a, torch.stack(own).sum() if own else square


def _dots(G: Tensor, x: Tensor) -> list[Tensor]:
    """Vectors ``(C,)``, float64, that add up to ``G x``."""
    if may_round_products(x.device):
        products = G * x
        whole = products.shape[-1] // ROW * ROW
        rows = products[:, :whole].unflatten(-1, (-1, ROW)).sum(-1)  # many short sums: few long ones leave a GPU idle
        return [rows.sum(-1, dtype=torch.float64), products[:, whole:].sum(-1, dtype=torch.float64)]
    # One call for all pieces: it reads at the speed of memory, with all threads. A call for each would start them anew.
    count = x.numel() // SMALL
    whole = count * SMALL
    out = [torch.mv(G[:, whole:], x[whole:]).double()] if whole < x.numel() or not count else []
    if count:
        columns = G[:, :whole].unflatten(1, (count, SMALL)).permute(1, 2, 0)
        out.append(torch.bmm(x[:whole].view(count, 1, SMALL), columns).sum((0, 1), dtype=torch.float64))
    return out


def add_rows(x: Tensor, G: Tensor, weights: Tensor, out: Tensor | None) -> Tensor:
    """``x`` plus the rows of ``G``, each by its weight; in ``out`` unless autograd looks (``None``)."""
    if may_round_products(x.device):
        for row, weight in zip(G, weights):
            x = torch.addcmul(x, row, weight, out=out)
        return x
    count = x.numel() // SMALL if out is not None and on_host(x) else 0
    if out is None or count < 2:
        return torch.addmv(x, G.t(), weights, out=out)
    # One call for many products: torch gives them to all its threads, and a long one to one.
    whole, tiles = count * SMALL, (count, 1, SMALL)
    columns = G[:, :whole].unflatten(1, (count, SMALL)).transpose(0, 1)
    rows = weights.expand(count, 1, -1)
    torch.baddbmm(x[:whole].view(tiles), rows, columns, out=out[:whole].view(tiles))
    if whole < x.numel():
        torch.addmv(x[whole:], G[:, whole:].t(), weights, out=out[whole:])
    return out
