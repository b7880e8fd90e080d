"""The numbers that a step is decided by: squared norms and inner products, over all parts of a memory and all ranks.

Sums are float64 across blocks and tensors; within a block of at most ``BLOCK`` values they are in the working dtype.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from .distributed import all_reduce_

if TYPE_CHECKING:
    from .memory import Memory, Part

BLOCK = 1 << 16
SMALL = 1 << 14  # a matrix product adds up in fewer lanes than a dot product: this block is as exact as that one
DECODED_BLOCK = 1 << 16  # values of each slot that are decoded at once
DEVICE_BLOCK = 1 << 20  # products there are summed in float64: the block bounds a temporary, not an error


@dataclass
class Sums:
    """All float64; ``(rows,)``, the last three ``(rows, C)``."""

    square: Tensor  # |g|^2 over every part
    g_dot_sum: Tensor | None = None  # g times the memory's sum, and the sum's square: policies with a cosine
    sum_sq: Tensor | None = None
    own_square: Tensor | None = None  # |g|^2 as it would be stored, over the parts that damp
    dots: Tensor | None = None  # G g
    row: Tensor | None = None  # G g, with g as it would be stored
    all_dots: Tensor | None = None  # G g over every part, whatever it does with them: policies with needs_dots


def _blocks(length: int, host: bool) -> list[tuple[int, int]]:
    block = DECODED_BLOCK if host else DEVICE_BLOCK
    return [(start, min(start + block, length)) for start in range(0, length, block)]


def on_host(tensor: Tensor) -> bool:
    """Whether values may be looked at without waiting for a device or breaking a compiled graph."""
    return tensor.device.type == "cpu" and not torch.compiler.is_compiling()


def dot(a: Tensor, b: Tensor, work: torch.dtype) -> Tensor:
    """The inner product of two flat tensors, float64."""
    if not on_host(a):
        total = torch.zeros((), dtype=torch.float64, device=a.device)
        for i, j in _blocks(a.numel(), host=False):
            total = total + (a[i:j].to(work) * b[i:j].to(work)).sum(dtype=torch.float64)
        return total
    # torch.dot runs at the speed of memory on a CPU, unlike the norms.
    if a.numel() <= BLOCK:
        return torch.dot(a.to(work), b.to(work)).double()
    parts = [torch.dot(x.to(work), y.to(work)) for x, y in zip(a.split(BLOCK), b.split(BLOCK))]
    return torch.stack(parts).sum(dtype=torch.float64)


def squares(grads: Sequence[Tensor | None], parts: Sequence[Part], device: torch.device) -> Tensor:
    """The squared norm of each gradient, float64 ``(parts,)``; 0 for a missing one.

    What another rank counts adds 0 here, but NaN if it is not finite: a copy may be bad where the original is not.
    """
    present = [(i, g, part.work) for i, (g, part) in enumerate(zip(grads, parts)) if g is not None]
    if all(on_host(g) for _, g, _ in present):
        total = torch.tensor(_host_squares(present, len(parts)), dtype=torch.float64, device=device)
        if not all(part.counts for part in parts):
            total = total * torch.tensor([float(part.counts) for part in parts], dtype=torch.float64, device=device)
    else:
        zero = torch.zeros((), dtype=torch.float64, device=device)
        out = [zero] * len(parts)
        for work in {work for _, _, work in present}:
            chosen = [(i, g) for i, g, w in present if w == work]
            norms = torch._foreach_norm([g for _, g in chosen], 2, dtype=work)
            for (i, _), norm in zip(chosen, norms):
                square = norm.to(device).double().square()
                out[i] = square if parts[i].counts else square * 0.0
        total = torch.stack(out)
    return total


def _host_squares(present: Sequence[tuple[int, Tensor, torch.dtype]], count: int) -> list[float]:
    """The same on a CPU: one dot product per block, added up in Python numbers, which are float64."""
    total = [0.0] * count
    for i, g, work in present:
        for block in g.split(BLOCK) if g.numel() > BLOCK else (g,):
            block = block if block.dtype == work else block.to(work)
            total[i] += torch.dot(block, block).item()
    return total


def _row_dots(part: Part, g: Tensor, square: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """``(G g, G ĝ, |ĝ|^2)`` of one part, ``ĝ`` the gradient as it would be stored; one pass over the slots.

    ``square`` is ``|g|^2`` as it is known already.
    """
    slots = part.slots
    host, exact = on_host(g), slots.is_exact
    stored = g if exact or host else slots.decode(*slots.encode(g))
    if not host:  # there it was summed in float32
        square = dot(stored, stored, part.work)
    dots: list[Tensor] = []
    rows: list[Tensor] = []
    own = 0.0
    length = part.layout.length
    for start, stop in [(0, length)] if host and exact and length else _blocks(length, host):
        G = slots.columns(start, stop)
        x = g[start:stop].to(part.work)
        dots += _dots(G, x, host)
        if exact:
            continue
        y = slots.decode(*slots.encode(g[start:stop])) if host else stored[start:stop].to(part.work)
        rows += _dots(G, y, host)
        if host:
            own += torch.dot(y, y).item()
    nothing = torch.zeros(slots.values.shape[0], dtype=torch.float64, device=part.device)
    a = torch.stack(dots).sum(0, dtype=torch.float64) if dots else nothing
    r = torch.stack(rows).sum(0, dtype=torch.float64) if rows else a
    if host and not exact:
        square = torch.tensor(own, dtype=torch.float64, device="cpu")
    return a, r, square


def _dots(G: Tensor, x: Tensor, host: bool) -> list[Tensor]:
    """Vectors ``(C,)``, float64, that add up to ``G x``."""
    if not host:  # there a matrix product may round to TF32
        return [(G * x).sum(-1, dtype=torch.float64)]
    # One call for all blocks: it reads at the speed of memory, with all threads. A call for each would start them anew.
    count = x.numel() // SMALL
    whole = count * SMALL
    out = [torch.mv(G[:, whole:], x[whole:]).double()] if whole < x.numel() else []
    if count:
        columns = G[:, :whole].unflatten(1, (count, SMALL)).permute(1, 2, 0)
        out.append(torch.bmm(x[:whole].view(count, 1, SMALL), columns).sum((0, 1), dtype=torch.float64))
    return out


def measure(memory: Memory, grads: Sequence[Tensor | None]) -> Sums:
    """Pass 1 of a step: everything that is decided by, from this step's flat gradients (``None`` counts as zero)."""
    parts, device, C = memory.parts, memory.device, memory.topC
    cosine = memory.policy.needs_cosine and any(not part.damps for part in parts)
    damping = any(part.damps for part in parts)
    square_of = squares(grads, parts, device)
    columns = [square_of[:, None]]
    rounded = damping and any(part.damps and not part.slots.is_exact for part in parts)
    zero = torch.zeros((), dtype=torch.float64, device=device)

    if cosine:
        pairs = []
        for part, g in zip(parts, grads):
            if part.damps or not part.counts:
                pairs.append(torch.stack([zero, zero]))
                continue
            assert part.sum is not None
            against = zero if g is None else dot(g, part.sum, part.work).to(device)
            pairs.append(torch.stack([against, dot(part.sum, part.sum, part.work).to(device)]))
        columns.append(torch.stack(pairs))
    if damping:
        width = 1 + C + (C if rounded else 0)
        numbers = []
        for i, (part, g) in enumerate(zip(parts, grads)):
            if g is None or not part.damps or not part.counts:
                numbers.append(zero.expand(width))
                continue
            a, r, square = _row_dots(part, g, square_of[i])
            both = (square[None], a, r) if rounded else (square[None], a)
            numbers.append(torch.cat(both).to(device))
        columns.append(torch.stack(numbers))
    if memory.policy.needs_dots:  # of the parts that damp they are there already
        left = [
            _row_dots(part, g, square_of[i])[0].to(device)
            if g is not None and part.counts and not part.damps
            else zero.expand(C)
            for i, (part, g) in enumerate(zip(parts, grads))
        ]
        columns.append(torch.stack(left))

    table = torch.cat(columns, 1) if len(columns) > 1 else columns[0]
    if not memory.by_tensor:
        table = table.sum(0, keepdim=True)
    table = all_reduce_(table, memory)

    sums = Sums(square=table[:, 0])
    at = 1
    if cosine:
        sums.g_dot_sum, sums.sum_sq, at = table[:, 1], table[:, 2], 3
    if damping:
        sums.own_square = table[:, at]
        sums.dots = table[:, at + 1 : at + 1 + C]
        sums.row = table[:, at + 1 + C : at + 1 + 2 * C] if rounded else sums.dots
    if memory.policy.needs_dots:
        sums.all_dots = table[:, -C:] if sums.dots is None else table[:, -C:] + sums.dots
    if memory.policy.needs_cosine and damping:
        # g times the sum is the sum of G g; the sum's square is 1'K1.
        assert sums.dots is not None
        assert memory.gram is not None
        own = sums.dots.sum(-1), memory.gram.sum((-2, -1))
        sums.g_dot_sum = own[0] if sums.g_dot_sum is None else sums.g_dot_sum + own[0]
        sums.sum_sq = own[1] if sums.sum_sq is None else sums.sum_sq + own[1]
    return sums


