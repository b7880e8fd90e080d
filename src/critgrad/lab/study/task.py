"""What a study trains: a task in pieces, a whole loop, or a built-in task. Each turns a run into a ``Result``."""

from __future__ import annotations

import inspect
import math
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median
from types import ModuleType
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from ..errors import LabError
from ..run.results import Result, provenance
from ..run.spec import Trial
from ..tasks import task_of
from ..train import loop as lab_loop
from ..train.bases import learnt
from ..train.compiling import compile_if_asked
from ..train.loop import StepClock
from .file import Schedule
from .guard import reseed
from .loading import UserCodeError, load_file
from .optimizers import Maker, made_still, may_be_captured

PIECES = ("build", "batches", "loss", "evaluate")
LOOP = "train"
EXPECTED = f"the functions {', '.join(PIECES)}, or {LOOP}"
WARM_UP, TIMED = 3, 200  # steps
REHEARSED_STEPS = 24  # of a built-in task, to see how long one takes


@dataclass(frozen=True)
class Order:
    """One run as a task sees it."""

    maker: Maker
    values: Mapping[str, Any]  # of the optimizer, with dotted names
    seed: int
    epochs: int
    direction: str
    device: str
    schedule: Schedule = Schedule()
    still: bool = False  # for the value before training: the optimizer's steps do nothing


class StudyTask(Protocol):
    """Something that can be trained."""

    whole_loop: bool  # the value before training needs a run of its own

    def run(self, order: Order) -> Result:
        """Train as ordered."""

    def rehearse(self, order: Order) -> float:
        """About how many seconds the run would take, from a few steps of it (of a loop: one epoch)."""


def load_task(task: str, folder: Path, settings: Mapping[str, Any] | None = None) -> StudyTask:
    """The task that a study's file names."""
    if not task.endswith(".py"):
        return BuiltInTask(task, dict(settings or {}))
    path = (folder / task).resolve()
    if not path.is_file():
        raise LabError(f"there is no file {task} beside the study's, expected a Python file or a name of `critgrad tasks`")
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
    named = getattr(load_file((folder / task).resolve()), "data", None) if task.endswith(".py") else None
    # ``data`` may well be the data themselves: only a list of texts names files.
    if not isinstance(named, (list, tuple)) or not named or not all(isinstance(name, (str, Path)) for name in named):
        return []
    files = [folder / name for name in named]
    for path in files:
        if not path.is_file():
            raise LabError(f"{task}: data names {path.name}, and there is no such file in {path.parent}")
    return files


# -- what all have in common -------------------------------------------------------------------------------------------


def scores_of(found: Any, where: str) -> tuple[float, float]:
    """``valid`` and ``test`` from what a task's function gave."""
    try:
        if isinstance(found, Mapping):
            return float(found["valid"]), float(found["test"])
        return (float(found),) * 2
    except (KeyError, TypeError, ValueError, RuntimeError):
        pass
    raise TypeError(f'{where} gave {found!r}, expected a number, or {{"valid": ..., "test": ...}}')


class _Record:
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


class _Scheduled:
    """Learning rates by a schedule; nothing where it is constant."""

    def __init__(self, schedule: Schedule, optimizer: Any, steps: int) -> None:
        self.schedule, self.steps, self.step = schedule, steps, 0
        rates = [(group, group["lr"]) for group in optimizer.param_groups if "lr" in group]
        self.rates = [] if schedule == Schedule() else rates

    def next(self) -> None:
        """Set the rates of the coming step."""
        for group, rate in self.rates:
            group["lr"] = rate * self.schedule.factor(self.step, self.steps)
        self.step += 1


def _needs_closure(optimizer: Any) -> bool:
    try:
        closure = inspect.signature(optimizer.step).parameters.get("closure")
    except (ValueError, TypeError):
        return False
    return closure is not None and closure.default is closure.empty


# -- pieces ------------------------------------------------------------------------------------------------------------


