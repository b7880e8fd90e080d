"""How far a sweep is: for its own display, and for `critgrad status` in another process."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from itertools import starmap
from typing import Any

from ..ledger import Holder, Ledger, Role, holder_of
from .spec import Trial


@dataclass
class Progress:
    """Counts of a sweep. ``done`` and ``failed`` are of this session; ``skipped`` trials were done before it.

    ``total`` is what is known or expected; ``most`` what it may become (0: no more), and ``eta_most`` when that would end.
    ``open``: more will come, and nobody knows how many (of some families, of a shard): the time to go is a lower bound.
    """

    total: int
    skipped: int = 0
    done: int = 0
    failed: int = 0
    running: int = 0
    began: float = field(default_factory=time.time)
    seconds: float = 0.0
    eta: float | None = None
    most: int = 0
    eta_most: float | None = None
    open: bool = False

    def now(self) -> Progress:
        """A copy with the time that has passed, and the time to go at the pace so far (``None`` before the first result)."""
        seconds = time.time() - self.began
        finished = self.done + self.failed
        pace = seconds / finished if finished else None
        eta = None if pace is None else pace * (self.total - finished)
        most = None if pace is None or self.most <= self.total else pace * (self.most - finished)
        return replace(self, seconds=seconds, eta=eta, eta_most=most)


class Rounds:
    """One progress for the rounds of jobs that a sweep is made in: it begins once, ends once, and never goes back.

    Args:
        expected: runs of this session, as far as the plan can tell; 0 where it cannot.
        most: what they may become.
    """

    def __init__(self, expected: int = 0, most: int = 0) -> None:
        self.expected, self.most, self.open = expected, most, expected <= 0 and most <= 0
        self.done = self.failed = 0  # of the rounds that are over
        self.began = time.time()
        self.has_begun = False

    def over_all(self, progress: Progress) -> Progress:
        """Where the sweep stands, from where its round does."""
        earlier = self.done + self.failed
        self.expected = max(self.expected, earlier + progress.total)
        return replace(
            progress,
            total=self.expected,
            most=max(self.most, self.expected),
            done=self.done + progress.done,
            failed=self.failed + progress.failed,
            began=self.began,
            open=self.open,
        )

    def begins(self) -> bool:
        """Whether this is the first round."""
        first, self.has_begun = not self.has_begun, True
        return first

    def add(self, done: int, failed: int) -> None:
        """A round is over."""
        self.done, self.failed = self.done + done, self.failed + failed

    def end(self, interrupted: bool = False) -> Progress:
        """Where the sweep stands after its last round, which is its end unless it was interrupted."""
        total = self.expected if interrupted else self.done + self.failed
        return Progress(total, done=self.done, failed=self.failed, began=self.began).now()


@dataclass(frozen=True)
class Running:
    """A trial that is being run."""

    trial: Trial
    roles: tuple[Role, ...]
    worker: str  # a process, a job of a cluster; empty where that is not known
    since: float


@dataclass
class StatusLine:
    """Counts of one task, track and arm; trials without a role have empty track and arm."""

    task: str
    track: str
    arm: str
    done: int = 0
    running: int = 0
    failed: int = 0


@dataclass(frozen=True)
class Status:
    """What a ledger holds and what is being done about the rest.

    ``writer`` is the process that is at work; without one nothing is running. ``stale`` are the trials that were running
    when the last coordinator was killed: they are run again by the next.
    """

    lines: list[StatusLine]
    running: list[Running]
    stale: list[Running]
    writer: Holder | None
    progress: Progress | None


def note_progress(ledger: Ledger, progress: Progress, running: Iterable[Running]) -> None:
    """Write down what is running, for other processes to read."""
    entries = [{**vars(entry), "trial": entry.trial.to_dict()} for entry in running]
    ledger.put_state("sweep", {"progress": vars(progress.now()), "running": entries})


def status(ledger: Ledger) -> Status:
    """What is done, running and failed."""
    noted: dict[str, Any] = ledger.state("sweep") or {"running": [], "progress": None}
    entries = [
        Running(**{**entry, "trial": Trial.from_dict(entry["trial"]), "roles": tuple(starmap(Role, entry["roles"]))})
        for entry in noted["running"]
    ]
    writer = holder_of(ledger.path)
    # One that has finished since the last note is counted as done, not as running.
    finished = ledger.done(entry.trial.key for entry in entries)
    entries = [entry for entry in entries if entry.trial.key not in finished]
    lines: dict[tuple[str, str, str], StatusLine] = {}
    for task, track, arm, state, count in ledger.counts():
        line = lines.setdefault((task, track, arm), StatusLine(task, track, arm))
        setattr(line, state, count)
    for entry in entries if writer else ():
        for track, arm in {(role.track, role.arm) for role in entry.roles} or {("", "")}:
            name = (entry.trial.task, track, arm)
            lines.setdefault(name, StatusLine(*name)).running += 1
    return Status(
        lines=[lines[name] for name in sorted(lines)],
        running=entries if writer else [],
        stale=[] if writer else entries,
        writer=writer,
        progress=Progress(**noted["progress"]) if writer and noted["progress"] else None,
    )
