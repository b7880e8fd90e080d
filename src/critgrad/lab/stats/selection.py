"""What tuning did: the chosen trial, whether it lies on an edge, and how the best grows with the number of trials."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np

from .bootstrap import Floats, Values, finite

Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True)
class BestSoFar:
    """For ``k = 1 ... n`` trials: the expected best validation value and the test value of the trial that has it."""

    trials: tuple[int, ...]
    validation: tuple[float, ...]
    test: tuple[float, ...] | None


def expected_best(validation: Values, test: Values | None = None, *, higher_is_better: bool = True) -> BestSoFar:
    """The mean over all ways to have run only ``k`` of these ``n`` trials, exactly.

    The ``i``-th worst of ``n`` is the best of ``k`` drawn without replacement with probability
    ``C(i - 1, k - 1) / C(n, k)``. Of trials with equal validation values each is as likely to be the one chosen.

    >>> found = expected_best([1.0, 2.0, 4.0], test=[10.0, 20.0, 30.0])
    >>> [round(value, 3) for value in found.validation]  # of two: (2 + 4 + 4) / 3
    [2.333, 3.333, 4.0]
    >>> [round(value, 3) for value in found.test]
    [20.0, 26.667, 30.0]
    """
    values = finite(validation, "validation")
    n = values.size
    order = np.argsort(values if higher_is_better else -values, kind="stable")
    chance = np.zeros((n, n))
    i = np.arange(n, 1, -1)
    for k in range(1, n + 1):
        # From the top down: C(i - 2, k - 1) / C(i - 1, k - 1) = (i - k) / (i - 1), no large number anywhere.
        steps = np.concatenate(([k / n], np.maximum(i - k, 0) / (i - 1)))
        chance[k - 1] = np.cumprod(steps)[::-1]
    trials = tuple(range(1, n + 1))
    best = tuple((chance @ values[order]).tolist())
    if test is None:
        return BestSoFar(trials, best, None)
    tested = finite(test, "test")
    if tested.size != n:
        raise ValueError(f"{n} validation values and {tested.size} test values: expected one of each per trial")
    return BestSoFar(trials, best, tuple((chance @ _shared(values, tested)[order]).tolist()))


def _shared(values: Floats, tested: Floats) -> Floats:
    # Equal validation values share the mean of their test values.
    _, group = np.unique(values, return_inverse=True)
    return (np.bincount(group, weights=tested) / np.bincount(group))[group]


@dataclass(frozen=True)
class EdgeAxis:
    """The range of one hyper-parameter, and the scale on which it is drawn evenly: ``"log"`` or ``"linear"``."""

    low: float
    high: float
    scale: str = "log"

    def __post_init__(self) -> None:
        if self.scale not in _SCALES:
            raise ValueError(f"Unknown scale: {self.scale!r}, expected one of {', '.join(_SCALES)}")
        if not self.low < self.high or (self.scale == "log" and self.low <= 0):
            raise ValueError(f"Invalid range: {self.low} to {self.high} on a {self.scale} scale")

    def place(self, value: float) -> float:
        """Where ``value`` lies: 0 at the low end, 1 at the high end.

        >>> round(EdgeAxis(1e-4, 1.0).place(1e-2), 3), EdgeAxis(0.0, 1.0, "linear").place(0.9)
        (0.5, 0.9)
        """
        scale = _SCALES[self.scale]
        if self.scale == "log" and value <= 0:
            return -math.inf
        return (scale(value) - scale(self.low)) / (scale(self.high) - scale(self.low))


_SCALES: dict[str, Callable[[float], float]] = {"log": math.log, "linear": float}


def at_edge(
    point: Mapping[str, float],
    space: Mapping[str, EdgeAxis],
    tried: Sequence[Mapping[str, float]] = (),
    *,
    margin: float = 0.05,
) -> dict[str, str]:
    """The axes on which the chosen point lies at an end of the space, and which end: a better one may lie beyond.

    At an end: in the outer ``margin`` of the range, or, among more than one trial given as ``tried``, with none beyond
    it on that side (drawn points hardly ever hit the end itself). Axes on which all trials agree are not searched.

    >>> space = {"lr": EdgeAxis(1e-4, 1.0), "beta": EdgeAxis(0.0, 1.0, "linear")}
    >>> at_edge({"lr": 0.9, "beta": 0.5}, space)
    {'lr': 'high'}
    >>> at_edge({"lr": 0.3, "beta": 0.5}, space, tried=[{"lr": r, "beta": 0.5} for r in (0.001, 0.01, 0.3)])
    {'lr': 'high'}
    """
    edges = {}
    for name, axis in space.items():
        if name not in point:
            raise ValueError(f"The point {dict(point)} has no {name!r}, which the space searches")
        place = axis.place(point[name])
        others = [axis.place(trial[name]) for trial in tried]
        searched = len(set(others)) > 1
        if place <= margin or (searched and place <= min(others)):
            edges[name] = "low"
        elif place >= 1 - margin or (searched and place >= max(others)):
            edges[name] = "high"
    return edges


@dataclass(frozen=True)
class Choice(Generic[Key]):
    """The chosen trial, its mean over the tuning seeds, and all trials that share that mean (itself included)."""

    key: Key
    mean: float
    tied: tuple[Key, ...]


def choose(
    trials: Mapping[Key, Values],
    *,
    higher_is_better: bool = True,
    tie_break: Mapping[Key, Values] | None = None,
    tie_higher_is_better: bool = False,
) -> Choice[Key]:
    """The trial with the best mean over the tuning seeds.

    Equal means (to 12 digits) are decided by the mean of ``tie_break`` (by default lower is better: a validation
    loss), and what is equal there too by the order of ``trials``, which is the order of the drawn points and hence
    the same for all arms. Every trial needs the same number of seeds: a seed dropped is a divergence hidden.

    >>> choose({0.1: [60.0, 62.0], 0.2: [61.0, 61.0]}, tie_break={0.1: [1.2, 1.4], 0.2: [1.1, 1.2]})
    Choice(key=0.2, mean=61.0, tied=(0.1, 0.2))
    """
    if not trials:
        raise ValueError("No trials to choose from")
    seeds = {key: len(values) for key, values in trials.items()}
    if len(set(seeds.values())) > 1:
        raise ValueError(f"Trials with different numbers of seeds: {seeds}; fill diverged runs with worst_filled")
    means = _means(trials, higher_is_better)
    tied = _best(means, list(trials))
    key = tied[0]
    if tie_break is not None and len(tied) > 1:
        key = _best(_means({k: tie_break[k] for k in tied}, tie_higher_is_better), tied)[0]
    return Choice(key, math.fsum(trials[key]) / len(trials[key]), tuple(tied))


def _means(trials: Mapping[Key, Values], higher_is_better: bool) -> dict[Key, float]:
    sign = 1 if higher_is_better else -1
    return {
        key: sign * math.fsum(finite(values, f"trial {key!r}").tolist()) / len(values) for key, values in trials.items()
    }


def _best(means: Mapping[Key, float], keys: Sequence[Key]) -> list[Key]:
    top = max(means[key] for key in keys)
    return [key for key in keys if math.isclose(means[key], top, rel_tol=1e-12)]
