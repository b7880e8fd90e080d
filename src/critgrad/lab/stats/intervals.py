"""Means and paired differences with t-intervals, and what a diverged run counts as.

The worst-value rule. A run that diverged is never dropped: it counts as the worst value there is. For metrics with a
floor (accuracy, BLEU) that is 0; a loss or perplexity has no ceiling, so there it is the value before training, which
the caller gives. Nothing counts worse than a divergence: with ``higher_is_better`` given, a finished run beyond the
worst value is cut to it (an accuracy cannot be; a perplexity above that of the untrained model can).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .bootstrap import Floats, Values, finite
from .student import t_quantile


@dataclass(frozen=True)
class MetricKind:
    """How a metric is read: its direction, and the worst value where there is one by nature."""

    higher_is_better: bool
    worst: float | None


METRICS: dict[str, MetricKind] = {
    "accuracy": MetricKind(True, 0.0),
    "bleu": MetricKind(True, 0.0),
    "loss": MetricKind(False, None),
    "perplexity": MetricKind(False, None),
}


def _metric(name: str) -> MetricKind:
    if name not in METRICS:
        raise ValueError(f"Unknown metric: {name!r}, expected one of {', '.join(METRICS)}")
    return METRICS[name]


def direction(metric: str) -> bool:
    """Whether higher is better.

    >>> direction("accuracy"), direction("perplexity")
    (True, False)
    """
    return _metric(metric).higher_is_better


def worst_value(metric: str, initial: float | None = None) -> float:
    """What a diverged run counts as: 0 for accuracy and BLEU, the value before training for loss and perplexity.

    >>> worst_value("accuracy"), worst_value("loss", initial=2.3026)
    (0.0, 2.3026)
    """
    worst = _metric(metric).worst
    if worst is not None:
        return worst
    if initial is None or not math.isfinite(initial):
        raise ValueError(f"A diverged {metric} has no worst value by nature: give a finite initial=, not {initial}")
    return float(initial)


def worst_filled(
    values: Values, diverged: Sequence[bool], worst: float, *, higher_is_better: bool | None = None
) -> Floats:
    """The values with ``worst`` in the place of every diverged run; as many come out as went in.

    A value that is not finite is a divergence whether it is marked or not. A marked run counts as ``worst`` even
    where its last finite value was good. ``higher_is_better`` cuts finished runs at ``worst`` (see the module).

    >>> worst_filled([63.1, float("nan"), 61.0], [False, True, False], worst=0.0).tolist()
    [63.1, 0.0, 61.0]
    >>> worst_filled([2.1, 7.0, 0.4], [False, False, True], worst=2.3, higher_is_better=False).tolist()
    [2.1, 2.3, 2.3]
    """
    array = np.asarray(values, dtype=np.float64)
    marked = np.asarray(diverged, dtype=bool)
    if array.ndim != 1 or array.shape != marked.shape:
        raise ValueError(f"{array.shape} values and {marked.shape} marks: expected one mark for each value")
    if not math.isfinite(worst):
        raise ValueError(f"Invalid worst value: {worst}, expected a finite one (see worst_value)")
    filled = np.where(marked | ~np.isfinite(array), worst, array)
    if higher_is_better is None:
        return filled
    return np.maximum(filled, worst) if higher_is_better else np.minimum(filled, worst)


@dataclass(frozen=True)
class Interval:
    """A mean of ``n`` values and its two-sided interval; infinite when a single value leaves the spread unknown."""

    mean: float
    low: float
    high: float
    n: int
    confidence: float = 0.95

    @property
    def half_width(self) -> float:
        return (self.high - self.low) / 2

    @property
    def excludes_zero(self) -> bool:
        return self.low > 0 or self.high < 0


def interval_rows(values: Floats, confidence: float = 0.95) -> tuple[Floats, Floats, Floats]:
    """Mean, low and high of the t-interval along the last axis: ``mean_interval`` for many samples at once."""
    n = values.shape[-1]
    mean = values.mean(-1)
    if n == 1:
        return mean, np.full_like(mean, -np.inf), np.full_like(mean, np.inf)
    half = t_quantile(n - 1, confidence) * values.std(-1, ddof=1) / math.sqrt(n)
    # Equal values: their mean may round to a neighbour, and its spread to something other than 0.
    equal = (values == values[..., :1]).all(-1)
    mean, half = np.where(equal, values[..., 0], mean), np.where(equal, 0.0, half)
    return mean, mean - half, mean + half


def mean_interval(values: Values, confidence: float = 0.95) -> Interval:
    """The mean and its t-interval.

    >>> found = mean_interval([1.0, 2.0, 3.0])
    >>> found.mean, round(found.low, 3), round(found.high, 3)
    (2.0, -0.484, 4.484)
    """
    array = finite(values, "values")
    mean, low, high = interval_rows(array, confidence)
    return Interval(float(mean), float(low), float(high), len(array), confidence)


def improvements(arm: Values, rival: Values, higher_is_better: bool = True) -> Floats:
    """Paired differences, turned so that positive means that the arm is better. Value ``i`` of both is seed ``i``.

    >>> improvements([1.0, 2.0], [1.5, 1.0], higher_is_better=False).tolist()
    [0.5, -1.0]
    """
    a, b = finite(arm, "arm"), finite(rival, "rival")
    if a.shape != b.shape:
        raise ValueError(
            f"{len(a)} values of the arm and {len(b)} of the rival: pairs need the same seeds on both sides"
        )
    return a - b if higher_is_better else b - a


def paired_difference(
    arm: Values, rival: Values, *, higher_is_better: bool = True, confidence: float = 0.95
) -> Interval:
    """Mean paired difference with its t-interval; positive means that the arm is better, whatever the direction.

    >>> found = paired_difference([10.0, 12.0, 11.0], [13.0, 14.0, 15.0], higher_is_better=False)
    >>> found.mean, round(found.half_width, 3)
    (3.0, 2.484)
    """
    return mean_interval(improvements(arm, rival, higher_is_better), confidence)
