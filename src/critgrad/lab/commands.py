"""What the commands do, without a word about how it is shown: both front ends call these."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from .coordinator import Event, Outcome, in_shard, run_jobs
from .ledger import Ledger, Planned, Role
from .optimizers import recipe_of
from .protocol import Registration, chosen_hyper, fair, paper_best, paper_grid, record
from .protocol.tracks import Fair, PaperTrack
from .results import Result
from .spec import Trial
from .tasks import task_of
from .train import OnEpoch, OnStep, train

OnEvent = Callable[[Event], None]
TRACKS = ("paper-best", "paper-grid", "fair")


def checkpoint_folder(ledger: Path) -> Path:
    """Where the checkpoints of a ledger's trials lie."""
    return ledger.with_name(ledger.stem + ".checkpoints")


def one_trial(task: str, optimizer: str, hyper: Mapping[str, Any], seed: int, settings: Mapping[str, Any]) -> Trial:
    """The trial of ``critgrad train``: what is not given is ``chosen_hyper``; a memory is looked into."""
    task_of(task, settings)  # an unknown name is an error before anything is said
    probe = ("memory",) if recipe_of(optimizer).has_memory else ()
    return Trial(task, optimizer, {**chosen_hyper(task, optimizer), **hyper}, seed, settings, probe=probe)


def train_once(
    trial: Trial,
    book: Ledger,
    *,
    device: str,
    checkpoint: Path,
    resume: bool,
    on_epoch: OnEpoch | None = None,
    on_step: OnStep | None = None,
) -> Result:
    """Run a trial, write it to the ledger, and only then remove its checkpoint."""
    if not resume:
        checkpoint.unlink(missing_ok=True)
    result = train(trial, device=device, checkpoint=checkpoint, on_epoch=on_epoch, on_step=on_step)
    book.add(trial, result, (Role("train", recipe_of(trial.optimizer).family, trial.optimizer, "report"),))
    checkpoint.unlink(missing_ok=True)
    return result


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
    if track == "fair":
        if settings:
            raise ValueError(
                "Invalid --set with --track fair: the registration file holds the settings; change it there"
            )
        made = fair(registration or task, trials=trials, engine=engine)
        if seeds is not None:
            made = fair(made.registration, seeds=_fresh(made.registration, seeds))
        return made
    chosen: dict[str, Any] = {"settings": dict(settings or {})}
    if seeds is not None:
        chosen["seeds"] = tuple(range(seeds))
    if engine is not None:
        chosen["engine"] = engine
    if track == "paper-best":
        return paper_best(task, **chosen)
    if track == "paper-grid":
        return paper_grid(task, **chosen, trials=trials)
    raise ValueError(f"Invalid track: {track!r}, expected one of {', '.join(TRACKS)}")


def _fresh(registration: Registration, seeds: int) -> tuple[int, ...]:
    """So many report seeds: the registration's, and the next ones where it has fewer."""
    known = registration.report_seeds[:seeds]
    return (*known, *range(max(known) + 1, max(known) + 1 + seeds - len(known)))


def families_only(planned: Sequence[Planned], families: Sequence[str] | None) -> list[Planned]:
    """What serves one of these families."""
    if not families:
        return list(planned)
    return [item for item in planned if any(role.family in families for role in item.roles)]


def sweep(
    track: Fair | PaperTrack,
    book: Ledger,
    *,
    shard: tuple[int, int] = (1, 1),
    families: Sequence[str] | None = None,
    seconds: float | None = None,
    on_event: OnEvent | None = None,
    **jobs: Any,
) -> Outcome:
    """Plan, run, plan again, until nothing is left. ``jobs`` goes to ``run_jobs``.

    With shards the first stage alone can be split: what follows depends on rows that other shards have. ``seconds``
    starts no new round after that time.
    """
    if isinstance(track, Fair):
        record(book, track.registration)
    began = time.monotonic()
    done = failed = skipped = remaining = 0
    interrupted = False
    while True:
        wanted = families_only(track.plan(book), families)
        mine = [item for item in wanted if in_shard(item.trial.key, *shard)]
        failed_before = book.failed(item.trial.key for item in mine)
        todo = [item for item in mine if item.trial.key not in failed_before or jobs.get("retry_failed")]
        remaining = len(todo)
        if not todo or interrupted or (seconds is not None and time.monotonic() - began > seconds):
            break
        outcome = run_jobs(todo, book, on_event=on_event, **jobs)
        done, failed, skipped = done + outcome.done, failed + outcome.failed, skipped + outcome.skipped
        interrupted = outcome.interrupted
        jobs["retry_failed"] = False  # once, not for ever
        if outcome.done == 0:
            break
    return Outcome(done, failed, skipped, remaining, time.monotonic() - began, interrupted)


def parse_shard(text: str) -> tuple[int, int]:
    """``2/4``: the second of four.

    >>> parse_shard("2/4")
    (2, 4)
    """
    first, slash, second = text.partition("/")
    if not slash or not first.isdigit() or not second.isdigit():
        raise ValueError(f"Invalid shard: {text!r}, expected i/n with 1 <= i <= n")
    return int(first), int(second)
