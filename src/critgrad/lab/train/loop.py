"""The single engine: one trial, one model, one optimizer, as a user would write the loop.

NOTE [epoch boundaries]: every random stream is keyed by the epoch as well as the seed, and recurrent states start anew
with each epoch. A checkpoint at an epoch boundary therefore needs no generator's state, and a killed and resumed run
gives the very numbers of one that was left alone.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

import critgrad

from ..errors import LabError
from ..replacing import replacing
from ..run.results import Result, provenance
from ..run.spec import Trial
from ..tasks import Problem, problem_of
from .bases import learnt
from .capture import Carry, Graphs, gradients, recordable, recorder_for, set_capturable
from .compiling import compile_if_asked
from .optimizers import build, donor_of, recipe_of
from .precision import at_its_precision
from .probes import Probes
from .schedule import Scheduled
from .streams import global_stream

TIMED_STEPS = 200
WARM_UP_STEPS = 20
EAGER_STEPS = WARM_UP_STEPS + TIMED_STEPS  # what is timed is the optimizer by itself, so never a captured step


@dataclass
class EpochProgress:
    """What a callback is told after each epoch."""

    epoch: int
    epochs: int
    train_loss: float
    valid: float
    test: float
    optimizer: torch.optim.Optimizer


OnEpoch = Callable[[EpochProgress], None]
MakeOptimizer = Callable[[Iterable[Any]], torch.optim.Optimizer]  # of parameters, or of groups where the task has them
OnStep = Callable[[torch.optim.Optimizer], None]  # after a step, with its gradient still in place


@dataclass
class _State:
    """A run between two epochs."""

    epoch: int = 0
    diverged: bool = False
    steps: int = 0
    curves: dict[str, list[Any]] = field(default_factory=dict)
    seconds: float = 0.0
    step_times: list[float] = field(default_factory=list)
    initial_valid: float = math.nan
    initial_test: float = math.nan
    peak_bytes: int = 0
    run_bytes: int = 0


@lru_cache(maxsize=4)
def cached_problem(task: str, settings: tuple[tuple[str, Any], ...], device: str) -> Problem:
    """A problem with its data on the device, kept for the process's next trials."""
    return problem_of(task, dict(settings), torch.device(device))


def problem_for(trial: Trial, device: str) -> Problem:
    """The problem of a trial."""
    settings = tuple((k, tuple(v) if isinstance(v, list) else v) for k, v in trial.settings.items())
    return cached_problem(trial.task, settings, device)


def new_model(problem: Problem, seed: int) -> nn.Module:
    """A model whose weights are drawn from the seed's own stream."""
    with global_stream(seed, "init"):
        return problem.build()