class PiecesTask:
    """``build``, ``batches``, ``loss`` and ``evaluate`` of a module: the lab trains."""

    whole_loop = False

    def __init__(self, module: ModuleType) -> None:
        self.module = module

    def run(self, order: Order) -> Result:
        """Build, then epochs of steps, each followed by an evaluation; one before the first step."""
        if order.device.startswith("cuda"):
            torch.cuda.reset_peak_memory_stats()
        record = _Record(order.direction)
        model = self._model(order)
        initial = self._scores(model, None, order, -1)
        optimizer = self._optimizer(model, order)
        step: _Step | None = None
        times: list[float] = []
        steps = 0
        for epoch in range(order.epochs):
            # A model may be left in another mode by the evaluation; an optimizer that was never in its own must be told.
            self._to_train(model, optimizer)
            reseed(order.seed, "epoch", epoch)
            batches: Any = self.module.batches(order.seed, epoch)
            if step is None:
                batches = batches if hasattr(batches, "__len__") else list(batches)
                step = _Step(self.module, model, optimizer, order, len(batches))
            clock = StepClock(order.device.startswith("cuda"))
            losses = [
                step(batch, clock if WARM_UP <= index < TIMED else None)
                for index, batch in enumerate(_moved(batches, order.device))
            ]
            if not losses:
                raise ValueError(f"batches(seed, {epoch}) gave no batch")
            steps += len(losses)
            times += clock.seconds() if len(times) < TIMED else []
            train_loss = torch.stack(losses).double().mean().item()
            if not record.add(*self._scores(model, optimizer, order, epoch), train_loss=train_loss):
                break
        summary: dict[str, Any] = {"initial_valid": initial[0], "initial_test": initial[1], "steps": steps}
        if times:
            summary["step_ms"] = 1000 * median(times)
        return record.result(order.device, **summary)

    def rehearse(self, order: Order) -> float:
        """From the building, an evaluation, a pass over the batches and three steps."""
        begin = time.perf_counter()
        model = self._model(order)
        self._scores(model, None, order, -1)
        optimizer = self._optimizer(model, order)
        built = time.perf_counter()
        self._scores(model, optimizer, order, 0)
        evaluation = time.perf_counter() - built
        self._to_train(model, optimizer)
        begun = time.perf_counter()
        reseed(order.seed, "epoch", 0)
        batches: list[Any] = list(_moved(self.module.batches(order.seed, 0), order.device))
        if not batches:
            raise ValueError("batches(seed, 0) gave no batch")
        gathered = time.perf_counter()
        step = _Step(self.module, model, optimizer, order, len(batches))
        times = [gathered]
        for batch in (batches * WARM_UP)[:WARM_UP]:
            step(batch)
            if order.device.startswith("cuda"):
                torch.cuda.synchronize()
            times.append(time.perf_counter())
        fastest = min(after - before for before, after in pairwise(times))
        return built - begin + order.epochs * (evaluation + gathered - begun + len(batches) * fastest)

    def _model(self, order: Order) -> Any:
        reseed(order.seed, "init")
        model = self.module.build(order.seed)
        if order.device != "cpu" and hasattr(model, "to"):
            model = model.to(order.device)
        if isinstance(model, nn.Module):
            compile_if_asked(model)
        return model

    def _optimizer(self, model: Any, order: Order) -> Any:
        parameters = getattr(self.module, "parameters", None)
        return order.maker.build(parameters(model) if callable(parameters) else model.parameters(), order.values)

    def _scores(self, model: Any, optimizer: Any, order: Order, epoch: int) -> tuple[float, float]:
        if isinstance(model, nn.Module):
            model.eval()
        reseed(order.seed, "evaluation", epoch)
        with learnt(optimizer):
            return scores_of(self.module.evaluate(model), "evaluate(model)")

    @staticmethod
    def _to_train(model: Any, optimizer: Any) -> None:
        for thing in (model, optimizer):
            if callable(getattr(thing, "train", None)):
                thing.train()


