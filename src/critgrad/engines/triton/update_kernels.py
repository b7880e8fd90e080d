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
    BUFFER0,
    BUFFER1,
    CLOCK,
    CORRECTION_COLUMNS,
    DECISION_COLUMNS,
    FINITE,
    LIVE,
    OF_DIRECTION,
    OF_MOMENTUM,
    OF_SQUARES,
    PARAM,
    PICKED,
    SCALE,
    SLOT,
    SLOTS,
    SUM,
    decode,
    encode,
    load,
    numbers,
    offsets_of,
    pointer,
    scale_offsets,
    store,
)

COLUMNS = tl.constexpr(DECISION_COLUMNS)
CORRECTIONS = tl.constexpr(CORRECTION_COLUMNS)
REFRESH_STEPS = tl.constexpr(REFRESH_STEPS_PER_SLOT)


@triton.jit
def base_update(
    p, d, m, v, lr, c1, c2, c3, s0, s1, s2, s3, s4, s5,
    FAMILY: tl.constexpr, DECOUPLED: tl.constexpr, MOMENTUM: tl.constexpr, NESTEROV: tl.constexpr,
    MAXIMIZE: tl.constexpr,
):  # fmt: skip
    """The base's own update of ``p`` by the direction ``d``, as torch does it; ``s0`` is the weight decay."""
    if MAXIMIZE:
        d = -d
    if DECOUPLED:
        p = p - lr * s0 * p
    else:
        d = d + s0 * p
    if FAMILY == "adam":  # s1 beta1, s2 1 - beta1, s3 beta2, s4 1 - beta2, s5 eps; c1 1 - beta1^t, c2 sqrt(1 - beta2^t)
        m = s1 * m + s2 * d
        v = s3 * v + s4 * d * d
        p = p - (lr / c1) * m / (tl.sqrt(v) / c2 + s5)
    elif FAMILY == "nadam":  # s and c2 as adam's; c1 mu_next / (1 - product and mu_next), c3 (1 - mu) / (1 - product)
        m = s1 * m + s2 * d
        v = s3 * v + s4 * d * d
        p = p - lr * (c3 * d + c1 * m) / (tl.sqrt(v) / c2 + s5)
    elif FAMILY == "rmsprop":  # s1 alpha, s2 1 - alpha, s3 eps, s4 momentum
        m = s1 * m + s2 * d * d
        d = d / (tl.sqrt(m) + s3)
        if MOMENTUM:
            v = s4 * v + d
            d = v
        p = p - lr * d
    else:  # s1 momentum
        tl.static_assert(FAMILY == "sgd", "a family that this kernel does not know")
        if MOMENTUM:
            m = s1 * m + d
            if NESTEROV:
                d = d + s1 * m
            else:
                d = m
        p = p - lr * d
    return p, m, v


@triton.jit
def slot_values(
    slots, scales, k, length, start, offsets, mask,
    CODE: tl.constexpr, LARGEST: tl.constexpr, BLOCK: tl.constexpr, FULL: tl.constexpr,
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
    slots, scales, weights, k, length, start, offsets, mask,
    CODE: tl.constexpr, LARGEST: tl.constexpr, BLOCK: tl.constexpr, FULL: tl.constexpr,
):  # fmt: skip
    """Slot ``k`` times its weight; a scale is multiplied with the weight, once a row, and not with every value."""
    weight = tl.load(weights + k)
    codes, scale, _ = slot_values(slots, scales, k, length, start, offsets, mask, CODE, LARGEST, BLOCK, FULL)
    if LARGEST > 0:
        weight = weight * scale
    return weight * numbers(codes, LARGEST)


