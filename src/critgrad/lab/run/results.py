"""What a trial gives: curves with one value per epoch, a summary, and where it came from."""

from __future__ import annotations

import json
import platform
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
import torch

from critgrad._version import __version__


@dataclass
class Result:
    """The outcome of one trial.

    ``curves``, one row per epoch: ``train_loss`` (mean over the epoch's steps), ``valid_loss``, ``valid``, ``test`` (the
    task's metric), ``seconds`` (of training so far, without evaluation; absent in bank rows), and what the probes
    recorded: ``ages`` ``(epochs, topC)`` with 0 for a free slot, ``g_norm``, ``gc_norm``, ``accepted``, ``span_share``,
    ``damped_ratio``, ``spectrum`` ``(epochs, topC)``, ``update_rms``; ``decisions`` has one value per *step*: the slot
    written, or -1.

    ``summary``: ``best_epoch`` (from 1, by validation), ``valid``, ``valid_loss`` and ``test`` there,
    ``final_train_loss``, ``initial_valid`` (before the first step), ``diverged``, ``epochs``, ``steps``, ``parameters``,
    ``data_sha256``, ``data_state`` (whole, part or synthetic), ``weights`` (random or pretrained), and from single runs
    ``step_ms`` (median time of ``optimizer.step``), ``step_ms_low`` and ``step_ms_high`` (quartiles), ``train_seconds``,
    ``peak_bytes`` (of the process) and ``run_bytes`` (without what it held before: data, other runs). A diverged run has
    the task's worst value as ``valid`` and ``test``.
    """

    curves: dict[str, np.ndarray] = field(default_factory=dict)
    summary: dict[str, Any] = field(default_factory=dict)
    provenance: dict[str, Any] = field(default_factory=dict)


def loss_at_best(summary: Mapping[str, Any], curves: Mapping[str, np.ndarray]) -> float:
    """The validation loss at the epoch whose metric counts, by which ties are broken: infinite where a run has none.

    Runs of earlier versions have it in their curves alone.
    """
    if "valid_loss" in summary:
        loss = summary["valid_loss"]
    else:
        epoch, curve = summary.get("best_epoch"), curves.get("valid_loss")
        loss = curve[epoch - 1] if epoch and curve is not None else None
    return float("inf") if loss is None or not np.isfinite(loss) else float(loss)


def loss_is_known(summary: Mapping[str, Any], curves: Mapping[str, np.ndarray]) -> bool:
    """Whether ``loss_at_best`` says what the run had. A diverged run had none, and that is known; runs that were published
    without their curves before summaries kept the loss have lost it.
    """
    return bool(summary.get("diverged")) or bool(np.isfinite(loss_at_best(summary, curves)))


@lru_cache(maxsize=4)
def _machine(device: str) -> tuple[tuple[str, Any], ...]:
    accelerator = torch.cuda.get_device_name(device) if device.startswith("cuda") else None
    return (
        ("critgrad", __version__),
        ("python", platform.python_version()),
        ("torch", torch.__version__),
        ("numpy", np.__version__),
        ("platform", f"{platform.system()} {platform.machine()}"),
        ("cpu", _cpu_name()),
        ("accelerator", accelerator),
    )


def provenance(device: str, command: list[str] | None = None) -> dict[str, Any]:
    """Versions, hardware, thread count and command of the process that trains."""
    return {
        **dict(_machine(device)),
        "device": device,
        "threads": torch.get_num_threads(),
        "command": command if command is not None else [*map(str, sys.argv)],  # somebody's code may put paths there
    }


def _cpu_name() -> str:
    try:
        with open("/proc/cpuinfo") as file:
            for line in file:
                if line.startswith("model name"):
                    return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or "unknown"


def plain(value: Any) -> Any:
    """Numbers of numpy as Python's, tuples as lists, what JSON cannot hold as ``None``."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and not np.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return value


def dumps(values: Mapping[str, Any]) -> str:
    """JSON of a summary or a provenance; numpy scalars become numbers, what is not finite becomes null."""
    try:  # a tenth of the price, where all numbers are finite
        return json.dumps(values, sort_keys=True, allow_nan=False, default=_item)
    except (ValueError, TypeError):
        return json.dumps(plain(values), sort_keys=True)


def _item(value: Any) -> Any:
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"{value!r} is no plain value")
