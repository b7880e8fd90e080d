"""What is the lab's own share of a study's run? Runs that do next to nothing, by one worker, one after the other.

    python benchmarks/study.py [--runs 1000]

Prints milliseconds of CPU a run by where they go: in the worker around somebody's code, and in the coordinator (plan, ledger).
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

from critgrad.lab import study
from critgrad.lab.run.coordinator import Event
from critgrad.lab.study import work

TASK = """
import torch

WEIGHT = torch.nn.Parameter(torch.zeros(1))

def train(make_optimizer, seed, epochs, report):
    make_optimizer([WEIGHT])
    report(valid=0.5, test=0.5)
"""
FILE = """
format = 1
task = "task.py"
direction = "min"
epochs = 1
replicates = {replicates}
trials = 8
report_seeds = 2

[arms.one]
optimizer = "torch.optim:SGD"
search = {{ lr = "log 1e-4 1e-1", momentum = "one-minus 0.5 0.99" }}

[arms.two]
optimizer = "torch.optim:SGD"
fixed = {{ nesterov = true }}
search = {{ lr = "log 1e-4 1e-1", momentum = "one-minus 0.5 0.99" }}
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=1000)
    replicates = max(2, parser.parse_args().runs // 21)
    made = 0
    in_worker = 0.0
    perform = work.work

    def timed(*args: object) -> object:
        nonlocal in_worker
        begin = time.process_time()
        found = perform(*args)  # type: ignore[arg-type]
        in_worker += time.process_time() - begin
        return found

    def on_event(event: Event) -> None:
        nonlocal made
        made += event.kind == "done"

    work.work = timed  # type: ignore[assignment]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "study.toml")
        path.with_name("task.py").write_text(TASK)
        path.write_text(FILE.format(replicates=2))
        study.run(
            path, executor="inline", device="cpu", ledger=Path(folder, "first.db")
        )  # loads all that is loaded once
        path.write_text(FILE.format(replicates=replicates))
        in_worker, begin = 0.0, time.process_time()
        study.run(path, executor="inline", device="cpu", on_event=on_event)
        seconds = time.process_time() - begin
        begin = time.process_time()
        study.run(path, executor="inline", device="cpu")
        again = time.process_time() - begin
        size = path.with_name("study.db").stat().st_size
    share, worker = 1000 * seconds / made, 1000 * in_worker / made
    print(f"{made} runs in {seconds:.2f} s of CPU: {share:.2f} ms a run, {worker:.2f} of it in the worker")
    print(f"the same study again, with nothing to run: {again:.2f} s; ledger: {size / made:.0f} bytes a run")


if __name__ == "__main__":
    main()
