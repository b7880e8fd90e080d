"""Kill -9 at any moment, of anybody: no finished trial is lost or run twice, no half result is counted."""

from __future__ import annotations

import contextlib
import random
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from sweep_helpers import alive, kill, lines, start, until, worker_pids
from toy_worker import expected, plan

from critgrad.lab.ledger import Ledger
from critgrad.lab.ledger.merge import same_numbers

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="finds and kills processes through /proc")


class Sweep:
    """A sweep that is started again each time it is killed."""

    def __init__(self, folder: Path, count: int, ms: float, rng: random.Random) -> None:
        self.ledger, self.checkpoints, self.log = folder / "runs.db", folder / "checkpoints", folder / "log"
        self.count, self.ms, self.rng = count, ms, rng
        self.kills: Counter[str] = Counter()

    def start(self, *options: object, **environment: str) -> None:
        begun = self.times("begin")
        self.process = start(
            "toy_sweep.py", self.ledger, self.checkpoints, self.count, self.ms, *options, log=self.log, **environment
        )
        until(lambda: self.times("begin") > begun or self.process.poll() is not None, "the sweep to begin")

    def times(self, word: str) -> int:
        return sum(line[0] == word for line in lines(self.log))

    def progress(self, trials: int) -> None:
        """Wait until so many more trials are done, and then for some part of another."""
        goal = self.times("done") + trials
        until(lambda: self.times("done") >= goal or self.process.poll() is not None, "progress")
        moment = self.rng.random() * 3 * self.ms / 1000
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(moment)

    def kill_worker(self) -> None:
        workers = worker_pids(self.process.pid) if self.process.poll() is None else []
        if workers:
            kill(self.rng.choice(workers))
            self.kills["worker"] += 1

    def kill_coordinator(self) -> None:
        if self.process.poll() is not None:
            return
        workers = worker_pids(self.process.pid)
        self.process.kill()
        self.process.wait()
        self.kills["coordinator"] += 1
        until(lambda: not any(map(alive, workers)), "the workers to die with their coordinator")

    def kill_in_commit(self) -> None:
        """Start again, to be killed by the operating system in the middle of a write of the log."""
        log = self.ledger.with_name(self.ledger.name + "-wal")
        size = max(path.stat().st_size if path.exists() else 0 for path in (self.ledger, log))
        self.start("--torn", size + self.rng.randrange(1, 60_000))
        try:
            self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.kill_coordinator()
            return
        if self.process.returncode == -25:  # SIGXFSZ
            self.kills["commit"] += 1

    def finish(self) -> None:
        for _ in range(5):
            if self.process.poll() is None:
                self.process.wait(120)
            with Ledger.open(self.ledger) as ledger:
                if len(ledger.rows()) == self.count:
                    return
            self.start()
        raise AssertionError(f"not finished: {self.process.stdout.read() if self.process.stdout else ''}")

    def check(self) -> None:
        """Every trial once, as if nobody had disturbed it; none started again after it was done; nothing left behind."""
        with Ledger.open(self.ledger) as ledger:
            rows = ledger.rows()
            assert ledger.rows(status="failed") == []
        assert Counter(row.key for row in rows) == Counter(
            planned.trial.key for planned in plan(self.count, ms=self.ms)
        )
        for row in rows:
            assert same_numbers(row, expected(row.trial))
            assert len(row.roles) == 1
        done: Counter[str] = Counter()
        for word, *rest in lines(self.log):
            if word == "done":
                done[rest[0]] += 1
            assert word != "start" or not done[rest[0]], f"{rest[0]} was run again after it was done"
        assert set(done.values()) == {1}
        assert list(self.checkpoints.iterdir()) == []


def torment(folder: Path, *, kills: int, count: int, ms: float, seed: int) -> Sweep:
    rng = random.Random(seed)
    sweep = Sweep(folder, count, ms, rng)
    sweep.start(TOY_DIE_IN_RENAME="0.08")
    # Drawn from a shuffled pack, so that each kind has its turn; more workers than coordinators, whose restart is dear.
    pack = [sweep.kill_worker, sweep.kill_coordinator, sweep.kill_worker, sweep.kill_in_commit]
    victims = [act for _ in range(kills // len(pack)) for act in rng.sample(pack, len(pack))]
    for act in victims:
        if sweep.process.poll() is not None:
            sweep.start(TOY_DIE_IN_RENAME="0.08")
        sweep.progress(rng.randrange(3))
        if act == sweep.kill_in_commit:
            sweep.kill_coordinator()
        act()
    if sweep.process.poll() is None and rng.random() < 0.5:
        sweep.kill_coordinator()
    sweep.finish()
    sweep.check()
    sweep.kills["rename"] = sweep.times("died")
    return sweep


@pytest.mark.slow
def test_a_few_kills_lose_nothing_and_repeat_nothing(tmp_path: Path) -> None:
    sweep = torment(tmp_path, kills=4, count=40, ms=10, seed=1)
    assert {"worker", "coordinator", "commit"} <= set(sweep.kills)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [2, 3])
def test_dozens_of_kills_lose_nothing_and_repeat_nothing(tmp_path: Path, seed: int) -> None:
    sweep = torment(tmp_path, kills=24, count=300, ms=15, seed=seed)
    print(dict(sweep.kills))
    assert sum(sweep.kills.values()) >= 24
    assert set(sweep.kills) == {"worker", "coordinator", "commit", "rename"}
