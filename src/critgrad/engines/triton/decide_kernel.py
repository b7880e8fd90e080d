"""The decision, on the device: the twin of ``policies.decide`` and ``policies.advance``, one program per memory.

It adds up the partial sums, decides, advances the tables, and leaves what the update needs: slot, acceptance, count.
"""

from __future__ import annotations

import triton
import triton.language as tl

from ...memory.damping import RHO_ABOVE_ROUNDING, ROUNDING_OF_PRODUCTS
from .device_functions import ACCEPT, CLOCK, DECISION_COLUMNS, FINITE, LIVE, PICKED, SLOT, uniform
from .measure_kernels import newest_entry

_NEVER = tl.constexpr(9223372036854775807)
_ABOVE_ROUNDING = tl.constexpr(RHO_ABOVE_ROUNDING)
_ROUNDING = tl.constexpr(ROUNDING_OF_PRODUCTS)
_LARGEST = tl.constexpr(3.4028234663852886e38)
KNOWN_POLICIES = ("KotH", "bottomC", "FIFO", "random", "MNDS", "CDS", "CSS", "RR", "NCPR", "sparse")


@triton.jit
def first_where(condition, key, slots):
    """The slot with the smallest ``key`` among those that meet ``condition``; keys are integers, of equal ones the first."""
    smallest = tl.min(tl.where(condition, key, _NEVER), axis=0)
    return tl.min(tl.where(condition & (key == smallest), slots, slots.shape[0]), axis=0).to(tl.int64)


@triton.jit
def as_flag(condition):
    """A scalar condition in the form that Triton's interpreter can combine with a block of conditions, too."""
    return condition.to(tl.int32) != 0


@triton.jit
def totals(partials, begin, end, stride, first, columns, inside, BLOCK: tl.constexpr):
    """Of some columns, each over the rows from ``begin`` to ``end``."""
    sums = tl.zeros((BLOCK, columns.shape[0]), tl.float64)
    for at in range(begin, end, BLOCK):
        row = at + tl.arange(0, BLOCK)[:, None]
        mask = (row < end) & inside[None, :]
        sums += tl.load(partials + row * stride + first + columns[None, :], mask=mask, other=0.0)
    return tl.sum(sums, axis=0)


@triton.jit
def total(partials, begin, end, stride, column, BLOCK: tl.constexpr):
    one = tl.arange(0, 1)
    return tl.sum(totals(partials, begin, end, stride, column, one, one == 0, BLOCK), axis=0)


@triton.jit
def choose(
    priority, norm, born, live, n, inside, slots, g_norm, entry, cosine, t, seed, stream, every, max_age, topC,
    POLICY: tl.constexpr, AGED: tl.constexpr,
):  # fmt: skip
    """``(admitted, slot)`` for a finite gradient that is not zero, whose priority would be ``entry``."""
    full = n == topC
    lowest = tl.min(tl.where(live, priority, float("inf")), axis=0)
    coin = uniform(seed, t, stream, 0)
    draw = uniform(seed, t, stream, 1)
    weakest = first_where(live & (priority == lowest), born, slots)
    oldest = first_where(live, born, slots)
    admitted = full | (n < topC)  # True, as a tensor
    victim = weakest
    if (POLICY == "KotH") or (POLICY == "bottomC") or (POLICY == "RR") or (POLICY == "NCPR"):
        admitted = (entry > lowest) | (n < topC)
    elif POLICY == "random":
        admitted = coin < 0.5
    elif POLICY == "sparse":
        admitted = (t - 1) % every == 0
    elif POLICY == "MNDS":
        mean = tl.sum(tl.where(live, norm, 0.0), axis=0) / tl.maximum(n, 1).to(tl.float32)
        admitted = (coin * mean.to(tl.float64) < tl.abs(g_norm - mean).to(tl.float64)) | (n < topC)
    elif POLICY == "CDS":
        admitted = (coin < (1.0 - cosine) / 2) | (n < topC)
    elif POLICY == "CSS":
        admitted = (coin < (1.0 + cosine) / 2) | (n < topC)
    else:
        tl.static_assert(POLICY == "FIFO", "a policy that this kernel does not know")
    if (POLICY == "FIFO") or (POLICY == "sparse"):
        victim = oldest
    elif POLICY == "RR":
        victim = tl.minimum((draw * topC.to(tl.float64)).to(tl.int64), topC - 1)
    elif POLICY == "NCPR":
        share = tl.cumsum(tl.where(live, norm, 0.0).to(tl.float64), axis=0)
        threshold = draw * tl.max(share, axis=0)
        victim = tl.minimum(tl.sum(((share <= threshold) & inside).to(tl.int64), axis=0), topC - 1)
    free = first_where(inside & (born == 0), slots.to(tl.int64), slots)
    slot = tl.where(full, victim, free)
    if AGED:
        expired = tl.max((live & (t - born >= max_age)).to(tl.int32), axis=0) > 0
        admitted = admitted | expired
        slot = tl.where(expired, oldest, slot)
    return admitted, slot


