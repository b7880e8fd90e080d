"""How old is what enters a step, and does it point where the next gradient does? For every arm of a study, from outside.

``PYTHONPATH=src python benchmarks/memory_age.py studies/memory-digits.toml --lr adamw=0.02 --lr adamw_c=0.01``

An optimizer is looked at through its steps alone, so that any will do. The last ``--window`` gradients are kept. In some steps
what was taken from the weights (without the weight decay, and times the root of a running mean of squared gradients, where that
explains more) is written as a sum of these gradients, by least squares: ``step = sum over k of c_k * g_(t-k)``. Then

- *age* is ``sum of k c_k / sum of c_k``: 0 for SGD, ``beta1 / (1 - beta1)`` for Adam, ``beta1`` times that for Nesterov's;
  weights below 0 count as such (MARS extrapolates, and is younger by it);
- *explained* is the share of the step's square that the sum has: what it lacks is older than the window, or no sum;
- *agrees* is the cosine of the step (as above) with the next gradient, on another batch; *gradient* that of the last gradient.

Values are medians over the steps that were looked at, of one run with the seed that ``--seed`` gives.
"""

from __future__ import annotations

import argparse
import json
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
from critgrad.lab.study.file import ArmFile, read
from critgrad.lab.study.optimizers import maker_of
from critgrad.lab.train.loop import train

RIDGE = 1e-4  # of the mean square of a gradient: neighbours are nearly parallel late in a run
SQUARES = 0.95  # decay of the running mean of squares


def weights_of(step: Tensor, gradients: Tensor) -> tuple[Tensor, float]:
    """Coefficients of the gradients (rows, the newest first) that make up a step, and their share of its square."""
    gram = (gradients @ gradients.t()).double()
    eye = torch.eye(len(gram), dtype=torch.float64, device=gram.device)
    found = torch.linalg.solve(gram + RIDGE * gram.diagonal().mean() * eye, (gradients @ step).double())
    rest = step - found.to(step.dtype) @ gradients
    return found, 1 - float(rest.square().sum() / step.square().sum())


def age_of(found: Tensor) -> float:
    """The signed mean of the ages, in steps."""
    ages = torch.arange(len(found), dtype=found.dtype, device=found.device)
    return float((ages * found).sum() / found.sum())


def cosine(a: Tensor, b: Tensor) -> float:
    return float(a @ b / (a.norm() * b.norm()).clamp_min(1e-30))


class Looks:
    """Called after each step, with its gradient in place."""

    def __init__(self, window: int, every: int) -> None:
        self.gradients: deque[Tensor] = deque(maxlen=window)
        self.every = every
        self.steps = 0
        self.squares: Tensor | None = None
        self.before: list[Tensor] = []
        self.asked: Tensor | None = None
        self.rows: list[dict[str, float]] = []

    def start(self, optimizer: torch.optim.Optimizer) -> None:
        self.before = [p.detach().clone() for group in optimizer.param_groups for p in group["params"]]

    def __call__(self, optimizer: torch.optim.Optimizer) -> None:
        pairs = [(group, p) for group in optimizer.param_groups for p in group["params"]]
        gradient = torch.cat([p.grad.flatten() for _, p in pairs if p.grad is not None]).float()
        if self.asked is not None:  # the step that was looked at last, and the gradient after it
            newest = self.gradients[-1]
            self.rows[-1] |= {"agrees": cosine(self.asked, gradient), "gradient": cosine(newest, gradient)}
            self.asked = None
        squared = gradient.square()
        self.squares = squared if self.squares is None else self.squares.lerp_(squared, 1 - SQUARES)
        self.gradients.append(gradient.clone())
        self.steps += 1
        full = len(self.gradients) == self.gradients.maxlen
        if full and self.steps % self.every == 0:
            moved = [
                b * (1 - group["lr"] * group.get("weight_decay", 0.0)) - p.detach()
                for (group, p), b in zip(pairs, self.before)
            ]
            self._look(torch.cat([part.flatten() for part in moved]).float())
        for (_, p), kept in zip(pairs, self.before):
            kept.copy_(p.detach())

    def _look(self, moved: Tensor) -> None:
        assert self.squares is not None
        history = torch.stack([*self.gradients][::-1])
        plain, scaled = moved, moved * self.squares.sqrt()
        tried = [(*weights_of(step, history), step) for step in (plain, scaled)]
        found, explained, step = max(tried, key=lambda each: each[1])
        self.rows.append({"age": age_of(found), "explained": explained})
        self.asked = step

    def medians(self) -> dict[str, float]:
        names = ("age", "explained", "agrees", "gradient")
        whole = [row for row in self.rows if len(row) == len(names)]
        return {name: median(row[name] for row in whole) for name in names} if whole else {}


def settled(arm: ArmFile, rates: Mapping[str, float]) -> dict[str, Any]:
    """An arm's options, what is searched at the middle of its range, the learning rate as given."""
    middle = {name: axis_of(text).value(0.5) for name, text in arm.texts.items()}
    given = {"lr": rates[arm.name]} if arm.name in rates else {}
    return {**arm.fixed, **middle, **given}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("study", type=Path)
    parser.add_argument("--lr", action="append", default=[], metavar="ARM=RATE", help="else the middle of its range")
    parser.add_argument("--window", type=int, default=128, help="gradients that are kept")
    parser.add_argument("--every", type=int, default=25, help="look at one step out of so many")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    study = read(args.study)
    rates = {name: float(rate) for name, _, rate in (text.partition("=") for text in args.lr)}
    settings = {**study.settings, **({"epochs": study.epochs} if study.epochs else {})}
    print(f"{study.task}: {'arm':<18}{'lr':>9}{'age':>8}{'explained':>11}{'agrees':>8}{'gradient':>10}", flush=True)
    rows = {}
    for name, arm in study.arms.items():
        looks = Looks(args.window, args.every)
        maker, values = maker_of(arm.optimizer, args.study.parent), settled(arm, rates)

        def make(params: Any, maker: Any = maker, values: Any = values, looks: Looks = looks) -> Any:
            optimizer = maker.build(params, values)
            looks.start(optimizer)
            return optimizer

        trial = Trial(study.task, arm.optimizer, seed=args.seed, settings=settings)
        result = train(trial, device=args.device, make_optimizer=make, on_step=looks)
        rows[name] = {"lr": values["lr"], **looks.medians(), "valid": result.summary["valid"]}
        cells = [rows[name].get(each, float("nan")) for each in ("age", "explained", "agrees", "gradient")]
        shown = f"{cells[0]:>8.2f}{cells[1]:>11.3f}{cells[2]:>8.3f}{cells[3]:>10.3f}"
        print(f"{study.task}: {name:<18}{values['lr']:>9.2g}{shown}", flush=True)
    if args.json is not None:
        args.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    try:
        main()
    except LabError as error:
        sys.exit(str(error))
