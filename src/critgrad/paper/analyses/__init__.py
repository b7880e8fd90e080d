"""The paper's figures as analyses: a registry of records, one per name of ``critgrad analyze``."""

import json
from pathlib import Path
from typing import Any

from . import cost, inside, outcomes
from .base import Analysis, Options

_MADE: dict[str, dict[str, Any]] = {
    "staleness": {"trials": inside.staleness_trials, "collect": inside.staleness},
    "gt-vs-gc": {"trials": inside.norms_trials, "collect": inside.norms},
    "sensitivity": {"trials": outcomes.sensitivity_trials, "collect": outcomes.sensitivity},
    "noise": {"trials": outcomes.noise_trials, "collect": outcomes.noise},
    "runtime": {"trials": cost.runtime_trials, "collect": cost.runtime},
    "convex": {"trials": outcomes.convex_trials, "collect": outcomes.convex},
    "spectrum": {"measure": cost.bytes_per_parameter},
    "damping": {"trials": inside.damping_trials, "collect": inside.damping},
    "ablation": {"trials": outcomes.ablation_trials, "collect": outcomes.ablation},
}
_ABOUT = json.loads((Path(__file__).parents[1] / "values" / "analyses.json").read_text(encoding="utf-8"))
ANALYSES: dict[str, Analysis] = {about["name"]: Analysis(**about, **_MADE[about["name"]]) for about in _ABOUT}

__all__ = ["ANALYSES", "Analysis", "Options"]
