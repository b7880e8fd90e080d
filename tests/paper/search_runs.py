"""The runs of a search, planned as when searches were run: tests fill ledgers by it."""

from __future__ import annotations

from dataclasses import dataclass

from critgrad.lab.ledger import Planned, Role
from critgrad.lab.ledger.view import Reader
from critgrad.paper.search import SearchTrack


@dataclass(frozen=True)
class SearchRuns(SearchTrack):
    """An arm does not wait for the others; confirmation waits for all of its family."""

    confirm: bool = False
    name: str = "search"
    task: str = "toy"
    total: int = 0

    def plan(self, ledger: Reader) -> list[Planned]:
        view = self.view(ledger)
        planned: list[Planned] = []
        for family, states in self.states(view).items():
            for state in states:
                role = Role(self.name, family, state.arm.name, "tune")
                planned += [Planned(trial, (role,)) for trial in state.pending]
            if not self.confirm or any(state.pending for state in states):
                continue
            for state in self.confirmed(states):
                role = Role(self.name, family, state.arm.name, "report")
                planned += [Planned(trial, (role,)) for trial in view.missing(self.confirm_trials(state))]
        return planned
