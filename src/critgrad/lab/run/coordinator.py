"""The one process that writes: it hands jobs to an executor and each result to the ledger as it arrives."""

from __future__ import annotations

import contextlib
import queue
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import BrokenExecutor, Future
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..errors import LabError
from ..ledger import Ledger, LedgerError, Planned, Role
from .executors import JobExecutor, KeptExecutor, open_executor
from .results import Result
from .spec import Trial
from .status import Progress, Rounds, Running, Status, note_progress, status
from .worker import WORK, Failure, Job, Unusable, checkpoint_file, perform, result_file, take_kept

__all__ = ["Event", "JobsOutcome", "Progress", "Rounds", "Status", "in_shard", "merge_roles", "run_jobs", "status"]

_NOTE_SECONDS = 1.0  # how often `critgrad status` gets news
BANK_SIZE = 256


@dataclass(frozen=True)
class Event:
    """News for a progress display. ``kind``: begin, started, done, failed, stopping or end."""

    kind: str
    progress: Progress
    trial: Trial | None = None
    result: Result | None = None
    text: str = ""


@dataclass(frozen=True)
class JobsOutcome:
    """How ``run_jobs`` ended. ``skipped`` trials were done before; ``remaining`` ones still wait."""

    done: int
    failed: int
    skipped: int
    remaining: int
    seconds: float
    interrupted: bool = False
    longest: float = 0.0  # of the jobs, in seconds

    @property
    def text(self) -> str:
        """In words, with what to do next."""
        counts = f"{self.done} done now, {self.skipped} done before, {self.failed} failed, {self.remaining} to do"
        if self.interrupted:
            return f"Stopped: {counts}. All that is done is kept; the same command goes on from here."
        return f"Finished: {counts}."


OnEvent = Callable[[Event], None]


def in_shard(key: str, index: int, count: int) -> bool:
    """Whether a trial belongs to shard ``index`` of ``count`` (from 1), for places that share nothing.

    >>> [in_shard("ff00" * 8, index, 3) for index in (1, 2, 3)]
    [True, False, False]
    """
    if count < 1 or not 1 <= index <= count:
        raise LabError(f"Invalid shard: {index}/{count}, expected i/n with 1 <= i <= n")
    return int(key[:15], 16) % count == index - 1


def run_jobs(
    planned: Sequence[Planned],
    ledger: Ledger,
    *,
    executor: str = "local",
    workers: int | None = None,
    device: str = "cpu",
    checkpoints: Path | None = None,
    on_event: OnEvent | None = None,
    options: Mapping[str, Any] | None = None,
    retry_failed: bool = False,
    bank_size: int = BANK_SIZE,
    deterministic: bool = False,
    eager: bool = False,
    seconds: float | None = None,
    longest: float = 0.0,
    work: str = WORK,
    kept: KeptExecutor | None = None,
    command: Sequence[str] | None = None,
    trial_timeout: float | None = None,
    rounds: Rounds | None = None,
    more: Callable[[], Sequence[Planned]] | None = None,
    patient: bool = True,
) -> JobsOutcome:
    """Run what is planned and not done yet, and write each result to the ledger as it arrives.

    A result counts once it is in the ledger, and is then never run again. Ctrl-C stops new trials and waits for the running
    ones; a second one stops at once. A trial that raises is noted as failed, the others go on; ``retry_failed`` runs those
    that failed before. ``checkpoints`` is the folder where long trials keep their state (``None``: nowhere).
    ``eager`` trains without CUDA graphs. After ``seconds`` nothing should run any more: no job is started that would take
    longer than is left, judged by the longest so far (``longest``: of those before). ``options`` are the executor's; ``work``
    names the function that runs trials. ``kept`` has the executor of an earlier call, and keeps it for a later one; its owner
    closes it. ``command`` is what the runs' provenance names, where that is not the command of the process. A job that runs
    for more than ``trial_timeout`` seconds is ended with its worker, and its trials have failed. ``rounds`` is the progress of
    a sweep of which this is one round: the display then shows the sweep's, whose caller tells the end. ``more`` is asked for
    what else there is to run, whenever workers may soon have nothing to do: what it gives must be new to the ledger. With
    ``patient=False`` the first Ctrl-C stops at once.
    """
    job = Job((), device, None if checkpoints is None else checkpoints.resolve(), work, False, deterministic, eager)
    run = _Run(planned, ledger, job, on_event, retry_failed)
    run.command, run.bank_size, run.longest, run.trial_timeout = command, bank_size, longest, trial_timeout
    run.rounds, run.more, run.patient = rounds, more, patient
    run.deadline = None if seconds is None else time.monotonic() + seconds
    return run.run(executor, workers, options, kept)


