"""Analyses on made-up rows and on tiny runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from critgrad.lab.ledger import Ledger, Row
from critgrad.lab.run.coordinator import run_jobs
from critgrad.lab.run.spec import Trial
from critgrad.paper.analyses import ANALYSES, Options

Give = Callable[[Trial], dict[str, Any]]


def rows(name: str, task: str, give: Give, options: Options | None = None) -> list[Row]:
    """The rows an analysis would have; ``give`` says what of a trial's outcome is not the usual."""
    found = []
    for trial, roles in ANALYSES[name].trials(task, options or Options(2)):
        given = give(trial)
        curves = given.pop("curves", {})
        summary = {"test": 50.0, "valid": 50.0, "diverged": False, "final_train_loss": 0.5, "step_ms": 1.0, **given}
        row = Row(trial.key, trial, "done", summary, {"cpu": "a machine", "accelerator": None}, roles)
        row.__dict__["curves"] = {key: np.asarray(values) for key, values in curves.items()}
        found.append(row)
    return found


def collected(name: str, task: str, give: Give, options: Options | None = None) -> dict[str, Any]:
    return ANALYSES[name].collect(task, rows(name, task, give, options))


def real(name: str, task: str, options: Options, folder: Any) -> dict[str, Any]:
    """Train what the analysis wants, and collect."""
    analysis = ANALYSES[name]
    with Ledger.open(folder / "runs.db", write=True, create=True) as book:
        outcome = run_jobs(analysis.plan(book, task, options), book, executor="inline")
        assert outcome.failed == 0
        assert analysis.plan(book, task, options) == []
        return analysis.collect(task, analysis.rows(book, task))