@triton.jit
def work_on_chunk(
    tensor, start, chunk, lengths, rows, static, grads, tensors, decisions, corrections, weights, lr, adding, out, starts,
    s0, s1, s2, s3, s4, s5, topC,
    DAMPING: tl.constexpr, BY_TENSOR: tl.constexpr, PICK: tl.constexpr, FAMILY: tl.constexpr, BUFFERS: tl.constexpr,
    DECOUPLED: tl.constexpr, MOMENTUM: tl.constexpr, NESTEROV: tl.constexpr, MAXIMIZE: tl.constexpr,
    DTYPE: tl.constexpr, CODE: tl.constexpr, LARGEST: tl.constexpr, BLOCK: tl.constexpr,
    FULL: tl.constexpr,
):  # fmt: skip
    length = tl.load(lengths + tensor)
    if FULL:
        # Said of the length and not of k times it: that is folded away for a known k of 1, and what was said with it.
        length = tl.multiple_of(length, 16)
    row = tl.load(rows + tensor)
    k = tl.load(decisions + row * COLUMNS + SLOT)
    accept = tl.load(decisions + row * COLUMNS + ACCEPT) != 0
    finite = tl.load(decisions + row * COLUMNS + FINITE) != 0
    n = tl.load(decisions + row * COLUMNS + LIVE)
    clock = tl.load(decisions + row * COLUMNS + CLOCK)

    offsets = offsets_of(start, BLOCK)
    mask = offsets < length
    g_address = tl.load(grads + tensor)
    updated = mask & (g_address != 0)
    params = pointer(tl.load(static + PARAM * tensors + tensor), DTYPE, FULL)
    slots = pointer(tl.load(static + SLOTS * tensors + tensor), CODE, FULL)
    scales = tl.load(static + SCALE * tensors + tensor).to(tl.pointer_type(tl.float32))
    buffer0 = pointer(tl.load(static + BUFFER0 * tensors + tensor), DTYPE, FULL)
    buffer1 = pointer(tl.load(static + BUFFER1 * tensors + tensor), DTYPE, FULL)

    g = load(pointer(g_address, DTYPE, FULL), offsets, updated, FULL).to(tl.float32)
    p = g
    if FAMILY != "none":
        p = load(params, offsets, mask, FULL).to(tl.float32)
    m = g
    v = g
    if BUFFERS > 0:
        m = load(buffer0, offsets, mask, FULL).to(tl.float32)
    if BUFFERS > 1:
        v = load(buffer1, offsets, mask, FULL).to(tl.float32)
    new_codes, new_scale = encode(g, 1, CODE, LARGEST)

    if DAMPING > 0:
        d = g
        if BY_TENSOR:
            weights += row * topC
        if FULL:
            for i in tl.static_range(DAMPING):  # unrolled, so that the loads of many slots are in flight
                d -= damped(slots, scales, weights, i, length, start, offsets, mask, CODE, LARGEST, BLOCK, FULL)
        else:
            for i in range(DAMPING):  # few chunks come here: not worth the registers
                d -= damped(slots, scales, weights, i, length, start, offsets, mask, CODE, LARGEST, BLOCK, FULL)
        if FULL:
            tl.store(slots + k * length + offsets, new_codes, mask=accept)
        else:
            tl.store(slots + k * length + offsets, new_codes, mask=mask & accept)
        if LARGEST > 0:
            there = scale_offsets(start, BLOCK)
            blocks = tl.cdiv(length, 256)
            tl.store(scales + k * blocks + there, new_scale, mask=(there < blocks) & accept)
    else:
        sums = pointer(tl.load(static + SUM * tensors + tensor), tl.float32, FULL)
        s = load(sums, offsets, mask, FULL)
        old_codes, old_scale, old = slot_values(
            slots, scales, k, length, start, offsets, mask, CODE, LARGEST, BLOCK, FULL
        )
        source = s
        if PICK >= 0:
            j = tl.load(decisions + row * COLUMNS + PICKED + PICK)
            _, _, source = slot_values(slots, scales, j, length, start, offsets, mask, CODE, LARGEST, BLOCK, FULL)
        use = adding + 2 * tl.where(finite, n, 0)  # (scale, share) for so many entries
        d = tl.load(use) * (g + tl.load(use + 1) * source)
        new = decode(new_codes, new_scale, LARGEST)
        s_after = s + tl.where(accept, new - old, 0.0)
        if (clock + chunk) % (REFRESH_STEPS * topC) == 0:
            # The rolling refresh: this chunk's sum anew, from all slots.
            s_after = s * 0.0
            for i in range(topC):
                _, _, values = slot_values(slots, scales, i, length, start, offsets, mask, CODE, LARGEST, BLOCK, FULL)
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
        there = out + tl.load(starts + tensor)
        if FULL:
            there = tl.multiple_of(there, 16)
        store(there, offsets, d.to(DTYPE), updated, FULL)
    else:
        d = d.to(DTYPE).to(tl.float32)
        c1 = 1.0
        c2 = 1.0
        c3 = 1.0
        if FAMILY == "adam" or FAMILY == "nadam":
            c1 = tl.load(corrections + tensor * CORRECTIONS + OF_MOMENTUM)
            c2 = tl.load(corrections + tensor * CORRECTIONS + OF_SQUARES)
            if FAMILY == "nadam":
                c3 = tl.load(corrections + tensor * CORRECTIONS + OF_DIRECTION)
        p, m, v = base_update(
            p, d, m, v, lr, c1, c2, c3, s0, s1, s2, s3, s4, s5, FAMILY, DECOUPLED, MOMENTUM, NESTEROV, MAXIMIZE
        )
        store(params, offsets, p.to(DTYPE), updated, FULL)
        if BUFFERS > 0:
            store(buffer0, offsets, m.to(DTYPE), updated, FULL)
        if BUFFERS > 1:
            store(buffer1, offsets, v.to(DTYPE), updated, FULL)


