"""The training loop: one trial at a time (``train``), or many small models at once (``bank``)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .loop import EpochProgress, OnEpoch, OnStep, deterministic_algorithms, problem_for, train

__all__ = ["EpochProgress", "OnEpoch", "OnStep", "deterministic_algorithms", "problem_for", "train"]


def __getattr__(name: str) -> Any:
    # At the first use: tasks draw from ``train.streams``, and the loop needs the tasks.
    if name in __all__:
        from . import loop

        return getattr(loop, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
