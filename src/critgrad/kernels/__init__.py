"""Fused paths: the memory's part of a step and the base's update at once. Each is the twin of the plain one.

``kernels`` knows hardware and no policy beyond what a device must decide for itself.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from torch import Tensor
from torch.optim import Optimizer

from .families import family_of

if TYPE_CHECKING:
    from ..critical import Critical
    from ..memory import Memory

# Takes the gradients of the parts of each memory.
Step = Callable[[list[list[Tensor | None]]], None]

# Options of a base that a kernel is chosen by; a change of one means choosing again.
ASKED = ("fused", "foreach", "differentiable", "amsgrad", "centered", "momentum", "dampening", "betas", "maximize")


def has_one_for(base: type[Optimizer]) -> bool:
    """Whether some fused path knows this base."""
    return family_of(base) is not None


def choose(optimizer: Critical, memories: list[Memory]) -> Step | None:
    """The fused step for these memories, or ``None``: then the plain path does it."""
    from . import native, triton_path

    return triton_path.choose(optimizer, memories) or native.choose(optimizer, memories)
