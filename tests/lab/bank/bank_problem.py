"""A tiny problem for both engines: three classes of points, a small net with dropout, 50 steps an epoch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from critgrad.lab import tasks
from critgrad.lab.run.results import Result
from critgrad.lab.run.spec import Trial
from critgrad.lab.tasks import ACCURACY, Batch, Problem, Scores, SummingProblem, Task
from critgrad.lab.tasks.data import Dataset
from critgrad.lab.train import loop as single
from critgrad.lab.train.bank import run_bank

TOLERANCE = 1e-9


class Net(nn.Module):
    def __init__(self, norm: bool = False) -> None:
        super().__init__()
        self.inner = nn.Linear(6, 8)
        self.norm = nn.BatchNorm1d(8) if norm else nn.Identity()
        self.outer = nn.Linear(8, 3)

    def forward(self, x: Tensor, keep: Tensor | None = None) -> Tensor:
        h = self.norm(self.inner(x)).relu()
        return self.outer(h if keep is None else h * keep / 0.75)


class Tiny(SummingProblem):
    noise_width = 8
    worst = 0.0
    train_size = 400

    def __init__(self, task: Task, device: torch.device) -> None:
        rng = np.random.default_rng(7)
        x = rng.normal(size=(460, 6))
        y = (x[:, :3] + 0.5 * rng.normal(size=(460, 3))).argmax(1)
        super().__init__(task, Dataset("tiny", {}, "synthetic", "0" * 64, "", {}), device)
        self.x = torch.tensor(x, dtype=torch.get_default_dtype(), device=device)
        self.y = torch.tensor(y, device=device)

    def build(self) -> nn.Module:
        return Net(bool(self.task.options["norm"])).to(self.device)

    def batch(self, index: Tensor) -> Batch:
        return self.x[index], self.y[index]

    def loss(self, model: Any, batch: Batch, noise: Tensor | None, carry: Any) -> tuple[Tensor, Any]:
        x, y = batch
        scale = self.task.options["scale"]
        return scale * cross_entropy(model(x, noise), y), (x if self.task.options["carries"] else None)

    def parts(self, split: str) -> Iterator[Batch]:
        spans = {"train": range(0, 400, 200), "valid": range(400, 430, 20), "test": range(430, 460, 30)}[split]
        for start in spans:
            stop = min(start + spans.step, spans.stop)
            yield self.x[start:stop], self.y[start:stop]

    def score(self, model: Any, batch: Batch) -> Tensor:
        x, y = batch
        out = model(x)
        right = (out.argmax(-1) == y).sum().to(out.dtype)
        return torch.stack([cross_entropy(out, y, reduction="sum"), right, torch.full_like(right, len(y))])

    def finish(self, totals: Tensor) -> Scores:
        loss, right, count = totals.tolist()
        return Scores(loss / count, 100 * right / count)


TINY = Task(
    name="tiny",
    summary="",
    dataset="tiny",
    problem=lambda task, data, device: Tiny(task, device),
    metric=ACCURACY,
    batch_size=8,
    epochs=4,
    options={"dropout": 0.25, "norm": False, "scale": 1.0, "carries": False},
    bankable=True,
)


def problem_of(name: str, settings: dict[str, Any], device: torch.device) -> Problem:
    """The tiny problem under its two names; every other name is the lab's."""
    if not name.startswith("tiny"):
        return tasks.problem_of(name, settings, device)
    task = TINY.with_settings(settings)
    if name == "tiny-single":
        task = Task(**{**vars(task), "bankable": False})
    return Tiny(task, device)


def trial(optimizer: str, seed: int = 0, probe: tuple[str, ...] = (), settings: Any = None, **hyper: Any) -> Trial:
    return Trial("tiny", optimizer, hyper, seed, settings or {}, "bank", probe)


def assert_same(banked: Result, alone: Result, what: str = "") -> None:
    """All that a bank row has, a single row has too, to rounding; a bank row has no times."""
    assert set(banked.curves) == set(alone.curves) - {"seconds"}, what
    for name, values in banked.curves.items():
        np.testing.assert_allclose(values, alone.curves[name], rtol=TOLERANCE, atol=TOLERANCE, err_msg=f"{what} {name}")
        assert values.shape == alone.curves[name].shape, (what, name)
    alone_only = {"initial_test", "train_seconds", "step_ms", "step_ms_low", "step_ms_high", "peak_bytes", "run_bytes"}
    assert set(banked.summary) == set(alone.summary) - alone_only, what
    for name, value in banked.summary.items():
        if isinstance(value, float):
            np.testing.assert_allclose(value, alone.summary[name], rtol=TOLERANCE, err_msg=f"{what} {name}")
        else:
            assert value == alone.summary[name], (what, name)


def assert_bank_equals_single(trials: list[Trial]) -> list[Result]:
    """Train all at once, then each alone, and compare; returns the bank's results."""
    results = run_bank(trials)
    assert len(results) == len(trials)
    for one, banked in zip(trials, results):
        assert_same(banked, single.train(one.replace(engine="single")), f"{one.optimizer} {dict(one.hyper)}")
    return results
