"""A ledger read once, with the plans that announced its runs."""

from __future__ import annotations

import json
from contextlib import suppress
from functools import cached_property

from critgrad.lab.errors import LabError
from critgrad.lab.ledger.committed import document_name
from critgrad.lab.ledger.source import Source

from .outcome import tables
from .records import Decomposition
from .registration import Registration, find, from_dict, registered

_PREFIX = document_name("")


class AnnouncedSource(Source):
    """What the reports read: all runs, and the registrations that they carry."""

    @cached_property
    def registrations(self) -> tuple[list[Registration], dict[str, int]]:
        """The experiments whose rows are here, and the runs of those that nobody can name any more, by hash."""
        known: dict[str, Registration] = {}
        for name, text in self.documents.items():
            if name.startswith(_PREFIX) and text is not None:
                # A plan of another version of the lab is one that nobody can name any more.
                with suppress(KeyError, TypeError, ValueError):
                    plan = from_dict(json.loads(text)["registration"])
                    known[plan.hash] = plan
        wanted = [value for value in self.by_registration if value is not None]
        if any(value not in known for value in wanted):
            for task in registered():
                plan = find(task)
                known.setdefault(plan.hash, plan)
        lost = {value: len(self.by_registration[value]) for value in wanted if value not in known}
        return [known[value] for value in wanted if value in known], lost

    def decomposition(self, task: str) -> tuple[Decomposition, ...]:
        """How much of a difference is step size, delay, kernel shape, selection, from the derived arms that are here.

        Where there are several experiments of the task, the one that the task's file announces comes first.
        """
        announced = find(task).hash if task in registered() else None
        plans = [plan for plan in self.registrations[0] if plan.task == task]
        for plan in sorted(plans, key=lambda plan: plan.hash != announced):
            if found := tables(self, plan).decompositions:
                return found
        needs = f"it needs the derived arms of `critgrad sweep {task} --track fair`"
        raise LabError(f"No decomposition of {task!r} in {self.path}: {needs}")
