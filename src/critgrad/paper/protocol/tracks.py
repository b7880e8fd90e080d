"""The three tracks: the paper's best settings, the paper's grid, and the fair one.

``plan(ledger)`` gives the trials that are wanted next and are not done; an empty list means finished. It is a pure
function of the ledger, so a sweep is a loop of "plan, run", and a killed one goes on by itself. A trial that *failed*
is planned again: stop when a round has finished nothing new.
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from critgrad.lab.ledger import Planned, Role
from critgrad.lab.ledger.view import Reader, View, view_of
from critgrad.lab.run.spec import Trial
from critgrad.lab.spaces import Axis, extra_points
from critgrad.lab.stats import Interval, choose, mean_interval
from critgrad.lab.train.optimizers import recipe_of

from . import paper_values
from .arms import ARMS
from .derived import Bench, Control, LeftOut, Waiting, derive
from .registration import Registration, find
from .rungs import within
from .tuning import Selected, TuningState, searches, tune

PAPER_SEEDS = (0, 1, 2, 3, 4)
Seeds = int | Sequence[int]  # so many from 0 on, or these


def seeds_of(seeds: Seeds) -> tuple[int, ...]:
    """The seeds themselves."""
    return tuple(range(seeds)) if isinstance(seeds, int) else tuple(seeds)


class Track(Protocol):
    """What a sweep runs."""

    @property
    def name(self) -> str: ...
    @property
    def task(self) -> str: ...
    @property
    def total(self) -> int: ...
    def plan(self, ledger: Reader) -> list[Planned]: ...


def _each_once(wanted: Iterable[tuple[Trial, Role]], done: Container[str]) -> list[Planned]:
    """Trials with their roles, each trial once, in the order in which they were first wanted."""
    trials: dict[str, Trial] = {}
    roles: dict[str, dict[Role, None]] = {}
    for trial, role in wanted:
        trials.setdefault(trial.key, trial)
        roles.setdefault(trial.key, {})[role] = None
    return [Planned(trial, tuple(roles[key])) for key, trial in trials.items() if key not in done]


# -- the paper's tracks ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Setting:
    """One configuration of the paper: an optimizer and its arguments, the same for every seed."""

    optimizer: str
    hyper: Mapping[str, Any]


@dataclass(frozen=True)
class Found:
    """A row of a paper track: the setting that won on validation, and its test values on the *same* seeds."""

    optimizer: str
    hyper: Mapping[str, Any]
    settings_tried: int
    seeds: int
    valid: float
    test: Interval
    test_std: float
    diverged: int
    paper: paper_values.Performance | None
    edges: tuple[str, ...]  # values at an end of the paper's grid, among those with more than two choices


@dataclass(frozen=True)
class PaperTrack:
    """Settings x seeds of the paper on one task, selected and reported on the same seeds, as the paper did."""

    name: str
    task: str
    settings: tuple[Setting, ...]
    seeds: tuple[int, ...] = PAPER_SEEDS
    engine: str = "single"
    task_settings: Mapping[str, Any] = field(default_factory=dict)
    label: str = ""

    @property
    def total(self) -> int:
        """Runs in all."""
        return len(self.settings) * len(self.seeds)

    most = total  # nothing grows here

    def trials(self, setting: Setting) -> list[Trial]:
        """The runs of a setting."""
        return [
            Trial(self.task, setting.optimizer, setting.hyper, seed, self.task_settings, self.engine)
            for seed in self.seeds
        ]

    def plan(self, ledger: Reader) -> list[Planned]:
        """The runs that are not done."""
        recipes = [recipe_of(setting.optimizer) for setting in self.settings]
        roles = [Role(self.name, recipe.family, recipe.role, "paper") for recipe in recipes]
        wanted = ((trial, role) for setting, role in zip(self.settings, roles) for trial in self.trials(setting))
        return _each_once(wanted, {row.key for row in ledger.rows(task=self.task)})

    def best(self, ledger: Reader, higher_is_better: bool) -> list[Found]:
        """The paper's selection rule: of the settings whose seeds are all done the best mean validation value.

        The same seeds select and report, and a ``_C`` optimizer chooses among nine times as many settings as its base:
        read it beside the paper's own table, never as evidence.
        """
        view = View(ledger.rows(task=self.task), higher_is_better)
        found = []
        for optimizer in dict.fromkeys(setting.optimizer for setting in self.settings):
            mine = [s for s in self.settings if s.optimizer == optimizer]
            trials = {i: self.trials(setting) for i, setting in enumerate(mine)}
            rows = {i: view.of(of_setting) for i, of_setting in trials.items() if not view.missing(of_setting)}
            if not rows:
                continue
            values = {i: view.values(of_setting, "valid") for i, of_setting in rows.items()}
            best = choose(values, higher_is_better=higher_is_better)
            test = view.values(rows[best.key], "test")
            chosen = mine[best.key]
            found.append(
                Found(
                    optimizer,
                    chosen.hyper,
                    settings_tried=len(rows),
                    seeds=len(self.seeds),
                    valid=best.mean,
                    test=mean_interval(test),
                    test_std=float(np.std(test, ddof=1)) if len(test) > 1 else float("nan"),
                    diverged=sum(bool(row.summary.get("diverged")) for row in rows[best.key]),
                    paper=paper_values.performance(self.task, optimizer),
                    edges=paper_values.at_grid_edge(chosen.hyper) if len(mine) > 1 else (),
                )
            )
        return found


def paper_best(
    task: str, seeds: Seeds = PAPER_SEEDS, engine: str = "single", settings: Mapping[str, Any] | None = None
) -> PaperTrack:
    """The paper's best hyper-parameters for a task, all eight optimizers."""
    rows = paper_values.best_of(task)
    chosen = tuple(Setting(row.optimizer, row.hyper) for row in rows)
    label = "the paper's best hyper-parameters, selected and reported on the same seeds"
    return PaperTrack("paper-best", task, chosen, seeds_of(seeds), engine, settings or {}, label)


