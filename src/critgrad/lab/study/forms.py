"""The forms of a task: in pieces, a whole loop, or built in. Which of them a study's file names, and the latter two."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from ..errors import LabError
from ..run.results import Result
from ..run.spec import Trial
from ..tasks import problem_of, task_of
from ..train import loop as lab_loop
from ..words import listed
from .file import Schedule
from .guard import reseed
from .loading import UserCodeError, file_under, load_file, told
from .optimizers import made_still
from .pieces import PiecesTask
from .task import Order, Reports, StudyTask, scores_of

PIECES = ("build", "batches", "loss", "evaluate")
LOOP = "train"
EXPECTED = f"the functions {', '.join(PIECES)}, or {LOOP}"
REHEARSED_STEPS = 24  # of a built-in task, to see how long one takes


def load_task(task: str, folder: Path, settings: Mapping[str, Any] | None = None) -> StudyTask:
    """The task that a study's file names."""
    if not task.endswith(".py"):
        return BuiltInTask(task, dict(settings or {}))
    path = file_under(folder, task)
    if path is None:
        raise LabError(
            f"there is no file {task} beside the study's, expected a Python file or a name of `critgrad tasks`"
        )
    try:
        module = load_file(path)
    except UserCodeError as error:
        raise LabError(f"{task} cannot be imported: {error}") from None
    found = [name for name in (*PIECES, LOOP) if callable(getattr(module, name, None))]
    missing = [name for name in PIECES if name not in found]
    if LOOP in found and not missing:
        raise LabError(f"{task} has both {', '.join(PIECES)} and {LOOP}, expected one of both forms")
    if LOOP in found:
        return LoopTask(module)
    if missing:
        raise LabError(f"{task} lacks {', '.join(missing)}, expected {EXPECTED}")
    return PiecesTask(module)


def data_files(task: str, folder: Path) -> list[Path]:
    """The files that a task names in ``data = [...]``."""
    path = file_under(folder, task)
    named = getattr(load_file(path), "data", None) if path is not None else None
    if isinstance(named, (str, Path)):
        raise LabError(f"{task}: data is {str(named)!r}, expected a list of files: data = [{str(named)!r}]")
    # ``data`` may well be the data themselves: only a list of texts names files.
    if not isinstance(named, (list, tuple)) or not named or not all(isinstance(name, (str, Path)) for name in named):
        return []
    files = [folder / name for name in named]
    for path in files:
        if not path.is_file():
            raise LabError(f"{task}: data names {path.name}, and there is no such file in {path.parent}")
    return files


class LoopTask:
    """``train(make_optimizer, seed, epochs, report)`` of a module: the loop is its own."""

    whole_loop = True

    def __init__(self, module: ModuleType) -> None:
        self.module = module

    def run(self, order: Order) -> Result:
        """Call it, and take what it reports."""
        record, made = Reports(order.direction), []

        def make_optimizer(params: Any) -> Any:
            made.append(optimizer := order.maker.build(params, order.values))
            return made_still(optimizer) if order.still else optimizer

        def report(both: Any = None, *, valid: Any = None, test: Any = None) -> None:
            valid = both if valid is None else valid
            record.add(*scores_of(valid if test is None else {"valid": valid, "test": test}, "report"))

        if order.device.startswith("cuda"):
            torch.cuda.reset_peak_memory_stats()
        reseed(order.seed, "loop")
        self.module.train(make_optimizer, order.seed, order.epochs, report)
        if not made:  # or all arms would be one optimizer, and the verdict "same"
            raise ValueError(f"{LOOP}() has ended and never called make_optimizer(parameters)")
        if not record.curves["valid"]:
            raise ValueError(f"{LOOP}() has ended and never called report(valid=..., test=...)")
        return record.result(order.device)

    def rehearse(self, order: Order) -> float:
        """From one epoch."""
        begin = time.perf_counter()
        self.run(replace(order, epochs=1))
        return order.epochs * (time.perf_counter() - begin)


# -- a built-in task ---------------------------------------------------------------------------------------------------


class BuiltInTask:
    """A task of `critgrad tasks`, trained by the lab's own loop (on a GPU by CUDA graphs, where the optimizer allows it)."""

    whole_loop = False

    def __init__(self, name: str, settings: Mapping[str, Any]) -> None:
        self.name, self.settings = name, dict(settings)
        self.record = task_of(name, self.settings)

    @property
    def direction(self) -> str:
        """Which values are better."""
        return "max" if self.record.metric.higher_is_better else "min"

    def require(self) -> None:
        """Refuse settings of which no model comes, and a task whose data are not here."""
        try:
            lab_loop.new_model(problem_of(self.name, self.settings), 1)
        except LabError as error:
            raise LabError(f"{self.name}: {error}") from None
        except Exception as error:
            raise LabError(
                f"{self.name} cannot be built with settings {listed(self.settings)}: {told(error)}"
            ) from None

    def run(self, order: Order) -> Result:
        """Train as `critgrad train` does, with the arm's optimizer."""
        return self._train(order, {"epochs": order.epochs})

    def _train(self, order: Order, settings: Mapping[str, Any]) -> Result:
        # A study's schedule stands in the place of the task's own.
        own = {} if order.schedule == Schedule() else {"schedule": order.schedule.kind, "warmup": order.schedule.warmup}
        trial = Trial(self.name, order.maker.text, seed=order.seed, settings={**self.settings, **own, **settings})

        def make(params: Iterable[Any]) -> Any:
            return order.maker.build(params, order.values)

        begin = time.perf_counter()
        result = lab_loop.train(trial, device=order.device, make_optimizer=make)
        result.summary["run_seconds"] = time.perf_counter() - begin
        return result

    def rehearse(self, order: Order) -> float:
        """From some steps and two evaluations."""
        short = {"epochs": 1, "epoch_steps": REHEARSED_STEPS}
        self._train(order, short)  # data, kernels
        summary = self._train(order, short).summary
        problem = lab_loop.problem_for(Trial(self.name, "", settings=self.settings), order.device)
        step = summary["train_seconds"] / summary["steps"]
        around = (summary["run_seconds"] - summary["train_seconds"]) / 2
        return around + order.epochs * (around + problem.steps * step)