@at_its_precision
def train(
    trial: Trial,
    *,
    device: str = "cpu",
    checkpoint: Path | None = None,
    on_epoch: OnEpoch | None = None,
    on_step: OnStep | None = None,
    stop_after: int | None = None,
    graph: bool = True,
    saving_share: float = math.inf,
    make_optimizer: MakeOptimizer | None = None,
) -> Result:
    """Run a trial to its end, from its checkpoint if there is one.

    ``graph``: on CUDA, capture a whole step as a CUDA graph once the timed steps are done, and replay it (the gradient alone
    where the rate has a schedule, or the optimizer is not known to stand it); provenance says whether that worked.
    ``CRITGRAD_GRAPH=0`` in the environment forbids it, too.

    ``checkpoint`` is written after each epoch, or with ``saving_share`` after so many that it takes no more than this share
    of the time: with ten slots it is twelve times the model, and epochs may be short. After the first and the last always,
    unless it is so large that to write it takes longer than to run all that it would save.

    ``stop_after`` ends this call after so many epochs in all, leaving a checkpoint; the result is then that of the
    epochs so far, and the same call without it goes on from there.

    ``make_optimizer`` makes another optimizer than the one that the trial names. Weight decay is then its own business.
    """
    problem = problem_for(trial, device)
    task = problem.task
    cuda = problem.device.type == "cuda"
    held = torch.cuda.memory_allocated() if cuda else 0  # the data, and what runs before this one have left
    model = new_model(problem, trial.seed)
    compiled = compile_if_asked(model)
    if make_optimizer is not None:
        optimizer = make_optimizer(problem.groups(model))
    else:
        optimizer = build(trial, problem.groups(model), task.weight_decay, _replayed(trial, device, graph))
    scheduled = Scheduled(optimizer, task.schedule, task.warmup, task.epochs * problem.steps)
    state = _State()
    if checkpoint is not None and checkpoint.exists():
        _restore(checkpoint, trial, model, optimizer, state)
    probes = Probes(trial.probe, optimizer, state.steps)
    graph = graph and os.environ.get("CRITGRAD_GRAPH") != "0" and not _looks_inside(probes)
    whole = recordable(optimizer) and not scheduled.active
    graphs = Graphs(problem, model, optimizer, recorder_for(problem.device) if graph else None, whole)
    # A checkpoint of a run with graphs says capturable=True, which is right for such a run only.
    saved = any(group.get("capturable") for group in optimizer.param_groups)
    set_capturable(optimizer, saved and whole and graphs.recorder is not None)
    if cuda:
        torch.cuda.reset_peak_memory_stats()
    if state.epoch == 0 and not state.curves:
        _, state.initial_valid, state.initial_test = _evaluate(problem, model, optimizer)

    last = task.epochs if stop_after is None else min(stop_after, task.epochs)
    begun = time.perf_counter()
    saved_at = saving = 0.0
    while state.epoch < last and not state.diverged:
        train_loss = _epoch(problem, model, optimizer, trial.seed, state, probes, graphs, scheduled, on_step)
        if cuda:
            peak = torch.cuda.max_memory_allocated()
            state.peak_bytes, state.run_bytes = max(state.peak_bytes, peak), max(state.run_bytes, peak - held)
        valid_loss, valid, test = _evaluate(problem, model, optimizer)
        state.epoch += 1
        recorded = probes.epoch()
        if not (math.isfinite(train_loss) and math.isfinite(valid_loss)):
            state.diverged = True
            # No curve gets a row for this epoch; the steps' decisions are kept, for a yoked run replays them.
            recorded = {name: value for name, value in recorded.items() if name == "decisions"}
        else:
            row = {"train_loss": train_loss, "valid_loss": valid_loss, "valid": valid, "test": test}
            recorded = {**row, "seconds": state.seconds, **recorded}
        for name, value in recorded.items():
            state.curves.setdefault(name, []).append(value)
        over = state.epoch >= last or state.diverged
        now = time.perf_counter()
        # A caller that stops in the middle goes on from what is left here; all others can do without.
        needed = over and state.epoch < task.epochs and not state.diverged
        due = over or saving_share * (now - saved_at) >= saving
        worth = needed or _seconds_to_save(model, optimizer) <= max(1.0, saving_share) * (now - begun)
        if checkpoint is not None and due and worth:
            _save(checkpoint, trial, model, optimizer, state)
            saved_at = time.perf_counter()
            saving = saved_at - now
        if on_epoch is not None:
            on_epoch(EpochProgress(state.epoch, task.epochs, train_loss, valid, test, optimizer))
    kernels = any(getattr(layer, "by_kernels", False) for layer in model.modules())
    rare = {"lstm": "kernels" if kernels else None, "compiled": compiled or None, "graph_warning": graphs.warning}
    said = {name: value for name, value in rare.items() if value is not None}
    return _result(problem, model, state, {**provenance(device), "graph": graphs.replayed > 0, **said})