def paper_grid(
    task: str,
    seeds: Seeds = PAPER_SEEDS,
    engine: str = "single",
    settings: Mapping[str, Any] | None = None,
    trials: int | None = None,
) -> PaperTrack:
    """The paper's whole grid: 80 base and 720 ``_C`` settings. ``trials`` keeps the first so many of each optimizer."""
    grids = {name: paper_values.grid(name)[:trials] for name in paper_values.OPTIMIZERS}
    chosen = tuple(Setting(optimizer, hyper) for optimizer, grid in grids.items() for hyper in grid)
    kept = "9 settings of each _C optimizer for 1 of its base"
    if trials is not None:
        kept = f"the first {trials} settings of each optimizer, or all where it has fewer"
    label = f"the paper's grid: {kept}, selected and reported on the same seeds"
    return PaperTrack("paper-grid", task, chosen, seeds_of(seeds), engine, settings or {}, label)


# -- the fair track ----------------------------------------------------------------------------------------------------


@dataclass
class FamilyState:
    """Where a family of the fair track stands."""

    family: str
    tuning: TuningState
    derived: dict[str, Control | Waiting | LeftOut] = field(default_factory=dict)
    bench: Bench | None = None

    @property
    def selected(self) -> dict[str, Selected]:
        """The tuned arms' points; empty while tuning."""
        return {} if self.tuning.pending else self.tuning.selected


