"""What the bootstrap intervals share: the random stream, the resampled indices, the quantiles of what comes out."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Values = Sequence[float] | Floats

DRAWS = 2000
SEED = 20220425  # any fixed number: the same values must give the same interval each time


def generator(seed: int = SEED) -> np.random.Generator:
    """A stream of its own for each call: results do not depend on what was computed before, nor disturb it."""
    return np.random.Generator(np.random.PCG64(seed))


def resample(rng: np.random.Generator, n: int, draws: int) -> NDArray[np.int64]:
    """``(draws, n)`` indices, drawn with replacement."""
    return rng.integers(0, n, size=(draws, n))


def percentile_interval(samples: Floats, confidence: float) -> tuple[float, float]:
    """The central ``confidence`` share of the samples, cut outwards at samples (so that infinities may be among them).

    >>> percentile_interval(np.arange(100.0), 0.9)
    (4.0, 95.0)
    """
    if not 0 < confidence < 1:
        raise ValueError(f"Invalid confidence: {confidence}, expected 0 < confidence < 1")
    ordered = np.sort(samples)
    cut = math.floor((1 - confidence) / 2 * (ordered.size - 1))
    return float(ordered[cut]), float(ordered[-1 - cut])


def finite(values: object, name: str, ndim: int = 1) -> Floats:
    """``values`` as float64, or an error that says what to do about the ones that are not finite.

    >>> finite([1.0, float("nan")], "arm")
    Traceback (most recent call last):
    ValueError: arm has 1 value(s) that are not finite; give diverged runs their worst value with worst_filled
    """
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != ndim or array.size == 0:
        raise ValueError(f"{name} has shape {array.shape}, expected {ndim} axis and at least one value")
    bad = int((~np.isfinite(array)).sum())
    if bad:
        raise ValueError(
            f"{name} has {bad} value(s) that are not finite; give diverged runs their worst value with worst_filled"
        )
    return array
