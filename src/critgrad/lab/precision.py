"""TF32: whether float32 products on a GPU may be made of operands rounded to 10 bits; a task's setting ``tf32``.

Not given, torch's own defaults stay: convolutions and recurrent layers may, matrix products may not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

import torch

from .spec import Trial
from .tasks import task_of

P = ParamSpec("P")
R = TypeVar("R")
Work = TypeVar("Work", Trial, Sequence[Trial])


@contextmanager
def tf32_allowed(allowed: bool | None, device: str) -> Iterator[None]:
    """Allow or forbid TF32 for a while; ``None``, or another device than a GPU: nothing changes."""
    if allowed is None or not device.startswith("cuda"):
        yield
        return
    places: tuple[Any, ...] = (torch.backends.cuda.matmul, torch.backends.cudnn)
    before = [place.allow_tf32 for place in places]
    try:
        for place in places:
            place.allow_tf32 = allowed
        yield
    finally:
        for place, was in zip(places, before):
            place.allow_tf32 = was


def at_its_precision(run: Callable[Concatenate[Work, P], R]) -> Callable[Concatenate[Work, P], R]:
    """An engine that runs a trial, or trials with the same settings, as their setting ``tf32`` says."""

    @wraps(run)
    def wrapped(work: Work, *args: P.args, **kwargs: P.kwargs) -> R:
        trial = work if isinstance(work, Trial) else next(iter(work), None)
        allowed = None if trial is None or "tf32" not in trial.settings else task_of(trial.task, trial.settings).tf32
        with tf32_allowed(allowed, str(kwargs.get("device", "cpu"))):
            return run(work, *args, **kwargs)

    return wrapped
