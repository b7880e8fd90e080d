"""The cross entropy of a large output layer on a GPU without its logits ever being in memory (Triton).

``E[W] = softmax(h W' + b) W`` is what an attention layer computes that has the words' weights as keys and as values, so one
pass over the words with a running maximum gives the loss *and* the gradient by ``h``. Where rows are few, the words are cut
into parts, and a small kernel puts these together. A second pass, over the rows this time, makes the probabilities anew for the
gradient by ``W``: four products instead of three, and no traffic of logits, of which 14,700 words x 10,000 are 0.6 GB.

NOTE [half is enough]: the operands are rounded to float16, which has the 11 bits of precision that TF32 has, and products are
summed in float32. What float16 lacks is range: weights and hidden units have no need of it, and probabilities are multiplied
by ``SCALE``, so that those down to 6e-8 keep all their bits. So this takes the place of TF32's products, where a task allows
those, and of nothing more precise.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor


class Tile(NamedTuple):
    """How a pass is cut."""

    rows: int
    words: int
    warps: int
    stages: int


TILES = Tile(64, 128, 4, 3), Tile(64, 128, 8, 3)  # of the pass over the words, and of that over the rows
JOINED_ROWS = 16  # of a program that puts the parts of the words together
MOST_PARTS = 16  # of the words
WIDTHS = (64, 128)  # of the hidden units: a row of a tile
SCALE = 1024.0
LOG2E = 1.4426950408889634


@triton.jit
def over_words(
    hidden, weight, bias, tops, totals, means, n, words, part,
    H: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, UNIT: tl.constexpr, L2E: tl.constexpr, GRADIENT: tl.constexpr,
):  # fmt: skip
    """Of a block of rows and a part of the words: the largest logit (base 2), and beside it the sum of exponentials and of the
    words' weights by these.
    """
    row = tl.program_id(0) * BM + tl.arange(0, BM)
    inside = row < n
    unit = tl.arange(0, H)
    column = tl.arange(0, BN)
    h = tl.load(hidden + row[:, None] * H + unit[None, :], mask=inside[:, None], other=0.0)
    top = tl.full((BM,), float("-inf"), tl.float32)
    total = tl.zeros((BM,), tl.float32)
    mean = tl.zeros((BM, H), tl.float32)
    first = tl.program_id(1) * part
    last = tl.minimum(first + part, words)
    for begin in range(first, last, BN):
        word = begin + column
        w = tl.load(weight + word[:, None] * H + unit[None, :], mask=(word < last)[:, None], other=0.0)
        b = tl.load(bias + word, mask=word < last, other=float("-inf"))
        logits = (tl.dot(h, tl.trans(w)) + b[None, :]) * L2E
        higher = tl.maximum(top, tl.max(logits, 1))
        shrink = tl.exp2(top - higher)
        p = tl.exp2(logits - higher[:, None])
        total = total * shrink + tl.sum(p, 1)
        if GRADIENT:
            mean = tl.dot((p * UNIT).to(w.dtype), w, mean * shrink[:, None])
        top = higher
    place = tl.program_id(1) * n + row
    tl.store(tops + place, top, mask=inside)
    tl.store(totals + place, total, mask=inside)
    if GRADIENT:
        tl.store(means + place[:, None] * H + unit[None, :], mean, mask=inside[:, None])


@triton.jit
def together(
    tops, totals, means, hidden, weight, bias, targets, logsums, losses, gradient, n, parts, share,
    H: tl.constexpr, BM: tl.constexpr, UNIT: tl.constexpr, L2E: tl.constexpr, GRADIENT: tl.constexpr,
):  # fmt: skip
    """Of a block of rows, from all parts of the words: the logarithm of the sum of exponentials (base 2), the loss, the
    gradient by the hidden units.
    """
    row = tl.program_id(0) * BM + tl.arange(0, BM)
    inside = row < n
    unit = tl.arange(0, H)
    top = tl.full((BM,), float("-inf"), tl.float32)
    total = tl.zeros((BM,), tl.float32)
    mean = tl.zeros((BM, H), tl.float32)
    for part in range(parts):
        place = part * n + row
        here = tl.load(tops + place, mask=inside, other=0.0)
        higher = tl.maximum(top, here)
        shrink, scale = tl.exp2(top - higher), tl.exp2(here - higher)
        total = total * shrink + tl.load(totals + place, mask=inside, other=1.0) * scale
        if GRADIENT:
            found = tl.load(means + place[:, None] * H + unit[None, :], mask=inside[:, None], other=0.0)
            mean = mean * shrink[:, None] + found * scale[:, None]
        top = higher
    logsum = top + tl.log2(total)
    target = tl.load(targets + row, mask=inside, other=-1)
    counts = target >= 0
    target = tl.where(counts, target, 0)
    h = tl.load(hidden + row[:, None] * H + unit[None, :], mask=inside[:, None], other=0.0)
    own = tl.load(weight + target[:, None] * H + unit[None, :]).to(tl.float32)
    logit = tl.sum(h.to(tl.float32) * own, 1) + tl.load(bias + target)
    tl.store(losses + row, tl.where(counts, logsum / L2E - logit, 0.0), mask=inside)
    if GRADIENT:
        tl.store(logsums + row, logsum, mask=inside)
        by_hidden = (mean / (total * UNIT)[:, None] - own) * share
        tl.store(gradient + row[:, None] * H + unit[None, :], by_hidden, mask=inside[:, None])


@triton.jit
def over_rows(
    hidden, weight, bias, targets, logsums, by_weight, by_bias, n, words, part, share,
    H: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, UNIT: tl.constexpr, L2E: tl.constexpr,
):  # fmt: skip
    """Of a block of words and a part of the rows: the gradients by their weights and biases."""
    word = tl.program_id(0) * BN + tl.arange(0, BN)
    inside = word < words
    unit = tl.arange(0, H)
    w = tl.load(weight + word[:, None] * H + unit[None, :], mask=inside[:, None], other=0.0)
    b = tl.load(bias + word, mask=inside, other=0.0)
    first = tl.program_id(1) * part
    last = tl.minimum(first + part, n)
    of_weight = tl.zeros((BN, H), tl.float32)
    of_bias = tl.zeros((BN,), tl.float32)
    for begin in range(first, last, BM):
        row = begin + tl.arange(0, BM)
        h = tl.load(hidden + row[:, None] * H + unit[None, :], mask=(row < last)[:, None], other=0.0)
        logsum = tl.load(logsums + row, mask=row < last, other=float("inf"))  # of no row: a probability of 0
        target = tl.load(targets + row, mask=row < last, other=-1)
        p = tl.exp2((tl.dot(w, tl.trans(h)) + b[:, None]) * L2E - logsum[None, :]) * UNIT
        p = tl.where(word[:, None] == target[None, :], p - UNIT, p)
        of_bias += tl.sum(p, 1)
        of_weight = tl.dot(p.to(h.dtype), h, of_weight)
    place = tl.program_id(1).to(tl.int64) * words + word
    tl.store(by_weight + place[:, None] * H + unit[None, :], of_weight * (share / UNIT), mask=inside[:, None])
    tl.store(by_bias + place, of_bias * (share / UNIT), mask=inside)


def sum_of_losses(hidden: Tensor, weight: Tensor, bias: Tensor, targets: Tensor) -> Tensor:
    """The sum of the losses; a negative target's does not count."""
    losses = hidden.new_empty(len(hidden))
    _over_words(hidden.to(torch.float16), weight.to(torch.float16), bias, targets, None, losses, None)
    return losses.sum()


