"""The pool of processes: answers, errors, deaths."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import wait
from pathlib import Path

import pytest

from critgrad.lab.run.executors import LOSSES, WorkerLostError, open_executor
from critgrad.lab.run.executors.local import LocalPool

pytestmark = pytest.mark.slow


def die_once(flag: Path) -> int:
    """Kill the worker on the first call; answer on the second."""
    if not flag.exists():
        flag.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return os.getpid()


def die_always(log: Path) -> None:
    with open(log, "a") as file:
        file.write("x")
    os.kill(os.getpid(), signal.SIGKILL)


def test_calls_errors_and_deaths_each_get_their_own_answer(tmp_path: Path) -> None:
    with LocalPool(2) as pool:
        numbers = [pool.submit(pow, 2, n) for n in range(20)]
        wrong = pool.submit(int, "seven")
        once = pool.submit(die_once, tmp_path / "flag")
        always = pool.submit(die_always, tmp_path / "log")
        large = pool.submit(bytes, 5_000_000)
        unpicklable = pool.submit(open, os.devnull)
        assert [future.result(60) for future in numbers] == [2**n for n in range(20)]
        assert "seven" in str(wrong.exception(60))
        assert once.result(60) != os.getpid()
        error = always.exception(60)
        assert isinstance(error, WorkerLostError)
        assert "exit code -9" in str(error)
        assert len((tmp_path / "log").read_text()) == LOSSES
        assert len(large.result(60)) == 5_000_000
        assert "pickle" in str(unpicklable.exception(60))
        assert once.worker.startswith("process ")
    assert not multiprocessing.active_children()


def start_another(log: Path, then: str) -> None:
    log.write_text(str(subprocess.Popen(["sleep", "600"]).pid))
    if then == "crashes":
        os.abort()
    time.sleep(600)


@pytest.mark.parametrize("then", ["hangs", "is closed", "crashes"])
def test_a_worker_that_is_ended_takes_along_what_it_has_started(then: str, tmp_path: Path) -> None:
    log, pool = tmp_path / "log", LocalPool(1)
    pool.limit(1.0 if then == "hangs" else None)
    future = pool.submit(start_another, log, then)
    while not (log.exists() and log.read_text()):
        wait([future], timeout=0.01)
    pid = int(log.read_text())
    if then != "is closed":
        assert future.exception(60)
    pool.shutdown(cancel_futures=True)
    end = time.monotonic() + 60
    while Path(f"/proc/{pid}/exe").exists():  # not of one that has ended, and that nobody has waited for
        assert time.monotonic() < end
        wait([future], timeout=0.01)


def test_closing_now_ends_running_calls() -> None:
    pool = LocalPool(1)
    running, queued = pool.submit(time.sleep, 600), pool.submit(time.sleep, 600)
    while not running.running():
        wait([running], timeout=0.01)
    pool.shutdown(cancel_futures=True)
    assert running.done()
    assert queued.cancelled()
    with pytest.raises(RuntimeError, match="closed"):
        pool.submit(pow, 2, 2)


@pytest.mark.parametrize("seconds", [1e10, float("inf")])
def test_a_limit_may_be_longer_than_the_system_can_wait(seconds: float) -> None:
    with LocalPool(1) as pool:
        pool.limit(seconds)
        assert pool.submit(pow, 2, 3).result(60) == 8
        assert pool.submit(pow, 2, 4).result(60) == 16


BROKEN = """
import sys
from critgrad.lab.run.executors.local import LocalPool
sys.path.insert(0, sys.argv[1])  # a worker finds another package of our name there, and ends
pool = LocalPool(2)
futures = [pool.submit(pow, 2, n) for n in range(50)]
print({type(future.exception(60)).__name__ for future in futures}, flush=True)
pool.shutdown(cancel_futures=True)
"""


def test_workers_that_cannot_start_are_given_up_soon(tmp_path: Path) -> None:
    script = tmp_path / "broken.py"
    script.write_text(BROKEN)
    (tmp_path / "other" / "critgrad").mkdir(parents=True)
    (tmp_path / "other" / "critgrad" / "__init__.py").write_text("raise SystemExit(7)")
    source = Path(__file__).parents[3] / "src"
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path / "other")],
        env={**os.environ, "PYTHONPATH": str(source)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert "BrokenExecutor" in done.stdout, done.stderr


def test_an_unknown_executor_or_option_is_named() -> None:
    with pytest.raises(ValueError, match="'ray', expected one of local, inline, dask, slurm"):
        open_executor("ray")
    with pytest.raises(ValueError, match="'adress', expected one of: address"):
        open_executor("dask", options={"adress": "tcp://x"})
    with pytest.raises(ValueError, match="time of the executor slurm: 'soon', expected int"):
        open_executor("slurm", options={"time": "soon"})
    with pytest.raises(ValueError, match="workers: 0"):
        open_executor("local", workers=0)


def test_the_first_worker_too_is_deaf_to_the_terminal_from_its_start() -> None:
    """In a process that has spawned nothing before: the first spawn also starts multiprocessing's tracker."""
    script = (
        "import signal\n"
        "from critgrad.lab.run.executors.local import LocalPool\n"
        "with LocalPool(1) as pool:\n"
        "    mask = pool.submit(signal.pthread_sigmask, signal.SIG_BLOCK, []).result(60)\n"
        "print(signal.SIGINT in mask)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert done.stdout == "True\n", done.stderr
