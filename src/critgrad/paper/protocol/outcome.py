"""From a ledger to the fair track's tables. Nothing here trains, and nothing is typed by hand."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from critgrad.lab.ledger.committed import standing
from critgrad.lab.ledger.reach import reach, speedups, target_of
from critgrad.lab.ledger.view import Reader, RowLike, View, number
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
from .tuning import longest_runs, tuning_trial

_PER_SEED = ("donor_seed", "seed")  # arguments that differ from run to run of one arm


def tables(ledger: Reader, registration: Registration) -> Outcome:
    """The tables, as far as the ledger's rows go; ``pending`` says what is still to be run."""
    track = Fair(registration)
    view = track.view(ledger)
    states = track.states(view)
    rows = {family: _reported(track, state, view) for family, state in states.items()}
    reported = [row for of_family in rows.values() for of_arm in of_family.values() for row in of_arm]
    worst_loss = _worst_loss(reported)
    arms: list[ArmResult] = []
    missing: list[Missing] = []
    targets: dict[str, float | None] = {}
    for family, state in states.items():
        targets[family] = _target(registration, state, view)
        arms += _arms(track, state, view, rows[family], targets[family], worst_loss)
        missing += _missing(registration, state, rows[family])
    found = {(row.family, row.arm): row for row in arms}
    initial = _initial(view)
    margins = _margins(registration, initial, found)
    pairs = _primary_pairs(registration, states, view, found, margins)
    plan = track.plan(ledger)
    return Outcome(
        registration=registration,
        standing=standing(ledger, registration),
        arms=tuple(arms),
        primary=tuple(judged(pairs)),
        descriptive=tuple(judge(_descriptive_pairs(registration, found, margins))),
        missing=tuple(missing),
        targets=targets,
        widened={family: state.tuning.widened for family, state in states.items()},
        trials={family: max(map(len, state.tuning.points.values())) for family, state in states.items()},
        pending=dict(Counter(role.purpose for planned in plan for role in planned.roles[:1])),
        data=tuple(sorted({(row.summary["data_state"], row.summary["data_sha256"]) for row in view.rows.values()})),
        mixed=_mixed(reported),
        runs=len(view.rows),
        initial=initial,
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


def _initial(view: View) -> float | None:
    finite = _finite(row.summary.get("initial_valid") for row in view.rows.values())
    return float(np.median(finite)) if finite else None


def _finite(values: Iterable[Any]) -> list[float]:
    return [value for value in map(number, values) if math.isfinite(value)]


# -- arms --------------------------------------------------------------------------------------------------------------


def _reported(track: Fair, state: FamilyState, view: View) -> dict[str, list[RowLike]]:
    """The reported rows of the arms whose seeds are all done."""
    out = {}
    for arm in track.registration.arms:
        trials = track.report_trials(state, arm)
        if trials and not view.missing(trials):
            out[arm] = view.of(trials)
    return out


def _target(registration: Registration, state: FamilyState, view: View) -> float | None:
    base = state.selected.get("base")
    if base is None:
        return None
    trials = [tuning_trial(registration, base.search, base.point, seed) for seed in registration.tuning_seeds]
    return target_of(view.of(trials), view, registration.target)


def _arms(
    track: Fair,
    state: FamilyState,
    view: View,
    rows: Mapping[str, list[RowLike]],
    target: float | None,
    worst_loss: float,
) -> list[ArmResult]:
    registration = track.registration
    epochs = {arm: track.report_trials(state, arm)[0].settings["epochs"] for arm in rows}
    times = {
        arm: {} if target is None else reach(of_arm, target, registration.higher_is_better, epochs[arm])
        for arm, of_arm in rows.items()
    }
    out = []
    for arm, of_arm in rows.items():
        chosen, control = state.selected.get(arm), state.derived.get(arm)
        values = view.values(of_arm, "test")
        trial = of_arm[0].trial
        out.append(
            ArmResult(
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
                train_loss=mean_interval([_train_loss(row, worst_loss) for row in of_arm]),
                reach=times[arm],
                speedup=speedups(times[arm], times["base"]) if arm != "base" and "base" in times else {},
                cost=_cost(state, arm, view, of_arm),
                best_after=_best_after(registration, state, arm, view),
                epochs=epochs[arm],
                keys=tuple(row.key for row in of_arm),
            )
        )
    return out


def _train_loss(row: RowLike, worst: float) -> float:
    value = number(row.summary.get("final_train_loss"))
    return min(value, worst) if math.isfinite(value) and not row.summary.get("diverged") else worst


def _worst_loss(rows: Iterable[RowLike]) -> float:
    """The largest final training loss of any reported run: what a diverged one is given."""
    return max(
        _finite(row.summary.get("final_train_loss") for row in rows if not row.summary.get("diverged")), default=0.0
    )


def _cost(state: FamilyState, arm: str, view: View, reported: Sequence[RowLike]) -> Cost | None:
    """From the timed runs; where there are none, from the reported ones if they were single runs and all have times: side by
    side on a GPU one has them only if its CUDA graph could not be captured.
    """
    if state.bench is None or arm not in state.selected:
        return None
    by_themselves = [row for trial in state.bench.timed(arm) if (row := view.get(trial)) is not None]
    timed = [row for row in by_themselves or reported if row.summary.get("step_ms") is not None]
    if not timed or (not by_themselves and len(timed) < len(reported)):
        return None

    def median(name: str) -> float:
        return float(np.median([number(row.summary.get(name)) for row in timed]))

    peaks = [int(row.summary["run_bytes"]) for row in timed if row.summary.get("run_bytes")]
    return Cost(
        median("step_ms"),
        median("step_ms_low"),
        median("step_ms_high"),
        epoch_seconds(timed),
        max(peaks) if peaks else None,
        {row.trial.seed: seconds for row in timed if math.isfinite(seconds := epoch_seconds([row]))},
    )


def _best_after(registration: Registration, state: FamilyState, arm: str, view: View) -> BestSoFar | None:
    """The expected best against the number of trials, on the seeds that every trial had.

    A point that a rung has stopped counts by its longest run.
    """
    chosen = state.selected.get(arm)
    if chosen is None:
        return None
    means: dict[str, list[float]] = {"valid": [], "test": []}
    for point in state.tuning.points[arm]:
        rows = longest_runs(registration, chosen.search, point, view)
        for name, values in means.items():
            values.append(float(np.mean(view.values(rows, name))))
    return expected_best(means["valid"], means["test"], higher_is_better=registration.higher_is_better)


def _missing(registration: Registration, state: FamilyState, rows: Mapping[str, Any]) -> list[Missing]:
    out = []
    for arm in registration.arms:
        if arm in rows or not ARMS[arm].in_family(state.family):
            continue
        derived = state.derived.get(arm)
        if isinstance(derived, LeftOut):
            reason = derived.reason
        elif isinstance(derived, Waiting):
            reason = "not measured yet"
        else:
            reason = "not tuned yet" if state.tuning.pending else "not run on all report seeds yet"
        out.append(Missing(state.family, arm, reason))
    return out


# -- comparisons -------------------------------------------------------------------------------------------------------

Found = Mapping[tuple[str, str], ArmResult]


def _margins(registration: Registration, initial: float | None, found: Found) -> dict[str, float]:
    """By family, the difference below which two values are the same: a share of what the tuned base learns."""
    bases = {family: row.test.mean for (family, arm), row in found.items() if arm == "base"}
    if initial is None:
        return {}
    in_logs = registration.metric == "perplexity"
    return {family: margin_of(initial, reached, in_logs) for family, reached in bases.items()}


def _primary_pairs(
    registration: Registration,
    states: Mapping[str, FamilyState],
    view: View,
    found: Found,
    margins: Mapping[str, float],
) -> list[Pair]:
    """Each memory against the best of its rivals, the rival chosen on the tuning seeds alone."""
    out = []
    for primary in registration.primary:
        for family, state in states.items():
            if (family, primary.arm) not in found:
                continue
            rival = _best_rival(registration, state, primary.against, view)
            if rival is not None and (family, rival) in found:
                arms = found[family, primary.arm], found[family, rival]
                out.append(_pair(registration, *arms, margins.get(family), primary=True))
    return out


def _best_rival(registration: Registration, state: FamilyState, names: Sequence[str], view: View) -> str | None:
    """The best of ``names`` on the tuning seeds; of equals the first: base, rival, tuned momentum, as announced."""
    there = [state.selected[name] for name in names if name in state.selected]
    if not there:
        return None
    values = {}
    for chosen in there:
        trials = [tuning_trial(registration, chosen.search, chosen.point, seed) for seed in registration.tuning_seeds]
        values[chosen.arm] = view.values(view.of(trials), "valid")
    return choose(values, higher_is_better=registration.higher_is_better).key


def _descriptive_pairs(registration: Registration, found: Found, margins: Mapping[str, float]) -> list[Pair]:
    out = []
    for (family, arm), row in found.items():
        rivals = [*(["base"] if arm != "base" else []), *ARMS[arm].against]
        there = [found[family, rival] for rival in rivals if (family, rival) in found]
        out += [_pair(registration, row, rival, margins.get(family)) for rival in there]
    return out


def _pair(
    registration: Registration, arm: ArmResult, rival: ArmResult, margin: float | None, primary: bool = False
) -> Pair:
    return Pair(
        registration.task,
        f"{arm.family}_{arm.arm}" if primary else arm.family,
        arm.label,
        rival.label,
        arm.values,
        rival.values,
        registration.higher_is_better,
        primary,
        margin,
    )


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
    names = [name for outcome in outcomes for name in ((row.family, row.arm) for row in outcome.arms)]
    rows = []
    for family, arm in dict.fromkeys(names):
        mine: dict[str, Sequence[float]] = {}
        base: dict[str, Sequence[float]] = {}
        for outcome in outcomes:
            found, reference = outcome.arm(family, arm), outcome.arm(family, "base")
            if found is None or reference is None or outcome.initial is None:
                continue
            if outcome.initial == reference.test.mean:
                continue  # the base has learnt nothing: there is no scale
            scale = outcome.initial, reference.test.mean
            mine[outcome.task] = normalised(found.values, *scale).tolist()
            base[outcome.task] = normalised(reference.values, *scale).tolist()
        if mine:
            difference = None if arm == "base" else suite_difference(mine, base)
            label = ARMS[arm].label_in(family)
            rows.append(SuiteRow(family, arm, label, tuple(mine), suite_score(mine), difference))
    return rows
