"""Time to target of an arm's reported runs: in epochs, in steps, and in seconds where single runs were timed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..stats import Speedup, kaplan_meier, speedup, target_value, time_to_target
from .records import Row
from .view import View, number


@dataclass(frozen=True)
class Reach:
    """Times in one unit, a ``None`` for each run that never got there, and how long each run was given."""

    unit: str
    times: tuple[float | None, ...]
    limits: tuple[float, ...]

    @property
    def reached(self) -> int:
        """Runs that got there."""
        return sum(time is not None for time in self.times)

    @property
    def median(self) -> float | None:
        """The median time; ``None`` where it is censored."""
        ordered = sorted(float("inf") if time is None else time for time in self.times)
        middle = (ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) / 2
        return middle if np.isfinite(middle) else None

    @property
    def restricted_mean(self) -> float:
        """Mean time within the budget: a run that never got there counts as all of it."""
        return kaplan_meier(self.times, self.limits).restricted_mean


def target_of(base_tuning: Sequence[Row], view: View, fraction: float) -> float | None:
    """The family's target, from the tuned base's tuning runs; ``None`` where the base has learnt nothing."""
    initial = float(np.median([number(row.summary.get("initial_valid")) for row in base_tuning]))
    try:
        return target_value(initial, view.values(base_tuning, "valid"), view.higher_is_better, fraction=fraction)
    except ValueError:
        return None


def reach(rows: Sequence[Row], target: float, higher_is_better: bool, epochs: int) -> dict[str, Reach]:
    """The times of an arm in every unit that its rows have. A diverged run has not reached anything: it is censored."""
    in_epochs = [
        None if row.summary.get("diverged") else time_to_target(_curve(row), target, higher_is_better) for row in rows
    ]
    out = {"epochs": Reach("epochs", tuple(in_epochs), (float(epochs),) * len(rows))}
    per_epoch = [_steps_per_epoch(row) for row in rows]
    known = [steps for steps in per_epoch if steps]
    if known:
        steps = float(np.median(known))
        out["steps"] = Reach(
            "steps", tuple(None if t is None else t * steps for t in in_epochs), (epochs * steps,) * len(rows)
        )
    if all("seconds" in row.curves or row.summary.get("diverged") for row in rows):
        seconds = _seconds(rows, in_epochs)
        if seconds is not None:
            out["seconds"] = seconds
    return out


def _curve(row: Row) -> Sequence[float]:
    return np.asarray(row.curves.get("valid", ()), np.float64).tolist()


def _steps_per_epoch(row: Row) -> float:
    epochs, steps = row.summary.get("epochs"), row.summary.get("steps")
    return steps / epochs if epochs and steps and not row.summary.get("diverged") else 0.0


def _seconds(rows: Sequence[Row], in_epochs: Sequence[float | None]) -> Reach | None:
    totals = [float(row.curves["seconds"][-1]) for row in rows if not row.summary.get("diverged")]
    if not totals:
        return None
    # A diverged run stopped early; it is given the time that the others took.
    whole = float(np.median(totals))
    times, limits = [], []
    for row, epoch in zip(rows, in_epochs):
        curve = row.curves.get("seconds")
        times.append(None if epoch is None or curve is None else float(curve[int(epoch) - 1]))
        limits.append(whole if row.summary.get("diverged") or curve is None else float(curve[-1]))
    return Reach("seconds", tuple(times), tuple(limits))


def speedups(arm: dict[str, Reach], rival: dict[str, Reach]) -> dict[str, Speedup]:
    """Paired speed-ups over a rival in every unit that both have."""
    return {
        unit: speedup(arm[unit].times, rival[unit].times, arm[unit].limits, rival[unit].limits)
        for unit in arm
        if unit in rival
    }
