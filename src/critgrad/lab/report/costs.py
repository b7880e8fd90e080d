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


def epoch_seconds(rows: Sequence[Row]) -> float | None:
    """Training time of an epoch."""
    known = [
        float(row.summary["train_seconds"]) / row.summary["epochs"]
        for row in rows
        if row.summary.get("train_seconds") and row.summary.get("epochs") and not row.summary.get("diverged")
    ]
    return float(np.median(known)) if known else None


@dataclass(frozen=True)
class ArmCost:
    """What an arm costs, where that was measured."""

    step_ms: float | None
    step_range: tuple[float, float] | None  # its quartiles
    to_base: float | None  # a step's time, in times of the base's
    epoch_seconds: float | None
    peak_bytes: int | None  # the most that any of the runs took on the accelerator, beside its data


def cost_of(rows: Sequence[Row], base: Sequence[Row] = ()) -> ArmCost:
    """From an arm's own runs, and its base's."""
    step, low, high = (median_of(rows, name) for name in ("step_ms", "step_ms_low", "step_ms_high"))
    of_base = median_of(base, "step_ms")
    ratio = step / of_base if step and of_base else None
    peak = max((int(row.summary["run_bytes"]) for row in rows if row.summary.get("run_bytes")), default=None)
    return ArmCost(step, None if low is None or high is None else (low, high), ratio, epoch_seconds(rows), peak)


def reached_text(found: Any) -> str:
    """Epochs to target in words."""
    if found is None:
        return ""
    text = "not reached" if found.median is None else f"{found.median:g}"
    return text if found.reached == len(found.times) else f"{text} ({found.reached}/{len(found.times)} runs)"