def loss_and_gradients(
    hidden: Tensor, weight: Tensor, bias: Tensor, targets: Tensor
) -> tuple[Tensor, tuple[Tensor, Tensor, Tensor]]:
    """The mean loss and its gradients by hidden units, weights and biases; the same bits every time. All targets count."""
    n, width = hidden.shape
    words = len(weight)
    h, w = hidden.to(torch.float16), weight.to(torch.float16)
    logsums, losses = hidden.new_empty(n), hidden.new_empty(n)
    by_hidden = torch.empty_like(hidden)
    _over_words(h, w, bias, targets, logsums, losses, by_hidden)
    tile = TILES[1]
    blocks = triton.cdiv(words, tile.words)
    parts = max(1, min(4, 2 * _processors(hidden) // blocks))  # so that a small vocabulary keeps all processors busy
    part = triton.cdiv(triton.cdiv(n, parts), tile.rows) * tile.rows
    by_weight, by_bias = weight.new_empty(parts, words, width), bias.new_empty(parts, words)
    over_rows[(blocks, parts)](
        h, w, bias, targets, logsums, by_weight, by_bias, n, words, part, 1 / n,
        H=width, BM=tile.rows, BN=tile.words, UNIT=SCALE, L2E=LOG2E, num_warps=tile.warps, num_stages=tile.stages,
    )  # fmt: skip
    return losses.mean(), (by_hidden, by_weight.sum(0), by_bias.sum(0))


def _over_words(
    h: Tensor,
    w: Tensor,
    bias: Tensor,
    targets: Tensor,
    logsums: Tensor | None,
    losses: Tensor,
    by_hidden: Tensor | None,
) -> None:
    n, width = h.shape
    words, tile, gradient = len(w), TILES[0], by_hidden is not None
    blocks = triton.cdiv(n, tile.rows)
    # So that few rows keep all processors busy.
    parts = max(1, min(MOST_PARTS, 2 * _processors(h) // blocks, triton.cdiv(words, tile.words)))
    part = triton.cdiv(triton.cdiv(words, parts), tile.words) * tile.words
    parts = triton.cdiv(words, part)
    tops, totals = losses.new_empty(2, parts, n)
    means = losses.new_empty(parts, n, width) if gradient else None
    over_words[(blocks, parts)](
        h, w, bias, tops, totals, means, n, words, part,
        H=width, BM=tile.rows, BN=tile.words, UNIT=SCALE, L2E=LOG2E, GRADIENT=gradient,
        num_warps=tile.warps, num_stages=tile.stages,
    )  # fmt: skip
    together[(triton.cdiv(n, JOINED_ROWS),)](
        tops, totals, means, h, w, bias, targets, logsums, losses, by_hidden, n, parts, 1 / n,
        H=width, BM=JOINED_ROWS, UNIT=SCALE, L2E=LOG2E, GRADIENT=gradient,
    )  # fmt: skip


def _processors(tensor: Tensor) -> int:
    return torch.cuda.get_device_properties(tensor.device).multi_processor_count if tensor.is_cuda else 1
