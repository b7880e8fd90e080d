"""From a ledger to the fair track's tables. Nothing here trains, and nothing is typed by hand."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from critgrad.lab.ledger.committed import standing
from critgrad.lab.ledger.reach import reach, speedups, target_of
from critgrad.lab.ledger.view import Reader, RowLike, number
from critgrad.lab.stats import (
    BestSoFar,
    Comparison,
    Pair,
    SuiteScore,
    choose,
    expected_best,
    judge,
    margin_of,
    mean_interval,
    normalised,
    suite_difference,
    suite_score,
)

from .arms import ARMS
from .derived import Control, LeftOut, Waiting, epoch_seconds
from .records import ArmResult, Cost, Missing, Outcome
from .registration import Registration
from .tracks import Fair, FamilyState
from .tuning import last_runs, longest_runs

_PER_SEED = ("donor_seed", "seed")  # arguments that differ from run to run of one arm


def tables(ledger: Reader, registration: Registration) -> Outcome:
    """The tables, as far as the ledger's rows go; ``pending`` says what is still to be run."""
    found = _Experiment(ledger, registration)
    states, arms, view = found.states, found.arms, found.view
    pairs = found.primary_pairs()
    return Outcome(
        registration=registration,
        standing=standing(ledger, registration),
        arms=tuple(arms.values()),
        primary=tuple(judged(pairs)),
        descriptive=tuple(judge(found.descriptive_pairs())),
        missing=tuple(row for state in states.values() for row in found.missing(state)),
        targets=found.targets,
        widened={family: state.tuning.widened for family, state in states.items()},
        trials={family: max(map(len, state.tuning.points.values())) for family, state in states.items()},
        pending=dict(Counter(item.roles[0].purpose for item in found.track.wanted(states, view))),
        data=tuple(sorted({(row.summary["data_state"], row.summary["data_sha256"]) for row in view.rows.values()})),
        mixed=_mixed(found.reported),
        runs=len(view.rows),
        initial=found.initial,
        pairs=tuple(pairs),
    )


# What may differ from run to run, is no part of a key, and changes numbers: the name in provenance, and in words.
WAYS = {"compiled": "are compiled", "lstm": "have the LSTM kernels"}


def _mixed(rows: Sequence[RowLike]) -> tuple[str, ...]:
    """Where some of the reported runs were made in one way and some in another: an environment that was set for some alone."""
    reported = {row.key: row.provenance for row in rows}  # two families may share a rival
    counts = {words: sum(bool(origin.get(name)) for origin in reported.values()) for name, words in WAYS.items()}
    return tuple(
        f"{count} of the {len(reported)} reported runs {words}, the others not"
        for words, count in counts.items()
        if 0 < count < len(reported)
    )


def judged(pairs: Sequence[Pair]) -> list[Comparison]:
    """The primaries' verdicts. Holm runs over those of one memory at a time: ``_F`` and ``_C`` are families apart.

    Hand over the pairs of several outcomes to correct over a whole suite of tasks.
    """
    out: list[Comparison] = []
    for role in dict.fromkeys(_role(pair) for pair in pairs):
        out += judge([pair for pair in pairs if _role(pair) == role])
    return out


def _role(pair: Pair) -> str:
    return pair.family.rpartition("_")[2]


def _finite(values: Iterable[Any]) -> list[float]:
    return [value for value in map(number, values) if math.isfinite(value)]


# -- one experiment ----------------------------------------------------------------------------------------------------


