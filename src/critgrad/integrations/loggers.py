"""What a memory has to say, as numbers for a logger, and the loggers themselves."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from ..inspection import has_memory, inspect

Write = Callable[[dict[str, float], int], None]

# Where those who wrap an optimizer keep it: Accelerate, Lightning and Fabric, ZeroRedundancyOptimizer.
_INNER = ("optimizer", "_optimizer", "optim")


def find_memory(optimizer: Any) -> Any | None:
    """The optimizer with a memory: ``optimizer`` itself, or inside of what a framework has wrapped around it."""
    seen: list[Any] = []
    while optimizer is not None and not any(optimizer is one for one in seen):
        if has_memory(optimizer):
            return optimizer
        seen.append(optimizer)
        optimizer = next((vars(optimizer)[name] for name in _INNER if name in getattr(optimizer, "__dict__", {})), None)
    return None


def scalars(optimizer: Any) -> dict[str, float]:
    """``critgrad.inspect(optimizer).scalars()``, also for a wrapped optimizer; empty for one without a memory.

    With sharded parameters every rank must call it: the norms are sums over all ranks.

    >>> import torch, critgrad
    >>> from critgrad.integrations import scalars
    >>> sorted(scalars(critgrad.SGD_C([torch.nn.Parameter(torch.ones(3))], lr=0.1)))
    ['critical/bytes', 'critical/live', 'critical/sum_norm']
    >>> scalars(torch.optim.SGD([torch.nn.Parameter(torch.ones(3))], lr=0.1))
    {}
    """
    memory = find_memory(optimizer)
    return {} if memory is None else inspect(memory).scalars()


def log_memory(optimizer: Any, step: int, *writers: Write) -> dict[str, float]:
    """Hand the memory's numbers to some ``writers``, functions of ``(scalars, step)``, and return them.

    Call it between ``backward`` and ``zero_grad`` to have the gradient's norm among them.

    >>> import torch, critgrad
    >>> opt = critgrad.SGD_C([torch.nn.Parameter(torch.ones(3))], lr=0.1)
    >>> _ = log_memory(opt, 7, lambda scalars, step: print(step, scalars["critical/live"]))
    7 0.0
    """
    said = scalars(optimizer)
    for write in writers:
        write(said, step)
    return said


def to_tensorboard(writer: Any) -> Write:
    """A writer for ``log_memory``: a ``SummaryWriter`` (torch's or tensorboardX's), or the folder for a new one."""
    if not hasattr(writer, "add_scalar"):
        writer = importlib.import_module("torch.utils.tensorboard").SummaryWriter(str(writer))

    def write(scalars: dict[str, float], step: int) -> None:
        for name, value in scalars.items():
            writer.add_scalar(name, value, step)
        writer.flush()

    return write


def to_wandb(run: Any = None) -> Write:
    """A writer for ``log_memory``: a Weights & Biases run; the current one unless given."""
    target = importlib.import_module("wandb") if run is None else run
    return lambda scalars, step: target.log(scalars, step=step)


def to_trackio(run: Any = None) -> Write:
    """A writer for ``log_memory``: a trackio run; the current one unless given."""
    target = importlib.import_module("trackio") if run is None else run
    return lambda scalars, step: target.log(scalars, step=step)
