"""Time to a target, when some runs never get there.

A run that does not reach the target is *censored*: all that is known is that it needs more than it was given. Such a
run is neither dropped nor given an invented time. Ratios of times then have bounds instead of values, and a median
of bounds is again a bound: where censoring decides it, the answer says "at least" or "at most".
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .bootstrap import DRAWS, SEED, Floats, Values, finite, generator, percentile_interval, resample
from .intervals import Interval, mean_interval
from .student import binomial_tail

Times = Sequence["float | None"]  # None: censored
Limits = float | Sequence[float] | Floats  # how long each run was given; one number for all, or one for each


def target_value(initial: float, best: Values, higher_is_better: bool, *, fraction: float = 0.99) -> float:
    """``fraction`` of the way from the value before training to the median of the base's best validation values.

    ``best`` has one value for each tuning seed of the tuned base.

    >>> target_value(10.0, [59.0, 60.0, 64.0], higher_is_better=True)
    59.5
    """
    middle = float(np.median(finite(best, "best")))
    if not (middle > initial if higher_is_better else middle < initial):
        raise ValueError(f"No target: the base's median best value {middle} is no better than the initial {initial}")
    return initial + fraction * (middle - initial)


def time_to_target(curve: Values, target: float, higher_is_better: bool, times: Values | None = None) -> float | None:
    """The first time at which the curve is at or beyond the target; ``None`` where it never is.

    ``times`` (epochs, steps, seconds) belong to the curve's values and default to 1, 2, 3, ...: the value after that
    epoch. Nothing is interpolated between them. A value that is not finite reaches nothing.

    >>> time_to_target([5.0, 3.0, 2.0, 1.0], target=2.5, higher_is_better=False)
    3.0
    >>> time_to_target([0.1, 0.2, float("nan")], target=0.9, higher_is_better=True) is None
    True
    """
    values = np.asarray(curve, dtype=np.float64)
    when = np.arange(1.0, values.size + 1) if times is None else np.asarray(times, dtype=np.float64)
    if when.shape != values.shape:
        raise ValueError(f"{values.size} values and {when.size} times: expected one time for each value")
    if (np.diff(when) <= 0).any():
        raise ValueError("The times of a curve must increase")
    reached = np.isfinite(values) & ((values >= target) if higher_is_better else (values <= target))
    return float(when[reached.argmax()]) if reached.any() else None


def _observed(times: Times, limits: Limits, name: str) -> tuple[Floats, np.ndarray]:
    # (the time, or for a censored run its limit; whether it was reached)
    reached = np.array([t is not None for t in times], dtype=bool)
    limit = np.broadcast_to(np.asarray(limits, dtype=np.float64), reached.shape)
    shown = finite([limit[i] if t is None else t for i, t in enumerate(times)], name)
    if (shown <= 0).any() or (shown > limit).any():
        raise ValueError(f"{name}: a time must lie in (0, limit]; got {list(times)} with limit {limits}")
    return shown, reached


@dataclass(frozen=True)
class Survival:
    """Kaplan-Meier: ``waiting[i]`` is the share of runs still without the target after ``times[i]``."""

    times: tuple[float, ...]
    waiting: tuple[float, ...]
    at_risk: tuple[int, ...]
    restricted_mean: float  # the mean time within the shortest limit: the area under the curve up to there


def kaplan_meier(times: Times, limits: Limits) -> Survival:
    """The share of runs that still wait for the target, against time.

    >>> kaplan_meier([1.0, 2.0, None, 2.0], limits=4.0)
    Survival(times=(1.0, 2.0), waiting=(0.75, 0.25), at_risk=(4, 3), restricted_mean=2.25)
    """
    shown, reached = _observed(times, limits, "times")
    horizon = float(np.min(limits))
    steps = np.unique(shown[reached])
    # A run censored at a time was still waiting there: it counts among those at risk.
    at_risk = (shown[None, :] >= steps[:, None]).sum(-1)
    events = ((shown[None, :] == steps[:, None]) & reached).sum(-1)
    waiting = np.cumprod(1 - events / at_risk)
    edges = np.minimum(np.concatenate(([0.0], steps, [np.inf])), horizon)
    area = (np.concatenate(([1.0], waiting)) * np.diff(edges)).sum()
    return Survival(tuple(steps.tolist()), tuple(waiting.tolist()), tuple(at_risk.tolist()), float(area))


@dataclass(frozen=True)
class Speedup:
    """How many times sooner the arm reaches the target than the rival, seed by seed.

    The median ratio lies between ``ratio_low`` and ``ratio_high``; without censoring at the median both are equal.
    ``low`` and ``high`` are the bootstrap interval around both. ``saved`` is the mean time saved within the budget
    (a difference of restricted means), ``p`` the two-sided sign test of "earlier as often as later".
    """

    ratio_low: float
    ratio_high: float
    low: float
    high: float
    saved: Interval
    earlier: int
    later: int
    undecided: int
    p: float
    censored_arm: int
    censored_rival: int
    n: int

    @property
    def bound(self) -> str:
        """``"exact"``, or what censoring leaves: ``"at least"``, ``"at most"``, ``"between"``, ``"unknown"``."""
        if self.ratio_low == self.ratio_high:
            return "exact"
        above, below = self.ratio_low > 0, math.isfinite(self.ratio_high)
        return {(True, False): "at least", (False, True): "at most", (True, True): "between"}.get(
            (above, below), "unknown"
        )

    @property
    def text(self) -> str:
        """The median ratio in words.

        >>> speedup([10.0, 10.0, 20.0], [20.0, None, None], limits=50.0).text
        'at least 2.50x'
        """
        low, high = f"{self.ratio_low:.2f}x", f"{self.ratio_high:.2f}x"
        words = {"exact": low, "at least": f"at least {low}", "at most": f"at most {high}"}
        return {**words, "between": f"{low} to {high}"}.get(self.bound, "unknown")


def _log_median(logs: Floats) -> Floats:
    # Of ratios the two middle ones meet at their geometric mean: a half and a double make one.
    ordered = np.sort(logs, -1)
    n = logs.shape[-1]
    return (ordered[..., (n - 1) // 2] + ordered[..., n // 2]) / 2


def speedup(
    arm: Times,
    rival: Times,
    limits: Limits,
    rival_limits: Limits | None = None,
    *,
    confidence: float = 0.95,
    draws: int = DRAWS,
    seed: int = SEED,
) -> Speedup:
    """Paired speed-up ``rival's time / arm's time``; above 1 the arm is sooner. Time ``i`` of both is seed ``i``.

    ``limits`` is how long the runs were given (a diverged run had its chance: give it the whole budget). A pair in
    which only the rival is censored has a ratio of at least ``limit / time``; only the arm: at most; both: any.
    A pair counts as earlier or later only where the bounds leave no doubt: with one common limit a censored run is
    later than all that arrived, and two censored ones are undecided.

    >>> found = speedup([10.0, 20.0, None], [20.0, 30.0, None], limits=50.0)
    >>> found.text, found.earlier, found.undecided  # the third ratio may lie on either side of the two known ones
    ('1.50x to 2.00x', 2, 1)
    """
    if len(arm) != len(rival):
        raise ValueError(f"{len(arm)} times of the arm and {len(rival)} of the rival: pairs need the same seeds")
    rival_limits = limits if rival_limits is None else rival_limits
    mine, mine_in = _observed(arm, limits, "arm")
    theirs, theirs_in = _observed(rival, rival_limits, "rival")
    ratio = np.log(theirs) - np.log(mine)
    floor = np.where(mine_in, ratio, -np.inf)  # the arm's own time known: the rival's can only be longer
    ceiling = np.where(theirs_in, ratio, np.inf)
    # At equality a censored side is still the later one: its true time lies beyond its limit.
    earlier = mine_in & ((mine < theirs) | (~theirs_in & (mine == theirs)))
    later = theirs_in & ((theirs < mine) | (~mine_in & (mine == theirs)))
    wins, losses = int(earlier.sum()), int(later.sum())

    picks = resample(generator(seed), len(mine), draws)
    low, _ = percentile_interval(_log_median(floor[picks]), confidence)
    _, high = percentile_interval(_log_median(ceiling[picks]), confidence)
    horizon = float(min(np.min(limits), np.min(rival_limits)))
    saved = mean_interval(np.minimum(theirs, horizon) - np.minimum(mine, horizon), confidence)
    return Speedup(
        ratio_low=float(np.exp(_log_median(floor))),
        ratio_high=float(np.exp(_log_median(ceiling))),
        low=float(np.exp(low)),
        high=float(np.exp(high)),
        saved=saved,
        earlier=wins,
        later=losses,
        undecided=len(mine) - wins - losses,
        p=min(1.0, 2 * binomial_tail(max(wins, losses), wins + losses)),
        censored_arm=int((~mine_in).sum()),
        censored_rival=int((~theirs_in).sum()),
        n=len(mine),
    )
