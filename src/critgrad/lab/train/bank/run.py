"""Running a bank: epochs, evaluation, results."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from torch import Tensor

from ...errors import LabError
from ...run.results import Result, provenance
from ...run.spec import Trial
from ...tasks import Scores, SummingProblem
from ..loop import problem_for, summarise
from ..precision import at_its_precision
from .members import crew
from .probes import BankProbes
from .step import Bank, Stepper

_NOTHING = Scores(math.nan, math.nan)


@dataclass
class _BankRun:
    """One model's curves."""

    curves: dict[str, list[Any]] = field(default_factory=dict)
    epochs: int = 0
    diverged: bool = False
    initial_valid: float = math.nan


@at_its_precision
def run_bank(trials: Sequence[Trial], *, device: str = "cpu", graph: bool = True) -> list[Result]:
    """Run trials of one task, with the same settings, all at once; the results in the order of the trials.

    Args:
        trials: with ``engine="bank"``; optimizers, hyper-parameters, seeds and probes may differ.
        device: to train on.
        graph: on CUDA, capture a step as a CUDA graph; provenance says whether that worked.

    A model that diverges is left alone from then on, and its row says so. A yoked trial's donor trains beside it and is
    followed step by step; when it diverges, nothing more is stored.
    """
    if not trials:
        raise LabError("Invalid trials: none, expected at least one")
    problem = problem_for(trials[0], device)
    if not (isinstance(problem, SummingProblem) and problem.task.bankable):
        raise LabError(f"Invalid task for a bank: {problem.task.name}, it cannot be run there; use --engine single")
    if (problem.task.schedule, problem.task.warmup) != ("constant", 0.0):
        raise LabError(
            "Invalid schedule for a bank: it has none, expected constant without warmup; use --engine single"
        )
    members = crew(trials, problem.task.weight_decay)
    bank = Bank(problem, members)
    step, probes = Stepper(bank, graph), BankProbes(bank)
    runs = [_BankRun() for _ in members.members]
    for run, (chosen, _) in zip(runs, _evaluate(bank, runs)):
        run.initial_valid = chosen.metric
    shown = [not member.hidden for member in members.members]
    for epoch in range(1, problem.task.epochs + 1):
        bank.begin_epoch(epoch)
        for _ in range(problem.steps):
            probes.before_step()
            step()
            probes.after_step()
        _record(bank, probes, runs)
        if all(run.diverged for run, show in zip(runs, shown) if show):
            break
    origin = {**provenance(device), "models": len(runs), "graph": step.graph is not None}
    if step.warning is not None:
        origin["graph_warning"] = step.warning
    parameters = sum(bank.models.sizes)
    return [_result(problem, runs[i], parameters, dict(origin)) for i in members.place]


def _record(bank: Bank, probes: BankProbes, runs: Sequence[_BankRun]) -> None:
    """Add an epoch to the curves of the models that have not diverged; the only place where the device is waited for."""
    losses = (bank.total / bank.problem.steps).tolist()
    probed = probes.epoch()
    for run, train_loss, (chosen, reported), values in zip(runs, losses, _evaluate(bank, runs), probed):
        if run.diverged:
            continue
        run.epochs += 1
        if not (math.isfinite(train_loss) and math.isfinite(chosen.loss)):
            run.diverged = True
            continue
        row = {"train_loss": train_loss, "valid_loss": chosen.loss, "valid": chosen.metric, "test": reported.metric}
        for name, value in {**row, **values}.items():
            run.curves.setdefault(name, []).append(value)


def _evaluate(bank: Bank, runs: Sequence[_BankRun]) -> list[tuple[Scores, Scores]]:
    """For each model the scores that choose and those that are reported; nothing for one that has diverged."""
    problem = bank.problem
    by_split: dict[str, list[Scores]] = {}
    for split in dict.fromkeys((problem.select_on, problem.report_on)):
        totals: Tensor = bank.models.scores(split).cpu()
        by_split[split] = [_NOTHING if run.diverged else problem.finish(row) for run, row in zip(runs, totals)]
    return list(zip(by_split[problem.select_on], by_split[problem.report_on]))


def _result(problem: SummingProblem, run: _BankRun, parameters: int, origin: dict[str, Any]) -> Result:
    curves = {name: np.asarray(values) for name, values in run.curves.items() if name != "decisions"}
    if "decisions" in run.curves:
        curves["decisions"] = np.concatenate([np.asarray(part) for part in run.curves["decisions"]])
    summary = summarise(problem, curves, run.diverged, run.initial_valid)
    summary |= {"steps": run.epochs * problem.steps, "parameters": parameters}
    return Result(curves, summary, origin)
