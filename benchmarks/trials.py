"""Do short trials keep the cores busy? Digits runs through the coordinator and its worker processes.

    python benchmarks/trials.py [--trials 2000] [--workers 2] [--epochs 30]

Prints trials per second, how much of a core each worker used, and what the coordinator (planning, ledger, display) took.
The clock starts when every worker has warmed up. On a machine with other work the workers' shares are not the lab's doing:
their sum with the coordinator's cannot exceed what the machine had left. Linux only: CPU times are read from /proc.
"""

from __future__ import annotations

import argparse
import itertools
import multiprocessing
import os
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from critgrad.lab.ledger import Ledger, Planned
from critgrad.lab.run.coordinator import Event, run_jobs
from critgrad.paper.compare import planned
from critgrad.paper.protocol import FAMILIES, load_defaults

WARM_UP = 4  # trials of each worker that are not counted


def plan(count: int, epochs: int) -> list[Planned]:
    """Different trials of all optimizers: base, twins and rivals of the embedded comparison, on ever more seeds."""
    defaults = load_defaults("digits-mlp")
    found: dict[str, Planned] = {}
    for item in planned(defaults, FAMILIES, 1 + count // 12):  # over twenty different ones on each seed
        trial = item.trial.replace(settings={**item.trial.settings, "epochs": epochs})
        found.setdefault(trial.key, Planned(trial, item.roles))
        if len(found) == count:
            break
    return list(found.values())


def cpu_seconds(pid: int) -> float:
    """Of a process so far, in user and kernel mode."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@dataclass
class Sample:
    """The state of things at one moment."""

    done: int
    wall: float
    coordinator: float
    workers: dict[int, float]

    @classmethod
    def now(cls, done: int) -> Sample:
        children = [child.pid for child in multiprocessing.active_children() if child.pid is not None]
        return cls(done, time.perf_counter(), time.process_time(), {pid: cpu_seconds(pid) for pid in children})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=2000)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=30)
    options = parser.parse_args()
    warm = WARM_UP * options.workers
    if options.trials <= warm:
        parser.error(f"--trials {options.trials}: expected more than the {warm} that warm up")
    samples: list[Sample] = []

    def on_event(event: Event) -> None:
        if event.kind == "done" and event.progress.done in (warm, options.trials):
            samples.append(Sample.now(event.progress.done))
        if event.kind == "failed":
            print(f"failed: {event.text}")

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "runs.db"
        with Ledger.open(path, write=True, create=True) as ledger:
            outcome = run_jobs(plan(options.trials, options.epochs), ledger, workers=options.workers, on_event=on_event)
        size = path.stat().st_size
    print(outcome.text)
    if len(samples) < 2:
        raise SystemExit("some trials failed: there is nothing to tell")
    first, last = samples
    trials, wall = last.done - first.done, last.wall - first.wall
    coordinator = last.coordinator - first.coordinator
    shares = [(last.workers[pid] - first.workers[pid]) / wall for pid in first.workers if pid in last.workers]
    print(f"{trials} trials of {options.epochs} epochs in {wall:.1f} s: {trials / wall:.1f} trials/s")
    for number, share in zip(itertools.count(1), shares):
        print(f"worker {number}: {share:.0%} of a core")
    print(f"coordinator: {coordinator / wall:.1%} of a core, {1000 * coordinator / trials:.2f} ms of CPU a trial")
    print(f"ledger: {size / outcome.done:.0f} bytes a trial")


if __name__ == "__main__":
    main()
