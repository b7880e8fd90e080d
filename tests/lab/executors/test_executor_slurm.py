"""The SLURM executor on submitit's local stand-in."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from sweep_helpers import HERE, SOURCE
from toy_worker import WORK, expected, plan

from critgrad.lab.ledger import Ledger
from critgrad.lab.ledger.merge import same_numbers
from critgrad.lab.run.coordinator import run_jobs
from critgrad.lab.run.executors import WorkerLostError, open_executor

pytest.importorskip("submitit", reason="needs submitit")
pytestmark = pytest.mark.slow


@pytest.fixture
def options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, object]:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join((str(HERE), str(SOURCE))))
    return {"cluster": "local", "folder": tmp_path / "jobs", "poll": 0.1}


def die_once(flag: str) -> int:
    if not os.path.exists(flag):
        open(flag, "w").close()
        os.kill(os.getpid(), signal.SIGKILL)
    return os.getpid()


def test_a_sweep_of_submitit_jobs_gives_what_one_process_gives(tmp_path: Path, options: dict[str, object]) -> None:
    with Ledger.open(tmp_path / "runs.db", write=True, create=True) as ledger:
        outcome = run_jobs(
            [*plan(9), *plan(1, behave="raise")],
            ledger,
            executor="slurm",
            checkpoints=tmp_path / "checkpoints",
            options={**options, "per_job": 5, "array": 2},
            work=WORK,
        )
        assert (outcome.done, outcome.failed, outcome.remaining) == (9, 1, 0)
        assert all(same_numbers(row, expected(row.trial)) for row in ledger.rows())
    assert list((tmp_path / "checkpoints").iterdir()) == []


def test_a_job_that_is_killed_is_submitted_again(tmp_path: Path, options: dict[str, object]) -> None:
    with open_executor("slurm", options=options) as pool:
        future = pool.submit(die_once, str(tmp_path / "flag"))
        assert future.result(90) != os.getpid()
        assert future.worker.startswith("slurm ")


def test_a_job_that_never_answers_is_given_up(options: dict[str, object]) -> None:
    with open_executor("slurm", options=options) as pool:
        assert isinstance(pool.submit(os._exit, 3).exception(90), WorkerLostError)


def test_what_a_call_raises_comes_back(options: dict[str, object]) -> None:
    with open_executor("slurm", options=options) as pool:
        assert "seven" in str(pool.submit(int, "seven").exception(90))
