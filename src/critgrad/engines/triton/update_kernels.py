"""Pass 2: direction and insertion at once; for the bases of bases/families.py the update, too, in a few lines each.

NOTE [select, do not branch]: the slot that may be replaced is loaded with everything else and *selected* from. A branch
with loads and stores of its own behind the others cannot be hoisted (the compiler must fear aliasing) and costs up to
half of the bandwidth.
"""

from __future__ import annotations

import triton
import triton.language as tl

from ...memory.store import REFRESH_STEPS_PER_SLOT
from .device_functions import (
    ACCEPT,
    ALIGNED,
    BUFFER0,
    BUFFER1,
    CLOCK,
    CORRECTION_COLUMNS,
    DECISION_COLUMNS,
    FINITE,
    LENGTH,
    LIVE,
    OF_DIRECTION,
    OF_MOMENTUM,
    OF_SQUARES,
    PARAM,
    PICKED,
    ROW,
    SCALE,
    SLOT,
    SLOTS,
    START,
    SUM,
    chunk_of,
    decode,
    encode,
    load,
    numbers,
    offsets_of,
    pointer,
    scale_offsets,
    store,
)

REFRESH_STEPS = tl.constexpr(REFRESH_STEPS_PER_SLOT)


@triton.jit
def base_update(
    p, d, m, v, corrections, lr, weight_decay, beta1, rest1, beta2, rest2, eps, momentum,
    FAMILY: tl.constexpr, BUFFERS: tl.constexpr, DECOUPLED: tl.constexpr, NESTEROV: tl.constexpr, MAXIMIZE: tl.constexpr,
):  # fmt: skip
    """The base's own update of ``p`` by the direction ``d``, as torch does it; ``rest`` is one minus a beta."""
    if MAXIMIZE:
        d = -d
    if DECOUPLED:
        p = p - lr * weight_decay * p
    else:
        d = d + weight_decay * p
    if FAMILY == "adam" or FAMILY == "nadam":
        of_momentum = tl.load(corrections + OF_MOMENTUM)
        of_squares = tl.load(corrections + OF_SQUARES)
        m = beta1 * m + rest1 * d
        v = beta2 * v + rest2 * d * d
        if FAMILY == "adam":
            p = p - (lr / of_momentum) * m / (tl.sqrt(v) / of_squares + eps)
        else:
            p = p - lr * (tl.load(corrections + OF_DIRECTION) * d + of_momentum * m) / (tl.sqrt(v) / of_squares + eps)
    elif FAMILY == "rmsprop":
        m = beta2 * m + rest2 * d * d
        d = d / (tl.sqrt(m) + eps)
        if BUFFERS > 1:
            v = momentum * v + d
            d = v
        p = p - lr * d
    else:
        tl.static_assert(FAMILY == "sgd", "a family that this kernel does not know")
        if BUFFERS > 0:
            m = momentum * m + d
            d = d + momentum * m if NESTEROV else m
        p = p - lr * d
    return p, m, v


@triton.jit
def slot_values(
    slots, scales, k, length, start, offsets, mask, LARGEST: tl.constexpr, BLOCK: tl.constexpr, FULL: tl.constexpr
):  # fmt: skip
    """``(codes, scales, values)`` of slot ``k``."""
    codes = load(slots + k * length, offsets, mask, FULL)
    scale = 0.0
    if LARGEST > 0:
        there = scale_offsets(start, BLOCK)
        scale = load(scales + k * tl.cdiv(length, 256), there, there < tl.cdiv(length, 256), FULL)
    return codes, scale, decode(codes, scale, LARGEST)


@triton.jit
def damped(
    slots, scales, weights, k, length, start, offsets, mask, LARGEST: tl.constexpr, BLOCK: tl.constexpr, FULL: tl.constexpr
):  # fmt: skip
    """Slot ``k`` times its weight; a scale is multiplied with the weight, once a row, and not with every value."""
    weight = tl.load(weights + k)
    codes, scale, _ = slot_values(slots, scales, k, length, start, offsets, mask, LARGEST, BLOCK, FULL)
    if LARGEST > 0:
        weight = weight * scale
    return weight * numbers(codes, LARGEST)


