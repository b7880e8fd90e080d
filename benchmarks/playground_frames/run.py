"""One run of one optimizer on one surface, with everything the page shows written down before each step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

import critgrad

from .optimizers import PlaygroundOptimizer
from .surfaces import Surface

Array = NDArray[np.float64]

FRAMES = 121  # of a full run: the start and 120 steps
REACH = 2.0  # a run ends when it is this many half-widths away from the centre of the picture


@dataclass(frozen=True)
class SurfaceRun:
    """Frame ``t`` is the moment of step ``t``, before it is made: the memory is the one that the direction is made from.

    A run that diverges has fewer frames. ``priority`` and ``age`` have a column for each slot; an age of 0 marks a free
    slot. The gradient in a slot of age ``a`` is that of frame ``t - a``: it is not written down twice.
    """

    position: Array  # (frames, 2)
    loss: Array  # (frames,), without the noise
    gradient: Array  # (frames, 2), raw
    direction: Array  # (frames, 2), handed to the base optimizer
    priority: Array  # (frames, topC)
    age: NDArray[np.int64]  # (frames, topC)


def simulate(
    surface: Surface, optimizer: PlaygroundOptimizer, lr: float, topC: int, decay: float, frames: int = FRAMES
) -> SurfaceRun:
    """Run ``optimizer`` on ``surface`` in float64. ``topC`` and ``decay`` mean nothing to one without a memory."""
    param = torch.nn.Parameter(torch.tensor(surface.start, dtype=torch.float64))
    directions: list[list[float]] = []

    def on_base_step(_optimizer: torch.optim.Optimizer, _args: Any, _kwargs: Any) -> None:
        assert param.grad is not None
        directions.append(param.grad.tolist())

    opt = optimizer.make(param, lr, topC, decay, on_base_step)
    slots = 0 if optimizer.memory is None else topC
    noises = surface.noises(frames)
    positions, losses, gradients = [], [], []
    priority, age = np.zeros((frames, slots)), np.zeros((frames, slots), dtype=np.int64)
    for t in range(frames):
        position = param.tolist()
        # Written so that a coordinate that is not a number counts as far away, too.
        if not all(abs(v - c) <= REACH * surface.half_width for v, c in zip(position, surface.center)):
            break
        opt.zero_grad()
        loss = surface.loss(param[0], param[1])
        (loss + param @ noises[t]).backward()
        assert param.grad is not None
        positions.append(position)
        losses.append(loss.item())
        gradients.append(param.grad.tolist())
        if slots and t:  # before the first step there is nothing to look into
            memory = critgrad.inspect(opt).memories[0]
            priority[t, memory.slots] = memory.priorities
            age[t, memory.slots] = memory.ages
        opt.step()
    count = len(positions)
    return SurfaceRun(
        np.array(positions),
        np.array(losses),
        np.array(gradients),
        np.array(directions),
        priority[:count],
        age[:count],
    )
