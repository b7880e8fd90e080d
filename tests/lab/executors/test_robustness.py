"""What goes wrong around trials costs as little as it can: a hanging trial, an unreadable answer, a silent queue."""

from __future__ import annotations

import os
import pickle
import threading
import time
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace

import pytest
from toy_worker import WORK, plan

from critgrad.lab.errors import LabError
from critgrad.lab.ledger import Ledger
from critgrad.lab.run import worker
from critgrad.lab.run.coordinator import run_jobs
from critgrad.lab.run.executors import dask, open_executor, slurm
from critgrad.lab.run.executors.slurm import SlurmExecutor


class Unreadable:
    """Can be pickled, and not be unpickled."""

    def __reduce__(self) -> tuple[type, tuple[str]]:
        return int, ("seven",)


def unreadable() -> Unreadable:
    return Unreadable()


# -- time --------------------------------------------------------------------------------------------------------------


def test_a_trial_that_hangs_is_ended_and_its_worker_replaced(tmp_path: Path) -> None:
    with Ledger.open(tmp_path / "runs.db", write=True, create=True) as ledger:
        trials = [*plan(1, behave="hang"), *plan(3)]
        outcome = run_jobs(trials, ledger, workers=1, work=WORK, trial_timeout=0.5)
        assert (outcome.done, outcome.failed, outcome.remaining) == (3, 1, 0)
        (failed,) = ledger.rows(status="failed")
    assert "it ran for more than 0.5 s and was ended (--trial-timeout)" in failed.error


def test_the_time_limit_is_refused_where_nothing_can_be_ended(tmp_path: Path) -> None:
    with Ledger.open(tmp_path / "runs.db", write=True, create=True) as ledger:
        with pytest.raises(LabError, match="Invalid --trial-timeout with the executor inline"):
            run_jobs(plan(1), ledger, executor="inline", work=WORK, trial_timeout=1.0)
        with pytest.raises(LabError, match="Invalid --trial-timeout: 0, expected"):
            run_jobs(plan(1), ledger, work=WORK, trial_timeout=0.0)


# -- answers -----------------------------------------------------------------------------------------------------------


def test_an_answer_that_cannot_be_read_costs_its_call_and_not_the_pool() -> None:
    with open_executor("local", workers=1) as pool:
        bad, good = pool.submit(unreadable), pool.submit(pow, 2, 5)
        assert "its answer could not be read: ValueError" in str(bad.exception(60))
        assert good.result(60) == 32


def test_an_answer_of_a_job_that_cannot_be_read_costs_that_job(tmp_path: Path) -> None:
    file = tmp_path / "answer.pkl"
    file.write_bytes(pickle.dumps(("success", Unreadable())))
    call = slurm._SlurmCall(unreadable, (), Future(), SimpleNamespace(paths=SimpleNamespace(result_pickle=file)))
    assert bare_slurm("here")._take(call)
    assert "its answer could not be read" in str(call.future.exception())
    file.write_bytes(b"")  # not there yet, on a slow disk
    assert not bare_slurm("here")._take(slurm._SlurmCall(unreadable, (), Future(), call.job))


# -- SLURM's commands --------------------------------------------------------------------------------------------------


def bare_slurm(where: str) -> SlurmExecutor:
    """The executor without submitit and its thread."""
    made = object.__new__(SlurmExecutor)
    made._cluster, made._where = "slurm", where
    made._live = [SimpleNamespace(job=SimpleNamespace(job_id="7"))]  # type: ignore[list-item]
    return made


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Put a shell script in the place of one of SLURM's commands."""
    monkeypatch.setenv("PATH", os.pathsep.join((str(tmp_path), os.environ["PATH"])))

    def put(name: str, script: str) -> None:
        (tmp_path / name).write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / name).chmod(0o755)

    return put


def test_a_queue_that_does_not_answer_is_not_waited_for(command, monkeypatch: pytest.MonkeyPatch) -> None:
    command("squeue", "exec sleep 60")
    monkeypatch.setattr(slurm, "ASK_SECONDS", 0.2)
    begin = time.monotonic()
    assert bare_slurm("here")._queued() == {"7"}  # nothing is known to be gone
    assert time.monotonic() - begin < 30


def test_jobs_of_another_cluster_are_not_cancelled(command, tmp_path: Path) -> None:
    command("scancel", f'echo "$@" >> {tmp_path}/cancelled')
    command("scontrol", 'echo "ClusterName             = here"')
    assert slurm.cluster_name() == "here"
    bare_slurm("here").reclaim(["slurm here:1_0", "slurm there:2_0", "slurm 3_0", "process 4"])
    assert (tmp_path / "cancelled").read_text() == "1_0\n"
    bare_slurm("").reclaim(["slurm :5_0"])
    assert (tmp_path / "cancelled").read_text() == "1_0\n"


# -- threads -----------------------------------------------------------------------------------------------------------


def test_dask_workers_with_several_threads_are_refused() -> None:
    dask.require_one_thread({"tcp://a": 1, "tcp://b": 1})
    with pytest.raises(LabError, match=r"Invalid Dask worker tcp://b: it has 4 threads.*--nworkers 4 --nthreads 1"):
        dask.require_one_thread({"tcp://a": 1, "tcp://b": 4})


def test_two_jobs_in_one_process_do_not_overlap(monkeypatch: pytest.MonkeyPatch) -> None:
    inside, most = [0], [0]

    def run(trials, device, folder):
        inside[0] += 1
        most[0] = max(most[0], inside[0])
        threading.Event().wait(0.02)
        inside[0] -= 1
        return [worker.Failure("none")] * len(trials)

    monkeypatch.setattr(worker, "resolve", lambda name: run)
    jobs = [threading.Thread(target=worker.perform, args=(worker.Job((plan(1)[0].trial,)),)) for _ in range(4)]
    for job in jobs:
        job.start()
    for job in jobs:
        job.join()
    assert most == [1]
