"""Tuning one family: the same number of trials for every arm, one choice each, widened together at an edge.

All of it is a function of the rows that are done: asked again after a crash, it goes on where it was.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from critgrad.lab.ledger.view import RowLike, View
from critgrad.lab.run.results import loss_at_best
from critgrad.lab.run.spec import Trial
from critgrad.lab.spaces import Axis, Point, draw, edges, extra_points, widened
from critgrad.lab.stats import Choice, choose

from .arms import ARMS, ArmSearch
from .registration import Registration


@dataclass(frozen=True)
class Selected:
    """The point that tuning chose for one arm."""

    arm: str
    family: str
    search: ArmSearch
    point: Point
    valid: float  # mean over the tuning seeds
    trials: int  # points tried
    runs: int  # and runs they took
    edges: Mapping[str, str]  # axes on which the point lies at an end
    tied: int  # points that share the best mean

    @property
    def optimizer(self) -> str:
        """Of the registry."""
        return self.search.optimizer

    def hyper(self, seed: int) -> dict[str, Any]:
        """The optimizer's arguments for one seed."""
        return self.search.hyper(self.point, seed)


@dataclass
class TuningState:
    """Where a family's tuning stands: trials still to be run, or the choices."""

    pending: list[tuple[str, Trial]] = field(default_factory=list)  # (arm, trial)
    selected: dict[str, Selected] = field(default_factory=dict)
    points: dict[str, list[Point]] = field(default_factory=dict)
    widened: tuple[str, ...] = ()  # sides to which the learning rate's range grew, in order


# Points of the sequence that are drawn with one range of the learning rate: the range, the first point, how many.
_Block = tuple[Axis, int, int]


def tune(registration: Registration, family: str, view: View) -> TuningState:
    """The state of a family's tuning.

    When an arm's best learning rate lies at an end, the range grows there and *every* arm of the family gets the new
    points, as dense as the first ones; at most ``registration.widenings`` times.
    """
    axis = registration.lr[family]
    blocks: list[_Block] = [(axis, 0, registration.trials)]
    more = extra_points(axis, registration.trials) if axis.widen else 0
    grown: list[str] = []
    for rounds_left in range(registration.widenings, -1, -1):
        tuning = _tune(registration, family, view, blocks, axis)
        tuning.widened = tuple(grown)
        sides = sorted({s.edges["lr"] for s in tuning.selected.values() if "lr" in s.edges})
        if tuning.pending or not more or not sides or not rounds_left:
            break
        for side in sides:
            drawn = sum(count for _, _, count in blocks)
            blocks.append((axis.beyond(side, axis.widen), drawn, more))
        axis = widened(axis, sides)
        grown += sides
    return tuning


def _tune(registration: Registration, family: str, view: View, blocks: Sequence[_Block], lr: Axis) -> TuningState:
    """The state with the points of ``blocks``; ``lr`` is the whole range that they cover."""
    tuning = TuningState()
    for name, search in searches(registration, family).items():
        space = search.space(registration, family)
        points = [
            point
            for of_block, first, count in blocks
            for point in draw({**space, "lr": of_block}, registration.space_seed, first, count)
        ]
        tuning.points[name] = points
        chosen = _choose(registration, search, points, view)
        if isinstance(chosen, list):
            tuning.pending += [(name, trial) for trial in chosen]
            continue
        best, runs = chosen
        point = points[best.key]
        tuning.selected[name] = Selected(
            name,
            family,
            search,
            point,
            best.mean,
            trials=len(points),
            runs=runs,
            edges=edges(point, {**space, "lr": lr}, points),
            tied=len(best.tied),
        )
    return tuning


def searches(registration: Registration, family: str) -> dict[str, ArmSearch]:
    """The tuned arms of a family, in the registration's order."""
    return {name: ARMS[name].search[family] for name in registration.arms if family in ARMS[name].search}


def tuning_trial(
    registration: Registration, search: ArmSearch, point: Point, seed: int, epochs: int | None = None
) -> Trial:
    """One run of the search: for all epochs, or for those of a rung."""
    return registration.trial(search.optimizer, search.hyper(point, seed), seed, epochs)


def last_runs(registration: Registration, chosen: Selected, view: View) -> list[RowLike]:
    """A chosen point's runs for all epochs on all tuning seeds: the search has ended with them."""
    trials = [tuning_trial(registration, chosen.search, chosen.point, seed) for seed in registration.tuning_seeds]
    return view.of(trials)


def longest_runs(registration: Registration, search: ArmSearch, point: Point, view: View) -> list[RowLike]:
    """What is known of a point that may have been stopped early: its longest runs, on the seeds that every point had."""
    rungs = registration.every_rung
    seeds = registration.tuning_seeds[: rungs[0].seeds]
    for rung in reversed(rungs):
        trials = [tuning_trial(registration, search, point, seed, rung.epochs) for seed in seeds]
        if not view.missing(trials):
            break
    return view.of(trials)


def _choose(
    registration: Registration, search: ArmSearch, points: Sequence[Point], view: View
) -> tuple[Choice[int], int] | list[Trial]:
    """The best point by its mean over the tuning seeds and the search's runs, or the trials that are missing to say so."""
    every: set[str] = set()
    left: Sequence[int] = range(len(points))
    for rung in registration.every_rung:
        seeds = registration.tuning_seeds[: rung.seeds]
        trials = [[tuning_trial(registration, search, point, seed, rung.epochs) for seed in seeds] for point in points]
        if missing := view.missing(wanted for i in left for wanted in trials[i]):
            return missing
        every |= {trial.key for of_point in trials for trial in of_point}
        # Rungs by seeds cut ties by the order alone: finished searches must keep the points that they ran.
        by_loss = rung.seeds == len(registration.tuning_seeds)
        best = _best_points({i: view.of(trials[i]) for i in left}, view, rung.keep, by_loss)
        left = sorted(choice.key for choice in best)
    return best[0], len(every & view.rows.keys())


def _best_points(rows: Mapping[int, Sequence[RowLike]], view: View, keep: int, by_loss: bool) -> list[Choice[int]]:
    """The best so many points, best first; of equals with ``by_loss`` that of the lower loss, then the one drawn first."""
    left = {i: view.values(of_point, "valid") for i, of_point in rows.items()}
    out: list[Choice[int]] = []
    while left and len(out) < keep:
        best = choose(left, higher_is_better=view.higher_is_better)
        if by_loss and len(best.tied) > 1:  # curves are unpacked only for points that are tied
            losses = {i: [tie_breaker(row) for row in rows[i]] for i in best.tied}
            best = choose(left, higher_is_better=view.higher_is_better, tie_break=losses)
        out.append(best)
        del left[best.key]
    return out


def edges_text(found: Mapping[str, str]) -> str:
    """`` (lr at the high edge)`` for each axis on which a point lies at an end."""
    return "".join(f" ({name} at the {end} edge)" for name, end in found.items())


def tie_breaker(row: RowLike) -> float:
    """The validation loss at a run's best epoch; that of a diverged run is worse than any, and can still be averaged."""
    return min(loss_at_best(row.summary, row.curves), 1e30)
