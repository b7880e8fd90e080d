"""One number for a suite of tasks: the interquartile mean over tasks x seeds, with a stratified bootstrap.

As in Agarwal et al., "Deep Reinforcement Learning at the Edge of the Statistical Precipice" (2021), with one change:
tasks may have different numbers of seeds, and each task weighs the same. The middle half is therefore taken by weight,
a run on its border in part. With equal seeds and a count divisible by four both definitions agree.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from .bootstrap import DRAWS, SEED, Floats, Values, finite, generator, percentile_interval, resample

Scores = Mapping[str, Values]  # task -> one score per seed


@dataclass(frozen=True)
class SuiteScore:
    """The interquartile mean over ``tasks``, or a difference of two, with its interval."""

    value: float
    low: float
    high: float
    tasks: int
    confidence: float = 0.95


def normalised(values: Values, worst: float, reference: float) -> Floats:
    """0 at the worst (or initial) value, 1 at the reference, higher always better: one scale for all tasks.

    >>> normalised([10.0, 55.0, 100.0], worst=10.0, reference=70.0).tolist()  # accuracy, chance 10 %
    [0.0, 0.75, 1.5]
    >>> normalised([10000.0, 125.0], worst=10000.0, reference=125.0).tolist()  # perplexity
    [0.0, 1.0]
    """
    if not np.isfinite([worst, reference]).all() or worst == reference:
        raise ValueError(f"Invalid scale: worst {worst}, reference {reference}; expected two different finite values")
    return (finite(values, "values") - worst) / (reference - worst) + 0.0  # no negative zero in a table


def _weighted(values: Floats, weights: Floats) -> Floats:
    # Along the last axis: the mean of the weight between the quartiles, border runs by the part that lies inside.
    if (weights == weights[0]).all():  # the common case, and sorting alone is far cheaper than sorting two things
        ordered, share = np.sort(values, -1), weights
    else:
        order = np.argsort(values, axis=-1)
        ordered, share = np.take_along_axis(values, order, -1), weights[order]
    top = np.cumsum(share, -1) / weights.sum()
    bottom = top - share / weights.sum()
    inside = np.clip(np.minimum(top, 0.75) - np.maximum(bottom, 0.25), 0, None)
    return (ordered * inside).sum(-1) / inside.sum(-1)


def _stacked(scores: Scores, name: str) -> tuple[list[Floats], Floats]:
    if not scores:
        raise ValueError(f"{name} has no task: an interquartile mean needs at least one")
    tasks = [finite(values, f"{name}[{task!r}]") for task, values in scores.items()]
    return tasks, np.concatenate([np.full(task.size, 1 / task.size) for task in tasks])


def interquartile_mean(scores: Scores) -> float:
    """The mean of the middle half of all scores, each task weighing the same.

    >>> interquartile_mean({"a": [1.0, 2.0, 3.0, 100.0], "b": [-50.0, 2.0, 3.0, 4.0]})
    2.5
    """
    tasks, weights = _stacked(scores, "scores")
    return float(_weighted(np.concatenate(tasks), weights))


def suite_score(scores: Scores, *, confidence: float = 0.95, draws: int = DRAWS, seed: int = SEED) -> SuiteScore:
    """The interquartile mean with a bootstrap that resamples seeds within each task, never tasks.

    >>> found = suite_score({"a": [1.0, 1.2, 0.9, 1.1], "b": [0.8, 1.0, 1.1, 0.9]})
    >>> round(found.value, 3), found.low < found.value < found.high
    (1.0, True)
    """
    tasks, weights = _stacked(scores, "scores")
    rng = generator(seed)
    samples = np.concatenate([task[resample(rng, task.size, draws)] for task in tasks], axis=-1)
    low, high = percentile_interval(_weighted(samples, weights), confidence)
    return SuiteScore(float(_weighted(np.concatenate(tasks), weights)), low, high, len(tasks), confidence)


def suite_difference(
    arm: Scores, rival: Scores, *, confidence: float = 0.95, draws: int = DRAWS, seed: int = SEED
) -> SuiteScore:
    """The arm's interquartile mean minus the rival's; seeds are resampled as pairs, so that what they share cancels.

    >>> base = {"a": [1.0, 1.2, 0.9, 1.1], "b": [0.8, 1.0, 1.1, 0.9]}
    >>> found = suite_difference({task: [v + 0.1 for v in values] for task, values in base.items()}, base)
    >>> round(found.value, 6), round(found.low, 6), round(found.high, 6)
    (0.1, 0.1, 0.1)
    """
    if set(arm) != set(rival):
        raise ValueError(f"Tasks differ: {sorted(set(arm) ^ set(rival))} stand on one side only")
    mine, weights = _stacked(arm, "arm")
    theirs, _ = _stacked({task: rival[task] for task in arm}, "rival")
    for task, a, b in zip(arm, mine, theirs):
        if a.size != b.size:
            raise ValueError(f"{task!r} has {a.size} seeds of the arm and {b.size} of the rival: pairs need the same")
    rng = generator(seed)
    picks = [resample(rng, task.size, draws) for task in mine]
    samples = [
        _weighted(np.concatenate([task[pick] for task, pick in zip(side, picks)], axis=-1), weights)
        for side in (mine, theirs)
    ]
    low, high = percentile_interval(samples[0] - samples[1], confidence)
    value = _weighted(np.concatenate(mine), weights) - _weighted(np.concatenate(theirs), weights)
    return SuiteScore(float(value), low, high, len(mine), confidence)