def _epoch(
    problem: Problem,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    seed: int,
    state: _State,
    probes: Probes,
    graphs: Graphs,
    scheduled: Scheduled,
    on_step: OnStep | None,
) -> float:
    """One pass over the training data; the mean of its losses."""
    epoch = state.epoch + 1
    cuda = problem.device.type == "cuda"
    plan, noise = problem.plan(seed, epoch), problem.noise(seed, epoch)
    losses: list[torch.Tensor] = []
    carry: Carry = None
    clock = StepClock(cuda)
    eager_steps, timed_steps = _eager_steps(graphs)
    parameters = [p for p in model.parameters() if p.requires_grad]
    model.train()
    if cuda:
        torch.cuda.synchronize()
    begin = time.perf_counter()
    # Layers that drop units by themselves draw from the global generator: nobody else does during a step.
    with global_stream(seed, "dropout", epoch):
        for step, batch in enumerate(problem.batches(plan)):
            keep = None if noise is None else noise[step]
            recorded = graphs.find(batch, keep, carry) if state.steps >= eager_steps else None
            scheduled.before(state.steps)
            if recorded is not None and graphs.whole:
                probes.before_step()
                loss, carry = graphs.take(recorded, batch, keep, carry)
            else:
                if recorded is None:
                    loss, carry = gradients(problem, model, parameters, batch, keep, carry)
                else:
                    loss, carry = graphs.take(recorded, batch, keep, carry)
                probes.before_step()
                timed = WARM_UP_STEPS <= state.steps < timed_steps
                if timed:
                    clock.start()
                optimizer.step()
                if timed:
                    clock.stop()
            probes.after_step()
            if on_step is not None:
                on_step(optimizer)
            losses.append(loss)
            state.steps += 1
    mean_loss = torch.stack(losses).double().mean().item()  # waits for the device
    state.seconds += time.perf_counter() - begin
    state.step_times += clock.seconds()
    return mean_loss


def _eager_steps(graphs: Graphs) -> tuple[int, int]:
    """Steps before a capture, and those before the last timed one; beside other processes on one GPU (MPS) a time says nothing.

    Where the optimizer steps by itself after the capture, too, it can be timed then.
    """
    shared = graphs.recorder is not None and "CUDA_MPS_PIPE_DIRECTORY" in os.environ
    timed = min(WARM_UP_STEPS, EAGER_STEPS) if shared else EAGER_STEPS
    return (timed if graphs.whole else min(WARM_UP_STEPS, timed)), timed


class StepClock:
    """Times single steps; on a GPU by events, so that nothing waits for it during the epoch."""

    def __init__(self, cuda: bool) -> None:
        self.cuda = cuda
        self.marks: list[tuple[Any, Any]] = []

    def start(self) -> None:
        self.begin = self._mark()

    def stop(self) -> None:
        self.marks.append((self.begin, self._mark()))

    def _mark(self) -> Any:
        if not self.cuda:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def seconds(self) -> list[float]:
        if self.cuda:
            torch.cuda.synchronize()
            return [begin.elapsed_time(end) / 1000 for begin, end in self.marks]
        return [end - begin for begin, end in self.marks]


def _looks_inside(probes: Probes) -> bool:
    """Whether a probe looks at the gradient between ``backward`` and the optimizer's step: no place of a replayed step."""
    return probes.memory is not None and "damping" in probes.names


def _evaluate(problem: Problem, model: nn.Module, optimizer: torch.optim.Optimizer) -> tuple[float, float, float]:
    """Validation loss, validation metric, test metric."""
    model.eval()
    with learnt(optimizer):
        chosen = problem.evaluate(model, problem.select_on)
        if problem.report_on == problem.select_on:
            return chosen.loss, chosen.metric, chosen.metric
        return chosen.loss, chosen.metric, problem.evaluate(model, problem.report_on).metric


def _replayed(trial: Trial, device: str, graph: bool) -> critgrad.Policy | None:
    """For the yoked control: the decisions of the donor, which is this trial with another seed."""
    if "donor_seed" not in trial.hyper:
        return None
    if not recipe_of(trial.optimizer).has_memory:
        raise LabError(f"Invalid donor_seed for {trial.optimizer}: it has no memory whose decisions could be replayed")
    donor = donor_of(trial).replace(probe=("decisions",))
    decisions = train(donor, device=device, graph=graph).curves["decisions"]
    return critgrad.Replay([None if slot < 0 else int(slot) for slot in decisions])


