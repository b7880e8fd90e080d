"""What a run asks of a task, and what it gets: the order, the reports of each epoch, the result."""

from __future__ import annotations

import math
import textwrap
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch

from ..run.results import Result, provenance
from .file import Schedule
from .optimizers import Maker


@dataclass(frozen=True)
class Order:
    """One run as a task sees it."""

    maker: Maker
    values: Mapping[str, Any]  # of the optimizer, with dotted names
    seed: int
    epochs: int
    direction: str
    device: str
    schedule: Schedule = field(default_factory=Schedule)
    still: bool = False  # for the value before training: the optimizer's steps do nothing


class StudyTask(Protocol):
    """Something that can be trained."""

    whole_loop: bool  # the value before training needs a run of its own

    def run(self, order: Order) -> Result:
        """Train as ordered."""

    def rehearse(self, order: Order) -> float:
        """About how many seconds the run would take, from a few steps of it (of a loop: one epoch)."""


def scores_of(found: Any, where: str) -> tuple[float, float]:
    """``valid`` and ``test`` from what a task's function gave."""
    try:
        valid, test = (found["valid"], found["test"]) if isinstance(found, Mapping) else (found, found)
        if not isinstance(valid, (str, bytes)) and not isinstance(test, (str, bytes)):
            return float(valid), float(test)
    except (KeyError, TypeError, ValueError, RuntimeError):
        pass
    shown = textwrap.shorten(repr(found), 120, placeholder=" ...")
    raise TypeError(f'{where} gave {shown}, expected a number, or {{"valid": ..., "test": ...}}')


class Reports:
    """The reports of a run, one per epoch."""

    def __init__(self, direction: str) -> None:
        self.direction = direction
        self.curves: dict[str, list[float]] = {"valid": [], "test": [], "seconds": []}
        self.begin = time.perf_counter()

    def add(self, valid: float, test: float, **more: float) -> bool:
        """Take a report; whether its numbers are finite."""
        row = {"valid": valid, "test": test, "seconds": time.perf_counter() - self.begin, **more}
        for name, value in row.items():
            self.curves.setdefault(name, []).append(value)
        return all(map(math.isfinite, (valid, test, *more.values())))

    def result(self, device: str, **summary: Any) -> Result:
        curves = {name: np.asarray(values) for name, values in self.curves.items()}
        finite = bool(len(curves["valid"])) and all(np.isfinite(curves[name]).all() for name in curves)
        found: dict[str, Any] = {"diverged": not finite, "best_epoch": None, "valid": math.nan, "test": math.nan}
        if finite:
            best = int((curves["valid"].argmin if self.direction == "min" else curves["valid"].argmax)())
            found |= {"best_epoch": best + 1, "valid": curves["valid"][best], "test": curves["test"][best]}
        found |= {"epochs": len(curves["valid"]), "run_seconds": time.perf_counter() - self.begin}
        if device.startswith("cuda"):
            found["peak_bytes"] = torch.cuda.max_memory_allocated()
        return Result(curves, {**found, **summary}, provenance(device))