@triton.jit(do_not_specialize=["tensors", "lr", "s0", "s1", "s2", "s3", "s4", "s5", "topC"])
def update_kernel(
    chunk_tensor, chunk_start, lengths, rows, aligned, static, grads, tensors, decisions, corrections, weights,
    lr, lr_tensor, adding, out, starts, s0, s1, s2, s3, s4, s5, topC,
    LR_TENSOR: tl.constexpr, PICK: tl.constexpr, FAMILY: tl.constexpr, BUFFERS: tl.constexpr,
    DECOUPLED: tl.constexpr, MOMENTUM: tl.constexpr, NESTEROV: tl.constexpr, MAXIMIZE: tl.constexpr,
    DAMPING: tl.constexpr, BY_TENSOR: tl.constexpr, DTYPE: tl.constexpr, CODE: tl.constexpr, LARGEST: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """One chunk of one tensor."""
    chunk = tl.program_id(0)
    tensor = tl.load(chunk_tensor + chunk).to(tl.int64)
    start = tl.multiple_of(tl.load(chunk_start + chunk), 256)
    if LR_TENSOR:
        lr = tl.load(lr_tensor).to(tl.float32)
    length = tl.load(lengths + tensor)
    full = (start + BLOCK <= length) & (tl.load(aligned + tensor) != 0) & (tl.load(grads + tensor) != 0)
    if full:
        work_on_chunk(
            tensor, start, chunk, lengths, rows, static, grads, tensors, decisions, corrections, weights, lr, adding,
            out, starts, s0, s1, s2, s3, s4, s5, topC, DAMPING, BY_TENSOR, PICK, FAMILY, BUFFERS, DECOUPLED, MOMENTUM,
            NESTEROV, MAXIMIZE, DTYPE, CODE, LARGEST, BLOCK, True,
        )  # fmt: skip
    else:
        work_on_chunk(
            tensor, start, chunk, lengths, rows, static, grads, tensors, decisions, corrections, weights, lr, adding,
            out, starts, s0, s1, s2, s3, s4, s5, topC, DAMPING, BY_TENSOR, PICK, FAMILY, BUFFERS, DECOUPLED, MOMENTUM,
            NESTEROV, MAXIMIZE, DTYPE, CODE, LARGEST, BLOCK, False,
        )  # fmt: skip