class _Experiment:
    """What a ledger has of a registration: where its families stand, the arms whose report seeds are all done, their pairs."""

    def __init__(self, ledger: Reader, registration: Registration) -> None:
        self.registration = registration
        self.track = Fair(registration)
        self.view = self.track.view(ledger)
        self.states = self.track.states(self.view)
        self.rows = {family: self._reported(state) for family, state in self.states.items()}
        self.reported = [row for of_family in self.rows.values() for of_arm in of_family.values() for row in of_arm]
        self.targets = {family: self._target(state) for family, state in self.states.items()}
        # What a diverged run is given: the largest final training loss of any other.
        finished = (row.summary for row in self.reported if not row.summary.get("diverged"))
        self.worst_loss = max(_finite(summary.get("final_train_loss") for summary in finished), default=0.0)
        initial = _finite(row.summary.get("initial_valid") for row in self.view.rows.values())
        self.initial = float(np.median(initial)) if initial else None
        self.arms = {(row.family, row.arm): row for state in self.states.values() for row in self._arms(state)}

    def _reported(self, state: FamilyState) -> dict[str, list[RowLike]]:
        trials = {arm: self.track.report_trials(state, arm) for arm in self.registration.arms}
        return {arm: self.view.of(wanted) for arm, wanted in trials.items() if wanted and not self.view.missing(wanted)}

    def _target(self, state: FamilyState) -> float | None:
        base = state.selected.get("base")
        if base is None:
            return None
        return target_of(last_runs(self.registration, base, self.view), self.view, self.registration.target)

    def _arms(self, state: FamilyState) -> Iterator[ArmResult]:
        registration, target, rows = self.registration, self.targets[state.family], self.rows[state.family]
        epochs = {arm: of_arm[0].trial.settings["epochs"] for arm, of_arm in rows.items()}
        times = {
            arm: {} if target is None else reach(of_arm, target, registration.higher_is_better, epochs[arm])
            for arm, of_arm in rows.items()
        }
        for arm, of_arm in rows.items():
            chosen, control = state.selected.get(arm), state.derived.get(arm)
            values = self.view.values(of_arm, "test")
            trial = of_arm[0].trial
            yield ArmResult(
                family=state.family,
                arm=arm,
                label=ARMS[arm].label_in(state.family),
                optimizer=trial.optimizer,
                hyper={name: value for name, value in trial.hyper.items() if name not in _PER_SEED},
                tuned=chosen is not None,
                note=control.note if isinstance(control, Control) else "",
                trials=chosen.trials if chosen else 0,
                tuning_runs=chosen.runs if chosen else 0,
                edges=dict(chosen.edges) if chosen else {},
                tied=chosen.tied if chosen else 1,
                valid=chosen.valid if chosen else None,
                seeds=registration.report_seeds,
                values=tuple(values),
                test=mean_interval(values),
                diverged=sum(bool(row.summary.get("diverged")) for row in of_arm),
                train_loss=mean_interval([self._train_loss(row) for row in of_arm]),
                reach=times[arm],
                speedup=speedups(times[arm], times["base"]) if arm != "base" and "base" in times else {},
                cost=self._cost(state, arm),
                best_after=self._best_after(state, arm),
                epochs=epochs[arm],
                keys=tuple(row.key for row in of_arm),
            )

    def _train_loss(self, row: RowLike) -> float:
        value, worst = number(row.summary.get("final_train_loss")), self.worst_loss
        return min(value, worst) if math.isfinite(value) and not row.summary.get("diverged") else worst

    def _cost(self, state: FamilyState, arm: str) -> Cost | None:
        """From the timed runs; where there are none, from the reported ones if they were single runs and all have times: side
        by side on a GPU one has them only if its CUDA graph could not be captured.
        """
        if state.bench is None or arm not in state.selected:
            return None
        reported = self.rows[state.family][arm]
        by_themselves = [row for trial in state.bench.timed(arm) if (row := self.view.get(trial)) is not None]
        timed = [row for row in by_themselves or reported if row.summary.get("step_ms") is not None]
        if not timed or (not by_themselves and len(timed) < len(reported)):
            return None
        names = ("step_ms", "step_ms_low", "step_ms_high")
        times = {name: float(np.median([number(row.summary.get(name)) for row in timed])) for name in names}
        peaks = [int(row.summary["run_bytes"]) for row in timed if row.summary.get("run_bytes")]
        return Cost(
            **times,
            epoch_seconds=epoch_seconds(timed),
            peak_bytes=max(peaks, default=None),
            by_seed={row.trial.seed: each for row in timed if math.isfinite(each := epoch_seconds([row]))},
        )

    def _best_after(self, state: FamilyState, arm: str) -> BestSoFar | None:
        """The expected best against the number of trials, on the seeds that every trial had.

        A point that a rung has stopped counts by its longest run.
        """
        chosen = state.selected.get(arm)
        if chosen is None:
            return None
        points = state.tuning.points[arm]
        longest = [longest_runs(self.registration, chosen.search, point, self.view) for point in points]
        valid, test = ([float(np.mean(self.view.values(rows, of))) for rows in longest] for of in ("valid", "test"))
        return expected_best(valid, test, higher_is_better=self.registration.higher_is_better)

    def missing(self, state: FamilyState) -> Iterator[Missing]:
        """The arms of a family without numbers."""
        for arm in self.registration.arms:
            elsewhere = ARMS[arm].tuned and state.family not in ARMS[arm].search  # an arm of other families
            if elsewhere or arm in self.rows[state.family]:
                continue
            derived = state.derived.get(arm)
            if isinstance(derived, LeftOut):
                reason = derived.reason
            elif isinstance(derived, Waiting):
                reason = "not measured yet"
            else:
                reason = "not tuned yet" if state.tuning.pending else "not run on all report seeds yet"
            yield Missing(state.family, arm, reason)

    def primary_pairs(self) -> list[Pair]:
        """Each memory against the best of its rivals, the rival chosen on the tuning seeds alone."""
        arms, out = self.arms, []
        for primary in self.registration.primary:
            for family, state in self.states.items():
                rival = self._best_rival(state, primary.against) if (family, primary.arm) in arms else None
                if rival is not None and (family, rival) in arms:
                    out.append(self._pair(arms[family, primary.arm], arms[family, rival], primary=True))
        return out

    def _best_rival(self, state: FamilyState, names: Sequence[str]) -> str | None:
        """The best of ``names`` on the tuning seeds; of equals the first: base, rival, tuned momentum, as announced."""
        there = [state.selected[name] for name in names if name in state.selected]
        rows = {chosen.arm: last_runs(self.registration, chosen, self.view) for chosen in there}
        values = {arm: self.view.values(of_arm, "valid") for arm, of_arm in rows.items()}
        return choose(values, higher_is_better=self.view.higher_is_better).key if values else None

    def descriptive_pairs(self) -> list[Pair]:
        """Each arm against its base, its own controls and the other optimizers."""
        out = []
        for (family, arm), row in self.arms.items():
            rivals = [*(["base"] if arm != "base" else []), *ARMS[arm].against]
            there = [self.arms[family, rival] for rival in rivals if (family, rival) in self.arms]
            out += [self._pair(row, rival) for rival in there]
        return out

    def _pair(self, arm: ArmResult, rival: ArmResult, primary: bool = False) -> Pair:
        family = f"{arm.family}_{arm.arm}" if primary else arm.family
        task, higher, margin = self.registration.task, self.registration.higher_is_better, self._margin(arm.family)
        return Pair(task, family, arm.label, rival.label, arm.values, rival.values, higher, primary, margin)

    def _margin(self, family: str) -> float | None:
        """The difference below which two values are the same: a share of what the tuned base learns."""
        initial, base = self.initial, self.arms.get((family, "base"))
        if initial is None or base is None:
            return None
        return margin_of(initial, base.test.mean, self.registration.metric == "perplexity")


