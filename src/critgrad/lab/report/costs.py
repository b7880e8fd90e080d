"""Times and memory of an arm, from its runs' summaries."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..ledger import Row


def median_of(rows: Sequence[Row], name: str) -> float | None:
    """The median of a number that some runs have."""
    known = [float(row.summary[name]) for row in rows if row.summary.get(name) is not None]
    return float(np.median(known)) if known else None


def quartiles(rows: Sequence[Row]) -> tuple[float, float] | None:
    """Of a step's time in ms."""
    low, high = median_of(rows, "step_ms_low"), median_of(rows, "step_ms_high")
    return None if low is None or high is None else (low, high)


def epoch_seconds(rows: Sequence[Row]) -> float | None:
    """Training time of an epoch."""
    known = [
        float(row.summary["train_seconds"]) / row.summary["epochs"]
        for row in rows
        if row.summary.get("train_seconds") and row.summary.get("epochs") and not row.summary.get("diverged")
    ]
    return float(np.median(known)) if known else None


def peak(rows: Sequence[Row]) -> int | None:
    """The most memory that any of the runs took on the accelerator, beside its data."""
    return max((int(row.summary["run_bytes"]) for row in rows if row.summary.get("run_bytes")), default=None)


@dataclass(frozen=True)
class ArmCost:
    """What an arm costs, where that was measured."""

    step_ms: float | None
    step_range: tuple[float, float] | None
    to_base: float | None  # a step's time, in times of the base's
    epoch_seconds: float | None
    peak_bytes: int | None


def cost_of(rows: Sequence[Row], base: Sequence[Row] = ()) -> ArmCost:
    """From an arm's own runs, and its base's."""
    step, of_base = median_of(rows, "step_ms"), median_of(base, "step_ms")
    ratio = step / of_base if step and of_base else None
    return ArmCost(step, quartiles(rows), ratio, epoch_seconds(rows), peak(rows))


def reached_text(found: Any) -> str:
    """Epochs to target in words."""
    if found is None:
        return ""
    text = "not reached" if found.median is None else f"{found.median:g}"
    return text if found.reached == len(found.times) else f"{text} ({found.reached}/{len(found.times)} runs)"
