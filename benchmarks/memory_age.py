"""How old is what enters a step, and does it point where the next gradient does? For every arm of a study, from outside.

``PYTHONPATH=src python benchmarks/memory_age.py studies/memory-digits.toml --ledger studies/memory-digits.db.xz``

With a ledger each arm has, in each replicate, the options that its search chose there, and the seed of its report run; without
one the middle of its ranges, the learning rates that ``--lr`` gives, and ``--seed``.

An optimizer is looked at through its steps, so that any will do. In some steps what was taken from the weights (without the
weight decay, and times the root of ``exp_avg_sq`` where the optimizer divides by that) is written as a sum of all gradients so
far, by least squares: ``step = sum over k of c_k * g_(t-k)``; of those before the last ``--window`` 64 share a weight. Without
``exp_avg_sq`` the root of a running mean of squares is tried, too. Then

- *age* is ``sum of k c_k / sum of c_k``: 0 for SGD, ``beta1 / (1 - beta1)`` for Adam, ``beta1`` times that for Nesterov's;
  weights below 0 count as such (MARS extrapolates, and is younger by it);
- *explained* is the share of the step's square that the sum has: the rest is no sum of gradients, or is one that is old;
- *agrees* is the cosine of the step (as above) with the next gradient, on another batch; *gradient* that of the last gradient.

Values are medians over the steps that were looked at; over several runs, the table has the medians of these.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor

from critgrad.lab.errors import LabError
from critgrad.lab.run.spec import Trial
from critgrad.lab.study.axes import axis_of
from critgrad.lab.study.file import ArmFile, StudyFile, read
from critgrad.lab.study.optimizers import maker_of
from critgrad.lab.study.runner import report
from critgrad.lab.train.loop import train

RIDGE = 1e-6  # of the mean square of a gradient: neighbours are nearly parallel late in a run
SQUARES = 0.95  # decay of the running mean of squares
BLOCK = 64  # gradients before the window that share a weight
SEEN = ("age", "explained", "agrees", "gradient")


def weights_of(steps: list[Tensor], gradients: Tensor) -> list[tuple[Tensor, float]]:
    """Of each step the coefficients of the gradients (rows) that make it up, and their share of its square."""
    rows, wanted = gradients.double(), torch.stack(steps).double()
    gram = rows @ rows.t()
    found = torch.linalg.solve(gram + torch.diag(RIDGE * gram.diagonal()), rows @ wanted.t()).t()
    rest = wanted - found @ rows
    return [*zip(found, (1 - rest.square().sum(1) / wanted.square().sum(1)).tolist())]


def age_of(found: Tensor, ages: Tensor, counts: Tensor) -> float:
    """The signed mean of the ages, in steps; a row is the sum of so many gradients."""
    weights = counts * found.cpu()
    return float((ages * weights).sum() / weights.sum())


def cosine(a: Tensor, b: Tensor) -> float:
    return float(a @ b / (a.norm() * b.norm()).clamp_min(1e-30))


class Looks:
    """Called after each step; the gradient it takes before, for some optimizers write to it."""

    def __init__(self, window: int, every: int) -> None:
        self.gradients: deque[Tensor] = deque(maxlen=window)
        self.blocks: list[tuple[Tensor, int, int]] = []  # sum, first step, number
        self.every = every
        self.steps = 0
        self.squares = torch.zeros(())
        self.before: list[Tensor] = []
        self.asked: Tensor | None = None
        self.rows: list[dict[str, float]] = []

    def start(self, optimizer: torch.optim.Optimizer) -> None:
        optimizer.register_step_pre_hook(lambda made, *_: self._keep(made))

    def _keep(self, optimizer: torch.optim.Optimizer) -> None:
        """The gradient that a step is given, and the weights before it."""
        params = [p for group in optimizer.param_groups for p in group["params"]]
        gradient = torch.cat([p.grad.flatten() for p in params if p.grad is not None]).float()
        if self.asked is not None:  # the step that was looked at last, and the gradient after it
            newest = self.gradients[-1]
            self.rows[-1] |= {"agrees": cosine(self.asked, gradient), "gradient": cosine(newest, gradient)}
            self.asked = None
        self.squares = gradient.square().lerp(self.squares, SQUARES) if self.steps else gradient.square()
        if len(self.gradients) == self.gradients.maxlen:
            self._pass_on(self.gradients[0], self.steps - len(self.gradients))
        self.gradients.append(gradient)
        self.before = [p.detach().clone() for p in params]

    def __call__(self, optimizer: torch.optim.Optimizer) -> None:
        if self.blocks and self.steps % self.every == 0:
            pairs = [(group, p) for group in optimizer.param_groups for p in group["params"]]
            moved = [
                b * (1 - group["lr"] * group.get("weight_decay", 0.0)) - p.detach()
                for (group, p), b in zip(pairs, self.before)
            ]
            self._look(torch.cat([part.flatten() for part in moved]).float(), self._divisors(optimizer))
        self.steps += 1

    def _pass_on(self, gradient: Tensor, step: int) -> None:
        """A gradient leaves the window."""
        if not self.blocks or self.blocks[-1][2] == BLOCK:
            self.blocks.append((torch.zeros_like(gradient), step, 0))
        total, first, count = self.blocks[-1]
        self.blocks[-1] = (total.add_(gradient), first, count + 1)

    def _divisors(self, optimizer: torch.optim.Optimizer) -> list[Tensor]:
        """By what the entries of the step may have been divided."""
        own = [optimizer.state[p].get("exp_avg_sq") for group in optimizer.param_groups for p in group["params"]]
        if any(v is None for v in own):
            return [torch.ones_like(self.squares), self.squares.sqrt()]
        return [torch.cat([v.flatten() for v in own]).float().sqrt()]

    def _look(self, moved: Tensor, divisors: list[Tensor]) -> None:
        history = torch.stack([*self.gradients, *(total for total, _, _ in self.blocks)])
        steps = [*range(self.steps - len(self.gradients) + 1, self.steps + 1)]
        middles = [first + (count - 1) / 2 for _, first, count in self.blocks]
        ages = self.steps - torch.tensor([*steps, *middles], dtype=torch.float64)
        counts = torch.tensor([1.0] * len(steps) + [float(count) for _, _, count in self.blocks], dtype=torch.float64)
        tried = [moved * divisor for divisor in divisors]
        (found, explained), step = max(zip(weights_of(tried, history), tried), key=lambda each: each[0][1])
        self.rows.append({"age": age_of(found, ages, counts), "explained": explained})
        self.asked = step

    def medians(self) -> dict[str, float]:
        whole = [row for row in self.rows if len(row) == len(SEEN)]
        return {name: median(row[name] for row in whole) for name in SEEN} if whole else {}


Run = tuple[dict[str, Any], int]  # options and seed


def settled(arm: ArmFile, rates: Mapping[str, float]) -> dict[str, Any]:
    """An arm's options, what is searched at the middle of its range, the learning rate as given."""
    middle = {name: axis_of(text).value(0.5) for name, text in arm.texts.items()}
    given = {"lr": rates[arm.name]} if arm.name in rates else {}
    return {**arm.fixed, **middle, **given}


