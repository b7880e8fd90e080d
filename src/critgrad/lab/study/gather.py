"""From a ledger to an answer: the runs of a study as plain values, what each replicate is worth, and the verdict."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

import numpy as np

from ..errors import LabError
from ..ledger import Ledger
from ..run.spec import STUDY_SCHEMA
from .answer import Answer, Arm, Replicate, Run
from .axes import near_end
from .plan import StudyPlan

_FEW = 3  # failures whose reasons are told in one line


def run_of(
    key: str, seed: int, summary: Mapping[str, Any], curves: Mapping[str, np.ndarray], error: str | None = None
) -> Run:
    """A run of the ledger, or one that has just been made. The point is told by the plan."""
    if error is not None:
        lines = error.strip().splitlines()
        return Run(key, seed, failed=lines[-1] if lines else "unknown error")

    def number(name: str) -> float:
        value = summary.get(name)
        return math.nan if value is None else float(value)

    bad = bool(summary.get("diverged")) or not (math.isfinite(number("valid")) and math.isfinite(number("test")))
    return Run(
        key,
        seed,
        valid=math.nan if bad else number("valid"),
        test=math.nan if bad else number("test"),
        failed=f"not finite after epoch {summary.get('epochs') or 1}" if bad else "",
        curve=tuple(float(value) for value in curves.get("valid", ())),
        step_ms=number("step_ms"),
        seconds=number("run_seconds"),
        peak_bytes=int(summary.get("peak_bytes") or 0),
        initial=number("initial_test"),
    )


def known_runs(ledger: Ledger) -> dict[str, Run]:
    """All runs of studies that a ledger has, by key."""
    rows = ledger.rows(status=None, schema=STUDY_SCHEMA)
    return {row.key: run_of(row.key, row.trial.seed, row.summary, row.curves, row.error) for row in rows}


def answer_of(
    plan: StudyPlan, runs: Mapping[str, Run], notes: Sequence[str] = (), provenance: Mapping[str, Any] | None = None
) -> Answer:
    """What a study has found, from the replicates that are whole for every arm."""
    from .verdict import claims_of, default_margin

    study = plan.study
    numbers = [n for n in range(1, study.replicates + 1) if not any(True for _ in plan.wanted(n, runs))]
    initial = _mean([_initial_of(plan, number, runs) for number in numbers])
    said = [*notes]
    if numbers and not math.isfinite(initial):
        initial = _worst(plan, numbers, runs)
        said.append("The value before training is not known; the worst value of all runs stands for it.")
    arms = {}
    for name, file in study.arms.items():
        found = tuple(_replicate(plan, name, n, runs, initial) for n in numbers)
        near = {
            option: sum(option in replicate.chosen and near_end(axis, replicate.chosen[option]) for replicate in found)
            for option, axis in file.search.items()
        }
        arms[name] = Arm(name, file.optimizer, file.fixed, file.texts, found, near)
    first = next(iter(arms.values()))
    margin = default_margin(first, initial) if study.margin is None else study.margin
    claims = claims_of(arms, study.claims, study.direction, margin, study.replicates)
    origin = {"file": study.text, "sha256": hashlib.sha256(study.text.encode()).hexdigest(), **(provenance or {})}
    return Answer(
        title=study.title,
        task=study.task,
        direction=study.direction,
        epochs=study.epochs,
        planned=study.replicates,
        trials=study.trials,
        report_seeds=study.report_seeds,
        seed=study.seed,
        margin=margin,
        initial=initial,
        arms=arms,
        claims=claims,
        notes=tuple(said),
        provenance=origin,
    )


def _initial_of(plan: StudyPlan, number: int, runs: Mapping[str, Run]) -> float:
    measured = plan.initial(number)
    if measured is not None:
        return runs[measured.key].test
    # All arms share the seeds: whichever run of a seed got so far tells its value.
    found: dict[int, float] = {}
    for arm in plan.study.arms:
        for run in _reported(plan, arm, number, runs) or [runs[trial.key] for _, trial in plan.searched(arm, number)]:
            if math.isfinite(run.initial):
                found.setdefault(run.seed, run.initial)
    return _mean([*found.values()])


def _mean(values: Sequence[float]) -> float:
    finite = [value for value in values if math.isfinite(value)]
    return fmean(finite) if finite else math.nan


def _reported(plan: StudyPlan, arm: str, number: int, runs: Mapping[str, Run]) -> list[Run]:
    chosen = plan.best(arm, number, runs)
    if chosen is None or (chosen[1] is None and plan.study.arms[arm].search):
        return []
    return [runs[trial.key] for trial in plan.reports(arm, number, chosen[0])]


def _worst(plan: StudyPlan, numbers: Sequence[int], runs: Mapping[str, Run]) -> float:
    reported = [run for number in numbers for arm in plan.study.arms for run in _reported(plan, arm, number, runs)]
    values = [run.test for run in reported if math.isfinite(run.test)]
    if not values:
        searched = [runs[trial.key] for n in numbers for arm in plan.study.arms for _, trial in plan.searched(arm, n)]
        why = next((run.failed for run in (*searched, *reported) if run.failed), "no value")
        raise LabError(f"No run of the study gave a value (--retry makes them once more); the first ended with: {why}")
    return max(values) if plan.study.direction == "min" else min(values)


def _replicate(plan: StudyPlan, arm: str, number: int, runs: Mapping[str, Run], initial: float) -> Replicate:
    study = plan.study
    trials = tuple(_at(runs[trial.key], point) for point, trial in plan.searched(arm, number))
    found = plan.best(arm, number, runs)
    assert found is not None
    chosen, best = found
    if trials and best is None:
        points = "the one point" if len(trials) == 1 else f"all {len(trials)} points"
        why = f"{points} failed: {trials[0].failed}"
        return Replicate(number, trials, {}, (), math.nan, initial, why)
    reports = tuple(_at(run, chosen) for run in _reported(plan, arm, number, runs))
    own = _initial_of(plan, number, runs)
    starts = [next(filter(math.isfinite, (run.initial, own, initial)), math.nan) for run in reports]
    counted = [_counted(run, start, initial, study.direction) for run, start in zip(reports, starts)]
    reasons = [reason for _, reason in counted]
    value = fmean(value for value, _ in counted)
    valids = [best.valid] if best is not None else [run.valid for run in reports]
    valid = fmean(valids) if all(map(math.isfinite, valids)) else math.nan  # the one that is equal to itself in tuples
    told = [reason for reason in dict.fromkeys(reasons) if reason]
    return Replicate(number, trials, chosen, reports, valid, value, "; ".join(told[:_FEW]))


def _counted(run: Run, start: float, initial: float, direction: str) -> tuple[float, str]:
    """What a report run counts as, and why that is not its test value: nobody uses what is worse than it was before training.

    ``start`` is the run's own value before training, ``initial`` that of the study, for runs that have none of their own.
    """
    if run.failed:
        return initial, run.failed
    worse = run.test > start if direction == "min" else run.test < start
    return (start, "worse than no training") if worse else (run.test, "")


def _at(run: Run, point: Mapping[str, Any]) -> Run:
    return Run(**{**vars(run), "point": dict(point)})
