"""What a track sees of a ledger: the finished rows of one experiment, by key, and their values, divergences filled."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any, Protocol

import numpy as np

from ..run.spec import Trial
from ..stats import worst_filled
from .records import Row

RowLike = Row  # as the paper's study calls it


class Reader(Protocol):
    """A ledger, as far as it is read here."""

    def rows(self, *, task: str | None = None, registration: str | None = None) -> Sequence[Row]: ...
    def document(self, name: str) -> str | None: ...


class View:
    """The finished rows of one experiment. Rows are found by their trials' keys; roles play no part in any number."""

    def __init__(self, rows: Iterable[Row], higher_is_better: bool) -> None:
        self.rows = {row.key: row for row in rows}
        self.higher_is_better = higher_is_better

    def get(self, trial: Trial) -> Row | None:
        """The row of a trial, if it is done."""
        return self.rows.get(trial.key)

    def missing(self, trials: Iterable[Trial]) -> list[Trial]:
        """The trials that are not done."""
        return [trial for trial in trials if trial.key not in self.rows]

    def of(self, trials: Iterable[Trial]) -> list[Row]:
        """The rows of trials that are all done."""
        return [self.rows[trial.key] for trial in trials]

    @cached_property
    def worst(self) -> float | None:
        """What a diverged run counts as, the same for all arms and seeds.

        The task's own worst value where rows say it, else what diverged rows were given, else 0 for an accuracy or a
        BLEU and the value before training for a loss, which has no ceiling. ``None`` where nothing is known.
        """
        rows = list(self.rows.values())
        said = [number(row.summary.get("worst")) for row in rows]
        given = [number(row.summary.get("test")) for row in rows if row.summary.get("diverged")]
        before = [number(row.summary.get("initial_valid")) for row in rows]
        for values in (said, given):
            known = [value for value in values if math.isfinite(value)]
            if known:
                return min(known) if self.higher_is_better else max(known)
        if self.higher_is_better:
            return 0.0
        known = [value for value in before if math.isfinite(value)]
        return float(np.median(known)) if known else None

    def values(self, rows: Sequence[Row], name: str) -> list[float]:
        """``valid`` or ``test`` of each row. A diverged run counts as the worst, and nothing counts worse."""
        found = [number(row.summary.get(name)) for row in rows]
        if self.worst is None:
            return found
        diverged = [bool(row.summary.get("diverged")) for row in rows]
        return worst_filled(found, diverged, self.worst, higher_is_better=self.higher_is_better).tolist()


def view_of(ledger: Reader, registration: str, higher_is_better: bool) -> View:
    """The view of a registered experiment."""
    return View(ledger.rows(registration=registration), higher_is_better)


def number(value: Any) -> float:
    """A summary's entry as a float; what JSON could not hold is NaN."""
    return math.nan if value is None else float(value)
