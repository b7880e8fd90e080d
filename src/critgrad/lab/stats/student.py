"""Student's t and the binomial's exact bounds, from one function: the regularised incomplete beta.

Written out here so that the lab's intervals need numpy alone. Agreement with scipy is a test.
"""

from __future__ import annotations

import math
from functools import lru_cache
from statistics import NormalDist

# Above this many degrees of freedom the expansion around the normal quantile is exact to rounding.
_MANY = 1000.0


def incomplete_beta(a: float, b: float, x: float, y: float | None = None) -> float:
    """``I_x(a, b)``. ``y`` is ``1 - x``, for callers who know it more exactly than the subtraction does.

    >>> round(incomplete_beta(2, 3, 0.5), 6)  # P(at least 2 heads in 4 tosses) = 11 / 16
    0.6875
    """
    y = 1 - x if y is None else y
    if x <= 0 or y <= 0:
        return 0.0 if x <= 0 else 1.0
    if x > (a + 1) / (a + b + 2):  # the fraction converges fast on the other side only
        return 1 - incomplete_beta(b, a, y, x)
    front = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log(y)
    return math.exp(front) * _fraction(a, b, x) / a


def _fraction(a: float, b: float, x: float) -> float:
    # The continued fraction of the incomplete beta (DLMF 8.17.22), evaluated by Lentz's method.
    tiny = 1e-300
    c, d = 1.0, 1 - (a + b) * x / (a + 1)
    d = 1 / (d if abs(d) > tiny else tiny)
    value = d
    for m in range(1, 10_000):
        for coefficient in (
            m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1)),
        ):
            d = 1 + coefficient * d
            d = 1 / (d if abs(d) > tiny else tiny)
            c = 1 + coefficient / c
            c = c if abs(c) > tiny else tiny
            value *= c * d
        if abs(c * d - 1) < 1e-15:
            break
    return value


@lru_cache(maxsize=256)  # a bisection: worth keeping, since tables ask for few sizes many times
def t_quantile(df: float, confidence: float = 0.95) -> float:
    """The ``t`` with ``P(|T| < t) = confidence``, for any ``df > 0``, whole or not, and infinity (the normal).

    >>> round(t_quantile(4), 4), round(t_quantile(9), 4), round(t_quantile(math.inf), 4)
    (2.7764, 2.2622, 1.96)
    """
    if not df > 0:
        raise ValueError(f"Invalid degrees of freedom: {df}, expected df > 0")
    if not 0 < confidence < 1:
        raise ValueError(f"Invalid confidence: {confidence}, expected 0 < confidence < 1")
    if df > _MANY:
        return _near_normal(df, confidence)

    def too_small(t: float) -> bool:
        # Of the two sides take the one that is the smaller number: it has all its digits.
        x, y = df / (df + t * t), t * t / (df + t * t)
        if confidence > 0.5:
            return incomplete_beta(df / 2, 0.5, x, y) > 1 - confidence
        return incomplete_beta(0.5, df / 2, y, x) < confidence

    low, high = 0.0, 1.0
    while too_small(high) and high < 1e150:  # its square must stay finite
        low, high = high, 4 * high
    for _ in range(200):
        middle = (low + high) / 2
        if middle in (low, high):
            break
        low, high = (middle, high) if too_small(middle) else (low, middle)
    return high


def _near_normal(df: float, confidence: float) -> float:
    # Abramowitz and Stegun 26.7.5.
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return z + sum(term / df**power for power, term in enumerate(terms, start=1))


def binomial_tail(wins: int, n: int, probability: float = 0.5) -> float:
    """``P(at least wins of n)``.

    >>> binomial_tail(9, 10) * 2  # the two-sided sign test of nine wins in ten
    0.021484375
    """
    return math.fsum(
        math.comb(n, k) * probability**k * (1 - probability) ** (n - k) for k in range(max(wins, 0), n + 1)
    )