# -- several tasks -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SuiteRow:
    """An arm over the tasks that have it. Scores: 0 is the value before training, 1 the tuned base's mean test value."""

    family: str
    arm: str
    label: str
    tasks: tuple[str, ...]
    score: SuiteScore  # interquartile mean over tasks and seeds
    difference: SuiteScore | None  # to the base, seeds paired


def suite(outcomes: Iterable[Outcome]) -> list[Comparison]:
    """The primaries of several tasks, corrected together."""
    return judged([pair for outcome in outcomes for pair in outcome.pairs])


def suite_table(outcomes: Sequence[Outcome]) -> list[SuiteRow]:
    """Every arm's interquartile mean over the tasks in which both it and its base have numbers."""
    rows = []
    for family, arm in dict.fromkeys((row.family, row.arm) for outcome in outcomes for row in outcome.arms):
        mine: dict[str, Sequence[float]] = {}
        base: dict[str, Sequence[float]] = {}
        for outcome in outcomes:
            found, reference = outcome.arm(family, arm), outcome.arm(family, "base")
            if found is None or reference is None or outcome.initial is None or outcome.initial == reference.test.mean:
                continue  # without what the base has learnt there is no scale
            scale = outcome.initial, reference.test.mean
            mine[outcome.task] = normalised(found.values, *scale).tolist()
            base[outcome.task] = normalised(reference.values, *scale).tolist()
        if mine:
            difference = None if arm == "base" else suite_difference(mine, base)
            label = ARMS[arm].label_in(family)
            rows.append(SuiteRow(family, arm, label, tuple(mine), suite_score(mine), difference))
    return rows
