"""A task in pieces: ``build``, ``batches``, ``loss`` and ``evaluate`` of somebody's module. The lab trains."""

from __future__ import annotations

import inspect
import time
from collections.abc import Iterable, Mapping
from itertools import pairwise
from statistics import median
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from ..run.results import Result
from ..train.bases import learnt
from ..train.compiling import compile_if_asked
from ..train.loop import StepClock
from ..train.schedule import Scheduled
from .guard import reseed
from .task import Order, Reports, scores_of

WARM_UP, TIMED = 3, 200  # steps


class PiecesTask:
    """``build``, ``batches``, ``loss`` and ``evaluate`` of a module: the lab trains."""

    whole_loop = False

    def __init__(self, module: ModuleType) -> None:
        self.module = module

    def run(self, order: Order) -> Result:
        """Build, then epochs of steps, each followed by an evaluation; one before the first step."""
        if order.device.startswith("cuda"):
            torch.cuda.reset_peak_memory_stats()
        record = Reports(order.direction)
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
        schedule = order.schedule
        self.scheduled = Scheduled(optimizer, schedule.kind, schedule.warmup, order.epochs * in_epoch)
        self.taken = 0
        self.needs_closure = _needs_closure(optimizer)

    def __call__(self, batch: Any, clock: StepClock | None = None) -> Tensor:
        """Take a step; its loss. ``clock`` times the optimizer's part."""
        self.scheduled.before(self.taken)
        self.taken += 1
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
        if loss.numel() != 1:
            raise ValueError(f"loss() gave a tensor of shape {tuple(loss.shape)}, expected a scalar")
        loss.backward()
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


def _needs_closure(optimizer: Any) -> bool:
    try:
        closure = inspect.signature(optimizer.step).parameters.get("closure")
    except (ValueError, TypeError):
        return False
    return closure is not None and closure.default is closure.empty
