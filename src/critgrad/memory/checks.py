"""What users' own rules return is looked at before anything is written: an error names the rule."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .layout import on_host


def record(rules: Any, *functions: str) -> None:
    """A name and functions make a record of rules."""
    if not isinstance(rules.name, str):
        raise TypeError(f"Invalid name: {rules.name!r}, expected a string, by which a checkpoint remembers the rules")
    for field in functions:
        if not callable(getattr(rules, field)):
            raise TypeError(f"Invalid {field}: {getattr(rules, field)!r}, expected a function, of {rules.name!r}")


def returned(policy: Any, admitted: Any, slot: Any, priority: Any, like: Tensor) -> tuple[Tensor, Tensor]:
    """What ``admit`` and ``evict`` returned, if each of the three rules gave one value of its kind for each row."""
    found = {"admit": (admitted, "bool"), "evict": (slot, "int64"), "priority": (priority, "floating point")}
    for rule, (result, kind) in found.items():
        if not torch.is_tensor(result):
            raise TypeError(f"policy {policy.name!r}: {rule} returned {result!r}, expected a tensor, {kind}")
        is_bool, is_float = result.dtype == torch.bool, result.is_floating_point()
        whole = not (is_bool or is_float or result.is_complex())
        right = {"bool": is_bool, "int64": whole, "floating point": is_float}[kind]
        if not right or result.shape != like.shape or result.device != like.device:
            raise ValueError(
                f"policy {policy.name!r}: {rule} returned {result.dtype} of shape {tuple(result.shape)} on "
                f"{result.device}, expected {kind} of shape {tuple(like.shape)} on {like.device}"
            )
    return admitted, slot.long()


def in_range(policy: Any, slot: Tensor, accept: Tensor, topC: int) -> Tensor:
    """A policy's slots, clamped into the table; raises for one outside of it, where that can be seen without waiting."""
    if on_host(slot):
        wrong = slot[accept & ((slot < 0) | (slot >= topC))]
        if wrong.numel() > 0:
            raise IndexError(f"policy {policy.name!r} replaces slot {int(wrong[0])}, expected 0 <= slot < {topC}")
    return slot.clamp(0, topC - 1)


def weights_of(aggregation: Any, result: Any, gradient: Tensor, slots: Tensor) -> tuple[Tensor, Tensor]:
    """The two weights that an aggregation returned, if they are of these shapes."""
    result = result if isinstance(result, (tuple, list)) else (result,)
    wanted = tuple(gradient.shape), tuple(slots.shape)
    found = tuple(tuple(w.shape) if torch.is_tensor(w) else type(w).__name__ for w in result)
    if found != wanted:
        raise ValueError(f"aggregation {aggregation.name!r}: weights of shapes {found}, expected {wanted}")
    return result[0], result[1]


def finite(aggregation: Any, *weights: Tensor) -> None:
    """Raises for weights that would make every direction useless, where that can be seen without waiting."""
    for each in weights:
        if on_host(each) and not each.isfinite().all():
            raise ValueError(f"aggregation {aggregation.name!r}: weights {each.tolist()}, expected finite ones")