@dataclass(frozen=True)
class Fair:
    """The fair track of one registration: tune, measure, report on fresh seeds."""

    registration: Registration
    name: str = "fair"

    @property
    def task(self) -> str:
        """The task's name."""
        return self.registration.task

    def view(self, ledger: Reader) -> View:
        """The rows of this registration."""
        return view_of(ledger, self.registration.hash, self.registration.higher_is_better)

    def states(self, view: View) -> dict[str, FamilyState]:
        """All families, as far as the rows go."""
        out = {}
        for family in self.registration.families:
            state = out[family] = FamilyState(family, tune(self.registration, family, view))
            if state.tuning.pending:
                continue
            state.bench = Bench(self.registration, family, view, state.selected)
            state.derived = {arm: derive(arm, state.bench) for arm in self.registration.arms if not ARMS[arm].tuned}
        return out

    def plan(self, ledger: Reader) -> list[Planned]:
        """What can be run now: a family that has its choices does not wait for the others."""
        view = self.view(ledger)
        return self.wanted(self.states(view), view)

    def wanted(self, states: Mapping[str, FamilyState], view: View) -> list[Planned]:
        """The same by where the families stand."""
        every = (
            (trial, Role(self.name, family, arm, purpose))
            for family, state in states.items()
            for arm, purpose, trials in self._of_family(state)
            for trial in trials
        )
        return _each_once(every, view.rows)

    def _of_family(self, state: FamilyState) -> Iterator[tuple[str, str, Iterable[Trial]]]:
        """Arm, purpose and trials, done or not."""
        for arm, trial in state.tuning.pending:
            yield arm, "tune", [trial]
        if state.bench is None:
            return
        for arm in self.registration.arms:
            yield arm, "report", self.report_trials(state, arm)
            waiting = state.derived.get(arm)
            if isinstance(waiting, Waiting):
                yield arm, waiting.purpose, waiting.trials
            if arm in state.selected:
                yield arm, "analysis:timing", state.bench.timed(arm)

    def report_trials(self, state: FamilyState, arm: str) -> list[Trial]:
        """The reported runs of an arm, one per report seed in their order; none where it is not ready."""
        r, seeds = self.registration, self.registration.report_seeds
        chosen, control = state.selected.get(arm), state.derived.get(arm)
        if chosen is not None:
            return [r.trial(chosen.optimizer, chosen.hyper(seed), seed) for seed in seeds]
        if not isinstance(control, Control):
            return []
        hypers = [control.for_seed(index, seeds) for index in range(len(seeds))]
        return [r.trial(control.optimizer, hyper, seed, control.epochs) for hyper, seed in zip(hypers, seeds)]

    @property
    def _searches(self) -> list[Axis]:
        """A learning rate's range for each search: what both SGD families search in the same way is run once."""
        r = self.registration
        every = [(search, r.lr[family]) for family in r.families for search in searches(r, family).values()]
        return list({(of.optimizer, str(dict(of.fixed)), of.axes, lr): lr for of, lr in every}.values())

    @property
    def total(self) -> int:
        """Runs in all, about: without widenings, with one round of matching, shared runs counted once."""
        r, distinct = self.registration, len(self._searches)
        derived = [arm for arm in r.arms if not ARMS[arm].tuned]
        measured = 3 * len(r.tuning_seeds) * len(r.families) if derived else 0
        timed = len(r.timing.arms) * len(r.families) * len(r.timing.seeds) if r.timing else 0
        reported = (distinct + len(derived) * len(r.families)) * len(r.report_seeds)
        return distinct * r.tuning_runs + measured + timed + reported

    @property
    def most(self) -> int:
        """Runs in all where every learning rate's range grows at both ends, as often as it may."""
        r = self.registration
        grown = sum(2 * r.widenings * extra_points(axis, r.trials) for axis in self._searches if axis.widen)
        return self.total + math.ceil(grown * r.tuning_runs / r.trials)


def fair(
    registration: Registration | str,
    *,
    trials: int | None = None,
    seeds: Seeds | None = None,
    engine: str | None = None,
) -> Fair:
    """The fair track of a registration, or of the one that a task has.

    With an override it is another experiment: its rows have another hash, and no committed file announced it.
    """
    if isinstance(registration, str):
        registration = find(registration)
    if trials is not None:
        registration = registration.changed(rungs=within(registration.rungs, trials))
    report_seeds = None if seeds is None else seeds_of(seeds)
    return Fair(registration.changed(trials=trials, report_seeds=report_seeds, engine=engine))
