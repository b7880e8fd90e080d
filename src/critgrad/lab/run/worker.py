"""What a worker does with a job, wherever it runs: train, and hand over results or what went wrong.

A job is a list of trials: a few of the single engine, one after the other, or one bank.
"""

from __future__ import annotations

import gc
import importlib
import pickle
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import torch

from ..errors import LabError
from ..ledger.codec import pack_result, unpack_result
from ..replacing import replacing
from ..train import compiling
from .batch import Surroundings
from .results import Result
from .spec import Trial

# A shorter trial is run again from its beginning rather than written down at each epoch.
CHECKPOINT_SECONDS = 5.0
SAVING_SHARE = 0.05  # of a trial's time that its checkpoints may take
WORK = "critgrad.lab.run.worker:work"

# NOTE [one at a time]: dropout and initialisation draw from torch's global generator, of which a process has one.
_ALONE = threading.Lock()

_seconds: dict[tuple[object, ...], float] = {}  # how long the last trial of a kind took in this process


@dataclass(frozen=True)
class Failure:
    """A trial that raised: the traceback's text."""

    trace: str

    @property
    def error(self) -> str:
        """The last line: what was raised."""
        lines = self.trace.strip().splitlines()
        return lines[-1] if lines else "unknown error"


@dataclass(frozen=True)
class Unusable(Failure):
    """A trial that was not run as its key says (its files have changed since): nothing of it is noted, and the jobs end."""


Work = Callable[[Sequence[Trial], str, "Path | None"], "list[Result | Failure]"]


@dataclass(frozen=True)
class Job:
    """Trials for one worker.

    ``work`` names the function that runs them (``"module:function"``). ``keep`` writes each result into the folder of
    checkpoints as soon as it is there: for workers that outlive the coordinator, and for jobs of several trials. ``eager``
    trains without CUDA graphs and compilers: for runs that are made for their times.
    """

    trials: tuple[Trial, ...]
    device: str = "cpu"
    checkpoints: Path | None = None
    work: str = WORK
    keep: bool = False
    deterministic: bool = False
    eager: bool = False


def checkpoint_file(folder: Path, key: str) -> Path:
    """Where a trial writes its state between epochs."""
    return folder / f"{key}.pt"


def result_file(folder: Path, key: str) -> Path:
    """Where a finished trial waits for a coordinator to take its result."""
    return folder / f"{key}.result"


def work(trials: Sequence[Trial], device: str = "cpu", checkpoint_dir: Path | None = None) -> list[Result | Failure]:
    """Run trials: each by itself, where one that raises becomes a ``Failure``, or all of them as a bank."""
    if trials and trials[0].engine == "bank":
        from ..train.bank import run_bank

        return list(run_bank(trials, device=device))
    return [_run_single(trial, device, checkpoint_dir) for trial in trials]


def _run_single(trial: Trial, device: str, folder: Path | None) -> Result | Failure:
    kind = (trial.task, repr(trial.settings), trial.optimizer, repr(trial.probe), "donor_seed" in trial.hyper, device)
    checkpoint = None if folder is None else checkpoint_file(folder, trial.key)
    short = _seconds.get(kind, CHECKPOINT_SECONDS) < CHECKPOINT_SECONDS
    if checkpoint is not None and not _readable(checkpoint) and short:
        checkpoint = None
    begin = time.perf_counter()
    try:
        from ..train.loop import train

        result = train(trial, device=device, checkpoint=checkpoint, saving_share=SAVING_SHARE)
    except Exception:
        return Failure(traceback.format_exc())
    # A resumed trial took longer than it seems: it tells nothing about the next one.
    _seconds.setdefault(kind, time.perf_counter() - begin)
    return result


def _readable(checkpoint: Path) -> bool:
    """Whether there is a checkpoint; one that cannot be read (written by a machine that lost power) is removed."""
    if not checkpoint.exists():
        return False
    try:
        torch.load(checkpoint, map_location="cpu", weights_only=True)
    except (RuntimeError, EOFError, pickle.UnpicklingError, KeyError, ValueError):
        checkpoint.unlink(missing_ok=True)
        return False
    return True


def perform(job: Job) -> list[Result | Failure]:
    """Do a job. This is the function that executors call."""
    run: Work = resolve(job.work)
    if job.deterministic:
        from ..train.loop import deterministic_algorithms

        deterministic_algorithms(True)
    with _ALONE, _one_thread(), _as_anybody_does(job.eager):
        if job.trials[0].engine == "bank":
            return _checked(run, job.trials, job)
        outcomes: list[Result | Failure] = []
        for trial in job.trials:
            kept = take_kept(job.checkpoints, trial.key) if job.keep else None
            outcome = kept if kept is not None else _checked(run, (trial,), job)[0]
            if job.keep and kept is None and isinstance(outcome, Result) and job.checkpoints is not None:
                job.checkpoints.mkdir(parents=True, exist_ok=True)
                with replacing(result_file(job.checkpoints, trial.key)) as file:
                    file.write(pack_result(outcome))
            outcomes.append(outcome)
        return outcomes


def prepare(job: Job) -> None:
    """Load what a job needs, before its clock starts."""
    run = resolve(job.work)
    torch.optim.SGD([torch.zeros(1)], lr=0.1)  # torch loads its compiler with the first optimizer
    with _one_thread():
        getattr(run, "prepare", lambda *_: None)(job.trials, job.device)


perform.prepare = prepare  # type: ignore[attr-defined]


def _checked(run: Work, trials: Sequence[Trial], job: Job) -> list[Result | Failure]:
    try:
        outcomes = run(trials, job.device, job.checkpoints)
    except Exception:
        return [Failure(traceback.format_exc())] * len(trials)
    finally:
        if job.device.startswith("cuda"):
            # Models, optimizers and CUDA graphs refer to themselves: Python would let some GB of them lie for the next runs.
            gc.collect()
            with suppress(RuntimeError):  # a GPU that has failed says so again here; what the run said counts
                torch.cuda.empty_cache()
    if len(outcomes) != len(trials):
        return [Failure(f"ValueError: {job.work} gave {len(outcomes)} results for {len(trials)} trials")] * len(trials)
    return outcomes


def take_kept(folder: Path | None, key: str) -> Result | None:
    """The result that a worker has left for a trial; one that cannot be read is removed."""
    if folder is None:
        return None
    path = result_file(folder, key)
    try:
        return unpack_result(path.read_bytes())
    except FileNotFoundError:
        return None
    except Exception:  # whatever a damaged file makes the parsers raise: the trial can be run again
        path.unlink(missing_ok=True)
        return None


def resolve(name: str) -> Work:
    """The function that ``"module:function"`` names."""
    module, _, function = name.partition(":")
    try:
        found: Work = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError) as error:
        raise LabError(f"Invalid work function: {name!r}, expected 'module:function' ({error})") from error
    return found


@contextmanager
def _as_anybody_does(eager: bool) -> Iterator[None]:
    """Forbid CUDA graphs and compiled models for a while, where times are taken."""
    surroundings = Surroundings()
    surroundings.change({"CRITGRAD_GRAPH": "0", compiling.ASKED: "0"} if eager else {})
    try:
        yield
    finally:
        surroundings.restore()


@contextmanager
def _one_thread() -> Iterator[None]:
    """One thread per worker: the workers are the parallelism, and the order of sums must not depend on the machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
