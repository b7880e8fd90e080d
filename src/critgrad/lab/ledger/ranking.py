"""All hyper-parameters that a ledger has for an optimizer, best first: what ``critgrad best`` shows.

Chosen and shown on the same seeds, whichever there are: for looking around, not for comparing optimizers.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .records import Row
from .view import View

Group = tuple[str, str, str, str]  # task, optimizer, settings, engine


@dataclass(frozen=True)
class RankedSetting:
    """One setting of an optimizer on a task."""

    task: str
    optimizer: str
    hyper: Mapping[str, Any]
    settings: Mapping[str, Any]
    seeds: int
    valid: float
    test: float


def ranking(rows: Sequence[Row]) -> dict[Group, list[RankedSetting]]:
    """The settings of each (task, optimizer, task settings, engine), best mean validation value first.

    Runs that replay a donor's decisions are controls and are left out. A seed counts once, probed or not.
    """
    groups: dict[Group, dict[str, dict[int, Row]]] = {}
    for row in rows:
        trial = row.trial
        if "donor_seed" in trial.hyper:
            continue
        group = (trial.task, trial.optimizer, json.dumps(dict(trial.settings), sort_keys=True), trial.engine)
        hyper = {name: value for name, value in trial.hyper.items() if name != "seed"}
        by_seed = groups.setdefault(group, {}).setdefault(json.dumps(hyper, sort_keys=True), {})
        by_seed.setdefault(trial.seed, row)
    return {group: _ranked(group, settings) for group, settings in sorted(groups.items())}


def _ranked(group: Group, settings: Mapping[str, Mapping[int, Row]]) -> list[RankedSetting]:
    every = [row for by_seed in settings.values() for row in by_seed.values()]
    higher = bool(every[0].summary["higher_is_better"])
    view = View(every, higher)
    entries = []
    for hyper, by_seed in settings.items():
        rows = list(by_seed.values())
        valid, test = (float(np.mean(view.values(rows, split))) for split in ("valid", "test"))
        task, optimizer, fixed, _ = group
        entries.append(RankedSetting(task, optimizer, json.loads(hyper), json.loads(fixed), len(rows), valid, test))
    return sorted(entries, key=lambda entry: -entry.valid if higher else entry.valid)
