"""What it costs: time per step and epoch against topC, and bytes per parameter of every optimizer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from critgrad.lab.errors import LabError
from critgrad.lab.ledger import Planned, Row
from critgrad.lab.run.spec import Trial
from critgrad.lab.train.optimizers import OPTIMIZERS, build

from ..protocol.paper_values import RUN_TIMES
from .base import Options, by_arm, planned, tuned

TOPCS = (0, 5, 10, 20, 50, 100)
# What a memory's size is measured with, by what stands behind the optimizer's name.
MEMORIES: dict[str, dict[str, Any]] = {f" topC={topC}": {"topC": topC} for topC in (5, 20)} | {
    f" topC=5 {dtype}": {"topC": 5, "memory_dtype": dtype} for dtype in ("bfloat16", "int8")
}


def runtime_trials(task: str, options: Options) -> list[Planned]:
    if options.engine != "single":
        raise LabError("Invalid engine for runtime: 'bank', expected 'single' (bank rows carry no times)")
    if options.optimizer not in (None, "Adam", "Adam_C"):
        raise LabError(f"Invalid optimizer for runtime: {options.optimizer!r}, the paper's table has Adam and Adam_C")
    # The first epoch loads, compiles and warms up: the second is the one that is timed. Seeds are repeats, and go
    # outermost, so that a slow minute of the machine hits every topC alike.
    named = [("Adam_C", {"topC": topC}) if topC else ("Adam", {}) for topC in TOPCS]
    arms = [(f"topC={topC}", name, tuned(task, name, **of), {"epochs": 2}) for topC, (name, of) in zip(TOPCS, named)]
    found = planned("runtime", task, options, arms)
    return sorted(found, key=lambda item: item.trial.seed)


def runtime(task: str, rows: Sequence[Row]) -> dict[str, Any]:
    """Median step and epoch times for each topC, their ratio to the base, and the paper's row beside them."""
    points: list[dict[str, Any]] = []
    for arm, members in by_arm(rows, "runtime").items():
        steps = [row.summary["step_ms"] for row in members if row.summary.get("step_ms") is not None]
        points.append(
            {
                "topC": int(arm.partition("=")[2]),
                "runs": len(members),
                "step_ms": float(np.median(steps)) if steps else None,
                "epoch_seconds": float(np.median([_epoch_seconds(row) for row in members])),
                "peak_bytes": max((row.summary.get("run_bytes") or 0) for row in members) or None,
            }
        )
    points.sort(key=lambda point: point["topC"])
    base: dict[str, Any] = next((point for point in points if point["topC"] == 0), {})
    for point in points:
        for ratio, time in (("epoch_ratio", "epoch_seconds"), ("step_ratio", "step_ms")):
            point[ratio] = point[time] / base[time] if base.get(time) and point[time] is not None else None
    origin = rows[0].provenance if rows else {}
    device = origin.get("accelerator") or origin.get("cpu")
    return {"task": task, "device": device, "points": points, "paper_minutes": RUN_TIMES.get(task.split("@")[0])}


def _epoch_seconds(row: Row) -> float:
    """Of the last epoch; of all there is where a run had but one."""
    clock = row.curves.get("seconds", np.zeros(0))
    return float(clock[-1] - clock[-2]) if len(clock) > 1 else float(row.summary["train_seconds"])


def bytes_per_parameter(task: str) -> dict[str, Any]:
    """State of each optimizer after a few steps, in bytes per parameter (fp32 parameters of 4 bytes not counted)."""
    size = 65_536  # enough for the tables of a memory to be small change
    gradients = torch.Generator().manual_seed(0)  # the process's own generator is none of our business
    rows = []
    for recipe in OPTIMIZERS.values():
        for variant, hyper in (MEMORIES if recipe.has_memory else {"": {}}).items():
            weight = torch.nn.Parameter(torch.zeros(size))
            optimizer = build(Trial(task, recipe.name, {"lr": 1e-3, **hyper}), [weight])
            for _ in range(2):
                weight.grad = torch.randn(size, generator=gradients)
                optimizer.step()
            held = sum(value.nbytes for value in optimizer.state[weight].values() if isinstance(value, torch.Tensor))
            rows.append({"label": recipe.name + variant, "optimizer": recipe.name, "bytes": held / size})
    return {"task": task, "parameters": size, "rows": sorted(rows, key=lambda row: row["bytes"])}
