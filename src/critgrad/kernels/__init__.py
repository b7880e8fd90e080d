"""Fused paths: the memory's part of a step and the base's update at once. Each is the twin of the plain one.

``kernels`` knows hardware and no policy beyond what a device must decide for itself.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from torch import Tensor
from torch.optim import Optimizer

from ..measure import settle
from .families import family_of

if TYPE_CHECKING:
    from ..critical import Critical
    from ..memory import Memory

# Takes the gradients of the parts of each memory. Whether it made the step: if not, the plain path does.
Step = Callable[[list[list[Tensor | None]]], bool]

# Options of a base that a kernel is chosen by; a change of one means choosing again.
ASKED = (
    "fused", "foreach", "capturable", "differentiable", "maximize", "amsgrad", "centered", "momentum", "dampening", "betas",
    "momentum_decay",
)  # fmt: skip


def has_one_for(base: type[Optimizer]) -> bool:
    """Whether some fused path knows this base."""
    return family_of(base) is not None


def choose(optimizer: Critical, memories: list[Memory]) -> Step | None:
    """The fused step for these memories, or ``None``: then the plain path does it."""
    # Triton takes a while to import, so only where it can be of use.
    if _triton_may_serve(memories):
        from . import triton_path

        step = triton_path.choose(optimizer, memories)
        if step is not None:
            return step
    for memory in memories:
        settle(memory)
    from . import native

    return native.choose(optimizer, memories)


def engine_of(optimizer: Critical, memories: list[Memory]) -> tuple[str, str]:
    """``(engine, why not a faster one)``: what steps these memories, and one line for those who expected another."""
    if not memories:
        return "torch", "there is no memory (topC=0)"
    from . import native

    reasons = []
    if _triton_may_serve(memories):
        from . import triton_path

        reason = triton_path.why_none(optimizer, memories)
        if reason is None:
            return "triton", "nothing is faster"
        reasons.append(reason)
    if all(memory.device.type == "cpu" for memory in memories):
        reason = native.why_none(optimizer, memories)
        if reason is None:
            return "native", "nothing is faster on a CPU"
        reasons.append(reason)
    device = memories[0].device.type
    return "torch", "; ".join(dict.fromkeys(reasons)) or f"there are no kernels for parameters on {device}"


def _triton_may_serve(memories: list[Memory]) -> bool:
    return os.environ.get("TRITON_INTERPRET") == "1" or any(memory.device.type == "cuda" for memory in memories)


def base_name(optimizer: Critical) -> str:
    """For messages."""
    base = optimizer._critical_base
    return "an optimizer that is wrapped" if base is Optimizer else base.__name__


def groups_of(optimizer: Critical) -> dict[Tensor, dict[str, Any]]:
    """The group of each parameter."""
    return {p: group for group in optimizer.param_groups for p in group["params"]}


class Tables(Protocol):
    """What a path keeps of a memory: addresses, mostly."""

    def fits(self) -> bool:
        """Whether everything still lies where they say."""


T = TypeVar("T", bound=Tables)


def follow(
    optimizer: Critical,
    memories: list[Memory],
    made: list[T],
    make: Callable[[Memory], T],
    supports: Callable[[Memory], bool],
) -> bool:
    """Make tables anew where something has moved since they were made. Whether their path can go on.

    It cannot where a parameter lies in another order now: the memory follows in the next step, the plain path makes this one.
    """
    if all(one.fits() for one in made):
        return True
    if all(map(supports, memories)):
        made[:] = map(make, memories)
        return True
    optimizer._critical_plan = None
    for memory in memories:
        settle(memory)
    return False
