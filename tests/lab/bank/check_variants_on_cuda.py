"""The variants of damping on a real GPU: ``PYTHONPATH=src python tests/lab/bank/check_variants_on_cuda.py``.

Checks that a captured step of all variants is an eager one and that CUDA agrees with the CPU, then prints what a step of
each arm of a search costs. Leaves with 1 if a check failed. Needs torch with CUDA and nothing else.
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
from critgrad.paper.search import Search, find

SETTINGS = {"dtype": "float64", "epochs": 2, "clip": 1.0}


def every_arm(search: Search) -> list[Trial]:
    """Each arm of each family at its first point, on the small digits."""
    trials = [search.trial(f, arm, search.points(f, arm)[0], 1) for f in search.families for arm in search.arms_of(f)]
    return [
        Trial("digits-mlp", t.optimizer, {**t.hyper, "lr": 0.003}, i % 3, SETTINGS, "bank")
        for i, t in enumerate(trials)
    ]


def difference(a: list, b: list) -> float:
    """The largest relative difference between two runs' curves."""
    return max(
        float(abs(values - y.curves[name]).max() / (abs(y.curves[name]).max() or 1.0))
        for x, y in zip(a, b)
        for name, values in x.curves.items()
    )


def step_ms(trials: list[Trial], device: str) -> tuple[float, str, float]:
    """Milliseconds of one step, how it was taken, and the GiB that it needed."""
    problem = problem_for(trials[0], device)
    if device != "cpu":
        torch.cuda.reset_peak_memory_stats()
    bank = Bank(problem, crew(trials, problem.task.weight_decay), None)  # type: ignore[arg-type]
    step = Stepper(bank, True)
    bank.begin_epoch(1)

    def run(steps: int) -> float:
        begin = time.perf_counter()
        for _ in range(steps):
            bank.at.zero_()
            step()
        if device != "cpu":
            torch.cuda.synchronize()
        return (time.perf_counter() - begin) / steps * 1000

    run(6)
    best = min(run(10) for _ in range(2))
    peak = torch.cuda.max_memory_allocated() / 2**30 if device != "cpu" else 0.0
    return best, step.warning or ("graph" if step.graph is not None else "eager"), peak


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--size", type=int, default=96, help="models of each arm, to time")
    parser.add_argument("--tasks", default="cifar10-convnet@tiny", help="to time on; with commas, may be empty")
    arguments = parser.parse_args()
    device = arguments.device
    print(f"torch {torch.__version__}, {'CPU' if device == 'cpu' else torch.cuda.get_device_name()}", flush=True)
    trials = every_arm(find("damping-variants", "cifar10-convnet"))
    fast, slow, host = run_bank(trials, device=device), run_bank(trials, device=device, graph=False), run_bank(trials)
    checks = {
        "with a graph as without": (difference(fast, slow), 1e-9),
        "as on the CPU": (difference(fast, host), 1e-6),
        "the step was captured": (float(device != "cpu" and not fast[0].provenance["graph"]), 0.0),
    }
    print(f"{len(trials)} models, {fast[0].provenance.get('graph_warning', 'no warning')}", flush=True)
    for label, (value, bound) in checks.items():
        print(f"{'PASS' if value <= bound else 'FAIL'} {label}: {value:.1e} (at most {bound:.0e})", flush=True)
    for task in filter(None, arguments.tasks.split(",")):
        search = find("damping-variants", task)
        for arm in search.arms_of("Adam"):
            point = {**search.points("Adam", arm)[0], **({"topC": 10} if arm.name not in search.against else {})}
            one = search.trial("Adam", arm, point, 0)
            models = [one.replace(seed=i % 10, settings={"batch_size": 128}) for i in range(arguments.size)]
            took, how, peak = step_ms(models, device)
            print(f"{task} {arm.name} x {arguments.size}: {took:.2f} ms a step ({how}), {peak:.1f} GiB", flush=True)
    return 0 if all(value <= bound for value, bound in checks.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
