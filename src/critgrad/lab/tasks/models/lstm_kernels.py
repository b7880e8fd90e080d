"""The recurrence of an LSTM layer on a GPU as one kernel forward and one backward (Triton).

A library takes a product, its parts and an activation for every word; that is a hundred launches for a sentence, and the GPU
waits for each. But sentences of a batch do not need one another: here a program takes 16 of them through all their words. What
does not wait for the word before, the products with the inputs and those of the weights' gradients, is left to large products
outside.

NOTE [own writes]: a program writes its states to memory and reads them back for the next word's product, whose operands are
cut along the units. It reads nothing that another program writes. The barrier makes a program's writes visible to all its
threads.

NOTE [half is enough]: forward, weights and states are rounded to float16, which has TF32's 11 bits of precision; backward the
products are TF32. So this takes the place of a layer that may use TF32, as recurrent layers may by default.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor


class Cut(NamedTuple):
    """How a pass is cut into programs and their products."""

    rows: int  # of a program; 16 is the least that a product takes, and so the most programs
    chunk: int  # units of a product's part
    warps: int
    stages: int


CUTS = Cut(16, 32, 8, 3), Cut(16, 32, 8, 2)  # forward, backward
WIDEST = 256  # hidden units
OPERANDS = torch.float16


@triton.jit
def tanh(x):
    return 2 * tl.sigmoid(2 * x) - 1


@triton.jit
def through_time(
    gates, weight, states, cells, rows, steps,
    H: tl.constexpr, HP: tl.constexpr, BM: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """Of a block of rows all steps. ``gates`` ``(T, B, 4H)`` hold the inputs' share and then the gates i, f, g, o themselves;
    ``weight`` is ``(H, 4H)``; ``states`` and ``cells`` ``(T + 1, B, H)`` begin with those before the first step.
    """
    row = tl.program_id(0) * BM + tl.arange(0, BM)
    unit = tl.arange(0, HP)
    inside = (row < rows)[:, None] & (unit < H)[None, :]
    c = tl.load(cells + row[:, None] * H + unit[None, :], mask=inside, other=0.0)
    for t in range(steps):
        place = t * rows + row
        gi = tl.zeros((BM, HP), tl.float32)
        gf = tl.zeros((BM, HP), tl.float32)
        gg = tl.zeros((BM, HP), tl.float32)
        go = tl.zeros((BM, HP), tl.float32)
        for begin in range(0, H, BK):
            k = begin + tl.arange(0, BK)
            h = tl.load(
                states + place[:, None] * H + k[None, :], mask=(row < rows)[:, None] & (k < H)[None, :], other=0.0
            )
            h = h.to(weight.dtype.element_ty)
            at = weight + k[:, None] * (4 * H) + unit[None, :]
            there = (k < H)[:, None] & (unit < H)[None, :]
            gi = tl.dot(h, tl.load(at, mask=there, other=0.0), gi)
            gf = tl.dot(h, tl.load(at + H, mask=there, other=0.0), gf)
            gg = tl.dot(h, tl.load(at + 2 * H, mask=there, other=0.0), gg)
            go = tl.dot(h, tl.load(at + 3 * H, mask=there, other=0.0), go)
        gate = gates + place[:, None] * (4 * H) + unit[None, :]
        gi = tl.sigmoid(gi + tl.load(gate, mask=inside, other=0.0))
        gf = tl.sigmoid(gf + tl.load(gate + H, mask=inside, other=0.0))
        gg = tanh(gg + tl.load(gate + 2 * H, mask=inside, other=0.0))
        go = tl.sigmoid(go + tl.load(gate + 3 * H, mask=inside, other=0.0))
        tl.store(gate, gi, mask=inside)
        tl.store(gate + H, gf, mask=inside)
        tl.store(gate + 2 * H, gg, mask=inside)
        tl.store(gate + 3 * H, go, mask=inside)
        c = gf * c + gi * gg
        after = (place + rows)[:, None] * H + unit[None, :]
        tl.store(cells + after, c, mask=inside)
        tl.store(states + after, go * tanh(c), mask=inside)
        tl.debug_barrier()  # NOTE [own writes]


@triton.jit
def back_through_time(
    by_states, by_last, by_cell, gates, cells, weight, by_gates, by_first, by_first_cell, rows, steps,
    H: tl.constexpr, HP: tl.constexpr, BM: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """Of a block of rows the gradients by the gates before their activation, ``(T, B, 4H)``, and by what came before the first
    step. ``weight`` is ``(4H, H)``.
    """
    row = tl.program_id(0) * BM + tl.arange(0, BM)
    unit = tl.arange(0, HP)
    inside = (row < rows)[:, None] & (unit < H)[None, :]
    here = row[:, None] * H + unit[None, :]
    dh = tl.load(by_last + here, mask=inside, other=0.0)
    dc = tl.load(by_cell + here, mask=inside, other=0.0)
    for back in range(steps):
        place = (steps - 1 - back) * rows + row
        at = place[:, None] * H + unit[None, :]
        gate = place[:, None] * (4 * H) + unit[None, :]
        gi = tl.load(gates + gate, mask=inside, other=0.0)
        gf = tl.load(gates + gate + H, mask=inside, other=0.0)
        gg = tl.load(gates + gate + 2 * H, mask=inside, other=0.0)
        go = tl.load(gates + gate + 3 * H, mask=inside, other=0.0)
        before = tl.load(cells + at, mask=inside, other=0.0)
        dh += tl.load(by_states + at, mask=inside, other=0.0)
        bent = tanh(gf * before + gi * gg)
        dc += dh * go * (1 - bent * bent)
        tl.store(by_gates + gate, dc * gg * gi * (1 - gi), mask=inside)
        tl.store(by_gates + gate + H, dc * before * gf * (1 - gf), mask=inside)
        tl.store(by_gates + gate + 2 * H, dc * gi * (1 - gg * gg), mask=inside)
        tl.store(by_gates + gate + 3 * H, dh * bent * go * (1 - go), mask=inside)
        dc *= gf
        tl.debug_barrier()  # NOTE [own writes]
        dh = tl.zeros((BM, HP), tl.float32)
        for begin in range(0, 4 * H, BK):
            k = begin + tl.arange(0, BK)
            d = tl.load(
                by_gates + place[:, None] * (4 * H) + k[None, :],
                mask=(row < rows)[:, None] & (k < 4 * H)[None, :],
                other=0.0,
            )
            w = tl.load(
                weight + k[:, None] * H + unit[None, :], mask=(k < 4 * H)[:, None] & (unit < H)[None, :], other=0.0
            )
            dh = tl.dot(d, w, dh)
    tl.store(by_first + here, dh, mask=inside)
    tl.store(by_first_cell + here, dc, mask=inside)


def forward(gates: Tensor, weight: Tensor, state: Tensor, cell: Tensor) -> tuple[Tensor, Tensor]:
    """States and cells ``(T + 1, B, H)``, the given ones first. ``gates`` ``(T, B, 4H)`` come as the inputs' share of them, and
    are the gates afterwards. ``weight`` ``(4H, H)`` is the recurrent one.
    """
    steps, rows, _ = gates.shape
    width = weight.shape[1]
    states, cells = (torch.empty(steps + 1, rows, width, device=gates.device) for _ in range(2))
    states[0], cells[0] = state, cell
    turned = weight.t().to(OPERANDS).contiguous()
    through_time[_programs(rows, CUTS[0])](gates, turned, states, cells, rows, steps, **_options(width, CUTS[0]))
    return states, cells


def backward(
    by_states: Tensor, by_last: Tensor, by_cell: Tensor, gates: Tensor, cells: Tensor, weight: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients by the gates before their activation, by the first state and by the first cell."""
    steps, rows, _ = gates.shape
    width = weight.shape[1]
    by_gates, by_first, by_first_cell = torch.empty_like(gates), torch.empty_like(by_last), torch.empty_like(by_cell)
    back_through_time[_programs(rows, CUTS[1])](
        by_states, by_last, by_cell, gates, cells, weight, by_gates, by_first, by_first_cell, rows, steps,
        **_options(width, CUTS[1]),
    )  # fmt: skip
    return by_gates, by_first, by_first_cell


def _programs(rows: int, cut: Cut) -> tuple[int]:
    return (triton.cdiv(rows, cut.rows),)


def _options(width: int, cut: Cut) -> dict[str, Any]:
    padded = max(32, triton.next_power_of_2(width))
    return {
        "H": width, "HP": padded, "BM": cut.rows, "BK": cut.chunk, "num_warps": cut.warps, "num_stages": cut.stages,
    }  # fmt: skip
