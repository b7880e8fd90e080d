"""A study from its file to its answer: check everything, run what is missing, give the verdict."""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..commands import checkpoint_folder
from ..errors import LabError
from ..ledger import Ledger
from ..run.coordinator import Event, Rounds, run_jobs
from ..run.executors import open_executor
from ..run.executors.registry import require_order
from ..run.results import Result
from ..run.results import provenance as origin_of
from ..run.spec import content_hash
from ..run.worker import Failure, Job, perform
from ..words import default_device, listed
from .answer import Answer, Run
from .file import Schedule, StudyError, StudyFile, read
from .forms import BuiltInTask, load_task
from .gather import answer_of, known_runs, run_of
from .guard import guarded
from .loading import begin_session, hash_of, python_files, told
from .optimizers import Maker, maker_of
from .plan import Queue, StudyPlan, completed, surroundings
from .task import StudyTask
from .work import REHEARSAL, WORK

LEDGER = "study.db"  # beside the study's file
PAGE = "report.html"
_AROUND, _VERDICT = "study:around:", "study:verdict:"  # documents of a ledger

OnEvent = Callable[[Event], None]


@dataclass(frozen=True)
class ReadyStudy:
    """A study of which everything has been found and can be run."""

    plan: StudyPlan
    device: str
    remarks: tuple[str, ...] = ()


def prepare(path: str | Path, device: str = "auto", *, here: bool = True) -> ReadyStudy:
    """Read a study and all that it names; what is wrong is told in one line, and nothing is written.

    ``here``: its runs are made on this machine, which must have a built-in task's data.
    """
    study = read(path)
    where = default_device(device)
    with guarded():
        os.chdir(study.folder)
        begin_session(study.folder, uuid.uuid4().hex)
        task = _task_of(study)
        if task.whole_loop and study.schedule != Schedule():
            raise study.error(
                "schedule: expected none, since train(...) is a loop of its own and sets its learning rates itself"
            )
        makers = {name: _maker(study, name) for name in study.arms}
        study = completed(study, task)
        try:
            around = surroundings(study, task, makers, where)
            if here and isinstance(task, BuiltInTask):
                task.require()
        except LabError as error:
            raise study.error(f"task: {error}") from None
    # A session of their own: runs in this process import anew, and see what the files set when they are imported.
    return ReadyStudy(StudyPlan(study, around, uuid.uuid4().hex), where, _decay_line(study, makers))


def _decay_line(study: StudyFile, makers: Mapping[str, Maker]) -> tuple[str, ...]:
    """What a reader must know of arms that give no weight decay, and get different ones."""
    own = {name: makers[name].defaults.get("weight_decay") for name, arm in study.arms.items()}
    given = {name for name, arm in study.arms.items() if "weight_decay" in {**arm.fixed, **arm.search}}
    found = {name: value for name, value in own.items() if name not in given and value is not None}
    if len(set(found.values())) < 2:
        return ()
    return (f"arms that give no weight_decay have their optimizers' own, which differ: {listed(found)}",)


def _task_of(study: StudyFile) -> StudyTask:
    try:
        return load_task(study.task, study.folder, study.settings)
    except LabError as error:
        raise study.error(f"task: {error}") from None


def _maker(study: StudyFile, name: str) -> Maker:
    arm = study.arms[name]
    try:
        maker = maker_of(arm.optimizer, study.folder)
        maker.require([*arm.fixed, *arm.search])
        maker.try_values({**arm.fixed, **{option: axis.value(0.5) for option, axis in arm.search.items()}})
    except LabError as error:
        raise study.error(f"arms.{name}.optimizer: {error}") from None
    return maker


def ledger_of(study: StudyFile, ledger: str | Path | None) -> Path:
    """The ledger's file: beside the study's where none is given."""
    return study.folder / LEDGER if ledger is None else Path(ledger)


