"""Each base optimizer against its memory twins on the bundled digits: ``python -m critgrad.lab.compare``.

Every tuned arm gets the same learning rates and the same tuning seeds. The reported seeds are other ones, and
the same for all arms, so that differences are paired: same weights at the start, same batches.
"""

from __future__ import annotations

import argparse
import math
import multiprocessing
import platform
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import mean, median, stdev

import torch
from torch import nn

import critgrad
from critgrad.lab.digits import Run, train

__all__ = ["ARMS", "Arm", "main"]

# Half decades, five for each family: the base and its twins share them, and all get equal trials.
LRS: dict[str, tuple[float, ...]] = {
    "SGD": (1e-2, 3e-2, 1e-1, 3e-1, 1.0),
    "SGDM": (3e-3, 1e-2, 3e-2, 1e-1, 3e-1),
    "RMSprop": (1e-3, 3e-3, 1e-2, 3e-2, 1e-1),
    "Adam": (1e-3, 3e-3, 1e-2, 3e-2, 1e-1),
}
# Far from 0, 1, 2, ..., which are the reported seeds.
FIRST_TUNING_SEED = 10_000


@dataclass(frozen=True)
class Arm:
    """One row of the table. A control is not tuned: it takes twice the learning rate of its ``_C`` twin."""

    name: str
    family: str
    role: str  # "base", "control", "C" or "F"
    make: Callable[..., torch.optim.Optimizer]
    options: tuple[tuple[str, float], ...] = ()

    def optimizer(self, params: Iterable[nn.Parameter], lr: float) -> torch.optim.Optimizer:
        """Build this arm's optimizer with its own defaults."""
        return self.make(params, lr=lr, **dict(self.options))


def _family(
    name: str, base: type, memory: type, damper: type, options: tuple[tuple[str, float], ...] = ()
) -> list[Arm]:
    return [
        Arm(name, name, "base", base, options),
        Arm(f"{name} 2x lr", name, "control", base, options),
        Arm(f"{name}_C", name, "C", memory, options),
        Arm(f"{name}_F", name, "F", damper, options),
    ]


ARMS: dict[str, Arm] = {
    arm.name: arm
    for arm in (
        *_family("SGD", torch.optim.SGD, critgrad.SGD_C, critgrad.SGD_F),
        *_family("SGDM", torch.optim.SGD, critgrad.SGD_C, critgrad.SGD_F, (("momentum", 0.9),)),
        *_family("RMSprop", torch.optim.RMSprop, critgrad.RMSprop_C, critgrad.RMSprop_F),
        *_family("Adam", torch.optim.Adam, critgrad.Adam_C, critgrad.Adam_F),
    )
}


@dataclass(frozen=True)
class Job:
    """One training run, named so that it can be sent to another process."""

    arm: str
    lr: float
    seed: int
    epochs: int


def run_job(job: Job) -> Run:
    """Train one arm once."""
    arm = ARMS[job.arm]
    return train(lambda params: arm.optimizer(params, job.lr), job.seed, job.epochs)


def _one_thread() -> None:
    torch.set_num_threads(1)


Runner = Callable[[Sequence[Job]], list[Run]]
Grid = Mapping[str, Sequence[float]]


@contextmanager
def runner(jobs: int) -> Iterator[Runner]:
    """Give a function that runs a list of jobs, here or in ``jobs`` processes, in the list's order."""
    if jobs == 1:
        threads = torch.get_num_threads()
        _one_thread()
        try:
            yield lambda todo: [run_job(job) for job in todo]
        finally:
            torch.set_num_threads(threads)
        return
    # spawn: a forked child inherits torch's thread pool in an unusable state.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, mp_context=context, initializer=_one_thread) as pool:
        yield lambda todo: list(pool.map(run_job, todo))


# Statistics


