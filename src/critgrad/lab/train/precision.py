"""TF32: whether float32 products on a GPU may be made of operands rounded to 10 bits; a task's setting ``tf32``.

Not given, torch's own defaults stay: convolutions and recurrent layers may, matrix products may not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

import torch

from ..run.spec import Trial
from ..tasks import task_of

P = ParamSpec("P")
R = TypeVar("R")
Work = TypeVar("Work", Trial, Sequence[Trial])


@contextmanager
def tf32_allowed(allowed: bool | None, device: str) -> Iterator[None]:
    """Allow or forbid TF32 for a while; ``None``, or another device than a GPU: nothing changes."""
    if allowed is None or not device.startswith("cuda"):
        yield
        return
    cudnn: Any = torch.backends.cudnn
    kept = {name: getattr(cudnn, name) for name in ("enabled", "benchmark", "benchmark_limit", "deterministic")}
    before = torch.backends.cuda.matmul.allow_tf32
    try:
        torch.backends.cuda.matmul.allow_tf32 = allowed
        with cudnn.flags(**kept, allow_tf32=allowed):  # assigning it may be forbidden (torch's own test tools do that)
            yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


def at_its_precision(run: Callable[Concatenate[Work, P], R]) -> Callable[Concatenate[Work, P], R]:
    """An engine that runs a trial, or trials with the same settings, as their setting ``tf32`` says."""

    @wraps(run)
    def wrapped(work: Work, *args: P.args, **kwargs: P.kwargs) -> R:
        trial = work if isinstance(work, Trial) else next(iter(work), None)
        allowed = None if trial is None or "tf32" not in trial.settings else task_of(trial.task, trial.settings).tf32
        with tf32_allowed(allowed, str(kwargs.get("device", "cpu"))):
            return run(work, *args, **kwargs)

    return wrapped
