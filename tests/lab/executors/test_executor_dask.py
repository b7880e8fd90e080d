"""A real Dask cluster of two workers on this machine."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from toy_worker import WORK, expected, plan

from critgrad.lab.ledger import Ledger
from critgrad.lab.ledger.merge import same_numbers
from critgrad.lab.run.coordinator import run_jobs
from critgrad.lab.run.executors import WorkerLostError, open_executor

pytest.importorskip("distributed", reason="needs dask[distributed]")
pytestmark = pytest.mark.slow


def die_once(flag: str) -> int:
    if not os.path.exists(flag):
        open(flag, "w").close()
        os.kill(os.getpid(), signal.SIGKILL)
    return os.getpid()


def die_always() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_sweep_on_two_dask_workers_gives_what_one_process_gives(tmp_path: Path) -> None:
    with Ledger.open(tmp_path / "runs.db", write=True, create=True) as ledger:
        outcome = run_jobs(
            [*plan(12, ms=5), *plan(1, behave="raise")],
            ledger,
            executor="dask",
            workers=2,
            checkpoints=tmp_path / "checkpoints",
            work=WORK,
        )
        assert (outcome.done, outcome.failed, outcome.remaining) == (12, 1, 0)
        assert all(same_numbers(row, expected(row.trial)) for row in ledger.rows())


def test_a_dask_worker_that_is_killed_is_replaced_and_its_call_made_again(tmp_path: Path) -> None:
    with open_executor("dask", workers=2) as pool:
        assert pool.slots == 4
        assert pool.submit(die_once, str(tmp_path / "flag")).result(60) != os.getpid()
        assert isinstance(pool.submit(die_always).exception(90), WorkerLostError)


def test_an_existing_cluster_is_used_by_its_address(tmp_path: Path) -> None:
    from distributed import LocalCluster

    with LocalCluster(n_workers=1, threads_per_worker=1, processes=False, dashboard_address=None) as cluster:
        with open_executor("dask", options={"address": cluster.scheduler_address}) as pool:
            assert pool.submit(pow, 2, 5).result(60) == 32
        assert cluster.status.name == "running"
