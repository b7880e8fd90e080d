"""Pass 1: squared norms (for the memories that add) and inner products with every slot (for those that damp).

Sums are float32 within a chunk of at most 64 k values and float64 across. Every chunk, or every program, writes a row of
its own and the decision adds the rows in a fixed order: no atomics, so the same run gives the same bits.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .device_functions import (
    ALIGNED,
    CORRECTION_COLUMNS,
    COUNTED,
    LENGTH,
    OF_DIRECTION,
    OF_MOMENTUM,
    OF_SQUARES,
    PRODUCT,
    ROW,
    SCALE,
    SCALE_BLOCK,
    SLOTS,
    STEP,
    SUM,
    chunk_of,
    load,
    numbers,
    pointer,
)


@triton.jit
def _power(base, exponent):
    """``base ** exponent`` in float64 for whole exponents up to 2**24, the largest step count that float32 can hold."""
    result = tl.full((), 1.0, tl.float64)
    for _ in range(25):
        result = tl.where(exponent % 2 == 1, result * base, result)
        base = base * base
        exponent = exponent // 2
    return result


@triton.jit
def _count_step(entry, mine, beta1, beta2, fading, FAMILY: tl.constexpr):
    """Count the step of a tensor with a gradient, and write what its update is corrected with.

    Adam: 1 - beta ** step. NAdam: what momentum and direction are multiplied with. Its momentum is mu = beta1 * (1 - f ** step
    / 2), ``fading`` f = 0.96 ** momentum_decay, and the product of them so far is state, which torch multiplies in float32.
    """
    step_pointer = tl.load(entry + STEP).to(tl.pointer_type(tl.float32))
    step = tl.load(step_pointer) + 1
    tl.store(step_pointer, step)
    if FAMILY == "adam" or FAMILY == "nadam":
        whole = step.to(tl.int64)
        beta1 = tl.full((), beta1, tl.float64)
        tl.store(mine + OF_SQUARES, tl.sqrt(1.0 - _power(tl.full((), beta2, tl.float64), whole)).to(tl.float32))
        if FAMILY == "adam":
            tl.store(mine + OF_MOMENTUM, (1.0 - _power(beta1, whole)).to(tl.float32))
        else:
            fading = tl.full((), fading, tl.float64)
            faded = _power(fading, whole)
            mu = beta1 * (1.0 - 0.5 * faded)
            mu_next = beta1 * (1.0 - 0.5 * faded * fading)
            product_pointer = tl.load(entry + PRODUCT).to(tl.pointer_type(tl.float32))
            product = tl.load(product_pointer) * mu.to(tl.float32)
            tl.store(product_pointer, product)
            product = product.to(tl.float64)
            tl.store(mine + OF_MOMENTUM, (mu_next / (1.0 - product * mu_next)).to(tl.float32))
            tl.store(mine + OF_DIRECTION, ((1.0 - mu) / (1.0 - product)).to(tl.float32))


@triton.jit
def _squares(
    g_address, s_address, start, length,
    DTYPE: tl.constexpr, COSINE: tl.constexpr, SPAN: tl.constexpr, BLOCK: tl.constexpr, FULL: tl.constexpr,
):  # fmt: skip
    lanes = tl.arange(0, BLOCK)
    square = tl.zeros((BLOCK,), tl.float32)
    against = tl.zeros((BLOCK,), tl.float32)
    own = tl.zeros((BLOCK,), tl.float32)
    gp = pointer(g_address, DTYPE, FULL)
    sp = pointer(s_address, tl.float32, FULL)
    for i in range(0, SPAN, BLOCK):
        offsets = start + i + lanes
        mask = offsets < length
        g = load(gp, offsets, mask & (g_address != 0), FULL).to(tl.float32)
        square += g * g
        if COSINE:
            s = load(sp, offsets, mask, FULL)
            against += g * s
            own += s * s
    return tl.sum(square), tl.sum(against), tl.sum(own)


@triton.jit
def norms_kernel(
    chunks, tensors, grads, partials, corrections, beta1: tl.float64, beta2: tl.float64, fading: tl.float64,
    DTYPE: tl.constexpr, FAMILY: tl.constexpr, COUNTS: tl.constexpr, COSINE: tl.constexpr, SPAN: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Squares of one coarse chunk (``SPAN`` values) -> a row of ``partials``: |g|^2 and, with COSINE, g*s and s*s."""
    chunk = tl.program_id(0)
    tensor, start, entry, g_address = chunk_of(chunks, chunk, tensors, grads)
    length = tl.load(entry + LENGTH)
    s_address = tl.load(entry + SUM)
    if COUNTS:
        if (start == 0) & (g_address != 0):
            _count_step(entry, corrections + tensor * CORRECTION_COLUMNS, beta1, beta2, fading, FAMILY)
    full = (start + SPAN <= length) & (tl.load(entry + ALIGNED) != 0) & (g_address != 0)
    if full:
        square, against, own = _squares(g_address, s_address, start, length, DTYPE, COSINE, SPAN, BLOCK, True)
    else:
        square, against, own = _squares(g_address, s_address, start, length, DTYPE, COSINE, SPAN, BLOCK, False)
    weight = tl.load(entry + COUNTED).to(tl.float64)
    row = partials + chunk * (3 if COSINE else 1)
    tl.store(row, square.to(tl.float64) * weight)
    if COSINE:
        tl.store(row + 1, against.to(tl.float64) * weight)
        tl.store(row + 2, own.to(tl.float64) * weight)