def run(
    path: str | Path,
    *,
    ledger: str | Path | None = None,
    workers: int | None = None,
    executor: str = "local",
    options: Mapping[str, Any] | None = None,
    device: str = "auto",
    minutes: float | None = None,
    trial_timeout: float | None = None,
    retry: bool = False,
    on_event: OnEvent | None = None,
) -> Answer:
    """Run what a study still needs, and give its answer.

    Args:
        path: of the study's file.
        ledger: the file that keeps every run (``study.db`` beside the study's file).
        workers: processes; one per core by default, one on a GPU.
        executor: ``"local"``, ``"inline"``, ``"dask"`` or ``"slurm"``; ``options`` are its own.
        device: ``"cpu"``, ``"cuda"``, ... (``"auto"``: the GPU if there is one).
        minutes: begin no replicate that would not be whole by then, but for the first.
        trial_timeout: end runs that take longer (seconds); they have failed.
        retry: run those that failed once more.
        on_event: is told of everything that happens.
    """
    _require_order(executor, workers, options, minutes, trial_timeout)
    prepared = prepare(path, device, here=executor in ("local", "inline"))
    plan, study = prepared.plan, prepared.plan.study
    file = ledger_of(study, ledger)
    with Ledger.open(file, write=True, create=True) as book:
        book.put_document(_AROUND + study.path.name, json.dumps(dict(plan.around)))
        runs = known_runs(book)
        if retry:  # not those that gave no finite number: they have ended, and would give none again
            lost = book.failed(runs)
            runs = {key: run for key, run in runs.items() if key not in lost}
        queue = Queue(plan, runs, None if minutes is None else 60 * minutes)
        rounds = Rounds(sum(plan.remaining(number, runs).total() for number in range(1, study.replicates + 1)))

        def on_each(event: Event) -> None:
            if event.trial is not None and event.kind in ("done", "failed"):
                queue.add(_made(event))
            if on_event is not None:
                on_event(event)

        outcome = run_jobs(
            queue.more(),
            book,
            executor=executor,
            workers=workers,
            device=prepared.device,
            checkpoints=checkpoint_folder(file) if executor == "slurm" else None,
            on_event=on_each,
            options=options,
            retry_failed=retry,
            work=WORK,
            trial_timeout=trial_timeout,
            rounds=rounds,
            more=queue.more,
            patient=False,
        )
        if on_event is not None:
            on_event(Event("end", rounds.end(outcome.interrupted), text=outcome.text))
        if outcome.interrupted:
            raise KeyboardInterrupt
        origin = {**origin_of(prepared.device), "ledger": file.name, "surroundings": dict(plan.around)}
        answer = answer_of(plan, queue.runs, _replanned(plan, book), origin)
        if answer.final:
            _note_verdict(plan, book)
    return answer


def _require_order(
    executor: str,
    workers: int | None,
    options: Mapping[str, Any] | None,
    minutes: float | None,
    trial_timeout: float | None,
) -> None:
    """Refuse an order that cannot be carried out, before anything is written."""
    for name, value in (("minutes", minutes), ("trial timeout", trial_timeout)):
        if value is not None and not value > 0:
            raise StudyError(f"Invalid {name}: {value!r}, expected a number above 0")
    try:
        require_order(executor, workers, options)
    except LabError as error:
        raise StudyError(str(error)) from None


def _made(event: Event) -> Run:
    assert event.trial is not None
    if event.kind == "failed" or event.result is None:
        return run_of(event.trial.key, event.trial.seed, {}, {}, event.text)
    return run_of(event.trial.key, event.trial.seed, event.result.summary, event.result.curves)


# -- what a ledger remembers of a study --------------------------------------------------------------------------------


def _verdicts(plan: StudyPlan, book: Ledger) -> dict[str, list[int]]:
    """For each claim, known by its arms and not by what is asked beside it: with how many replicates there was a verdict."""
    study, found = plan.study, {}
    for arm, against in study.claims:
        keys = [plan.trial(study.arms[name], dict(study.arms[name].texts), 1).key for name in (arm, *against)]
        name = _VERDICT + content_hash([keys, study.trials, study.report_seeds, study.seed])
        found[name] = json.loads(book.document(name) or "[]")
    return found


def _note_verdict(plan: StudyPlan, book: Ledger) -> None:
    for name, known in _verdicts(plan, book).items():
        if plan.study.replicates not in known:
            book.put_document(name, json.dumps([*known, plan.study.replicates]))


