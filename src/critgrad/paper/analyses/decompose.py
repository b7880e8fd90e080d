"""``critgrad analyze decompose``: how much of a difference is step size, delay, kernel shape, selection (PROTOCOL 7)."""

from __future__ import annotations

from pathlib import Path

from critgrad.lab.errors import LabError

from ..protocol import registered, tables
from ..protocol.announced import AnnouncedSource
from ..protocol.records import Decomposition
from ..protocol.registration import find


def decompose(ledger: Path, task: str) -> tuple[Decomposition, ...]:
    """The decomposition of a task's fair sweep, from the derived arms that the ledger has.

    Where the ledger has several experiments of the task, the one that the task's file announces comes first.
    """
    source = AnnouncedSource(ledger)
    announced = find(task).hash if task in registered() else None
    plans = [plan for plan in source.registrations[0] if plan.task == task]
    for plan in sorted(plans, key=lambda plan: plan.hash != announced):
        found = tables(source, plan).decompositions
        if found:
            return found
    raise LabError(
        f"No decomposition of {task!r} in {ledger}: it needs the derived arms of `critgrad sweep {task} --track fair`"
    )