@triton.jit
def write_picks(decisions, row, norm, born, live, slots, n):
    """The slots of the smallest, the lower median and the largest stored norm; of equal norms the oldest."""
    smaller = (norm[None, :] < norm[:, None]) | ((norm[None, :] == norm[:, None]) & (born[None, :] < born[:, None]))
    rank = tl.sum((smaller & live[None, :]).to(tl.int64), axis=1)
    smallest = tl.sum(tl.where(live & (rank == 0), slots, 0), axis=0)
    median = tl.sum(tl.where(live & (rank == (tl.maximum(n, 1) - 1) // 2), slots, 0), axis=0)
    largest_norm = tl.max(tl.where(live, norm, -1.0), axis=0)
    largest = first_where(live & (norm == largest_norm), born, slots)
    tl.store(decisions + row * DECISION_COLUMNS + PICKED, smallest.to(tl.int64))
    tl.store(decisions + row * DECISION_COLUMNS + PICKED + 1, median.to(tl.int64))
    tl.store(decisions + row * DECISION_COLUMNS + PICKED + 2, tl.where(n > 0, largest, 0))


@triton.jit
def solve(A, b, i, rho, WIDTH: tl.constexpr):
    """``x`` with ``A x = b``, A symmetric positive definite: Gauss-Jordan without pivoting, in float64.

    And whether a pivot was rounding (memory/damping.py, NOTE [lost in rounding]); its ``x`` is zero then.
    """
    row, column = i[:, None], i[None, :]
    smallest = tl.maximum(_ROUNDING * tl.sum(tl.where(row == column, A, 0.0), axis=1), rho / 2)
    noise = i < 0
    for k in range(WIDTH):
        pivot_row = tl.sum(tl.where(row == k, A, 0.0), axis=0)
        pivot_column = tl.sum(tl.where(column == k, A, 0.0), axis=1)
        pivot = tl.sum(tl.where(i == k, pivot_row, 0.0), axis=0)
        lost = as_flag(pivot < tl.sum(tl.where(i == k, smallest, 0.0), axis=0))
        noise = noise | ((i == k) & lost)
        factor = tl.where((i == k) | lost, 0.0, pivot_column / tl.where(lost, 1.0, pivot))
        b = b - factor * tl.sum(tl.where(i == k, b, 0.0), axis=0)
        A = A - factor[:, None] * pivot_row[None, :]
    diagonal = tl.sum(tl.where(row == column, A, 0.0), axis=1)
    return tl.where(noise, 0.0, b / tl.where(noise, 1.0, diagonal)), tl.max(noise.to(tl.int32), axis=0)


@triton.jit
def damp(weights, gram, a, finite, slots, inside, rho, kappa, WIDTH: tl.constexpr):
    """What is taken of each slot: the twin of ``damping.damping_weights``."""
    row, column = slots[:, None], slots[None, :]
    trace = tl.sum(tl.sum(tl.where(row == column, gram, 0.0), axis=1), axis=0)
    use = as_flag(finite & (trace > 0))
    size = tl.where(use, trace, 1.0)
    rho = tl.cast(rho, tl.float64)
    diagonal = tl.where(inside & use, rho, 1.0)
    A = tl.where(use, gram / size, 0.0) + tl.where(row == column, diagonal[:, None], 0.0)
    b = tl.where(use, a / size, 0.0)
    w, lost = solve(A, b, slots, rho, WIDTH)
    if lost > 0:
        w, lost = solve(A + tl.where(row == column, _ABOVE_ROUNDING, 0.0), b, slots, rho + _ABOVE_ROUNDING, WIDTH)
    w = tl.minimum(tl.maximum(kappa * w, -_LARGEST), _LARGEST)
    tl.store(weights + slots, tl.where(use, w, 0.0).to(tl.float32), mask=inside)


@triton.jit(do_not_specialize=["topC", "seed", "every", "max_age"])
def decide_kernel(
    partials, bounds, grams, priorities, norms, borns, clocks, inserted, streams, priorities_given, decisions, weights,
    topC, decay, rho, kappa, seed, every, max_age,
    GIVEN: tl.constexpr, POLICY: tl.constexpr, AGED: tl.constexpr, COSINE: tl.constexpr, PICKS: tl.constexpr,
    DAMPS: tl.constexpr, ROUNDED: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Decide for memory ``number``, whose partial sums are the rows between its two ``bounds``.

    With DAMPS, also solve for its weights and bring the new entry into its Gram matrix. An entry that is stored as it is has
    the inner products of ``g``. With ROUNDED they are known in the next step only, from the stored values (keys.py, NOTE
    [pending]): then the last entry's are brought in first.
    """
    number = tl.program_id(0).to(tl.int64)
    topC = tl.cast(topC, tl.int64)
    seed = tl.cast(seed, tl.int64)
    every = tl.cast(every, tl.int64)
    max_age = tl.cast(max_age, tl.int64)
    slots = tl.arange(0, WIDTH)
    inside = slots < topC
    at = number * topC + slots
    begin, end = tl.load(bounds + 2 * number), tl.load(bounds + 2 * number + 1)
    stride = 1 + (2 if ROUNDED else 1) * topC if DAMPS else tl.cast(3 if COSINE else 1, tl.int64)
    square = total(partials, begin, end, stride, 0, BLOCK)
    g_norm = tl.sqrt(square.to(tl.float32))
    finite = (g_norm - g_norm) == 0.0  # neither inf nor NaN

    against = square * 0.0  # g times the memory's sum, and the sum's square
    sum_square = square * 0.0
    if DAMPS:
        grams += number * topC * topC
        row, column = slots[:, None], slots[None, :]
        both = (row < topC) & (column < topC)
        gram = tl.load(grams + row * topC + column, mask=both, other=0.0)
        a = totals(partials, begin, end, stride, 1, slots, inside, BLOCK)
        if ROUNDED:
            r = totals(partials, begin, end, stride, 1 + topC, slots, inside, BLOCK)
            last = newest_entry(grams, topC, WIDTH)
            gram = tl.where(gram == gram, gram, tl.where(row == last, r[None, :], r[:, None]))
        damp(weights + number * topC, gram, a, finite, slots, inside, rho, kappa, WIDTH)
        against = tl.sum(a, axis=0)  # the sum of G g, and 1'K1
        sum_square = tl.maximum(tl.sum(tl.sum(gram, axis=1), axis=0), 0.0)
    elif COSINE:
        against = total(partials, begin, end, stride, 1, BLOCK)
        sum_square = total(partials, begin, end, stride, 2, BLOCK)
    size = g_norm.to(tl.float64) * tl.sqrt(sum_square)
    cosine = tl.where(size > 0, against / tl.where(size > 0, size, 1.0), 0.0)
    cosine = tl.minimum(tl.maximum(cosine, -1.0), 1.0)

    priority = tl.load(priorities + at, mask=inside, other=0.0)
    norm = tl.load(norms + at, mask=inside, other=0.0)
    born = tl.load(borns + at, mask=inside, other=0)
    live = born > 0
    n = tl.sum(live.to(tl.int64), axis=0)
    t = tl.load(clocks + number) + 1
    offered = tl.load(priorities_given + number) if GIVEN else g_norm
    entry = tl.minimum(1.0 / offered, _LARGEST) if POLICY == "bottomC" else offered
    if PICKS:
        write_picks(decisions, number, norm, born, live, slots, n)
    admitted, slot = choose(
        priority, norm, born, live, n, inside, slots, g_norm, entry, cosine, t, seed, tl.load(streams + number), every,
        max_age, topC, POLICY, AGED,
    )  # fmt: skip
    accept = as_flag(admitted & finite & (g_norm > 0) & (offered >= 0) & (offered - offered == 0.0))
    there = decisions + number * DECISION_COLUMNS
    tl.store(there + SLOT, tl.minimum(tl.maximum(slot, 0), topC - 1))
    tl.store(there + ACCEPT, accept.to(tl.int64))
    tl.store(there + FINITE, finite.to(tl.int64))
    tl.store(there + LIVE, n)
    tl.store(there + CLOCK, tl.where(finite, t, t - 1))
    if DAMPS:
        products = a * 0.0 + float("nan") if ROUNDED else tl.where(slots == slot, square, a)
        gram = tl.where((row == slot) & accept, products[None, :], gram)
        gram = tl.where((column == slot) & accept, products[:, None], gram)
        tl.store(grams + row * topC + column, gram, mask=both)
    # The tables after the insertion, every priority decayed; nothing at all for a gradient that was not finite.
    hit = (slots == slot) & accept
    priority = tl.where(hit, entry, priority)
    tl.store(priorities + at, tl.where(finite, priority * decay, priority), mask=inside)
    tl.store(norms + at, tl.where(hit, g_norm, norm), mask=inside)
    tl.store(borns + at, tl.where(hit, t, born), mask=inside)
    tl.store(clocks + number, tl.where(finite, t, t - 1))
    tl.store(inserted + number, tl.load(inserted + number) + accept.to(tl.int64))
