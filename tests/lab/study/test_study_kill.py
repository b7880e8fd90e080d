"""Kill -9 of anybody, Ctrl-C: nothing that was done is lost or made again, and nobody is left behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from study_helpers import FILE, LOOP, call, process, write

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="finds and kills processes through /proc"),
]

# Each run leaves a line; the first ones wait for a moment, so that somebody can be killed in the middle of one.
TASK = LOOP.replace(
    "    weight =",
    "    import os, time\n"
    "    with open('log', 'a') as file:\n"
    "        print(os.getpid(), seed, file=file, flush=True)\n"
    "    while not os.path.exists('go') and len(open('log').readlines()) > 4:\n"
    "        time.sleep(0.05)\n"
    "    weight =",
)
WORDS = ("--workers", 2, "--device", "cpu")
RUNS = 14


def until(true: Callable[[], object], what: str) -> None:
    end = time.monotonic() + 120
    while not true():
        assert time.monotonic() < end, f"waited for {what}"
        time.sleep(0.05)


def log(folder: Path) -> list[tuple[int, str]]:
    path = folder / "log"
    lines = [line.split() for line in path.read_text().splitlines()] if path.exists() else []
    return [(int(line[0]), line[1]) for line in lines if len(line) == 2]


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def stuck(folder: Path) -> subprocess.Popen[str]:
    """A study of which two runs are waiting, and some are done."""
    path = write(folder, TASK, FILE)
    started = process("study", "run", path, *WORDS)
    until(lambda: len({pid for pid, _ in log(folder)[4:]}) == 2 or started.poll() is not None, "two runs that wait")
    return started


def finish(folder: Path, done_before: int) -> None:
    """The same command goes on: it makes what is missing, each once."""
    before = len(log(folder))
    (folder / "go").touch()
    code, _, err = call("study", "run", folder / "study.toml", *WORDS, "--json", folder / "answer.json")
    assert code == 0, err
    assert len(log(folder)) - before == RUNS - done_before
    assert json.loads((folder / "answer.json").read_text())["final"]
    assert (folder / "report.html").exists()
    assert call("study", "run", folder / "study.toml", *WORDS)[0] == 0
    assert len(log(folder)) - before == RUNS - done_before


def done(folder: Path) -> int:
    from critgrad.lab.ledger import Ledger

    with Ledger.open(folder / "study.db") as book:
        return len(book.keys())


def test_a_killed_head_takes_its_workers_along_and_the_next_goes_on(tmp_path: Path) -> None:
    started = stuck(tmp_path)
    started.kill()
    started.wait()
    until(lambda: not any(alive(pid) for pid, _ in log(tmp_path)), "the workers to end")
    count = done(tmp_path)
    assert count >= 2
    finish(tmp_path, count)


def test_a_killed_worker_costs_nothing_but_time(tmp_path: Path) -> None:
    started = stuck(tmp_path)
    os.kill(log(tmp_path)[-1][0], signal.SIGKILL)
    (tmp_path / "go").touch()
    out, err = started.communicate(timeout=240)
    assert started.returncode == 0, err
    assert "failed" not in out
    assert done(tmp_path) == RUNS
    assert len(log(tmp_path)) == RUNS + 1  # the run that was lost was made again


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_ends_all_workers_and_leaves_a_ledger_to_go_on_with(number: signal.Signals, tmp_path: Path) -> None:
    started = stuck(tmp_path)
    started.send_signal(number)
    out, err = started.communicate(timeout=60)
    assert started.returncode == 130
    assert "The same command goes on from here" in err
    assert "Traceback" not in out + err
    until(lambda: not any(alive(pid) for pid, _ in log(tmp_path)), "the workers to end")
    finish(tmp_path, done(tmp_path))
