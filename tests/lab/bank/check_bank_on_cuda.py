"""The bank on a real GPU: ``PYTHONPATH=src python tests/lab/bank/check_bank_on_cuda.py [--device cpu] [--sizes 1,40,200]``.

Checks that a captured step is an eager one and that CUDA agrees with the CPU over 200 steps, then prints what a step
costs. Leaves with 1 if a check failed. Needs torch with CUDA and nothing else.
"""

from __future__ import annotations

import argparse
import sys
import time

import torch

from critgrad.lab.run.spec import Trial
from critgrad.lab.train.bank import run_bank
from critgrad.lab.train.bank.members import crew
from critgrad.lab.train.bank.step import Bank, Stepper
from critgrad.lab.train.loop import problem_for
from critgrad.lab.train.optimizers import OPTIMIZERS

SETTINGS = {"dtype": "float64", "epochs": 5}
LR = {"SGD": 0.03, "SGDM": 0.01, "RMSprop": 0.001, "Adam": 0.003, "AdamW": 0.003}


def every_kind() -> list[Trial]:
    trials = [
        Trial("digits-mlp", name, {"lr": LR[recipe.family]}, i % 4, SETTINGS, "bank")
        for i, (name, recipe) in enumerate(OPTIMIZERS.items())
    ]
    for policy in ("bottomC", "FIFO", "random", "MNDS", "CDS", "CSS", "RR", "NCPR", "sparse"):
        for aggr in ("sum", "median", "fisher"):
            hyper = {"lr": 0.01, "policy": policy, "aggr": aggr, "topC": 2 + len(policy)}
            trials.append(Trial("digits-mlp", "SGD_C", hyper, 1, SETTINGS, "bank"))
    yoked = {"lr": 0.03, "donor_seed": 7}
    return [
        *trials,
        Trial("digits-mlp", "SGD_C", yoked, 2, SETTINGS, "bank", ("memory", "damping", "decisions", "update")),
    ]


def difference(a: list, b: list) -> float:
    """The largest relative difference between two runs' curves."""
    worst = 0.0
    for x, y in zip(a, b):
        for name, values in x.curves.items():
            scale = abs(y.curves[name]).max() or 1.0
            worst = max(worst, float(abs(values - y.curves[name]).max() / scale))
    return worst


def check(label: str, value: float, bound: float) -> bool:
    passed = value <= bound
    print(f"{'PASS' if passed else 'FAIL'} {label}: {value:.1e} (at most {bound:.0e})", flush=True)
    return passed


def step_ms(task: str, optimizer: str, size: int, device: str, graph: bool) -> tuple[float, str]:
    trials = [Trial(task, optimizer, {"lr": 0.001}, i % 10, {}, "bank") for i in range(size)]
    problem = problem_for(trials[0], device)
    bank = Bank(problem, crew(trials, problem.task.weight_decay))  # type: ignore[arg-type]
    step = Stepper(bank, graph)

    def run(steps: int) -> float:
        begin = time.perf_counter()
        for _ in range(steps):
            bank.at.zero_()
            step()
        if device != "cpu":
            torch.cuda.synchronize()
        return (time.perf_counter() - begin) / steps * 1000

    bank.begin_epoch(1)
    run(10)
    return min(run(20) for _ in range(3)), step.warning or ("graph" if step.graph is not None else "eager")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--sizes", default="1,40,200")
    parser.add_argument("--tasks", default="digits-mlp,cifar10-convnet@tiny")
    arguments = parser.parse_args()
    device = arguments.device
    name = "CPU" if device == "cpu" else torch.cuda.get_device_name()
    print(f"torch {torch.__version__}, {name}", flush=True)

    trials = every_kind()
    fast, slow, host = (run_bank(trials, device=device), run_bank(trials, device=device, graph=False), run_bank(trials))
    said = {"graph": fast[0].provenance["graph"], "warning": fast[0].provenance.get("graph_warning")}
    print(f"{len(trials)} models: {said}", flush=True)
    passed = [
        check("with a graph as without", difference(fast, slow), 1e-9),
        check(f"{name} as CPU", difference(fast, host), 1e-6),
    ]
    if device != "cpu":
        passed.append(check("the step was captured", float(not said["graph"]), 0.0))

    print("task, optimizer, models: ms a step as a graph / eager")
    for task in arguments.tasks.split(","):
        for optimizer in ("Adam", "Adam_C", "Adam_F"):
            for size in map(int, arguments.sizes.split(",")):
                (a, how), (b, _) = (step_ms(task, optimizer, size, device, graph) for graph in (True, False))
                print(f"{task}, {optimizer}, {size}: {a:.3f} / {b:.3f} ({how})", flush=True)
    return 0 if all(passed) else 1


if __name__ == "__main__":
    sys.exit(main())
