"""What a study found, in plain values: what ``study.run`` gives, and what the page and ``--json`` are made of.

One *replicate* is what one user would do: search on a fresh seed, take the best point by validation, train it anew on fresh
seeds, report the mean test value. A claim compares two arms by their differences per replicate.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ..run.results import plain


@dataclass(frozen=True)
class Run:
    """One training run. ``valid`` and ``test`` are those of the epoch with the best ``valid``; nan where there is none."""

    key: str
    seed: int
    point: Mapping[str, Any] = field(default_factory=dict)  # the values searched for
    valid: float = math.nan
    test: float = math.nan
    failed: str = ""  # in one line, where it raised, was ended, or gave no finite value
    curve: tuple[float, ...] = ()  # ``valid`` after each epoch
    step_ms: float = math.nan  # of the optimizer's step, where the lab trains
    seconds: float = math.nan  # of the whole run
    peak_bytes: int = 0  # on a GPU
    initial: float = math.nan  # ``test`` before the first step, where the lab trains


@dataclass(frozen=True)
class Replicate:
    """What one user would do with one arm. ``trials`` is empty for an arm that is not tuned."""

    number: int  # from 1
    trials: tuple[Run, ...]
    chosen: Mapping[str, Any]
    reports: tuple[Run, ...]
    valid: float  # by which the best of rivals is chosen: that of the chosen trial, else the mean of the reports
    value: float  # what counts: the mean of the test values, or of values before training
    untrained: str = ""  # why it counts as the value before training: failed, not finite, worse than that


@dataclass(frozen=True)
class Arm:
    """An optimizer with what is fixed and what is searched, and all its replicates that are whole."""

    name: str
    optimizer: str
    fixed: Mapping[str, Any]
    search: Mapping[str, str]  # axis by option, as in the file: {"lr": "log 1e-4 1e-1"}
    replicates: tuple[Replicate, ...]
    near_end: Mapping[str, int] = field(default_factory=dict)  # replicates whose choice lay in an outer tenth


@dataclass(frozen=True)
class Claim:
    """A question and its answer. A positive difference says that the arm is better, whatever the direction."""

    arm: str
    against: tuple[str, ...]
    word: str  # better, worse, same, open
    remark: str
    difference: float  # Hodges and Lehmann's estimate
    mean: float
    low: float
    high: float
    p: float
    p_holm: float
    replicates: int
    differences: tuple[float, ...] = ()  # one per replicate
    rivals: tuple[str, ...] = ()  # one per replicate: the best of ``against`` by validation


@dataclass(frozen=True)
class Answer:
    """Everything about a study that was run, or of which some replicates are whole."""

    title: str
    task: str
    direction: str  # "min" or "max"
    epochs: int
    planned: int  # replicates that the file asks for
    trials: int
    report_seeds: int
    seed: int
    margin: float
    initial: float  # the value before training, mean over the replicates
    arms: Mapping[str, Arm]
    claims: tuple[Claim, ...]
    notes: tuple[str, ...] = ()  # what a reader must know of the study as a whole
    provenance: Mapping[str, Any] = field(default_factory=dict)  # file, versions, machine, command, ledger

    @property
    def final(self) -> bool:
        """Whether every replicate of every arm is there."""
        return all(len(arm.replicates) == self.planned for arm in self.arms.values())

    def to_dict(self) -> dict[str, Any]:
        """As plain values: numbers that are not finite are ``None``."""
        whole = {
            "final": self.final,
            "claims": [
                {name: getattr(claim, name) for name in (*_CLAIMED, "replicates", "differences", "rivals")}
                for claim in self.claims
            ],
            **{name: getattr(self, name) for name in self.__dataclass_fields__ if name not in ("claims", "arms")},
            "arms": {
                name: {
                    **{part: getattr(arm, part) for part in ("optimizer", "fixed", "search", "near_end")},
                    "replicates": [_replicate(found) for found in arm.replicates],
                }
                for name, arm in self.arms.items()
            },
        }
        found: dict[str, Any] = plain(whole)
        return found

    def to_json(self) -> str:
        """The text that ``critgrad study run --json FILE`` writes."""
        return json.dumps(self.to_dict(), indent=1, allow_nan=False)


_CLAIMED = ("arm", "against", "word", "remark", "difference", "mean", "low", "high", "p", "p_holm")


def _replicate(found: Replicate) -> dict[str, Any]:
    parts = {name: getattr(found, name) for name in ("number", "chosen", "valid", "value", "untrained")}
    return {**parts, "trials": [vars(run) for run in found.trials], "reports": [vars(run) for run in found.reports]}
