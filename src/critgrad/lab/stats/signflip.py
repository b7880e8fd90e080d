"""The exact sign-flip test of paired differences, and Holm's correction over several of them.

If arm and rival were the same, each pair's difference would be as likely with the other sign. The test counts, over
all ``2^n`` ways to set the signs, how often the sum is at least as far from 0 as the one seen. No distribution is
assumed but this symmetry. With few seeds the count cannot be small: ``n`` differences allow no p below ``2^(1-n)``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .bootstrap import SEED, Floats, Values, finite, generator

EXACT_UP_TO = 30  # two halves of 2^15 sums each; beyond, signs are drawn
MONTE_CARLO = 100_000
# Sums closer than this share of the sum of all sizes are equal: 63.4 - 63.1 and 60.2 - 59.9 are the same difference,
# whatever their last bits say. It can only raise p.
_TIE = 1e-10


@dataclass(frozen=True)
class SignFlip:
    """A two-sided p, the smallest one that these differences could have given, and whether all signs were counted."""

    p: float
    smallest: float
    n: int
    exact: bool


def _all_sums(sizes: Floats) -> Floats:
    # (rows, k) -> (rows, 2^k), sorted: the sums of k sizes under all signs, by doubling.
    sums = np.zeros((len(sizes), 1))
    for size in sizes.T[..., None]:
        sums = np.concatenate((sums + size, sums - size), axis=-1)
    return np.sort(sums, -1)


def sign_flip_rows(differences: Floats) -> Floats:
    """The exact p of each row of ``(rows, n)``: ``sign_flip`` for many samples of one size at once."""
    sizes = np.abs(differences)
    slack = _TIE * sizes.sum(-1)
    seen = np.abs(differences.sum(-1))
    # Every sum is one of the left half plus one of the right half. With both sorted, a binary search counts the
    # partners of each left sum: all 2^n signs for the price of 2^(n/2).
    left, right = _all_sums(sizes[:, ::2]), _all_sums(sizes[:, 1::2])
    needed = (seen - slack)[:, None] - left
    short = np.array([np.searchsorted(r, need).sum() for r, need in zip(right, needed)])
    reach = float(left.shape[-1] * right.shape[-1]) - short
    return np.where(seen <= slack, 1.0, 2 * reach / 2.0 ** differences.shape[-1])


def _drawn(differences: Floats, seed: int) -> float:
    sizes = np.abs(differences)
    seen = abs(differences.sum()) - _TIE * sizes.sum()
    rng, hits, left = generator(seed), 0, MONTE_CARLO
    while left:
        rows = min(left, max(1, 2_000_000 // sizes.size))
        signs = rng.integers(0, 2, size=(rows, sizes.size), dtype=np.int8) * 2.0 - 1.0
        hits += int((np.abs(signs @ sizes) >= seen).sum())
        left -= rows
    return (hits + 1) / (MONTE_CARLO + 1)  # the signs seen are one of the draws: p is never 0


def sign_flip(differences: Values, *, exact_up_to: int = EXACT_UP_TO, seed: int = SEED) -> SignFlip:
    """Two-sided sign-flip test of "the differences are symmetric around 0".

    Differences of exactly 0 stay: they change neither the sum nor p, but the smallest p that could be had.

    >>> sign_flip([1.0, 2.0, 3.0])  # only +++ and --- reach 6
    SignFlip(p=0.25, smallest=0.25, n=3, exact=True)
    >>> sign_flip([1.0, 2.0, -3.0, 0.0]).p
    1.0
    """
    array = finite(differences, "differences")
    moving = array[array != 0]
    exact = moving.size <= exact_up_to
    smallest = 2.0 ** (1 - moving.size) if moving.size else 1.0
    if not exact:
        return SignFlip(_drawn(moving, seed), max(smallest, 1 / (MONTE_CARLO + 1)), array.size, False)
    return SignFlip(float(sign_flip_rows(moving[None])[0]), smallest, array.size, True)


def holm(ps: Sequence[float | None]) -> list[float | None]:
    """Holm's adjusted p for each; ``None`` ("not testable") stays ``None`` and does not count as a test.

    >>> holm([0.01, None, 0.04, 0.03])
    [0.03, None, 0.06, 0.06]
    """
    for p in ps:
        if p is not None and not 0 <= p <= 1:
            raise ValueError(f"Invalid p: {p}, expected 0 <= p <= 1, or None for not testable")
    tested = sorted((p, i) for i, p in enumerate(ps) if p is not None)
    adjusted: list[float | None] = [None] * len(ps)
    floor = 0.0
    for rank, (p, i) in enumerate(tested):
        floor = max(floor, min(1.0, (len(tested) - rank) * p))  # a larger p is never adjusted to a smaller one
        adjusted[i] = floor
    return adjusted