def planned(args: argparse.Namespace, study: StudyFile) -> dict[str, list[Run]]:
    """The runs of each arm."""
    if args.ledger is None:
        rates = {name: float(rate) for name, _, rate in (text.partition("=") for text in args.lr)}
        return {name: [(settled(arm, rates), args.seed)] for name, arm in study.arms.items()}
    arms = report(args.study, ledger=args.ledger).arms
    return {
        name: [({**arm.fixed, **r.chosen}, r.reports[0].seed) for r in arms[name].replicates[: args.replicates]]
        for name, arm in study.arms.items()
    }


def looked_at(args: argparse.Namespace, study: StudyFile, arm: ArmFile, run: Run) -> dict[str, Any]:
    """One run of an arm: what it was given, and what was seen."""
    values, seed = run
    looks, maker = Looks(args.window, args.every), maker_of(arm.optimizer, args.study.parent)

    def make(params: Any) -> Any:
        optimizer = maker.build(params, values)
        looks.start(optimizer)
        return optimizer

    settings = {**study.settings, **({"epochs": study.epochs} if study.epochs else {})}
    trial = Trial(study.task, arm.optimizer, seed=seed, settings=settings)
    result = train(trial, device=args.device, make_optimizer=make, on_step=looks)
    seen = {name: round(value, 4) for name, value in looks.medians().items()}
    said = {name: round(float(result.summary[name]), 4) for name in ("valid", "test")}
    return {"options": values, "seed": seed, **seen, **said}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("study", type=Path)
    parser.add_argument("--ledger", type=Path, help="of the study: take what its searches chose")
    parser.add_argument("--replicates", type=int, default=1, help="with a ledger: how many of them, from the first")
    parser.add_argument("--lr", action="append", default=[], metavar="ARM=RATE", help="else the middle of its range")
    parser.add_argument("--window", type=int, default=128, help="gradients with a weight of their own")
    parser.add_argument("--every", type=int, default=25, help="look at one step out of so many")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--machine", default="", help="its name, for the JSON")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    study = read(args.study)
    print(f"{study.task}: {'arm':<18}{'runs':>5}" + "".join(f"{name:>11}" for name in SEEN), flush=True)
    arms = {}
    for name, runs in planned(args, study).items():
        arms[name] = [looked_at(args, study, study.arms[name], run) for run in runs]
        middle = [median(row.get(each, math.nan) for row in arms[name]) for each in SEEN]
        print(f"{study.task}: {name:<18}{len(runs):>5}" + "".join(f"{value:>11.3f}" for value in middle), flush=True)
    if args.json is not None:
        origin = {name: getattr(args, name) for name in ("window", "every", "device", "machine")}
        whole = {"study": args.study.name, "torch": torch.__version__, **origin, "arms": arms}
        args.json.write_text(json.dumps(whole, indent=1) + "\n")


if __name__ == "__main__":
    try:
        main()
    except LabError as error:
        sys.exit(str(error))
