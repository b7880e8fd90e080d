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

_PER_SEED = ("donor_seed", "seed")
Group = tuple[str, str, str, str]  # task, optimizer, settings, engine


@dataclass(frozen=True)
class RankedSetting:
    """One setting of an optimizer on a task."""

    task: str
    optimizer: str
    hyper: Mapping[str, Any]
    settings: Mapping[str, Any]
    engine: str
    seeds: int
    valid: float
    test: float
    diverged: int


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
        hyper = {name: value for name, value in trial.hyper.items() if name not in _PER_SEED}
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
        entries.append(
            RankedSetting(
                task=group[0],
                optimizer=group[1],
                hyper=json.loads(hyper),
                settings=json.loads(group[2]),
                engine=group[3],
                seeds=len(rows),
                valid=float(np.mean(view.values(rows, "valid"))),
                test=float(np.mean(view.values(rows, "test"))),
                diverged=sum(bool(row.summary.get("diverged")) for row in rows),
            )
        )
    return sorted(entries, key=lambda entry: -entry.valid if higher else entry.valid)
