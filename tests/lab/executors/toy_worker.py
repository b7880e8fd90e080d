"""Trials that take milliseconds, write checkpoints as real ones do, and misbehave when asked to.

Runs in workers: `work` is named to `run_jobs`. The same trial always gives the same numbers.
"""

from __future__ import annotations

import json
import os
import random
import signal
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from critgrad.lab.ledger import Planned, Role
from critgrad.lab.run.results import Result
from critgrad.lab.run.spec import Trial
from critgrad.lab.run.worker import Failure, checkpoint_file

ROLE = Role("fair", "SGD", "base", "tune")
WORK = "toy_worker:work"


def plan(count: int, *, epochs: int = 3, ms: float = 0, behave: str = "") -> list[Planned]:
    settings = {"epochs": epochs, "ms": float(ms)} | ({"behave": behave} if behave else {})
    return [Planned(Trial("toy", "SGD", {"lr": 0.5**i}, seed=i, settings=settings), (ROLE,)) for i in range(count)]


def expected(trial: Trial) -> Result:
    """What a trial gives that nobody disturbs."""
    curve = [trial.seed + 1]
    for _ in range(trial.settings["epochs"]):
        curve.append(_next(curve[-1]))
    return _result(curve)


def work(trials: Sequence[Trial], device: str, folder: Path | None) -> list[Result | Failure]:
    return [_run(trial, folder) for trial in trials]


def _run(trial: Trial, folder: Path | None) -> Result:
    note("start", trial.key)
    behave = trial.settings.get("behave")
    if behave == "raise":
        raise ValueError("raised as asked")
    if behave == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    if behave == "hang":
        time.sleep(600)
    path = None if folder is None else checkpoint_file(folder, trial.key)
    curve = json.loads(path.read_text()) if path is not None and path.exists() else [trial.seed + 1]
    while len(curve) <= trial.settings["epochs"]:
        end = time.perf_counter() + trial.settings["ms"] / 1000
        while time.perf_counter() < end:
            pass
        curve.append(_next(curve[-1]))
        if path is not None:
            _save(path, curve)
    return _result(curve)


def _next(value: int) -> int:
    return value * 6364136223846793005 % 2**61 + 1


def _result(curve: list[int]) -> Result:
    values = np.asarray(curve, dtype=np.float64) / 2**61
    summary = {"valid": float(values[-1]), "epochs": len(curve) - 1, "diverged": False}
    return Result({"valid": values}, summary, {"toy": True})


def _save(path: Path, curve: list[int]) -> None:
    """As the lab's own: temporary file, then rename. `TOY_DIE_IN_RENAME` is the chance to die on either side of it."""
    die = random.random() < float(os.environ.get("TOY_DIE_IN_RENAME", "0"))
    before = random.random() < 0.5
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(json.dumps(curve))
    if die and before:
        note("died", "before rename")
        os.kill(os.getpid(), signal.SIGKILL)
    os.replace(temporary, path)
    if die:
        note("died", "after rename")
        os.kill(os.getpid(), signal.SIGKILL)


def note(*words: object) -> None:
    """A line in the log that all processes share; one write each, so that lines stay whole and in order."""
    if "TOY_LOG" in os.environ:
        with open(os.environ["TOY_LOG"], "ab", buffering=0) as file:
            file.write((" ".join(map(str, words)) + "\n").encode())


def digits_work(trials: Sequence[Trial], device: str, folder: Path | None) -> list[Result | Failure]:
    """The lab's own work, with a checkpoint each epoch, dying once before and once after the rename of each trial's."""
    from critgrad.lab import replacing
    from critgrad.lab.run import worker

    assert folder is not None
    worker.CHECKPOINT_SECONDS = 0.0

    def replace(source: Path, target: Path) -> None:
        before, after = folder.with_name(f"{target.name}.before"), folder.with_name(f"{target.name}.after")
        if not before.exists():
            before.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        os.rename(source, target)
        if not after.exists():
            after.touch()
            os.kill(os.getpid(), signal.SIGKILL)

    replacing.os = _Patched(replace)  # type: ignore[attr-defined,assignment]
    return worker.work(trials, device, folder)


class _Patched:
    """The module `os` with another `replace`."""

    def __init__(self, replace: object) -> None:
        self.replace = replace

    def __getattr__(self, name: str) -> object:
        return getattr(os, name)
