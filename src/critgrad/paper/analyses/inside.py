"""What the memory holds while training: ages, norms, and what damping does to the gradient."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any

import numpy as np

from critgrad.lab.ledger import Planned, Row

from ..protocol.arms import FAMILIES
from .base import Arm, Options, grid, planned, tuned, with_memory

STALENESS_TOPC = (5, 10, 20)
STALENESS_DECAY = (0.7, 0.9, 0.95, 0.99)
NORMS_TOPC = (5, 10, 20, 50, 100)


def staleness_trials(task: str, options: Options) -> list[Planned]:
    optimizer = with_memory("staleness", options.optimizer or "Adam_C")
    cells = product(STALENESS_TOPC, STALENESS_DECAY)
    return planned("staleness", task, options, grid(task, optimizer, cells), probe=("memory",))


def staleness(task: str, rows: Sequence[Row]) -> dict[str, Any]:
    """Histograms of the ages at the end of every epoch, over all epochs and seeds, for each topC and decay."""
    cells: dict[tuple[int, float], list[np.ndarray]] = {}
    for row in rows:
        ages = np.asarray(row.curves.get("ages", ()))  # none where the first epoch diverged
        cells.setdefault((row.trial.hyper["topC"], row.trial.hyper["decay"]), []).append(ages[ages > 0])
    out = []
    for (topC, decay), parts in sorted(cells.items()):
        ages = np.concatenate(parts)
        if not len(ages):
            continue
        counts, edges = np.histogram(np.log2(ages), bins=np.arange(0, np.ceil(np.log2(ages.max())) + 1.5))
        out.append(
            {
                "topC": topC,
                "decay": decay,
                "runs": len(parts),
                "mean": float(ages.mean()),
                "median": float(np.median(ages)),
                "max": int(ages.max()),
                "edges": (2.0**edges).tolist(),
                "share": (counts / counts.sum()).tolist(),
            }
        )
    return {"task": task, "cells": out}


def norms_trials(task: str, options: Options) -> list[Planned]:
    optimizer = with_memory("gt-vs-gc", options.optimizer or "Adam_C")
    arms: list[Arm] = [(f"topC={topC}", optimizer, tuned(task, optimizer, topC=topC), {}) for topC in NORMS_TOPC]
    return planned("gt-vs-gc", task, options, arms, probe=("memory",))


def norms(task: str, rows: Sequence[Row]) -> dict[str, Any]:
    """Mean of the stored gradients' norms, and the norm of g_t, at the end of each epoch: means over seeds."""
    lines = []
    for topC in sorted({row.trial.hyper["topC"] for row in rows}):
        members = [row for row in rows if row.trial.hyper["topC"] == topC and not row.summary["diverged"]]
        if not members:
            continue
        length = min(len(row.curves["g_norm"]) for row in members)
        stored, current = (np.stack([row.curves[of][:length] for row in members]) for of in ("gc_norm", "g_norm"))
        lines.append(
            {
                "topC": topC,
                "runs": len(members),
                "gc": stored.mean(0).tolist(),
                "gt": current.mean(0).tolist(),
                "ratio": _median(stored[current > 0] / current[current > 0]),
                "test": float(np.mean([row.summary["test"] for row in members])),
            }
        )
    return {"task": task, "lines": lines}


def _median(values: np.ndarray) -> float:
    known = values[np.isfinite(values)]
    return float(np.median(known)) if known.size else float("nan")


def damping_trials(task: str, options: Options) -> list[Planned]:
    names = [f"{family}_F" for family in FAMILIES]
    if options.optimizer:
        names = [with_memory("damping", options.optimizer, ("F",))]
    arms: list[Arm] = [(name, name, tuned(task, name), {}) for name in names]
    return planned("damping", task, options, arms, probe=("damping", "memory"))


def damping(task: str, rows: Sequence[Row]) -> dict[str, Any]:
    """Share of the gradient in the memory's span, |d| / |g|, and the Gram matrix's spectrum, over training."""
    lines = []
    for name in dict.fromkeys(row.trial.optimizer for row in rows):
        members = [row for row in rows if row.trial.optimizer == name and not row.summary["diverged"]]
        if not members:
            continue
        length = min(len(row.curves["span_share"]) for row in members)
        mean = {
            key: np.stack([row.curves[key][:length] for row in members]).mean(0)
            for key in ("span_share", "damped_ratio", "spectrum")
        }
        top = mean["spectrum"].max(1, keepdims=True)
        lines.append(
            {
                "optimizer": name,
                "runs": len(members),
                "rho": members[0].trial.hyper.get("rho"),
                "span_share": mean["span_share"].tolist(),
                "damped_ratio": mean["damped_ratio"].tolist(),
                "spectrum": (mean["spectrum"] / np.where(top > 0, top, 1)).tolist(),
            }
        )
    return {"task": task, "lines": lines}
