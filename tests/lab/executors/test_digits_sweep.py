"""Real trials: digits-mlp through the pool, killed inside the rename of their checkpoints, and in a bank."""

from __future__ import annotations

from pathlib import Path

import pytest

from critgrad.lab.ledger import Ledger, Planned
from critgrad.lab.ledger.merge import same_numbers
from critgrad.lab.run.coordinator import run_jobs
from critgrad.lab.run.results import Result
from critgrad.lab.run.spec import Trial
from critgrad.lab.run.worker import Failure, checkpoint_file, work

pytestmark = pytest.mark.slow


def trials(count: int, **changes: object) -> list[Trial]:
    trial = Trial("digits-mlp", "Adam_C", {"lr": 0.003, "topC": 3}, settings={"epochs": 3})
    return [trial.replace(seed=seed, **changes) for seed in range(count)]


def undisturbed(trial: Trial) -> Result:
    (outcome,) = work([trial], "cpu", None)
    assert isinstance(outcome, Result)
    return outcome


def test_digits_trials_killed_around_the_rename_of_a_checkpoint_give_the_same_bits(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"
    with Ledger.open(tmp_path / "runs.db", write=True, create=True) as ledger:
        planned = [Planned(trial, ()) for trial in trials(2)]
        outcome = run_jobs(planned, ledger, workers=2, checkpoints=folder, work="toy_worker:digits_work")
        assert (outcome.done, outcome.failed) == (2, 0)
        rows = ledger.rows()
    assert len(list(tmp_path.glob("*.before"))) == len(list(tmp_path.glob("*.after"))) == 2
    for row in rows:
        alone = undisturbed(row.trial)
        assert row.summary["epochs"] == 3
        assert same_numbers(row, alone)
    assert list(folder.iterdir()) == []


def test_short_trials_are_not_checkpointed_after_the_first_of_their_kind(tmp_path: Path) -> None:
    first, second = trials(2, settings={"epochs": 2, "batch_size": 64})
    assert isinstance(work([first], "cpu", tmp_path)[0], Result)
    assert checkpoint_file(tmp_path, first.key).exists()
    assert isinstance(work([second], "cpu", tmp_path)[0], Result)
    assert not checkpoint_file(tmp_path, second.key).exists()


def test_a_checkpoint_that_cannot_be_read_is_thrown_away(tmp_path: Path) -> None:
    (trial,) = trials(1)
    checkpoint_file(tmp_path, trial.key).write_bytes(b"PK\x03\x04 torn")
    (outcome,) = work([trial], "cpu", tmp_path)
    assert isinstance(outcome, Result)
    assert same_numbers(outcome, undisturbed(trial))


def test_a_trial_that_cannot_be_run_is_a_failure_with_its_reason() -> None:
    (outcome,) = work([Trial("digits-mlp", "NoSuchOptimizer")], "cpu", None)
    assert isinstance(outcome, Failure)
    assert "NoSuchOptimizer" in outcome.error


def test_a_bank_of_digits_trials_is_one_job(tmp_path: Path) -> None:
    planned = [Planned(trial, ()) for trial in trials(5, engine="bank")]
    with Ledger.open(tmp_path / "runs.db", write=True, create=True) as ledger:
        outcome = run_jobs(planned, ledger, executor="inline", bank_size=3)
        assert (outcome.done, outcome.failed) == (5, 0), [row.error for row in ledger.rows(status="failed")]
        assert all("step_ms" not in row.summary for row in ledger.rows())
