"""Pieces that several Triton kernels share: typed pointers from a table, storing and reading slots, random numbers.

Chunks: a model is cut into pieces of at most ``BLOCK`` values; a program works on one. Pieces that are whole, aligned and
have a gradient (``FULL``) are read and written without masks, which is what lets loads be vectorised.
"""

from __future__ import annotations

import triton
import triton.language as tl

# Columns of the table of tensors, one row for each: addresses first. The buffers are the base's, in the order of its family;
# the last two are counters, of one number each, which need not be aligned (PRODUCT: of NAdam's momenta so far).
PARAM, SLOTS, SUM, SCALE, BUFFER0, BUFFER1, STEP, PRODUCT = map(tl.constexpr, range(8))
# ROW of the memory's tables; START in the buffer of directions; whether all of it is ALIGNED; COUNTED: whether this rank adds
# its squares.
LENGTH, ROW, START, ALIGNED, COUNTED = map(tl.constexpr, range(8, 13))
COUNTERS = 2
TENSOR_COLUMNS = tl.constexpr(13)

# Columns of what an update is corrected with, one row per tensor. OF_MOMENTUM: Adam divides by it, NAdam multiplies with it.
OF_MOMENTUM, OF_SQUARES, OF_DIRECTION = map(tl.constexpr, range(3))
CORRECTION_COLUMNS = tl.constexpr(3)

# Columns of what was decided, one row per memory. CLOCK: after the step; PICKED: by "min", "median", "max", in three columns.
SLOT, ACCEPT, FINITE, LIVE, CLOCK, PICKED = map(tl.constexpr, range(6))
DECISION_COLUMNS = tl.constexpr(8)

SCALE_BLOCK = tl.constexpr(256)
_TINY = tl.constexpr(1.1754943508222875e-38)
_ROUNDER = tl.constexpr(12582912.0)  # 1.5 * 2**23: adding and taking it away rounds to an integer, halves to even
_OFFSET = tl.constexpr(8388736.0)  # 2**23 + 128
_OFFSET_BITS = tl.constexpr(0x4B000080)  # of it


@triton.jit
def chunk_of(chunks, number, tensors, grads):
    """``(tensor, where the chunk starts in it, its row of the table, the address of its gradient)``."""
    tensor = tl.load(chunks + 2 * number)
    start = tl.multiple_of(tl.load(chunks + 2 * number + 1), 256)
    return tensor, start, tensors + tensor * TENSOR_COLUMNS, tl.load(grads + tensor)


@triton.jit
def pointer(address, DTYPE: tl.constexpr, FULL: tl.constexpr):
    """An address as a pointer; of a whole chunk it is known to be aligned."""
    p = address.to(tl.pointer_type(DTYPE))
    return tl.multiple_of(p, 16) if FULL else p


@triton.jit
def load(p, offsets, mask, FULL: tl.constexpr):
    return tl.load(p + offsets) if FULL else tl.load(p + offsets, mask=mask, other=0)


@triton.jit
def store(p, offsets, values, mask, FULL: tl.constexpr):
    if FULL:
        tl.store(p + offsets, values)
    else:
        tl.store(p + offsets, values, mask=mask)


@triton.jit
def offsets_of(start, BLOCK: tl.constexpr):
    """Of the values of a chunk, as rows of ``SCALE_BLOCK``: values of a row share a scale in the 8-bit formats."""
    return start + tl.arange(0, BLOCK // SCALE_BLOCK)[:, None] * SCALE_BLOCK + tl.arange(0, SCALE_BLOCK)[None, :]


@triton.jit
def scale_offsets(start, BLOCK: tl.constexpr):
    return start // SCALE_BLOCK + tl.arange(0, BLOCK // SCALE_BLOCK)[:, None]


@triton.jit
def numbers(codes, LARGEST: tl.constexpr):
    """Stored codes as float32, not scaled yet. ``LARGEST``: of an 8-bit format's codes (127: int8, 448: float8), else 0.

    NOTE [no conversions]: a GPU converts integers at an eighth of the rate of its additions. Instead a code plus 128 is put
    into the last bits of 2**23, and both are taken away again: exact for each of the 256 codes. (One byte permutation a
    code by inline assembly was slower on an H200, though there are fewer instructions.)
    """
    if LARGEST == 448:
        return codes.to(tl.float8e4nv, bitcast=True).to(tl.float32)
    if LARGEST > 0:
        bits = (codes.to(tl.int32) & 255) ^ _OFFSET_BITS
        return bits.to(tl.float32, bitcast=True) - _OFFSET
    return codes.to(tl.float32)


@triton.jit
def decode(codes, scales, LARGEST: tl.constexpr):
    """Stored codes as the float32 values they stand for."""
    if LARGEST > 0:
        return numbers(codes, LARGEST) * scales
    return numbers(codes, LARGEST)


@triton.jit
def encode(values, AXIS: tl.constexpr, CODE: tl.constexpr, LARGEST: tl.constexpr):
    """What a slot stores for float32 ``values``: ``(codes, scales)``, a scale along ``AXIS``; too large ones saturate."""
    if LARGEST > 0:
        scales = tl.max(tl.abs(values), axis=AXIS, keep_dims=True) / LARGEST
        usable = scales >= _TINY  # smaller ones have no reciprocal: such a block is zero
        scales = tl.where(usable, scales, 0.0)
        scaled = values * tl.where(usable, 1.0 / tl.where(usable, scales, 1.0), 0.0)
        scaled = tl.minimum(tl.maximum(scaled, -LARGEST), LARGEST)
        if LARGEST == 448:
            codes = scaled.to(tl.float8e4nv).to(tl.int8, bitcast=True)
        else:
            codes = ((scaled + _ROUNDER) - _ROUNDER).to(tl.int8)
    else:
        scales = tl.max(values, axis=AXIS, keep_dims=True)  # not used, and not computed
        if tl.float16 == CODE:
            codes = tl.minimum(tl.maximum(values, -65504.0), 65504.0).to(tl.float16)
        elif tl.bfloat16 == CODE:
            codes = tl.minimum(tl.maximum(values, -3.3895313892515355e38), 3.3895313892515355e38).to(tl.bfloat16)
        else:
            codes = values.to(CODE)
    return codes, scales


@triton.jit
def _mix32(x):
    x = ((x ^ (x >> 16)) * 0x7FEB352D) & 0xFFFFFFFF
    x = ((x ^ (x >> 15)) * 0x846CA68B) & 0xFFFFFFFF
    return x ^ (x >> 16)


@triton.jit
def uniform(seed, t, stream, PURPOSE: tl.constexpr):
    """The twin of ``draws.uniform``."""
    h = _mix32((t & 0xFFFFFFFF) ^ (seed & 0xFFFFFFFF))
    h = _mix32(h ^ (t >> 32) ^ ((seed >> 32) & 0xFFFFFFFF))
    h = _mix32((h + stream * 2 + PURPOSE) & 0xFFFFFFFF)
    return h.to(tl.float64) * 2.3283064365386963e-10