@triton.jit
def work_on_chunk(
    entry, g_address, start, chunk, decisions, corrections, weights, out,
    lr, weight_decay, beta1, rest1, beta2, rest2, eps, momentum, topC,
    PICK: tl.constexpr, FAMILY: tl.constexpr, BUFFERS: tl.constexpr, DECOUPLED: tl.constexpr, NESTEROV: tl.constexpr,
    MAXIMIZE: tl.constexpr, DAMPING: tl.constexpr, BY_TENSOR: tl.constexpr, DTYPE: tl.constexpr, CODE: tl.constexpr,
    LARGEST: tl.constexpr, BLOCK: tl.constexpr, FULL: tl.constexpr,
):  # fmt: skip
    length = tl.load(entry + LENGTH)
    if FULL:
        # Said of the length and not of k times it: that is folded away for a known k of 1, and what was said with it.
        length = tl.multiple_of(length, 16)
    row = tl.load(entry + ROW)
    decision = decisions + row * DECISION_COLUMNS
    k = tl.load(decision + SLOT)
    accept = tl.load(decision + ACCEPT) != 0
    finite = tl.load(decision + FINITE) != 0

    offsets = offsets_of(start, BLOCK)
    mask = offsets < length
    updated = mask & (g_address != 0)
    params = pointer(tl.load(entry + PARAM), DTYPE, FULL)
    slots = pointer(tl.load(entry + SLOTS), CODE, FULL)
    scales = tl.load(entry + SCALE).to(tl.pointer_type(tl.float32))
    buffer0 = pointer(tl.load(entry + BUFFER0), DTYPE, FULL)
    buffer1 = pointer(tl.load(entry + BUFFER1), DTYPE, FULL)

    g = load(pointer(g_address, DTYPE, FULL), offsets, updated, FULL).to(tl.float32)
    p = load(params, offsets, mask, FULL).to(tl.float32) if FAMILY != "none" else g
    m = load(buffer0, offsets, mask, FULL).to(tl.float32) if BUFFERS > 0 else g
    v = load(buffer1, offsets, mask, FULL).to(tl.float32) if BUFFERS > 1 else g
    new_codes, new_scale = encode(g, 1, CODE, LARGEST)

    if DAMPING > 0:
        d = g
        if BY_TENSOR:
            weights += row * topC
        if FULL:
            for i in tl.static_range(DAMPING):  # unrolled, so that the loads of many slots are in flight
                d -= damped(slots, scales, weights, i, length, start, offsets, mask, LARGEST, BLOCK, FULL)
        else:
            for i in range(DAMPING):  # few chunks come here: not worth the registers
                d -= damped(slots, scales, weights, i, length, start, offsets, mask, LARGEST, BLOCK, FULL)
        tl.store(slots + k * length + offsets, new_codes, mask=accept if FULL else mask & accept)
        if LARGEST > 0:
            there = scale_offsets(start, BLOCK)
            blocks = tl.cdiv(length, 256)
            tl.store(scales + k * blocks + there, new_scale, mask=(there < blocks) & accept)
    else:
        sums = pointer(tl.load(entry + SUM), tl.float32, FULL)
        s = load(sums, offsets, mask, FULL)
        old_codes, old_scale, old = slot_values(slots, scales, k, length, start, offsets, mask, LARGEST, BLOCK, FULL)
        source = s
        if PICK >= 0:
            j = tl.load(decision + PICKED + PICK)
            _, _, source = slot_values(slots, scales, j, length, start, offsets, mask, LARGEST, BLOCK, FULL)
        use = weights + 2 * tl.where(finite, tl.load(decision + LIVE), 0)
        d = tl.load(use) * (g + tl.load(use + 1) * source)
        new = decode(new_codes, new_scale, LARGEST)
        s_after = s + tl.where(accept, new - old, 0.0)
        if (tl.load(decision + CLOCK) + chunk) % (REFRESH_STEPS * topC) == 0:
            # The rolling refresh: this chunk's sum anew, from all slots.
            s_after = s * 0.0
            for i in range(topC):
                _, _, values = slot_values(slots, scales, i, length, start, offsets, mask, LARGEST, BLOCK, FULL)
                s_after += tl.where(accept & (i == k), new, values)
        store(slots + k * length, offsets, tl.where(accept, new_codes, old_codes), mask, FULL)
        store(sums, offsets, s_after, mask, FULL)
        if LARGEST > 0:
            there = scale_offsets(start, BLOCK)
            blocks = tl.cdiv(length, 256)
            tl.store(scales + k * blocks + there, tl.where(accept, new_scale, old_scale), mask=there < blocks)

    # The base sees a direction of the gradient's dtype; a sum of two half values may be too large for one.
    if tl.float16 == DTYPE:
        d = tl.where(finite, tl.minimum(tl.maximum(d, -65504.0), 65504.0), g)
    if FAMILY == "none":
        there = out + tl.load(entry + START)
        store(tl.multiple_of(there, 16) if FULL else there, offsets, d.to(DTYPE), updated, FULL)
    else:
        d = d.to(DTYPE).to(tl.float32)
        p, m, v = base_update(
            p, d, m, v, corrections, lr, weight_decay, beta1, rest1, beta2, rest2, eps, momentum,
            FAMILY, BUFFERS, DECOUPLED, NESTEROV, MAXIMIZE,
        )  # fmt: skip
        store(params, offsets, p.to(DTYPE), updated, FULL)
        if BUFFERS > 0:
            store(buffer0, offsets, m.to(DTYPE), updated, FULL)
        if BUFFERS > 1:
            store(buffer1, offsets, v.to(DTYPE), updated, FULL)


