"""Wilcoxon's exact signed-rank test of paired differences, the interval and the estimate that belong to it.

All three read the Walsh averages ``(d_i + d_j) / 2``, ``i <= j``. If arm and rival were the same, a difference would be as
likely with the other sign, and the number of averages on one side of 0 would have the distribution of a sum of ranks
``1 .. n`` with signs tossed. The interval leaves out as many averages at each end as that distribution allows; the estimate
(Hodges and Lehmann's) is their median. So the interval leaves 0 outside exactly where p < .05, and one far value moves neither
by much.

Ties and zeros: nothing is dropped, and no normal approximation is used. An average of exactly 0 (a difference of 0, or two of
one size and opposite signs) counts against both sides, and the ends belong to the interval. Breaking the ties at random could
only leave fewer averages on a side, so p is never too small. Without such averages p is the textbook's.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from .bootstrap import Floats, Values, finite, generator
from .verdicts import ALPHA

_TIE = 1e-10  # of the largest difference: an average below is 0; 63.4 - 63.1 and 59.9 - 60.2 have one size
ROWS = 10_000  # simulated samples behind a power, fewer of large ones
_AT_ONCE = 1_000_000  # averages in memory
POWER = 0.8
_PULLED_IN = 3.0
MOST = 100  # replicates; beyond, a plan says "more than 100"


@dataclass(frozen=True)
class SignedRank:
    """The test of ``n`` differences. With fewer than six the 95 % interval is infinite: no p can be below .05."""

    estimate: float
    low: float
    high: float
    p: float
    n: int


@lru_cache(maxsize=256)
def _below(n: int) -> Floats:
    # P(sum of the ranks that were tossed "minus" <= t) for t = 0 .. n (n + 1) / 2, rank by rank.
    chances = np.zeros(n * (n + 1) // 2 + 1)
    chances[0] = 1.0
    for rank in range(1, n + 1):
        shifted = np.concatenate((np.zeros(rank), chances[:-rank]))
        chances = (chances + shifted) / 2
    return np.cumsum(chances)


@lru_cache(maxsize=1024)
def _left_out(n: int, alpha: float) -> int:
    # How many averages lie outside at each end: so many that p < alpha exactly where 0 is among them or beyond.
    return int(np.searchsorted(2 * _below(n), alpha, side="left"))


def walsh_averages(differences: Floats) -> Floats:
    """All ``(d_i + d_j) / 2`` with ``i <= j``, in order, along the last axis.

    >>> walsh_averages(np.array([0.0, 4.0, 1.0])).tolist()
    [0.0, 0.5, 1.0, 2.0, 2.5, 4.0]
    """
    i, j = np.triu_indices(differences.shape[-1])
    averages = (differences[..., i] + differences[..., j]) / 2
    averages[np.abs(averages) <= _TIE * np.abs(differences).max(-1, keepdims=True)] = 0.0
    return np.sort(averages, -1)


def signed_rank(differences: Values, alpha: float = ALPHA) -> SignedRank:
    """Two-sided test of "the differences are symmetric around 0", with the interval of confidence ``1 - alpha``.

    >>> found = signed_rank([1.1, 0.4, 0.9, 0.3, 1.6, 0.7])
    >>> found.p, round(found.estimate, 3), found.low, found.high
    (0.03125, 0.8, 0.3, 1.6)
    >>> signed_rank([0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0])  # the same runs
    SignedRank(estimate=0.0, low=0.0, high=0.0, p=1.0, n=7)
    """
    array = finite(differences, "differences")
    n = array.size
    averages = walsh_averages(array)
    # The fewest that speak against one of the two signs; those at 0 speak against both.
    against = min(np.searchsorted(averages, 0.0, side="right"), averages.size - np.searchsorted(averages, 0.0))
    p = min(1.0, 2 * float(_below(n)[int(against)]))
    cut = _left_out(n, alpha)
    low, high = (float(averages[cut - 1]), float(averages[-cut])) if cut else (-math.inf, math.inf)
    return SignedRank(float(np.median(averages)), low, high, p, n)


def shamos(differences: Values) -> float:
    """The median distance of two values, in units of a normal's standard deviation: a spread that one far value hardly moves.

    It is to the standard deviation what Hodges and Lehmann's estimate is to the mean. Where most values are equal it is the
    standard deviation itself.

    >>> round(shamos([1.0, 2.0, 3.0, 4.0, 5.0]), 2), shamos([1.0, 1.0, 1.0])
    (1.88, 0.0)
    """
    array = finite(differences, "differences")
    if array.size < 2:
        return math.nan
    spread = float(_median_distance(array[None])[0]) / _normal_distance(min(array.size, 40))
    return spread or float(array.std(ddof=1))


def spread(differences: Values) -> float:
    """The standard deviation, far values pulled in to three of Shamos's spreads: what plans are made with.

    Tails as they come count, since they cost power; one value at the edge of stability does not make a plan hopeless.

    >>> near = [0.9, 1.0, 1.1, 1.2, 0.8, 1.05, 0.95, 1.15]
    >>> round(spread(near), 2), round(spread([*near, 1000.0]), 2)
    (0.13, 0.24)
    """
    array = finite(differences, "differences")
    if array.size < 2:
        return math.nan
    middle, reach = float(np.median(walsh_averages(array))), _PULLED_IN * shamos(array)
    return float(array.clip(middle - reach, middle + reach).std(ddof=1))


def _median_distance(rows: Floats) -> Floats:
    i, j = np.triu_indices(rows.shape[-1], k=1)
    found: Floats = np.median(np.abs(rows[..., i] - rows[..., j]), -1)
    return found


@lru_cache(maxsize=64)
def _normal_distance(n: int) -> float:
    # Its mean over samples of n standard normal values; from n = 40 on it hardly changes.
    return float(_median_distance(generator().normal(size=(2000, n))).mean())


# What a plan can be expected to see. A shift moves an interval and does not change it, so one set of simulated intervals of
# normal differences with spread 1 answers for all.


@lru_cache(maxsize=1024)
def _ends(n: int, alpha: float) -> tuple[Floats, Floats]:
    cut = _left_out(n, alpha)
    if not cut:
        return np.array([-np.inf]), np.array([np.inf])
    i, j = np.triu_indices(n)
    rows = min(ROWS, 5 * _AT_ONCE // i.size)
    rng, parts = generator(), []
    while rows > 0:
        samples = rng.normal(size=(min(rows, _AT_ONCE // i.size), n))
        averages = np.partition(samples[:, i] + samples[:, j], (cut - 1, i.size - cut), -1) / 2
        parts.append(averages[:, [cut - 1, i.size - cut]])
        rows -= len(samples)
    low, high = np.concatenate(parts).T
    return np.concatenate((low, -high)), np.concatenate((high, -low))  # every sample and its mirror image


def power(effect: float, n: int, claims: int = 1) -> float:
    """How often ``n`` differences with a true shift of ``effect`` (in their spread) are called better, among so many claims.

    Each claim must pass at ``.05 / claims``, the first step of Holm's correction.

    >>> [round(power(1.0, n), 2) for n in (5, 6, 8, 10, 13)]
    [0.0, 0.35, 0.61, 0.79, 0.9]
    """
    return float((_ends(n, ALPHA / claims)[0] + effect > 0).mean())


def power_of_same(effect: float, margin: float, n: int) -> float:
    """How often the interval of ``n`` differences lies inside plus or minus ``margin`` (both in their spread).

    >>> round(power_of_same(0.0, 1.0, 10), 2), power_of_same(0.0, 1.0, 5)
    (0.6, 0.0)
    """
    low, high = _ends(n, ALPHA)
    return float(((low + effect >= -margin) & (high + effect <= margin)).mean())


def detectable(spread: float, n: int, claims: int = 1) -> float:
    """The smallest true difference that ``n`` replicates with this spread call better four times in five; infinite for too few.

    >>> round(detectable(1.0, 10), 2), detectable(1.0, 5)
    (1.01, inf)
    """
    # Cut from above: with so many or fewer of the simulated lows beyond it, the share found is at least POWER.
    low = np.sort(_ends(n, ALPHA / claims)[0])
    return float(-low[math.floor((1 - POWER) * low.size)]) * spread if spread else 0.0


def needed_for_better(effect: float, claims: int = 1) -> int | None:
    """The fewest replicates that call a shift of ``effect`` (in their spread) better four times in five; none within ``MOST``.

    >>> needed_for_better(1.0), needed_for_better(1.0, claims=6), needed_for_better(9.0), needed_for_better(0.05)
    (11, 17, 6, None)
    """
    return _fewest(lambda n: power(abs(effect), n, claims) >= POWER)


def needed_for_same(effect: float, margin: float) -> int | None:
    """The fewest replicates whose interval lies inside the margin four times in five, if the shift is ``effect``; none within
    ``MOST``.

    >>> needed_for_same(0.0, 1.0), needed_for_same(0.5, 1.0), needed_for_same(1.1, 1.0)
    (14, 35, None)
    """
    return _fewest(lambda n: power_of_same(effect, margin, n) >= POWER) if abs(effect) < margin else None


def _fewest(enough: Callable[[int], bool]) -> int | None:
    # By halving: with more replicates both powers only grow, but for steps of a percent or two.
    low, high = 1, MOST
    if not enough(high):
        return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high