def best_epoch(metric_is_higher: bool, valid: list[float], valid_loss: list[float]) -> int:
    """The epoch (from 0) of the best validation metric; of equal ones that of the lowest validation loss."""
    sign = 1 if metric_is_higher else -1
    return max(range(len(valid)), key=lambda e: (sign * valid[e], -valid_loss[e]))


def summarise(problem: Problem, curves: dict[str, Any], diverged: bool, initial_valid: float) -> dict[str, Any]:
    """What both engines say about a finished run."""
    summary: dict[str, Any] = {
        "diverged": diverged,
        "initial_valid": initial_valid,
        "epochs": len(curves.get("valid", ())),
        "metric": problem.task.metric.name,
        "higher_is_better": problem.task.metric.higher_is_better,
        "worst": problem.worst,
        "data_sha256": problem.data.sha256,
        "data_state": problem.data.state,
        **problem.details(),
    }
    if diverged or not summary["epochs"]:
        worst = {"valid": problem.worst, "test": problem.worst}
        return {**summary, **worst, "best_epoch": None, "final_train_loss": math.nan}
    e = best_epoch(problem.task.metric.higher_is_better, list(curves["valid"]), list(curves["valid_loss"]))
    # The loss decides between points of equal accuracy, also where a run is published without its curves.
    values = {name: float(curves[name][e]) for name in ("valid", "valid_loss", "test")}
    return {**summary, **values, "best_epoch": e + 1, "final_train_loss": float(curves["train_loss"][-1])}


def _result(problem: Problem, model: nn.Module, state: _State, origin: dict[str, Any]) -> Result:
    curves = {name: np.asarray(values) for name, values in state.curves.items() if name != "decisions"}
    if "decisions" in state.curves:
        curves["decisions"] = np.concatenate([np.asarray(part) for part in state.curves["decisions"]])
    summary = summarise(problem, curves, state.diverged, state.initial_valid)
    summary |= {
        "initial_test": state.initial_test,
        "steps": state.steps,
        "parameters": sum(p.numel() for p in model.parameters() if p.requires_grad),
        "train_seconds": state.seconds,
    }
    if state.peak_bytes:
        summary |= {"peak_bytes": state.peak_bytes, "run_bytes": state.run_bytes}
    if state.step_times:
        low, middle, high = np.quantile(np.asarray(state.step_times) * 1000, (0.25, 0.5, 0.75))
        summary |= {"step_ms": float(middle), "step_ms_low": float(low), "step_ms_high": float(high)}
    return Result(curves, summary, origin)


# -- checkpoints -------------------------------------------------------------------------------------------------------


SAVED_A_SECOND = 1e9  # bytes of a checkpoint, about what a local disk takes


def _seconds_to_save(model: nn.Module, optimizer: torch.optim.Optimizer) -> float:
    """About how long a checkpoint takes: a hundred slots of RoBERTa's gradients are 50 GB."""
    kept = [*model.state_dict().values(), *(v for values in optimizer.state.values() for v in values.values())]
    return sum(value.nbytes for value in kept if isinstance(value, torch.Tensor)) / SAVED_A_SECOND


def _save(path: Path, trial: Trial, model: nn.Module, optimizer: torch.optim.Optimizer, state: _State) -> None:
    """Write a checkpoint so that a kill leaves the old one or the new one, never half of one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    values = {
        "trial": trial.key,
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "state": vars(state),
    }
    with replacing(path) as file:
        torch.save(values, file)


def _restore(path: Path, trial: Trial, model: nn.Module, optimizer: torch.optim.Optimizer, state: _State) -> None:
    values = torch.load(path, map_location="cpu", weights_only=True)
    if values["trial"] != trial.key:
        raise LabError(
            f"The checkpoint {path} is of another trial ({values['trial']}, expected {trial.key}); "
            "give the same task, optimizer, options and seed, or another file"
        )
    model.load_state_dict(values["model"])
    optimizer.load_state_dict(values["optimizer"])
    vars(state).update(values["state"])


def deterministic_algorithms(on: bool) -> None:
    """Ask torch for the same bits every time on CUDA, too (slower); on the CPU they are the same anyway."""
    if on:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(on)