def t_quantile(df: int, confidence: float = 0.95) -> float:
    """Return the two-sided quantile of Student's t for a whole number of degrees of freedom.

    >>> round(t_quantile(4), 4), round(t_quantile(9), 4)
    (2.7764, 2.2622)
    """

    def inside(t: float) -> float:
        # Abramowitz and Stegun 26.7.3 and 26.7.4: P(|T| < t), exact for whole df.
        theta = math.atan(t / math.sqrt(df))
        cos, sin = math.cos(theta), math.sin(theta)
        term = cos if df % 2 else 1.0
        total = 0.0
        for k in range(df % 2, df - 1, 2):
            total += term
            term *= cos * cos * (k + 1) / (k + 2)
        return 2 / math.pi * (theta + sin * total) if df % 2 else sin * total

    low, high = 0.0, 1e3
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if inside(middle) < confidence else (low, middle)
    return high


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Return the mean and the half-width of its 95 % t-interval (infinite for a single value)."""
    n = len(values)
    if n < 2:
        return mean(values), math.inf
    return mean(values), t_quantile(n - 1) * stdev(values) / math.sqrt(n)


def verdict(difference: float, half_width: float) -> str:
    """Win or loss where the interval of the paired difference leaves 0 outside, else tie."""
    if abs(difference) <= half_width:
        return "tie"
    return "win" if difference > 0 else "loss"


# The comparison


@dataclass(frozen=True)
class Row:
    """One arm's results on the reported seeds; accuracies in percent."""

    arm: Arm
    lr: float
    at_edge: bool
    accuracy: tuple[float, float]
    difference: tuple[float, float] | None
    identical: bool  # every loss of every seed equals the base's: whatever ran, it was the base
    diverged: int
    step_ratio: float


def choose_lr(trials: Sequence[tuple[float, Run]]) -> float:
    """Choose by mean validation accuracy over the tuning seeds; equal ones by mean validation loss."""

    def score(lr: float) -> tuple[float, float]:
        best = [run.at_best() for at, run in trials if at == lr]
        return mean(b[0] for b in best), -mean(b[1] for b in best)

    return max(dict.fromkeys(lr for lr, _ in trials), key=score)


def compare(run_all: Runner, seeds: int, tuning_seeds: int, epochs: int, lrs: Grid) -> list[Row]:
    """Tune every arm alike, then run all of them on fresh seeds."""
    tuned = [arm for arm in ARMS.values() if arm.role != "control"]
    tuning = [
        Job(arm.name, lr, FIRST_TUNING_SEED + s, epochs)
        for arm in tuned
        for lr in lrs[arm.family]
        for s in range(tuning_seeds)
    ]
    trials = list(zip(tuning, run_all(tuning)))
    chosen = {a.name: choose_lr([(job.lr, run) for job, run in trials if job.arm == a.name]) for a in tuned}
    for arm in ARMS.values():
        if arm.role == "control":
            chosen[arm.name] = 2 * chosen[f"{arm.family}_C"]

    # Arms inside seeds: a slow minute of the machine hits all arms, and the time ratios stay fair.
    reported = [Job(name, chosen[name], seed, epochs) for seed in range(seeds) for name in ARMS]
    runs: dict[str, list[Run]] = {name: [] for name in ARMS}
    for job, run in zip(reported, run_all(reported)):
        runs[job.arm].append(run)
    return [_row(arm, chosen[arm.name], lrs[arm.family], runs[arm.name], runs[arm.family]) for arm in ARMS.values()]


def _row(arm: Arm, lr: float, lrs: Sequence[float], mine: list[Run], base: list[Run]) -> Row:
    test = [100 * run.at_best()[2] for run in mine]
    base_test = [100 * run.at_best()[2] for run in base]
    is_base = arm.role == "base"
    return Row(
        arm,
        lr,
        arm.role != "control" and len(lrs) > 1 and lr in (min(lrs), max(lrs)),
        interval(test),
        None if is_base else interval([a - b for a, b in zip(test, base_test)]),
        not is_base and all(a.train_loss == b.train_loss for a, b in zip(mine, base)),
        sum(run.diverged for run in mine),
        median(a.step_seconds / b.step_seconds for a, b in zip(mine, base)),
    )


def _plus_minus(value: float, half_width: float, sign: str = "") -> str:
    width = f"{half_width:.2f}" if math.isfinite(half_width) else "n/a"
    return f"{value:{sign}.2f} ± {width}"


