"""The runs of a search as a function of the ledger: what was chosen, what was confirmed, what was never run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from critgrad.lab.ledger.view import Reader, RowLike, View, view_of
from critgrad.lab.run.results import loss_is_known
from critgrad.lab.run.spec import Trial
from critgrad.lab.spaces import Point, edges
from critgrad.lab.stats import choose

from ..protocol.tuning import edges_text, tie_breaker
from .file import BASE, Search, SearchArm


@dataclass
class ArmState:
    """Where one arm of one family stands. Values are validation values on the tuning seeds: they choose, they claim nothing."""

    search: Search = field(repr=False)
    family: str
    arm: SearchArm
    points: list[Point]
    pending: list[Trial] = field(default_factory=list)  # what must be run before anything more can be said
    runs: int = 0  # that are done
    diverged: int = 0
    chosen: int | None = None  # the best point, once every rung is run
    valid: float | None = None  # its mean over the tuning seeds
    values: tuple[float, ...] = ()  # one for each of them
    loss: float | None = None  # the mean validation loss at the same epochs: what decides between equals
    rank: int | None = None  # among the family's arms that have their choice
    minus: dict[str, float] = field(default_factory=dict)  # by the arm it is held against: positive is better
    better: dict[str, int] = field(default_factory=dict)  # on how many of the seeds

    @property
    def name(self) -> str:
        """The arm's."""
        return self.arm.name

    @property
    def optimizer(self) -> str:
        """In this family."""
        return self.arm.optimizer[self.family]

    @property
    def is_variant(self) -> bool:
        """Whether it is one of those among which a winner is looked for."""
        return self.search.is_variant(self.arm)

    @property
    def point(self) -> Point:
        """The best one; empty until every rung is run."""
        return {} if self.chosen is None else self.points[self.chosen]

    @property
    def edges_text(self) -> str:
        """What is to be said of values at an end of their range."""
        found = edges(self.point, self.search.space(self.family, self.arm), self.points) if self.point else {}
        return edges_text(found)

    @property
    def against(self) -> list[str]:
        """The differences to the base and the rival, and on how many of the seeds it was better."""
        return [
            f"{self.minus[name]:+.3f} ({self.better[name]}/{len(self.values)})" if name in self.minus else ""
            for name in (BASE, "rival")
        ]

    def hold_against(self, others: Mapping[str, ArmState]) -> None:
        """Take the differences to the arms that a search is about."""
        sign = 1.0 if self.search.higher_is_better else -1.0
        for name in dict.fromkeys((BASE, *self.search.against)):
            other = others.get(name)
            if name != self.name and other is not None and other.valid is not None and self.valid is not None:
                self.minus[name] = sign * (self.valid - other.valid)
                self.better[name] = sum(sign * (mine - its) > 0 for mine, its in zip(self.values, other.values))


@dataclass(frozen=True)
class SearchTrack:
    """Every arm is tuned with the same number of points and the same rungs, and the best are run on fresh seeds."""

    search: Search

    def view(self, ledger: Reader) -> View:
        """The rows of this search."""
        return view_of(ledger, self.search.hash, self.search.higher_is_better)

    def states(self, view: View) -> dict[str, list[ArmState]]:
        """All arms of all families, as far as the rows go."""
        s = self.search
        out = {family: [_state(s, family, arm, view) for arm in s.arms_of(family)] for family in s.families}
        for states in out.values():
            for place, state in enumerate(self.ranked(states)):
                state.rank = place + 1
            for state in states:
                state.hold_against({other.name: other for other in states})
        return out

    def confirmed(self, states: Sequence[ArmState]) -> list[ArmState]:
        """The arms of a family that the confirming seeds are for: the best variants, and what they are held against."""
        ranked = self.ranked(states)
        best = [state for state in ranked if state.is_variant][: self.search.confirm_keep]
        return [state for state in states if state.name in self.search.against or state in best]

    def ranked(self, states: Sequence[ArmState]) -> list[ArmState]:
        """The arms that have their choice, best first; of equals (to the digits of ``choose``) that of the lower loss."""
        left = {state.name: state for state in states if state.valid is not None}
        out = []
        while left:
            values = {name: state.values for name, state in left.items()}
            losses = {name: [float(state.loss or 0.0)] for name, state in left.items()}
            best = choose(values, higher_is_better=self.search.higher_is_better, tie_break=losses)
            out.append(left.pop(best.key))
        return out

    def confirm_trials(self, state: ArmState) -> list[Trial]:
        """An arm's runs at its chosen point, one for each confirming seed."""
        if state.chosen is None:
            return []
        point = state.points[state.chosen]
        return [self.search.trial(state.family, state.arm, point, seed) for seed in self.search.confirm_seeds]


def _state(search: Search, family: str, arm: SearchArm, view: View) -> ArmState:
    state = ArmState(search, family, arm, search.points(family, arm))
    seeds, higher = search.tuning_seeds, search.higher_is_better
    trials = [[search.trial(family, arm, point, seed) for seed in seeds] for point in state.points]
    done = [row for of_point in trials for trial in of_point if (row := view.get(trial)) is not None]
    state.runs, state.diverged = len(done), sum(bool(row.summary.get("diverged")) for row in done)
    alive = list(range(len(trials)))
    for rung in search.rungs:
        missing = view.missing(trial for i in alive for trial in trials[i][: rung.seeds])
        if missing:
            state.pending = missing
            return state
        means = {i: float(np.mean(view.values(view.of(trials[i][: rung.seeds]), "valid"))) for i in alive}
        sign = -1 if higher else 1
        alive = sorted(sorted(means, key=lambda i: (sign * means[i], i))[: rung.keep])
    state.pending = view.missing(trial for i in alive for trial in trials[i])
    if state.pending:
        return state
    values = {i: view.values(view.of(trials[i]), "valid") for i in alive}
    tied = {i: view.of(trials[i]) for i in choose(values, higher_is_better=higher).tied}
    tied = _as_it_was_confirmed(search, state, tied, view)
    losses = {i: [tie_breaker(row) for row in rows] for i, rows in tied.items()}
    best = choose({i: values[i] for i in tied}, higher_is_better=higher, tie_break=losses)
    state.chosen, state.valid, state.values = best.key, best.mean, tuple(values[best.key])
    state.loss = float(np.mean(losses[best.key]))
    return state


def _as_it_was_confirmed(
    search: Search, state: ArmState, tied: dict[int, list[RowLike]], view: View
) -> dict[int, list[RowLike]]:
    """Of tied points, each with its runs, those that are still in question: all of them, where all losses are known.

    Screens that an earlier version published without curves lost the losses after these had decided: there the point that
    was run on the confirming seeds is the one that they had chosen.
    """
    if len(tied) == 1 or all(loss_is_known(row.summary, row.curves) for rows in tied.values() for row in rows):
        return tied

    def is_confirmed(point: Point) -> bool:
        trials = (search.trial(state.family, state.arm, point, seed) for seed in search.confirm_seeds)
        return any(view.get(trial) is not None for trial in trials)

    return {i: rows for i, rows in tied.items() if is_confirmed(state.points[i])} or tied