def _replanned(plan: StudyPlan, book: Ledger) -> list[str]:
    now = plan.study.replicates
    others = [count for known in _verdicts(plan, book).values() for count in known if count != now]
    if not others:
        return []
    return [
        f"The file asked for {min(others)} replicates when there was a verdict, and asks for {now} now. To change their number "
        "after a look finds differences that are not there about twice as often as the 5 % that are said."
    ]


# -- reading and checking ----------------------------------------------------------------------------------------------


def report(path: str | Path, *, ledger: str | Path | None = None) -> Answer:
    """The answer of what has been run, with the versions and the device that it was run with."""
    study = read(path)
    study = study if study.task_is_file else completed(study, _task_of(study))
    file = ledger_of(study, ledger)
    if not file.exists():
        raise study.error(f"there is no ledger {file.name} yet; `critgrad study run` makes its runs")
    with Ledger.open(file) as book:
        text = book.document(_AROUND + study.path.name)
        if text is None:
            raise study.error(f"the ledger {file.name} has no runs of it; `critgrad study run` makes them")
        around = json.loads(text)
        new = next((name for name in study.arms if name not in around["packages"]), None)
        if new is not None:
            raise study.error(f"the ledger {file.name} has no runs of arms.{new}; `critgrad study run` makes them")
        plan = StudyPlan(study, around)
        notes = _replanned(plan, book)
        if around["code"] and around["code"] != hash_of(python_files(study.folder), study.folder):
            notes.append("The Python files have changed since these runs were made.")
        rows = known_runs(book)
        last = book.row(book.keys()[-1]) if rows else None
    machine = {} if last is None else last.provenance
    return answer_of(plan, rows, notes, {**machine, "ledger": file.name, "surroundings": dict(plan.around)})


@dataclass(frozen=True)
class Checked:
    """What ``check`` has found: seconds of a run by arm, the runs to make, and what can be said of the plan."""

    study: StudyFile
    device: str
    seconds: Mapping[str, float]
    remaining: int
    replicates: int  # that are whole
    lines: tuple[str, ...]
    total_seconds: float  # of all runs that are to be made, one after the other


def check(path: str | Path, *, ledger: str | Path | None = None, device: str = "auto") -> Checked:
    """Find what is wrong, and see how long a run takes; nothing is written."""
    from .verdict import plan_lines

    prepared = prepare(path, device)
    plan, study = prepared.plan, prepared.plan.study
    seconds = _rehearse(prepared)
    runs: dict[str, Run] = {}
    file = ledger_of(study, ledger)
    if file.exists():
        with Ledger.open(file) as book:
            runs = known_runs(book)
    left = [plan.remaining(number, runs) for number in range(1, study.replicates + 1)]
    whole = sum(not count for count in left)
    arms = answer_of(plan, runs).arms if whole else {}
    return Checked(
        study,
        prepared.device,
        seconds,
        sum(count.total() for count in left),
        whole,
        (*prepared.remarks, *plan_lines(arms, study.claims, study.direction, study.replicates)),
        sum(seconds[name] * runs for count in left for name, runs in count.items()),
    )


def _rehearse(prepared: ReadyStudy) -> dict[str, float]:
    """Seconds that a run of each arm takes, by a few steps in a worker: what goes wrong there is told."""
    plan, study = prepared.plan, prepared.plan.study
    out: dict[str, float] = {}
    executor = open_executor("local", workers=1, device=prepared.device)
    try:
        for name, arm in study.arms.items():
            searched = plan.searched(name, 1)
            trial = searched[0][1] if searched else plan.trial(arm, {}, 1)
            job = Job((trial,), prepared.device, work=REHEARSAL)
            try:
                found = executor.submit(perform, job).result()[0]
                if not out and not plan.around["whole_loop"]:
                    found = executor.submit(perform, job).result()[0]  # the first has loaded libraries and data, too
            except RuntimeError as error:  # its worker has died
                raise study.error(f"arms.{name} fails at its first steps: {told(error)}") from None
            if isinstance(found, Failure):
                raise study.error(f"arms.{name} fails at its first steps: {found.error}")
            assert isinstance(found, Result)
            out[name] = float(found.summary["run_seconds"])
    finally:
        executor.shutdown(wait=False, cancel_futures=True)
    return out
