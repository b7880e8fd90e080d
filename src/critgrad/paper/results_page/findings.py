"""What some ledgers hold, read once: fair experiments, the paper's tracks, analyses, single runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from critgrad.lab.errors import LabError
from critgrad.lab.ledger import Row
from critgrad.lab.ledger.committed import standing as standing_of
from critgrad.lab.ledger.source import alike, setting_groups
from critgrad.lab.tasks import TASKS
from critgrad.lab.tasks.rare import is_rare

from ..analyses import ANALYSES
from ..protocol import Outcome, Registration, find, registered, tables
from ..protocol.announced import AnnouncedSource
from ..report.panels import PaperRun, paper_runs
from .text import behind


class Books(AnnouncedSource):
    """Several ledgers as one. A run that stands in more than one of them counts once."""

    def __init__(self, paths: Sequence[Path]) -> None:
        # By name, so that the shell's order of the files plays no part.
        sources = [AnnouncedSource(path) for path in sorted(paths, key=lambda path: (path.name, str(path)))]
        self.path = sources[0].path
        self.names = [source.path.name for source in sources]
        done = {row.key: row for source in sources for row in source.done}
        self.done = list(done.values())
        self.failed = [row for source in sources for row in source.failed if row.key not in done]
        self.documents = {name: text for source in reversed(sources) for name, text in source.documents.items()}
        self.analyses = [analysis for source in sources for analysis in source.analyses]


@dataclass(frozen=True)
class Withdrawn:
    """An experiment whose announcement has been replaced: its runs are listed, and nothing rests on them."""

    registration: Registration
    runs: int
    commit: str | None
    reason: str  # what the new announcement says about it


@dataclass(frozen=True)
class Study:
    """An analysis on one task, with the settings that its runs were given."""

    task: str
    settings: Mapping[str, Any]
    data: dict[str, Any]

    def title(self, without: str = "") -> str:
        """``ptb-lstm, epochs 2, tf32 True``: the task with the settings that are not its own, without one that all have."""
        return self.task + behind({name: value for name, value in self.settings.items() if name != without})


class Findings:
    """Everything that the page and the verdicts are computed from."""

    def __init__(self, books: Books) -> None:
        self.books = books

    @cached_property
    def _plans(self) -> tuple[list[Registration], list[Registration]]:
        """Registrations that stand, and those that another one has replaced."""
        names = registered()
        current = {name: find(name).hash for name in names}
        standing: list[Registration] = []
        replaced: list[Registration] = []
        for plan in sorted(self.books.registrations[0], key=lambda plan: (place(plan.task), plan.question)):
            (standing if current.get(plan.name, plan.hash) == plan.hash else replaced).append(plan)
        return standing, replaced

    @cached_property
    def outcomes(self) -> list[Outcome]:
        """The fair experiments that stand."""
        return [tables(self.books, plan) for plan in self._plans[0]]

    @cached_property
    def withdrawn(self) -> list[Withdrawn]:
        """The fair experiments that were replaced."""
        out = []
        for plan in self._plans[1]:
            now = find(plan.name).notes
            said = [text for name, text in now.items() if plan.notes.get(name) != text]
            commit = standing_of(self.books, plan).commit
            out.append(Withdrawn(plan, len(self.books.rows(registration=plan.hash)), commit, " ".join(said)))
        return out

    @cached_property
    def claimable(self) -> list[Outcome]:
        """Experiments that were announced in a commit, with all they announced: verdicts rest on these alone.

        Controls that are derived from the chosen settings may still be missing; no comparison of a verdict asks for them.
        Tasks that were chosen by what a screen gave are no part of the suite: see ``apart``; nor is what was asked later of a
        task: see ``followed``.
        """
        return [o for o in self._decided if not is_rare(o.task) and not o.registration.question]

    @cached_property
    def apart(self) -> list[Outcome]:
        """Those on the tasks whose signal is rare, each judged by itself."""
        return [o for o in self._decided if is_rare(o.task) and not o.registration.question]

    @cached_property
    def followed(self) -> list[Outcome]:
        """What was asked of a task later, by what had been found: on seeds that nothing was chosen on."""
        return [o for o in self._decided if o.registration.question]

    @property
    def judged(self) -> tuple[Outcome, ...]:
        """The suite with what was asked later of its tasks: the experiments that a claim about them may rest on."""
        return (*self.claimable, *self.followed)

    @cached_property
    def _decided(self) -> list[Outcome]:
        return [outcome for outcome in self.outcomes if outcome.decided and outcome.standing.registered]

    @cached_property
    def papers(self) -> list[PaperRun]:
        """The paper's tracks."""
        return paper_runs(self.books)

    def studies(self, name: str) -> list[Study]:
        """What an analysis gives on every task that has its runs; one entry for each of the settings they were run with."""
        made = ANALYSES[name]
        out = []
        for task in sorted(self.books.tasks, key=place):
            rows = [row for row in self.books.rows(task=task, purpose=made.purpose) if row.trial.registration is None]
            for settings, members in alike(rows, made.varied):
                out.append(Study(task, settings, made.collect(task, members)))
        return out

    def analysis(self, name: str) -> list[dict[str, Any]]:
        """The numbers of ``studies`` alone."""
        return [study.data for study in self.studies(name)]

    @cached_property
    def once(self) -> list[Row]:
        """Tasks that were run once for one epoch, to show that they run."""
        rows = self.books.rows(track="train")
        alone = [row for row in rows if dict(row.trial.settings) == {"epochs": 1}]
        return sorted(alone, key=lambda row: (place(row.trial.task), row.key))

    def outdated(self, row: Row) -> bool:
        """Whether a run outside the experiments is older than the present form of its task, as far as the ledgers tell."""
        if row.trial.task not in {entry.registration.task for entry in self.withdrawn}:
            return False
        hashes = {plan.hash for plan in self._plans[0]}
        since = [other.finished for other in self.books.rows(task=row.trial.task) if other.trial.registration in hashes]
        return not since or row.finished < min(since)

    @cached_property
    def looked_into(self) -> list[list[Row]]:
        """Runs of ``_C`` that recorded their memory, in groups that differ by the seed alone; experiments that stand only."""
        hashes = {plan.hash for plan in self._plans[0]} | {None}
        probed = [row for row in self.books.done if "memory" in row.trial.probe and row.trial.registration in hashes]
        return setting_groups(row for row in probed if row.trial.optimizer.endswith("_C"))


def gather(ledgers: Sequence[Path]) -> Findings:
    """Read the ledgers."""
    if not ledgers:
        raise LabError("No ledger was given: name at least one, such as results/small-tasks.db.xz")
    return Findings(Books(list(ledgers)))


def place(task: str) -> tuple[int, str]:
    """Of a task, or of its page, among the tasks of the lab."""
    names = list(TASKS)
    plain = task.split("@")[0].removesuffix("-continual").removesuffix("-longtail")
    return (names.index(plain) if plain in names else len(names), task)
