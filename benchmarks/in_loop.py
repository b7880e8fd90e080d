"""The optimizer's step inside a training loop on a CPU: AdamW_C against torch's fused AdamW.

    PYTHONPATH=src python benchmarks/in_loop.py                # nothing beside it
    PYTHONPATH=src python benchmarks/in_loop.py --busy 2       # the same, and then with two spinning processes beside it
    PYTHONPATH=src python benchmarks/in_loop.py --apart        # what it saves that the memory's pass makes the update, too

Two models of 2 M parameters train, each with an optimizer of its own, a few steps in turn. Only ``step()`` is timed: the
forward and backward passes before it leave other data in the caches and torch's threads waiting, as they do in training. The
ratio is of a turn's median to the mean of torch's before and after it; medians with quartiles, and the mean, which sees stalls.
On a machine that is not quiet by itself the passes take many times as long, too: that line says whether a run counts.
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import os
import statistics
import time
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import torch
from step_time import machine
from timing import Spread

import critgrad

WIDTHS = (784, 1100, 1000, 10)
# Bases whose update the native core makes: torch's arguments, and what is the fastest that torch has on a CPU.
UPDATED: tuple[tuple[str, dict[str, Any], dict[str, Any]], ...] = (
    ("AdamW", {}, {"fused": True}),
    ("SGD", {}, {"fused": True}),
    ("SGD", {"momentum": 0.9}, {"fused": True}),
    ("RMSprop", {}, {}),
    ("NAdam", {}, {}),
)


class Training:
    """A model, its optimizer, and the times of their steps."""

    def __init__(self, cls: Any, batch: int, clock: Any = time.perf_counter, **options: Any) -> None:
        torch.manual_seed(0)
        self.clock = clock
        layers = [m for a, b in pairwise(WIDTHS) for m in (torch.nn.Linear(a, b), torch.nn.ReLU())]
        self.model = torch.nn.Sequential(*layers[:-1])
        self.optimizer = cls(self.model.parameters(), lr=1e-4, **options)
        self.x, self.y = torch.randn(8, batch, WIDTHS[0]), torch.randint(WIDTHS[-1], (8, batch))
        self.passes: list[float] = []  # seconds of forward and backward
        self.steps: list[float] = []
        self.medians: list[float] = []  # of the steps of each turn

    def turn(self, steps: int) -> None:
        took = []
        for number in range(steps + 1):
            start = self.clock()
            self.optimizer.zero_grad()
            torch.nn.functional.cross_entropy(self.model(self.x[number % 8]), self.y[number % 8]).backward()
            middle = self.clock()
            self.optimizer.step()
            end = self.clock()
            if number > 0:  # the first one meets what the other model left in the caches
                took.append(end - middle)
                self.passes.append(middle - start)
        self.steps += took
        self.medians.append(statistics.median(took))


def spin(parent: int) -> None:
    while os.getppid() == parent:  # ends also where the parent was killed
        for _ in range(100_000):
            pass


@contextlib.contextmanager
def beside(processes: int) -> Iterator[None]:
    """So many processes that keep a core busy each."""
    started = [multiprocessing.Process(target=spin, args=(os.getpid(),), daemon=True) for _ in range(processes)]
    try:
        for process in started:
            process.start()
        yield
    finally:
        for process in started:
            process.terminate()
            process.join()


def ms(values: list[float]) -> str:
    return f"{Spread.of(values).ms:24} mean {1000 * statistics.fmean(values):.3f} ms"


def compare(args: argparse.Namespace) -> None:
    theirs = Training(torch.optim.AdamW, args.batch, fused=True)
    ours = Training(critgrad.AdamW_C, args.batch, topC=args.topC, decay=0.0)  # every step replaces a slot
    for training in (theirs, ours):
        training.turn(args.topC + 3)  # a full memory
        training.passes, training.steps, training.medians = [], [], []
    for _ in range(args.turns):
        theirs.turn(args.steps)
        ours.turn(args.steps)
    theirs.turn(args.steps)
    ratio = Spread.of([2 * o / (a + b) for o, a, b in zip(ours.medians, theirs.medians, theirs.medians[1:])])
    engine = getattr(critgrad.inspect(ours.optimizer), "engine", "")
    print(f"  forward and backward   {ms(theirs.passes + ours.passes)}")
    print(f"  AdamW, torch's fused   {ms(theirs.steps)}")
    print(f"  AdamW_C {engine:14} {ms(ours.steps)}")
    means = statistics.fmean(ours.steps) / statistics.fmean(theirs.steps)
    print(f"  ratio                  {ratio.times:24} of means {means:.2f}", flush=True)


def apart(args: argparse.Namespace) -> None:
    """The update in the memory's pass against the same memory in front of torch's own: one thread's time of a step."""
    torch.set_num_threads(1)
    for name, options, fastest in UPDATED:
        base, memory = getattr(torch.optim, name), {"topC": args.topC, "decay": 0.0}

        def wrapped(params: Any, base: Any = base, memory: Any = memory, **given: Any) -> Any:
            return critgrad.CriticalGradients(base(params, **given), **memory)

        kinds = ((base, fastest), (wrapped, fastest), (critgrad.critical(base), memory))
        each = [Training(cls, args.batch, time.process_time, **options, **more) for cls, more in kinds]
        for _ in range(args.turns):
            for training in each:
                training.turn(args.steps)
        alone, behind, within = (1000 * statistics.median(training.medians[1:]) for training in each)
        said = f"{name} {options or ''}"
        print(f"  {said:24} {alone:6.2f} ms alone, {behind:6.2f} behind a memory, {within:6.2f} in its pass: "
              f"{1 - within / behind:.0%} less", flush=True)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--busy", type=int, default=0, metavar="N", help="then again with N spinning processes beside it"
    )
    parser.add_argument("--apart", action="store_true", help="bases by the native core's update, and by torch's own")
    parser.add_argument("--batch", type=int, default=64, help="rows of a batch")
    parser.add_argument("--topC", type=int, default=5)
    parser.add_argument("--turns", type=int, default=9)
    parser.add_argument("--steps", type=int, default=20, help="of a turn")
    args = parser.parse_args()
    count = sum(a * b + b for a, b in pairwise(WIDTHS))
    print(f"{machine(torch.device('cpu'))}; {count:,} parameters, batch {args.batch}, topC {args.topC}")
    for processes in dict.fromkeys((0, args.busy)) if not args.apart else ():
        print(f"{processes} spinning processes beside it" if processes else "nothing started beside it")
        with beside(processes):
            compare(args)
    if args.apart:
        apart(args)


if __name__ == "__main__":
    main()