def table(rows: Sequence[Row]) -> str:
    """Lay the rows out as plain text, one block per family."""
    head = ("arm", "lr", "test accuracy %", "minus base", "verdict", "step time")
    lines: list[tuple[str, ...]] = [head]
    for row in rows:
        if row.arm.role == "base":
            lines.append(())
        name = f"{row.arm.name} (experimental)" if row.arm.role == "F" else row.arm.name
        accuracy = _plus_minus(*row.accuracy) + (f", {row.diverged} diverged" if row.diverged else "")
        difference, word = ("", "") if row.difference is None else _judged(row.difference, row.identical)
        lr = f"{row.lr:g}" + ("*" if row.at_edge else "")
        lines.append((name, lr, accuracy, difference, word, f"{row.step_ratio:.2f}x"))
    widths = [max(len(line[i]) for line in lines if line) for i in range(len(head))]
    return "\n".join("  ".join(cell.ljust(w) for cell, w in zip(line, widths)).rstrip() for line in lines)


def _judged(difference: tuple[float, float], identical: bool) -> tuple[str, str]:
    # A memory that does nothing must not pass for one that does no harm.
    if identical:
        return _plus_minus(*difference, sign="+"), "identical"
    word = verdict(*difference) if math.isfinite(difference[1]) else "n/a"
    return _plus_minus(*difference, sign="+"), word


def report(rows: Sequence[Row], args: argparse.Namespace) -> str:
    """Say what was run, then the table, then how to read it."""
    count = len(grid(args)["SGD"])
    trials = f"{count} learning rates, the same within a family, x {args.tuning_seeds} seeds that are not reported"
    machine = f"torch {torch.__version__}, {platform.machine()} CPU, {args.jobs} process(es) of one thread"
    comparisons = sum(row.difference is not None for row in rows)
    return f"""\
Handwritten digits, 8 x 8 pixels: 1,197 images to train, 300 to validate, 300 to test.
MLP 64-32-10, batch 32, {args.epochs} epochs, {args.seeds} seeds. {machine}.
_C: topC=5, decay=0.7, "sum" for SGD and "mean" for the others. _F: topC=10, decay=0.99, rho=0.3.
lr: the one of the best validation accuracy, equal trials for each arm
({trials}).
2x lr: the base at twice the lr of its _C twin, not tuned, because "sum" about doubles the step.

{table(rows)}

test accuracy: at the epoch of the best validation accuracy; a diverged run counts as 0. ±: 95 % t-interval.
minus base: mean paired difference to the base (same start, same batches).
verdict: win or loss if the interval of that difference leaves 0 outside, else tie. {comparisons} comparisons,
uncorrected: between equals, one in twenty leaves 0 outside by chance alone. identical: the very same losses
as the base in every epoch; for a memory twin that is a defect, not a result.
step time: optimizer.step() against the base's in this run; a model this small shows overhead, not bandwidth.
*: at an edge of the learning rates tried; a better one may lie beyond.
This is a toy that shows the pieces at work. It says nothing about any optimizer on a real task."""


def grid(args: argparse.Namespace) -> Grid:
    """Return the learning rates of each family: those given, or its own."""
    return dict.fromkeys(LRS, args.lrs) if args.lrs else LRS


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number >= 1, got {text}")
    return value


def main(argv: Sequence[str] | None = None) -> int:
    """Run the comparison and print its report."""
    parser = argparse.ArgumentParser(prog="critgrad.lab.compare", description=__doc__.split("\n")[0])
    parser.add_argument("--seeds", type=_positive, default=5, help="reported seeds (default 5)")
    parser.add_argument("--tuning-seeds", type=_positive, default=2, help="seeds per learning rate (default 2)")
    parser.add_argument("--epochs", type=_positive, default=30, help="epochs of each run (default 30)")
    parser.add_argument("--lrs", type=float, nargs="+", help="learning rates for all (default: 5 per family)")
    parser.add_argument("--jobs", type=_positive, default=2, help="processes (default 2)")
    args = parser.parse_args(argv)
    with runner(args.jobs) as run_all:
        rows = compare(run_all, args.seeds, args.tuning_seeds, args.epochs, grid(args))
    print(report(rows, args))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