class _Run:
    """One call of ``run_jobs``. All jobs are as ``job``, which has no trials."""

    def __init__(
        self, planned: Sequence[Planned], ledger: Ledger, job: Job, on_event: OnEvent | None, retry_failed: bool
    ) -> None:
        if not ledger.writable:
            raise LedgerError(f"The ledger {ledger.path} was opened for reading: open it with write=True")
        self.ledger, self.on_event = ledger, on_event
        self.job, self.checkpoints = job, job.checkpoints
        planned = merge_roles(planned)
        self.roles = {trial.key: roles for trial, roles in planned}
        trials = {trial.key: trial for trial, _ in planned}
        skipped = self._skip(trials, ledger.done(trials))
        if not retry_failed:
            self._skip(trials, ledger.failed(trials))
        self.trials = trials
        self.progress = Progress(total=len(trials), skipped=len(skipped))
        self.arrived: queue.SimpleQueue[Future[Any] | None] = queue.SimpleQueue()
        self.flying: dict[Future[Any], Job] = {}
        self.announced: set[Future[Any]] = set()
        self.interrupts = 0
        self.noted = 0.0
        self.deadline: float | None = None
        self.since: dict[Future[Any], float] = {}
        self.longest = 0.0  # of the jobs so far, in seconds
        self.bank_size = BANK_SIZE
        self.command: Sequence[str] | None = None
        self.trial_timeout: float | None = None
        self.rounds: Rounds | None = None
        self.more: Callable[[], Sequence[Planned]] | None = None
        self.patient = True

    def _skip(self, trials: dict[str, Trial], known: set[str]) -> set[str]:
        """Leave out trials that the ledger knows; they may serve a new purpose."""
        with self.ledger.transaction():
            for key in known:
                del trials[key]
                if self.roles[key]:
                    self.ledger.add_roles(key, self.roles[key])
        return known

    def run(
        self, name: str, workers: int | None, options: Mapping[str, Any] | None, kept: KeptExecutor | None
    ) -> JobsOutcome:
        begin = time.monotonic()
        left_behind = self.ledger.state("sweep")
        self._take_kept_results()
        if self.trials:
            opened = open_executor if kept is None else kept.get
            executor = opened(name, workers=workers, device=self.job.device, options=options)
            try:
                executor.limit(self.trial_timeout)
                if left_behind:
                    executor.reclaim([entry["worker"] for entry in left_behind["running"]])
                with self._signals():
                    self._tell("begin")
                    self._feed(executor)
                if kept is None:
                    executor.shutdown(wait=True)
            except KeyboardInterrupt:
                self.interrupts += 1
                self._end(executor, kept)
            except BaseException:
                self._end(executor, kept)
                raise
            finally:
                # On a full disk even this fails, and the reason for that must not hide the first one.
                with contextlib.suppress(LedgerError):
                    self.ledger.put_state("sweep", None)
        self._tidy()
        progress = self.progress
        outcome = JobsOutcome(
            done=progress.done,
            failed=progress.failed,
            skipped=progress.skipped,
            remaining=progress.total - progress.done - progress.failed,
            seconds=time.monotonic() - begin,
            interrupted=self.interrupts > 0,
            longest=self.longest,
        )
        self._tell("end", text=outcome.text)
        if self.rounds is not None:
            self.rounds.add(outcome.done, outcome.failed)
        return outcome

    @staticmethod
    def _end(executor: JobExecutor, kept: KeptExecutor | None) -> None:
        executor.shutdown(wait=False, cancel_futures=True)
        if kept is not None:
            kept.forget()

    # -- feeding -------------------------------------------------------------------------------------------------------

    def _feed(self, executor: JobExecutor) -> None:
        waiting = deque(self._jobs(executor, self.trials.values()))
        self._refill(executor, waiting)
        while (waiting and self._may_start()) or self.flying:
            while waiting and self._may_start() and len(self.flying) < executor.slots:
                self._submit(executor, waiting.popleft())
            self._announce()
            with contextlib.suppress(queue.Empty):
                future = self.arrived.get(timeout=_NOTE_SECONDS)
                if future is not None:
                    self._land(future)
                    self._refill(executor, waiting)
            self._note()

    def _may_start(self) -> bool:
        in_time = self.deadline is None or time.monotonic() + self.longest < self.deadline
        return in_time and not self.interrupts

    def _refill(self, executor: JobExecutor, waiting: deque[Job]) -> None:
        """Ask for more before the workers have nothing to do."""
        if self.more is None or len(waiting) >= executor.slots or not self._may_start():
            return
        new = {item.trial.key: item for item in merge_roles(self.more()) if item.trial.key not in self.trials}
        self.roles |= {key: item.roles for key, item in new.items()}
        self.trials |= {key: item.trial for key, item in new.items()}
        self.progress.total += len(new)
        waiting.extend(self._jobs(executor, [item.trial for item in new.values()]))

    def _jobs(self, executor: JobExecutor, trials: Iterable[Trial]) -> Iterator[Job]:
        """Jobs in the order of the plan: banks as large as allowed, single trials one by one or as the executor likes."""
        trials = list(trials)
        banks = [trial for trial in trials if trial.engine == "bank"]
        groups: list[Sequence[Trial]] = []
        if banks:
            from ..train.bank import bank_groups

            groups += bank_groups(banks, self.bank_size)
        single = [trial for trial in trials if trial.engine != "bank"]
        groups += [single[begin : begin + executor.batch] for begin in range(0, len(single), executor.batch)]
        keep = self.checkpoints is not None and (executor.detached or executor.batch > 1)
        for group in groups:
            yield replace(self.job, trials=tuple(group), keep=keep)

    def _submit(self, executor: JobExecutor, job: Job) -> None:
        begin = time.monotonic()  # an executor may do the job on the spot
        future = executor.submit(perform, job)
        self.flying[future], self.since[future] = job, begin
        future.add_done_callback(self.arrived.put)

    # -- results -------------------------------------------------------------------------------------------------------

    def _land(self, future: Future[Any]) -> None:
        job = self.flying.pop(future)
        self.announced.discard(future)
        self.longest = max(self.longest, time.monotonic() - self.since.pop(future))
        if future.cancelled():
            return
        error = future.exception()
        if isinstance(error, BrokenExecutor):
            raise error
        lost: list[Result | Failure] = [Failure(f"{type(error).__name__}: {error}")] * len(job.trials)
        outcomes: list[Result | Failure] = future.result() if error is None else lost
        for trial, outcome in zip(job.trials, outcomes):
            self._write(trial, outcome)

    def _write(self, trial: Trial, outcome: Result | Failure) -> None:
        roles = self.roles[trial.key]
        if isinstance(outcome, Unusable):
            raise LabError(outcome.error)
        if isinstance(outcome, Failure):
            self.ledger.fail(trial, outcome.trace, roles)
            self.progress.failed += 1
            self._tell("failed", trial, text=outcome.error)
            return
        if self.command is not None:
            outcome.provenance["command"] = [*self.command]
        self.ledger.add(trial, outcome, roles)
        self._forget(trial.key)
        self.progress.done += 1
        self._tell("done", trial, outcome)

    def _forget(self, key: str) -> None:
        """Remove what a trial has left on disk; only after the ledger has its result."""
        if self.checkpoints is not None:
            for path in (checkpoint_file(self.checkpoints, key), result_file(self.checkpoints, key)):
                path.unlink(missing_ok=True)

    def _take_kept_results(self) -> None:
        """Results that workers have finished after their coordinator was gone."""
        for path in self._files():
            key, _, kind = path.name.partition(".")
            if kind == "result" and key in self.trials:
                result = take_kept(self.checkpoints, key)
                if result is not None:
                    self._write(self.trials.pop(key), result)

    def _tidy(self) -> None:
        """Remove what killed processes have left of trials that are done: old checkpoints, pieces of new ones."""
        files = [(path, path.name.lstrip(".").partition(".")[0]) for path in self._files()]
        done = self.ledger.done({key for _, key in files if _is_key(key)})
        for path, key in files:
            if key in done:
                path.unlink(missing_ok=True)

    def _files(self) -> list[Path]:
        return list(self.checkpoints.iterdir()) if self.checkpoints is not None and self.checkpoints.is_dir() else []

    # -- news ----------------------------------------------------------------------------------------------------------

    def _announce(self) -> None:
        for future, job in self.flying.items():
            if future not in self.announced and future.running():
                self.announced.add(future)
                for trial in job.trials:
                    self._tell("started", trial)

    def _tell(self, kind: str, trial: Trial | None = None, result: Result | None = None, text: str = "") -> None:
        self.progress.running = sum(len(self.flying[future].trials) for future in self.announced)
        if self.rounds is not None and (kind == "end" or (kind == "begin" and not self.rounds.begins())):
            return
        if self.on_event is not None:
            self.on_event(Event(kind, self._shown().now(), trial, result, text))

    def _shown(self) -> Progress:
        return self.progress if self.rounds is None else self.rounds.over_all(self.progress)

    def _note(self) -> None:
        """Tell other processes what is running, now and then."""
        if time.monotonic() - self.noted < _NOTE_SECONDS:
            return
        self.noted = time.monotonic()
        running = [
            Running(trial, self.roles[trial.key], getattr(future, "worker", ""), getattr(future, "since", 0.0))
            for future, job in self.flying.items()
            if future.running()
            for trial in job.trials
        ]
        note_progress(self.ledger, self._shown(), running)

    @contextmanager
    def _signals(self) -> Iterator[None]:
        """Ctrl-C once: no new trials. Twice, or a request to terminate: stop now."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def interrupt(*_: object) -> None:
            self.interrupts += 1
            if self.interrupts > 1 or not self.patient:
                raise KeyboardInterrupt
            running = sum(len(job.trials) for job in self.flying.values())
            self._tell("stopping", text=f"waiting for {running} trials that are running; Ctrl-C again stops at once")
            self.arrived.put(None)

        def terminate(*_: object) -> None:
            raise KeyboardInterrupt

        before = {signal.SIGINT: signal.signal(signal.SIGINT, interrupt)}
        before[signal.SIGTERM] = signal.signal(signal.SIGTERM, terminate)
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def _is_key(text: str) -> bool:
    return len(text) == 32 and not set(text) - set("0123456789abcdef")


def merge_roles(planned: Iterable[Planned]) -> list[Planned]:
    """One entry per trial, with all the roles that the plan gives it."""
    roles: dict[str, tuple[Role, ...]] = {}
    trials: dict[str, Trial] = {}
    for trial, own in planned:
        trials[trial.key] = trial
        roles[trial.key] = tuple(dict.fromkeys((*roles.get(trial.key, ()), *own)))
    return [Planned(trial, roles[key]) for key, trial in trials.items()]
