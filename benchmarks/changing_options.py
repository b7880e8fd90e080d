"""Steps with an option that changes in every one, as on a schedule, against the same steps with the option constant.

    PYTHONPATH=src python benchmarks/changing_options.py                     # 4 M values on this machine's CPU
    PYTHONPATH=src python benchmarks/changing_options.py --device cuda       # RoBERTa-base
    PYTHONPATH=src python benchmarks/changing_options.py --only decay

Adam_C, and Adam_F where the option belongs to damping. Two optimizers take turns; both write the option into
``param_groups`` before every step, one always the same value. The ratio is of a batch to that of the same round.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from shapes import Shape, roberta_base
from step_time import Bench, machine
from timing import Spread, count_cpu_time, take_turns

import critgrad

FOUR_MILLION: list[Shape] = [(1000, 1000), (1000,)] * 4


@dataclass(frozen=True)
class Case:
    """An option, the values that it takes in turn (the first is the constant one), and what else is set."""

    option: str
    values: tuple[Any, ...]
    cls: str = "Adam_C"
    others: dict[str, Any] = field(default_factory=dict)


CASES = {
    "decay": Case("decay", tuple(0.7 - i / 1000 for i in range(100))),
    "decay, fisher": Case("decay", tuple(0.9 - i / 1000 for i in range(100)), "Adam_F"),
    "kappa": Case("kappa", tuple(1 - i / 1000 for i in range(100))),
    "rho, fisher": Case("rho", tuple(0.3 + i / 1000 for i in range(100)), "Adam_F"),
    # As often stored as with the constant one.
    "every, sparse": Case("every", (10, 9, 11), others={"policy": "sparse"}),
    "max_age": Case("max_age", (1000, 1001, 1002)),
    "aggr": Case("aggr", ("mean", "sum", "mid")),
}


def stepper(optimizer: torch.optim.Optimizer, option: str, values: tuple[Any, ...]) -> Callable[[], None]:
    coming = itertools.cycle(values)

    def step() -> None:
        value = next(coming)
        for group in optimizer.param_groups:
            group[option] = value
        optimizer.step()

    return step


def measure(bench: Bench, case: Case, topC: int, rounds: int) -> str:
    cls = getattr(critgrad, case.cls)
    params = [bench.parameters(), bench.parameters()]
    optimizers = [cls(each, lr=1e-4, fused=True, topC=topC, **case.others) for each in params]
    bench.stepped = params
    steps = [stepper(optimizers[0], case.option, case.values[:1]), stepper(optimizers[1], case.option, case.values)]
    for _ in range(topC + 3):  # a full memory
        bench.rotate()
        for step in steps:
            step()
    constant, changing = take_turns(bench.device, steps, rounds, 0.1, bench.rotate)
    ratio = Spread.of([b / a for a, b in zip(constant, changing)])
    columns = [f"{case.cls:8}", f"{getattr(critgrad.inspect(optimizers[1]), 'engine', '-'):8}"]
    columns += [f"{Spread.of(seconds).ms:>26}" for seconds in (constant, changing)]
    return "".join(columns) + f"   {ratio.times}"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--only", action="append", choices=CASES, help="this option (may be given more than once)")
    parser.add_argument("--topC", type=int, default=10)
    parser.add_argument("--cpu-time", action="store_true", help="one thread's own time: for a CPU that others use, too")
    parser.add_argument("--rounds", type=int, default=7, help="batches of each contestant")
    args = parser.parse_args()
    if args.cpu_time:
        torch.set_num_threads(1)
        count_cpu_time()
    device = torch.device(args.device)
    shapes = FOUR_MILLION if args.device == "cpu" else roberta_base()
    bench = Bench(shapes, "adam", device, torch.float32, None)
    print(f"{machine(device)}; {bench.count:,} values in {len(shapes)} tensors, topC {args.topC}")
    print(f"{'option':16}{'class':8}{'engine':8}{'constant, ms':>26}{'changing, ms':>26}   ratio")
    for name in args.only or CASES:
        print(f"{name:16}{measure(bench, CASES[name], args.topC, args.rounds)}", flush=True)
        bench.stepped = []


if __name__ == "__main__":
    main()
