"""What the paper's commands do, without a word about how it is shown."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from critgrad.lab.errors import LabError
from critgrad.lab.ledger import Ledger, Planned, Row
from critgrad.lab.ledger.committed import document_name, record, standing
from critgrad.lab.run.coordinator import Event, JobsOutcome, Rounds, in_shard, run_jobs
from critgrad.lab.run.executors import KeptExecutor
from critgrad.lab.run.spec import Trial
from critgrad.lab.tasks import task_of
from critgrad.lab.train.optimizers import recipe_of

from .protocol import Registration, chosen_hyper, fair, find, paper_best, paper_grid, registered
from .protocol.arms import FAMILIES
from .protocol.tracks import Fair, PaperTrack
from .search import file as search_file

PlannedOrRow = TypeVar("PlannedOrRow", Planned, Row)
TIMING = "analysis:timing"  # the purpose of runs that are made for their times
TRACKS = ("paper-best", "paper-grid", "fair")

# An optimizer's arguments that are real numbers: lr=1 and lr=1.0 are the same run and must have the same key.
_REAL = frozenset(
    ("lr", "decay", "kappa", "rho", "momentum", "dampening", "alpha", "beta1", "beta2", "eps", "weight_decay")
)


def one_trial(task: str, optimizer: str, hyper: Mapping[str, Any], seed: int, settings: Mapping[str, Any]) -> Trial:
    """The trial of ``critgrad train``: what is not given is ``chosen_hyper``; a memory is looked into."""
    task_of(task, settings)  # an unknown name is an error before anything is said
    probe = ("memory",) if recipe_of(optimizer).has_memory else ()
    values = {**chosen_hyper(task, optimizer), **hyper}
    whole = [name for name in _REAL & set(values) if type(values[name]) is int]
    return Trial(task, optimizer, values | {name: float(values[name]) for name in whole}, seed, settings, probe=probe)


def make_track(
    task: str,
    track: str,
    *,
    trials: int | None = None,
    seeds: int | None = None,
    engine: str | None = None,
    settings: Mapping[str, Any] | None = None,
    registration: Registration | None = None,
) -> Fair | PaperTrack:
    """A track by its name. ``trials``, ``seeds`` and ``engine`` override what it would take."""
    for name, value in (("trials", trials), ("seeds", seeds)):
        if value is not None and value < 1:
            raise LabError(f"Invalid {name}: {value}, expected an int >= 1")
    task_of(task.partition("+")[0], settings)
    if track == "fair":
        if settings:
            raise LabError("Invalid --set with --track fair: the registration file holds the settings; change it there")
        made = fair(registration or task, trials=trials, engine=engine)
        _check_bank(made.task, made.registration.engine)
        if seeds is not None:  # the registration's, and the next ones where it has fewer
            known = made.registration.report_seeds[:seeds]
            more = range(max(known) + 1, max(known) + 1 + seeds - len(known))
            made = fair(made.registration, seeds=(*known, *more))
        return made
    if track not in TRACKS:
        raise LabError(f"Invalid track: {track!r}, expected one of {', '.join(TRACKS)}")
    if track == "paper-best" and trials is not None:
        raise LabError("Invalid --trials with --track paper-best: it has one setting of each optimizer")
    if engine is not None:
        _check_bank(task, engine)
    given = {"seeds": seeds, "engine": engine, "trials": trials}
    chosen: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    return (paper_best if track == "paper-best" else paper_grid)(task, settings=dict(settings or {}), **chosen)


def _check_bank(task: str, engine: str) -> None:
    """An error before anything runs, where each run would fail with it."""
    if engine == "bank" and not task_of(task).bankable:
        raise LabError(f"Invalid task for a bank: {task}, it cannot be run there; use --engine single")


def family_names(text: str | None, known: Sequence[str] = FAMILIES) -> tuple[str, ...] | None:
    """``SGD,Adam`` as names of families that are ``known``; ``None`` for all.

    >>> family_names("SGD, Adam")
    ('SGD', 'Adam')
    """
    if not text:
        return None
    names = tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    for name in names:
        if name not in known:
            raise LabError(f"Invalid family: {name!r}, expected some of {', '.join(known)}")
    return names


def families_only(items: Sequence[PlannedOrRow], families: Sequence[str] | None) -> list[PlannedOrRow]:
    """What serves one of these families."""
    return [item for item in items if not families or any(role.family in families for role in item.roles)]


def sweep(
    track: Fair | PaperTrack,
    book: Ledger,
    *,
    shard: tuple[int, int] = (1, 1),
    families: Sequence[str] | None = None,
    seconds: float | None = None,
    untimed: bool = False,
    on_event: Callable[[Event], None] | None = None,
    kept: KeptExecutor | None = None,
    **jobs: Any,
) -> JobsOutcome:
    """Plan, run, plan again, until nothing is left. ``jobs`` goes to ``run_jobs``; ``kept`` has workers of an earlier sweep.

    With shards the first stage alone can be split: what follows depends on rows that other shards have. ``seconds`` starts
    no job that would not be done by then, judged by the longest so far. ``untimed`` leaves the timed runs, and what waits
    for them, to a later sweep that has the machine to itself. ``failed`` counts what has failed before, too, and keeps the
    track from its end.
    """
    if isinstance(track, Fair):
        record(book, track.registration)
    began = time.monotonic()
    before = _done_before(track, book, shard, families)
    done, interrupted, longest = 0, False, 0.0

    def is_timed(item: Planned) -> bool:
        return any(role.purpose == TIMING for role in item.roles)

    def wanted() -> tuple[list[Planned], int, int]:
        """The shard's runs of the next round, how many remain with those for a later sweep, and how many have failed before
        and are left alone.
        """
        mine = [item for item in families_only(track.plan(book), families) if in_shard(item.trial.key, *shard)]
        known = set() if jobs.get("retry_failed") else book.failed(item.trial.key for item in mine)
        left = [item for item in mine if item.trial.key not in known]
        return [item for item in left if not (untimed and is_timed(item))], len(left), len(known)

    now, remaining, failed = wanted()
    # Of some families, or of a shard, nobody knows how many there will be.
    whole = not families and shard == (1, 1) and not untimed
    rounds = Rounds(track.total - before, track.most - before) if whole else Rounds()
    own = kept is None
    kept = kept or KeptExecutor()
    try:
        while now and not interrupted and not (seconds is not None and time.monotonic() - began > seconds):
            # Runs that are timed must not share the machine: first they, one after the other, then the rest in a new round.
            timed = [item for item in now if is_timed(item)]
            if timed:
                kept.close()
            alone = {"workers": 1, "eager": True} if timed else {"kept": kept}
            left = None if seconds is None else max(0.0, seconds - (time.monotonic() - began))
            limits = {"seconds": left, "longest": longest}
            outcome = run_jobs(timed or now, book, on_event=on_event, rounds=rounds, **{**jobs, **alone, **limits})
            longest = outcome.longest
            done, interrupted = done + outcome.done, outcome.interrupted
            jobs["retry_failed"] = False  # once, not for ever
            now, remaining, failed = wanted()
            if outcome.done + outcome.failed == 0 or (seconds is not None and outcome.remaining):
                break
    finally:
        if own:
            kept.close()
    if on_event is not None and rounds.has_begun:
        on_event(Event("end", rounds.end(interrupted)))
    return JobsOutcome(done, failed, before, remaining, time.monotonic() - began, interrupted)


def _done_before(track: Fair | PaperTrack, book: Ledger, shard: tuple[int, int], families: Sequence[str] | None) -> int:
    """Runs of the track that the ledger has already."""
    rows = book.rows(task=track.task, track=track.name)
    if isinstance(track, Fair):
        mine = {row.key for row in rows if row.trial.registration == track.registration.hash}
    else:
        mine = {trial.key for setting in track.settings for trial in track.trials(setting)}
    return len(families_only([row for row in rows if row.key in mine and in_shard(row.key, *shard)], families))


@dataclass(frozen=True)
class Analysed:
    """What an analysis gave. ``missing`` runs have failed or were not reached: the numbers are without them."""

    data: dict[str, Any]
    missing: int = 0
    failed: int = 0  # of the missing ones, now or before
    outcome: JobsOutcome | None = None  # of the runs that were made now

    @property
    def lacking(self) -> str:
        """What is missing, and what to do about it; empty when nothing is."""
        waiting = self.missing - self.failed
        parts = [f"{waiting} runs are still to be made: the same command goes on with them"] if waiting else []
        parts += [f"{self.failed} runs have failed: --retry runs them once more"] if self.failed else []
        return "; ".join(parts)


def analyze(
    name: str,
    task: str | None,
    asked: Any,
    book: Ledger,
    *,
    workers: int | None = None,
    kept: KeptExecutor | None = None,
    **jobs: Any,
) -> Analysed:
    """Run what an analysis lacks and collect its numbers. ``asked`` is an ``analyses.Options``; ``jobs``, ``kept`` as in
    ``sweep``.
    """
    from .analyses import ANALYSES

    if name not in ANALYSES:
        raise LabError(f"Invalid analysis: {name!r}, expected one of {', '.join([*ANALYSES, 'decompose'])}")
    analysis = ANALYSES[name]
    where = task or analysis.tasks[0]
    task_of(where, asked.settings)
    if analysis.measure is not None:
        data = analysis.measure(where)
        book.put_analysis(name, where, "", data, {}, [])
        return Analysed(data)
    keys = {item.trial.key for item in analysis.trials(where, asked)}
    _check_bank(where, asked.engine)
    planned = analysis.plan(book, where, asked)
    outcome = None
    if planned:
        # Runs that are timed must not share the machine with one another.
        workers = 1 if analysis.timed and workers is None else workers
        if analysis.timed and kept is not None:
            kept.close()
            kept = None
        outcome = run_jobs(planned, book, workers=workers, eager=analysis.timed, kept=kept, **jobs)
    # Runs of other settings may stand beside these: they belong to other figures.
    rows = [row for row in analysis.rows(book, where) if row.key in keys]
    data = analysis.collect(where, rows) if rows else {}
    return Analysed(data, len(keys) - len(rows), len(book.failed(keys)), outcome)


def parse_shard(text: str) -> tuple[int, int]:
    """``2/4``: the second of four.

    >>> parse_shard("2/4")
    (2, 4)
    """
    first, slash, second = text.partition("/")
    if not slash or not first.isdigit() or not second.isdigit() or not 1 <= int(first) <= int(second):
        raise LabError(f"Invalid shard: {text!r}, expected i/n with 1 <= i <= n")
    return int(first), int(second)


def name_commits(ledger: Ledger) -> None:
    """Ask git for the commits of announcements that were made where there is no git to ask."""
    known: list[Any] = [find(task) for task in registered()]
    known += [search_file.find(name, task) for name in search_file.searches() for task in search_file.tasks_of(name)]
    for announcement in known:
        there = ledger.document(document_name(announcement.hash)) is not None
        if there and not standing(ledger, announcement).checkout:
            record(ledger, announcement)