def pending(gram: Tensor) -> Tensor:
    """Which entries have inner products that are not known yet: ``(rows, C)``; see memory.py, NOTE [pending]."""
    return gram.diagonal(dim1=-2, dim2=-1).isnan()


def settled(memory: Memory) -> Tensor:
    """The Gram matrix with what is pending worked out from the slots; waits for the device."""
    assert memory.gram is not None
    if memory.gram.is_meta or not bool(pending(memory.gram).any()):
        return memory.gram
    return torch.where(memory.gram.isnan(), gram_from_slots(memory), memory.gram)


def settle(memory: Memory) -> None:
    """The same in place: whenever another path than the one that left something pending goes on."""
    if memory.gram is not None:
        memory.gram.copy_(settled(memory))


def gram_from_slots(memory: Memory) -> Tensor:
    """``K = G G'`` over the parts that damp, from the slots: ``(rows, C, C)``."""
    gram = torch.zeros(memory.rows, memory.topC, memory.topC, dtype=torch.float64, device=memory.device)
    for row, G in _damping_slots(memory):
        gram[row] += (G @ G.T).to(memory.device)
    return all_reduce_(gram.view(memory.rows, -1), memory).view_as(gram)


def squares_of_slots(memory: Memory) -> Tensor:
    """The diagonal of ``gram_from_slots``, in one pass: ``(rows, C)``."""
    squares = torch.zeros(memory.rows, memory.topC, dtype=torch.float64, device=memory.device)
    for row, G in _damping_slots(memory):
        squares[row] += G.square().sum(1).to(memory.device)
    return all_reduce_(squares, memory)


def _damping_slots(memory: Memory) -> Iterator[tuple[int, Tensor]]:
    """``(row, columns of its slots)`` in float64, block by block, of the parts that damp and that this rank counts."""
    block = BLOCK // 4
    for part in memory.parts:
        if part.damps and part.counts:
            for start in range(0, part.layout.length, block):
                yield part.row, part.slots.columns(start, min(start + block, part.layout.length)).double()
