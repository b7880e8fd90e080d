"""What a worker does with the runs of a study. Whatever somebody's code does in one, the next starts as the first did."""

from __future__ import annotations

import multiprocessing
import os
import traceback
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from ..run.results import Result
from ..run.spec import StudyTrial, Trial
from ..run.worker import Failure, Unusable
from .file import Schedule
from .forms import data_files, load_task
from .guard import guarded, set_to, settings_now
from .loading import begin_session, hash_now, place_of, python_files, told, use_folder
from .optimizers import Maker, maker_of
from .task import Order, StudyTask

WORK = "critgrad.lab.study.work:work"
REHEARSAL = "critgrad.lab.study.work:rehearse"
SET = "set."  # before the names of a built-in task's settings, among those of the run

_CHANGED = (
    "The Python or data files of the study have changed while it ran. What was run before that is kept: the same command makes "
    "the runs of the files as they are now, and goes on with the earlier ones once the change is taken back."
)

_device = torch.device("cpu")


def device() -> torch.device:
    """Where the run that is being made belongs: for tasks that are whole loops."""
    return _device


def work(trials: Sequence[Trial], device: str = "cpu", checkpoint_dir: Path | None = None) -> list[Result | Failure]:
    """Run trials of a study, one after the other."""
    return [_guarded(trial, device, lambda task, order: task.run(order)) for trial in trials]


def rehearse(
    trials: Sequence[Trial], device: str = "cpu", checkpoint_dir: Path | None = None
) -> list[Result | Failure]:
    """See how long runs would take."""

    def run(task: StudyTask, order: Order) -> Result:
        return Result(summary={"run_seconds": task.rehearse(order)})

    return [_guarded(trial, device, run) for trial in trials]


def _guarded(trial: Trial, device: str, run: Callable[[StudyTask, Order], Result]) -> Result | Failure:
    global _device
    assert isinstance(trial, StudyTrial)
    folder = Path(trial.folder)
    with guarded() as said:
        _device = torch.device(device)
        torch.set_float32_matmul_precision(trial.settings.get("precision", "highest"))
        os.chdir(folder)
        use_folder(folder)
        try:
            begin_session(folder, trial.session)
            outcome: Result | Failure = run(*_order(trial, folder, device))
        except BaseException as error:
            # In a worker no Ctrl-C arrives: there the code itself has raised it.
            if isinstance(error, KeyboardInterrupt) and multiprocessing.parent_process() is None:
                raise
            outcome = _failure(error, folder, said())
        return outcome if _is_as_its_key_says(trial, folder) else Unusable(_CHANGED)


def _is_as_its_key_says(trial: StudyTrial, folder: Path) -> bool:
    """Whether the files are still those of the key; after the run, since a worker may import them at any time in it."""
    try:
        now = {"code": lambda: python_files(folder), "data": lambda: data_files(trial.task, folder)}
        return all(
            hash_now(files(), folder) == trial.settings.get(name)
            for name, files in now.items()
            if name in trial.settings
        )
    except (OSError, ValueError):  # one has gone, or the task cannot be imported any more
        return False


def _order(trial: StudyTrial, folder: Path, device: str) -> tuple[StudyTask, Order]:
    settings = trial.settings
    own = tuple(
        (name.removeprefix(SET), tuple(value) if isinstance(value, list) else value)
        for name, value in settings.items()
        if name.startswith(SET)
    )
    kind, _, warmup = settings.get("schedule", "constant 0").partition(" ")
    # NOTE [what files set]: a default dtype or a search path that a file sets when it is imported holds for every run of the
    # session, as it does in a script, though it is put back after the run that imported it. The task is first: what it imports
    # sets the same for all arms.
    task = _task(trial.task, folder, own, trial.session)
    set_to(_settings_after(trial.task, trial.session))
    maker = _maker(trial.optimizer, folder, trial.session)
    set_to(_settings_after(trial.optimizer.rpartition(":")[0], trial.session))
    order = Order(
        maker,
        trial.hyper,
        trial.seed,
        settings["epochs"],
        settings["direction"],
        device,
        Schedule(kind, float(warmup)),
        bool(settings.get("still", False)),
    )
    return task, order


@lru_cache(maxsize=8)
def _task(task: str, folder: Path, settings: tuple[tuple[str, Any], ...], session: str) -> StudyTask:
    return load_task(task, folder, dict(settings))


@lru_cache(maxsize=64)
def _maker(text: str, folder: Path, session: str) -> Maker:
    return maker_of(text, folder)


@lru_cache(maxsize=256)
def _settings_after(file: str, session: str) -> list[Any]:
    return settings_now()


def _failure(error: BaseException, folder: Path, said: str) -> Failure:
    """The traceback, what was printed last, and in the last line what was raised and where."""
    trace = "".join(traceback.format_exception(error)).rstrip()
    printed = f"\nprinted last:\n{said.rstrip()}" if said.strip() else ""
    text = f"{trace}{printed}\n{told(error)}{place_of(error, folder)}"
    return Failure(text.encode(errors="replace").decode())