@triton.jit(
    do_not_specialize=["lr", "weight_decay", "beta1", "rest1", "beta2", "rest2", "eps", "momentum", "topC"]
)  # fmt: skip
def update_kernel(
    chunks, tensors, grads, decisions, corrections, weights, out,
    lr, weight_decay, beta1, rest1, beta2, rest2, eps, momentum, topC,
    LR_TENSOR: tl.constexpr, PICK: tl.constexpr, FAMILY: tl.constexpr, BUFFERS: tl.constexpr, DECOUPLED: tl.constexpr,
    NESTEROV: tl.constexpr, MAXIMIZE: tl.constexpr, DAMPING: tl.constexpr, BY_TENSOR: tl.constexpr, DTYPE: tl.constexpr,
    CODE: tl.constexpr, LARGEST: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One chunk of one tensor. ``weights``: of every slot, by memory; or (scale, share) by the number of entries."""
    chunk = tl.program_id(0)
    tensor, start, entry, g_address = chunk_of(chunks, chunk, tensors, grads)
    corrections += tensor * CORRECTION_COLUMNS
    if LR_TENSOR:
        lr = tl.load(lr)
    full = (start + BLOCK <= tl.load(entry + LENGTH)) & (tl.load(entry + ALIGNED) != 0) & (g_address != 0)
    if full:
        work_on_chunk(
            entry, g_address, start, chunk, decisions, corrections, weights, out,
            lr, weight_decay, beta1, rest1, beta2, rest2, eps, momentum, topC, PICK, FAMILY, BUFFERS, DECOUPLED, NESTEROV,
            MAXIMIZE, DAMPING, BY_TENSOR, DTYPE, CODE, LARGEST, BLOCK, True,
        )  # fmt: skip
    else:
        work_on_chunk(
            entry, g_address, start, chunk, decisions, corrections, weights, out,
            lr, weight_decay, beta1, rest1, beta2, rest2, eps, momentum, topC, PICK, FAMILY, BUFFERS, DECOUPLED, NESTEROV,
            MAXIMIZE, DAMPING, BY_TENSOR, DTYPE, CODE, LARGEST, BLOCK, False,
        )  # fmt: skip
