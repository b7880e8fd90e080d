"""What a worker does with the runs of a study. Whatever somebody's code does in one, the next starts as the first did."""

from __future__ import annotations

import multiprocessing
import os
import traceback
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

import torch

from ..run.results import Result
from ..run.spec import StudyTrial, Trial
from ..run.worker import Failure, Unusable
from . import loading
from .file import Schedule
from .forms import data_files, load_task
from .guard import guarded, reseed, set_to, settings_now
from .optimizers import Maker, maker_of
from .task import Order, StudyTask

WORK = "critgrad.lab.study.work:work"
REHEARSAL = "critgrad.lab.study.work:rehearse"
SET = "set."  # before the names of a built-in task's settings, among those of the run

_CHANGED = (
    "The Python or data files of the study have changed while it ran. What was run before that is kept: the same command makes "
    "the runs of the files as they are now, and goes on with the earlier ones once the change is taken back."
)

_T = TypeVar("_T")
_device = torch.device("cpu")
_prepared: set[tuple[str, str]] = set()


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


def _prepare(trials: Sequence[StudyTrial], device: str) -> None:
    """Import what runs need, before their time counts; what goes wrong there is theirs to tell."""
    for trial in trials:
        if (trial.optimizer, trial.session) not in _prepared:
            _prepared.add((trial.optimizer, trial.session))
            _guarded(trial, device, lambda *_: Result())


work.prepare = rehearse.prepare = _prepare  # type: ignore[attr-defined]


def _guarded(trial: Trial, device: str, run: Callable[[StudyTask, Order], Result]) -> Result | Failure:
    global _device
    assert isinstance(trial, StudyTrial)
    folder = Path(trial.folder)
    with guarded() as said:
        _device = torch.device(device)
        torch.set_float32_matmul_precision(trial.settings.get("precision", "highest"))
        os.chdir(folder)
        loading.use_folder(folder)
        try:
            loading.begin_session(folder, trial.session)
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
        now = {"code": lambda: loading.python_files(folder), "data": lambda: data_files(trial.task, folder)}
        asked = {name: trial.settings[name] for name in now if name in trial.settings}
        return all(loading.hash_now(now[name](), folder) == known for name, known in asked.items())
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
    place, base = trial.optimizer.rpartition(":")[0], (trial.task, folder, own, trial.session)
    task, settled, _ = _task(*base)
    set_to(settled)
    _, settled, modules = _file(place, folder, base)
    set_to(settled)
    loading.set_modules(str(folder), modules)
    maker = _maker(trial.optimizer, folder, trial.session)
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


# NOTE [what files do when they are imported]: a default dtype or a search path that a file sets then, and what it draws, hold
# for every run of the session, as in a script, though they are put back after the run that imported it. The task is first: what
# it imports acts the same for all arms. What an arm's file or a run imports acts for it alone, or the order in which a worker
# gets its runs would decide what the next one finds.
_Loaded = tuple[_T, "list[Any]", "Mapping[str, ModuleType]"]


def _loaded(load: Callable[[], _T], folder: Path, modules: Mapping[str, ModuleType]) -> _Loaded[_T]:
    """What comes of an import in a process that has these modules: it, and the settings and modules after it."""
    loading.set_modules(str(folder), modules)
    reseed(0, "import")
    return load(), settings_now(), loading.modules_of(str(folder))


@lru_cache(maxsize=8)
def _task(task: str, folder: Path, settings: tuple[tuple[str, Any], ...], session: str) -> _Loaded[StudyTask]:
    return _loaded(lambda: load_task(task, folder, dict(settings)), folder, {})


@lru_cache(maxsize=64)
def _file(place: str, folder: Path, base: tuple[Any, ...]) -> _Loaded[ModuleType | None]:
    return _loaded(lambda: loading.module_of(place, folder) if place else None, folder, _task(*base)[2])


@lru_cache(maxsize=64)
def _maker(text: str, folder: Path, session: str) -> Maker:
    return maker_of(text, folder)


def _failure(error: BaseException, folder: Path, said: str) -> Failure:
    """The traceback, what was printed last, and in the last line what was raised and where."""
    trace = "".join(traceback.format_exception(error)).rstrip()
    printed = f"\nprinted last:\n{said.rstrip()}" if said.strip() else ""
    text = f"{trace}{printed}\n{loading.told(error)}{loading.place_of(error, folder)}"
    return Failure(text.encode(errors="replace").decode())