class _Step:
    """One step of training after the other."""

    def __init__(self, module: ModuleType, model: Any, optimizer: Any, order: Order, in_epoch: int) -> None:
        self.module, self.model, self.optimizer = module, model, optimizer
        self.scheduled = _Scheduled(order.schedule, optimizer, order.epochs * in_epoch)
        self.needs_closure = _needs_closure(optimizer)

    def __call__(self, batch: Any, clock: StepClock | None = None) -> Tensor:
        """Take a step; its loss. ``clock`` times the optimizer's part."""
        self.scheduled.next()
        if self.needs_closure:
            return torch.as_tensor(self.optimizer.step(lambda: self._gradient(batch))).detach().reshape(())
        loss = self._gradient(batch)
        if clock is not None:
            clock.start()
        self.optimizer.step()
        if clock is not None:
            clock.stop()
        return loss.detach().reshape(())

    def _gradient(self, batch: Any) -> Tensor:
        self.optimizer.zero_grad()
        loss: Tensor = self.module.loss(self.model, batch)
        loss.backward()  # type: ignore[no-untyped-call]
        return loss


def _moved(batches: Iterable[Any], device: str) -> Iterable[Any]:
    return batches if device == "cpu" else (_to(batch, device) for batch in batches)


def _to(value: Any, device: str) -> Any:
    """A batch on a device: tensors, in whatever lists, tuples and dicts they stand."""
    if hasattr(value, "to"):
        return value.to(device)
    if isinstance(value, Mapping):
        return {name: _to(item, device) for name, item in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(_to(item, device) for item in value))
    if isinstance(value, (list, tuple)):
        return type(value)(_to(item, device) for item in value)
    return value


# -- a whole loop ------------------------------------------------------------------------------------------------------


class LoopTask:
    """``train(make_optimizer, seed, epochs, report)`` of a module: the loop is its own."""

    whole_loop = True

    def __init__(self, module: ModuleType) -> None:
        self.module = module

    def run(self, order: Order) -> Result:
        """Call it, and take what it reports."""
        record = _Record(order.direction)

        def make_optimizer(params: Any) -> Any:
            optimizer = order.maker.build(params, order.values)
            return made_still(optimizer) if order.still else optimizer

        def report(both: Any = None, *, valid: Any = None, test: Any = None) -> None:
            given = both if valid is None else {"valid": valid, "test": valid if test is None else test}
            record.add(*scores_of(given, "report"))

        if order.device.startswith("cuda"):
            torch.cuda.reset_peak_memory_stats()
        reseed(order.seed, "loop")
        self.module.train(make_optimizer, order.seed, order.epochs, report)
        if not record.curves["valid"]:
            raise ValueError(f"{LOOP}() has ended and never called report(valid=..., test=...)")
        return record.result(order.device)

    def rehearse(self, order: Order) -> float:
        """From one epoch."""
        begin = time.perf_counter()
        self.run(Order(order.maker, order.values, order.seed, 1, order.direction, order.device))
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

    def run(self, order: Order) -> Result:
        """Train as `critgrad train` does, with the arm's optimizer."""
        return self._train(order, {"epochs": order.epochs})

    def _train(self, order: Order, settings: Mapping[str, Any]) -> Result:
        trial = Trial(self.name, order.maker.text, seed=order.seed, settings={**self.settings, **settings})
        scheduled: list[_Scheduled] = []

        def make(params: Iterable[nn.Parameter], steps: int) -> Any:
            optimizer = order.maker.build(params, order.values)
            scheduled.append(_Scheduled(order.schedule, optimizer, steps))
            scheduled[0].next()
            return optimizer

        # A recorded step would keep the learning rate that it was recorded with.
        after: Callable[[Any], None] | None = None if order.schedule == Schedule() else lambda _: scheduled[0].next()
        begin = time.perf_counter()
        result = lab_loop.train(
            trial,
            device=order.device,
            make_optimizer=make,
            on_step=after,
            graph=may_be_captured if after is None else False,
        )
        result.summary["run_seconds"] = time.perf_counter() - begin
        return result

    def rehearse(self, order: Order) -> float:
        """From some steps and two evaluations."""
        short = {"epochs": 1, "epoch_steps": REHEARSED_STEPS}
        self._train(order, short)  # data, kernels
        summary = self._train(order, short).summary
        settings = tuple((k, tuple(v) if isinstance(v, list) else v) for k, v in self.settings.items())
        problem = lab_loop.cached_problem(self.name, settings, order.device)
        step = summary["train_seconds"] / summary["steps"]
        around = (summary["run_seconds"] - summary["train_seconds"]) / 2
        return around + order.epochs * (around + problem.steps * step)