@triton.jit
def _by_lane(values, EACH: tl.constexpr):
    """Sums of EACH neighbours; a lane holds them all."""
    return tl.sum(tl.reshape(values, (values.shape[0], values.shape[1] // EACH, EACH)), axis=2)


@triton.jit
def _products(
    slots, scales, first, g, newest, newest_scale, a, r, offsets, mask, at, length, topC,
    LARGEST: tl.constexpr, ROUNDED: tl.constexpr, EACH: tl.constexpr, FULL: tl.constexpr,
):  # fmt: skip
    """Some slots times ``g`` and, with ROUNDED, times the newest entry, lane by lane on top of ``a`` and ``r``."""
    rows: tl.constexpr = a.shape[0]
    k = first + tl.arange(0, rows).to(tl.int64)[:, None]
    row = k * length
    if FULL:
        row = tl.multiple_of(row, (1, 16))
    codes = tl.load(slots + row + offsets, mask=k < topC if FULL else (k < topC) & mask, other=0)
    G = numbers(codes, LARGEST)
    products = _by_lane(G * g, EACH)
    squares = _by_lane(G * newest, EACH) if ROUNDED else products
    if LARGEST > 0:
        # Loaded (lanes, slots), since Triton deals the first of two equal axes to the lanes: where products are already.
        blocks = tl.cdiv(length, SCALE_BLOCK)
        column = tl.trans(k)
        scale = tl.trans(tl.load(scales + column * blocks + at, mask=(column < topC) & (at < blocks), other=0.0))
        products = products * scale
        squares = squares * scale * newest_scale
    a += products
    if ROUNDED:
        r += squares
    return a, r


@triton.jit
def _dots(
    g_address, slots_address, scales_address, start, begin, end, length, topC, newest, square, a, r, b, s,
    DTYPE: tl.constexpr, CODE: tl.constexpr, LARGEST: tl.constexpr, ROUNDED: tl.constexpr, HIGH: tl.constexpr,
    SPLIT: tl.constexpr, EACH: tl.constexpr, STAGES: tl.constexpr, FULL: tl.constexpr,
):  # fmt: skip
    """Adds the products of the values from ``begin`` to ``end``, counted from ``start``, to the sums of every lane.

    Tiles are (slots, values): a lane adds up the products of EACH neighbours, which share a scale, and multiplies their sum
    with it. With SPLIT there are two tiles, of HIGH slots and of those left: a tile has a power of two of everything, and ten
    are not sixteen. Tiles have two axes, since those of three pass through shared memory in another order than lanes read
    them, and eight lanes wait for one bank.
    """
    LANES: tl.constexpr = a.shape[1]
    lane = tl.arange(0, LANES)[:, None] * EACH
    gp = pointer(g_address, DTYPE, FULL)
    slots = pointer(slots_address, CODE, FULL)
    scales = scales_address.to(tl.pointer_type(tl.float32))
    scale_blocks = tl.cdiv(length, SCALE_BLOCK)
    newest_row = newest * length
    if FULL:
        newest_row = tl.multiple_of(newest_row, 16)
    for i in tl.range(begin, end, LANES * EACH, num_stages=STAGES):
        first = start + tl.multiple_of(i, LANES * EACH)
        offsets = first + tl.arange(0, LANES * EACH)[None, :]
        mask = offsets < length
        at = (first + lane) // SCALE_BLOCK
        g = load(gp, offsets, mask & (g_address != 0), FULL).to(tl.float32)
        square += _by_lane(g * g, EACH)
        entry = g
        scale = 1.0
        if ROUNDED:
            if LARGEST > 0:
                scale = tl.trans(tl.load(scales + newest * scale_blocks + at, mask=at < scale_blocks, other=0.0))
            entry = numbers(load(slots + newest_row, offsets, mask, FULL), LARGEST)
        a, r = _products(
            slots, scales, 0, g, entry, scale, a, r, offsets, mask, at, length, topC,
            LARGEST, ROUNDED, EACH, FULL,
        )  # fmt: skip
        if SPLIT:
            b, s = _products(
                slots, scales, HIGH, g, entry, scale, b, s, offsets, mask, at, length, topC,
                LARGEST, ROUNDED, EACH, FULL,
            )  # fmt: skip
    return square, a, r, b, s


@triton.jit
def newest_entry(grams, topC, WIDTH: tl.constexpr):
    """The slot whose inner products are not known yet (keys.py, NOTE [pending]); the first if there is none."""
    i = tl.arange(0, WIDTH)
    diagonal = tl.load(grams + i * (topC + 1), mask=i < topC, other=0.0)
    return tl.max(tl.where(diagonal != diagonal, i, 0), axis=0).to(tl.int64)


@triton.jit(do_not_specialize=["count", "topC"])
def dots_kernel(
    chunks, tensors, grads, partials, corrections, beta1: tl.float64, beta2: tl.float64, fading: tl.float64,
    grams, count, topC,
    DTYPE: tl.constexpr, CODE: tl.constexpr, LARGEST: tl.constexpr, ROUNDED: tl.constexpr, FAMILY: tl.constexpr,
    COUNTS: tl.constexpr, BY_TENSOR: tl.constexpr, WIDTH: tl.constexpr, HIGH: tl.constexpr, LOW: tl.constexpr,
    SPLIT: tl.constexpr, SPAN: tl.constexpr, BLOCK: tl.constexpr, STAGES: tl.constexpr, EACH: tl.constexpr,
):  # fmt: skip
    """Many coarse chunks -> one row of ``partials``: |g|^2, then topC of G g, then, with ROUNDED, topC of G G_newest.

    With BY_TENSOR a program has one chunk: tensors have Gram matrices, newest entries and sums of their own.
    A chunk of an aligned tensor is read without masks as far as whole tiles go; what is left of it, and all of one that is
    not aligned, in smaller tiles with masks: they take many registers, which the others would pay for, too.
    """
    LANES: tl.constexpr = BLOCK // EACH
    FEW: tl.constexpr = min(EACH, 4)
    square_sum = tl.zeros((1,), tl.float64)
    a_sum = tl.zeros((HIGH,), tl.float64)
    r_sum = tl.zeros((HIGH,), tl.float64)
    b_sum = tl.zeros((LOW,), tl.float64)
    s_sum = tl.zeros((LOW,), tl.float64)
    topC = tl.cast(topC, tl.int64)
    newest = tl.cast(0, tl.int64) if BY_TENSOR else newest_entry(grams, topC, WIDTH)
    for chunk in range(tl.program_id(0), count, tl.num_programs(0)):
        tensor, start, entry, g_address = chunk_of(chunks, chunk, tensors, grads)
        length = tl.load(entry + LENGTH)
        slots = tl.load(entry + SLOTS)
        scales = tl.load(entry + SCALE)
        if BY_TENSOR:
            newest = newest_entry(grams + tl.load(entry + ROW) * topC * topC, topC, WIDTH)
        if COUNTS:
            if (start == 0) & (g_address != 0):
                _count_step(entry, corrections + tensor * CORRECTION_COLUMNS, beta1, beta2, fading, FAMILY)
        end = tl.minimum(length - start, SPAN).to(tl.int32)
        whole = tl.where((tl.load(entry + ALIGNED) != 0) & (g_address != 0), end // BLOCK * BLOCK, 0)
        square = tl.zeros((1, LANES), tl.float32)
        a = tl.zeros((HIGH, LANES), tl.float32)
        r = tl.zeros((HIGH, LANES), tl.float32)
        b = tl.zeros((LOW, LANES), tl.float32)
        s = tl.zeros((LOW, LANES), tl.float32)
        square, a, r, b, s = _dots(
            g_address, slots, scales, start, 0, whole, length, topC, newest, square, a, r, b, s,
            DTYPE, CODE, LARGEST, ROUNDED, HIGH, SPLIT, EACH, STAGES, True,
        )  # fmt: skip
        square, a, r, b, s = _dots(
            g_address, slots, scales, start, whole, end, length, topC, newest, square, a, r, b, s,
            DTYPE, CODE, LARGEST, ROUNDED, HIGH, SPLIT, FEW, 1, False,
        )  # fmt: skip
        weight = tl.load(entry + COUNTED).to(tl.float64)
        square_sum += tl.sum(square, axis=1).to(tl.float64) * weight
        a_sum += tl.sum(a, axis=1).to(tl.float64) * weight
        r_sum += tl.sum(r, axis=1).to(tl.float64) * weight
        b_sum += tl.sum(b, axis=1).to(tl.float64) * weight
        s_sum += tl.sum(s, axis=1).to(tl.float64) * weight
    row = partials + tl.program_id(0) * (1 + (2 if ROUNDED else 1) * topC)
    tl.store(row + tl.arange(0, 1), square_sum)
    high = tl.arange(0, HIGH)
    low = HIGH + tl.arange(0, LOW)
    tl.store(row + 1 + high, a_sum, mask=high < topC)
    tl.store(row + 1 + low, b_sum, mask=low < topC)
    if ROUNDED:
        tl.store(row + 1 + topC + high, r_sum, mask=high < topC)
        tl.store(row + 1 + topC + low, s_sum, mask=low < topC)
