"""What a trial costs besides its training: the ledger alone, and the whole way through a pool of processes.

    python benchmarks/ledger.py [--trials 2000] [--workers 2]

Times are of the wall clock and of this process's CPU: on a busy machine only the second says something.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from critgrad.lab.ledger import Ledger, Planned, Role
from critgrad.lab.run.coordinator import Event, run_jobs
from critgrad.lab.run.results import Result
from critgrad.lab.run.spec import Trial

ROLE = Role("fair", "Adam", "Adam_C", "tune")
EPOCHS = 30


def plan(count: int) -> list[Planned]:
    hyper = {"lr": 0.001, "topC": 5, "decay": 0.7}
    return [Planned(Trial("digits-mlp", "Adam_C", hyper, seed=seed), (ROLE,)) for seed in range(count)]


def result(seed: int) -> Result:
    """As large as a run of digits-mlp: losses that share no bits, accuracies that are fractions of 180."""
    rng = np.random.default_rng(seed)
    curves = {name: rng.normal(size=EPOCHS).cumsum() for name in ("train_loss", "valid_loss", "seconds")}
    curves |= {name: rng.integers(160, 180, EPOCHS) / 180 for name in ("valid", "test")}
    names = (
        "test",
        "valid",
        "final_train_loss",
        "initial_valid",
        "step_ms",
        "step_ms_low",
        "step_ms_high",
        "train_seconds",
    )
    numbers = {name: float(rng.random()) for name in names} | {"best_epoch": 7, "steps": 600, "parameters": 4810}
    words = {"diverged": False, "metric": "accuracy", "data_sha256": "0" * 64, "data_state": "whole"}
    return Result(curves, {**numbers, **words}, {"command": ["critgrad", "sweep", "digits-mlp"], "device": "cpu"})


def work(trials: Sequence[Trial], device: str, checkpoints: Path | None) -> list[Result]:
    return [result(trial.seed) for trial in trials]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=2000)
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    planned = plan(options.trials)
    results = [result(seed) for seed in range(options.trials)]
    print(f"{'':34} {'wall ms/trial':>14} {'CPU ms/trial':>14}")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "runs.db"
        with Ledger.open(path, write=True, create=True) as ledger:
            wall, cpu = time.perf_counter(), time.process_time()
            for (trial, roles), given in zip(planned, results):
                ledger.add(trial, given, roles)
            show("ledger.add, one commit each", wall, cpu, options.trials)
        print(f"{'size':34} {path.stat().st_size / options.trials / 1024:14.2f} KiB/trial ({EPOCHS} epochs)")
        with Ledger.open(path) as ledger:
            wall, cpu = time.perf_counter(), time.process_time()
            ledger.rows(arm="Adam_C")
            show("ledger.rows", wall, cpu, options.trials)
        begun: list[tuple[float, float]] = []

        def on_event(event: Event) -> None:
            # The workers' start is paid once per sweep, not per trial.
            if event.kind == "done" and not begun:
                begun.append((time.perf_counter(), time.process_time()))

        with Ledger.open(Path(folder) / "pool.db", write=True, create=True) as ledger:
            run_jobs(planned, ledger, workers=options.workers, on_event=on_event, work="ledger:work")
        show(f"plan to ledger, {options.workers} workers", *begun[0], options.trials)


def show(name: str, wall: float, cpu: float, count: int) -> None:
    passed = (time.perf_counter() - wall, time.process_time() - cpu)
    print(f"{name:34} {passed[0] / count * 1e3:14.3f} {passed[1] / count * 1e3:14.3f}")


if __name__ == "__main__":
    main()
