"""How the learning rate goes over a run: warm-up, then constant, along a cosine or a line down to 0."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType

import torch

from ..errors import LabError, require_known

# What is left of the rate after a share of the steps that follow the warm-up.
KINDS: Mapping[str, Callable[[float], float]] = MappingProxyType(
    {
        "constant": lambda share: 1.0,
        "cosine": lambda share: 0.5 * (1 + math.cos(math.pi * share)),
        "linear": lambda share: 1 - share,
    }
)


def factor(kind: str, warmup: float, step: int, steps: int) -> float:
    """By what the learning rate of a step (from 0) out of ``steps`` is multiplied; ``warmup`` is a share of them all.

    No step has a rate of 0: the first has one share of the warm-up, the last what is left before the end.

    >>> [round(factor("linear", 0.5, step, 4), 2) for step in range(4)]
    [0.5, 1.0, 1.0, 0.5]
    """
    require_known(kind, KINDS, "schedule")
    if not 0 <= warmup <= 1:
        raise LabError(f"Invalid warmup: {warmup!r}, expected 0 <= warmup <= 1, a share of all steps")
    warm = round(warmup * steps)
    if step < warm:
        return (step + 1) / warm
    return KINDS[kind](min(1.0, (step - warm) / max(1, steps - warm)))


class Scheduled:
    """Sets the learning rates of an optimizer's groups before each step; of a run without schedule nothing is touched.

    ``peaks`` are the rates that it was made with. A learning rate that is a tensor stays one, and stays where it is: what was
    captured or compiled with it reads the new value.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, kind: str, warmup: float, steps: int) -> None:
        self.optimizer = optimizer
        self.plan = (kind, warmup, steps)
        self.active = (kind, warmup) != ("constant", 0.0)
        # By their places: loading a state puts new groups there.
        self.peaks = [float(group.get("lr", math.nan)) for group in optimizer.param_groups] if self.active else []
        factor(kind, warmup, 0, steps)  # says what is wrong with it

    def before(self, step: int) -> None:
        """Called before step ``step`` (from 0) of the whole run."""
        if not self.active:
            return
        kind, warmup, steps = self.plan
        share = factor(kind, warmup, step, steps)
        for group, peak in zip(self.optimizer.param_groups, self.peaks):
            if isinstance(group.get("lr"), torch.Tensor):
                group["lr"].fill_(peak * share)
            elif "lr" in group:
                group["lr"] = peak * share
