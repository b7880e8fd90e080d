"""A ledger read once: every row in memory, its curves still packed until something is drawn from them."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from ..run.spec import content_hash
from ..tasks import task_of
from .records import Role, Row, StoredAnalysis
from .store import Ledger


class Source:
    """What the report reads. It answers the questions that tracks and tables ask of a ledger (``rows``, ``document``)."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with Ledger.open(path) as book:
            every = book.rows(status=None)
            self.documents = {name: book.document(name) for name in book.documents()}
            self.analyses: list[StoredAnalysis] = book.analyses()
        self.done = [row for row in every if row.status == "done"]
        self.failed = [row for row in every if row.status != "done"]

    def document(self, name: str) -> str | None:
        """A text that the ledger keeps."""
        return self.documents.get(name)

    @cached_property
    def by_registration(self) -> dict[str | None, list[Row]]:
        return _grouped(self.done, lambda row: row.trial.registration)

    @cached_property
    def _by_task(self) -> dict[str, list[Row]]:
        return _grouped(self.done, lambda row: row.trial.task)

    @property
    def tasks(self) -> list[str]:
        """Tasks with finished runs, in the order of the ledger."""
        return list(self._by_task)

    def rows(
        self,
        *,
        task: str | None = None,
        registration: str | None = None,
        track: str | None = None,
        purpose: str | None = None,
    ) -> list[Row]:
        """Finished runs that match; ``track`` and ``purpose`` within one role."""
        found: Iterable[Row] = self.done
        if registration is not None:
            found = self.by_registration.get(registration, [])
        elif task is not None:
            found = self._by_task.get(task, [])
        if task is not None:
            found = (row for row in found if row.trial.task == task)
        if track is not None or purpose is not None:
            found = (row for row in found if any(_matches(role, track, purpose) for role in row.roles))
        return list(found)


def _grouped(rows: Iterable[Row], key: Any) -> dict[Any, list[Row]]:
    out: dict[Any, list[Row]] = defaultdict(list)
    for row in rows:
        out[key(row)].append(row)
    return dict(out)


def _matches(role: Role, track: str | None, purpose: str | None) -> bool:
    return track in (None, role.track) and purpose in (None, role.purpose)


def settings_of(row: Row, varied: Iterable[str] = ()) -> dict[str, Any]:
    """What two runs must share to be put side by side: engine and the task's settings, but for ``varied``."""
    settings = {name: value for name, value in row.trial.settings.items() if name not in varied}
    return {**settings, **({} if row.trial.engine == "single" else {"engine": row.trial.engine})}


def alike(rows: Iterable[Row], varied: Iterable[str] = ()) -> list[tuple[dict[str, Any], list[Row]]]:
    """Rows in groups of equal settings."""
    names = tuple(varied)
    groups = _grouped(rows, lambda row: json.dumps(settings_of(row, names), sort_keys=True))
    return [(json.loads(text), members) for text, members in groups.items()]


def setting_groups(rows: Iterable[Row]) -> list[list[Row]]:
    """Rows that differ in nothing but the seed, and in what was recorded beside the curves."""
    groups = _grouped(rows, lambda row: content_hash({**row.trial.to_dict(), "seed": None, "probe": None}))
    return list(groups.values())


def metric_of(rows: Iterable[Row], task: str) -> tuple[str, str, bool]:
    """Name, unit and direction of a task's metric; the rows speak for themselves, the registry adds the unit."""
    try:
        known = task_of(task).metric
        name, unit, higher = known.name, known.unit, known.higher_is_better
    except ValueError:
        name, unit, higher = "metric", "", True
    summary: Mapping[str, Any] = next((row.summary for row in rows), {})
    return str(summary.get("metric", name)), unit, bool(summary.get("higher_is_better", higher))
