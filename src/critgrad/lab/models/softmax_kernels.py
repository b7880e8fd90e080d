"""The cross entropy of a large output layer on a GPU without its logits ever being in memory (Triton).

``E[W] = softmax(h W' + b) W`` is what an attention layer computes that has the words' weights as keys and as values, so one
pass over the words with a running maximum gives the loss *and* the gradient by ``h``. A second pass, over the rows this time,
makes the probabilities anew for the gradient by ``W``: four products instead of three, and no traffic of logits, of which
14,700 words x 10,000 are 0.6 GB.

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
WIDTHS = (64, 128)  # of the hidden units: a row of a tile
SCALE = 1024.0
LOG2E = 1.4426950408889634


@triton.jit
def over_words(
    hidden, weight, bias, targets, logsums, losses, gradient, n, words, share,
    H: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, UNIT: tl.constexpr, L2E: tl.constexpr, GRADIENT: tl.constexpr,
):  # fmt: skip
    """Of a block of rows: the logarithm of the sum of exponentials (base 2), the loss, the gradient by the hidden units."""
    row = tl.program_id(0) * BM + tl.arange(0, BM)
    inside = row < n
    unit = tl.arange(0, H)
    column = tl.arange(0, BN)
    h = tl.load(hidden + row[:, None] * H + unit[None, :], mask=inside[:, None], other=0.0)
    top = tl.full((BM,), float("-inf"), tl.float32)
    total = tl.zeros((BM,), tl.float32)
    mean = tl.zeros((BM, H), tl.float32)
    for begin in range(0, words, BN):
        word = begin + column
        w = tl.load(weight + word[:, None] * H + unit[None, :], mask=(word < words)[:, None], other=0.0)
        b = tl.load(bias + word, mask=word < words, other=float("-inf"))
        logits = (tl.dot(h, tl.trans(w)) + b[None, :]) * L2E
        higher = tl.maximum(top, tl.max(logits, 1))
        shrink = tl.exp2(top - higher)
        p = tl.exp2(logits - higher[:, None])
        total = total * shrink + tl.sum(p, 1)
        if GRADIENT:
            mean = tl.dot((p * UNIT).to(w.dtype), w, mean * shrink[:, None])
        top = higher
    logsum = top + tl.log2(total)
    target = tl.load(targets + row, mask=inside, other=-1)
    counts = target >= 0
    target = tl.where(counts, target, 0)
    own = tl.load(weight + target[:, None] * H + unit[None, :]).to(tl.float32)
    logit = tl.sum(h.to(tl.float32) * own, 1) + tl.load(bias + target)
    tl.store(losses + row, tl.where(counts, logsum / L2E - logit, 0.0), mask=inside)
    if GRADIENT:
        tl.store(logsums + row, logsum, mask=inside)
        found = (mean / (total * UNIT)[:, None] - own) * share
        tl.store(gradient + row[:, None] * H + unit[None, :], found, mask=inside[:, None])


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
    tile = TILES[0]
    over_words[(triton.cdiv(n, tile.rows),)](
        h, w, bias, targets, logsums, losses, by_hidden, n, len(w), 1 / n,
        H=width, BM=tile.rows, BN=tile.words, UNIT=SCALE, L2E=LOG2E, GRADIENT=by_hidden is not None,
        num_warps=tile.warps, num_stages=tile.stages,
    )  # fmt: skip


def _processors(tensor: Tensor) -> int:
    return torch.cuda.get_device_properties(tensor.device).multi_processor_count if tensor.is_cuda else 1
