"""A SLURM cluster, through submitit. Calls become jobs of an array; answers come back as files on the shared disk.

A thread submits what has come together and looks at the queue from time to time. Jobs outlive the coordinator: what a killed
one has left in the queue is cancelled by the next, and finished results wait in the folder of checkpoints.
"""

from __future__ import annotations

import contextlib
import pickle
import subprocess
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...errors import LabError
from .base import LOSSES, JobExecutor, WorkerLostError

# A job that is in no queue and has left no answer after so many looks is gone: an answer may be late on a shared disk.
_LOOKS = 3
_TAG = "slurm "
ASK_SECONDS = 60.0  # that SLURM's commands may take to answer


class Resumable:
    """A call that SLURM may interrupt (preemption, end of its time) and submit again: the trial has its own checkpoint."""

    def __call__(self, fn: Callable[..., Any], *args: Any) -> Any:
        """Make the call."""
        return fn(*args)

    def checkpoint(self, fn: Callable[..., Any], *args: Any) -> Any:
        """What submitit is to submit in place of the interrupted call: the same."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self, fn, *args)


@dataclass
class _SlurmCall:
    fn: Callable[..., Any]
    args: tuple[Any, ...]
    future: Future[Any]
    job: Any = None
    losses: int = 0
    missing: int = 0


class SlurmExecutor(JobExecutor):
    """Calls as SLURM jobs."""

    name = "slurm"
    detached = True

    def __init__(
        self, *, folder: str, cluster: str, array: int, per_job: int, poll: float, parameters: Mapping[str, Any]
    ) -> None:
        import submitit

        self.slots, self.batch = array, per_job
        self._poll, self._cluster = poll, cluster
        self._folder = Path(folder).resolve()
        self._where = cluster_name() if cluster == "slurm" else ""
        try:
            self._submitit = submitit.AutoExecutor(folder=self._folder, cluster=cluster, slurm_max_num_timeout=100)
        except (RuntimeError, ValueError) as error:  # no SLURM on this machine, an unknown cluster
            raise LabError(f"The executor slurm cannot submit here: {error}") from error
        self._submitit.update_parameters(**parameters)
        self._new: list[_SlurmCall] = []
        self._live: list[_SlurmCall] = []
        self._condition = threading.Condition()
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="critgrad-slurm", daemon=True)
        self._thread.start()

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Queue a call; calls that come together become one array."""
        if kwargs:
            raise TypeError("calls of the slurm executor take positional arguments only")
        call = _SlurmCall(fn, args, Future())
        with self._condition:
            self._new.append(call)
            self._condition.notify()
        return call.future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Wait for the jobs, or cancel them."""
        with self._condition:
            calls = [*self._new, *self._live]
            if cancel_futures:
                self._closing = True
                self._new.clear()
                self._condition.notify()
        if cancel_futures:
            self._thread.join()
            self._cancel([call.job for call in self._live])
            for call in calls:
                call.future.cancel()
        elif wait:
            for call in calls:
                call.future.exception()
        with self._condition:
            self._closing = True
            self._condition.notify()
        self._thread.join()

    def reclaim(self, workers: list[str]) -> None:
        """Cancel the jobs of a coordinator that was killed."""
        mine = f"{_TAG}{self._where}:"  # numbers of another cluster's jobs are other people's jobs here
        jobs = [worker.removeprefix(mine) for worker in workers if worker.startswith(mine)]
        if jobs and self._where:
            _ask("scancel", *jobs)

    def _cancel(self, jobs: list[Any]) -> None:
        if self._cluster == "slurm":
            if jobs:
                _ask("scancel", *(job.job_id for job in jobs))
            return
        for job in jobs:
            job.cancel(check=False)

    # -- in the executor's thread --------------------------------------------------------------------------------------

    def _run(self) -> None:
        while True:
            with self._condition:
                if not self._new and not self._closing:
                    self._condition.wait(timeout=self._poll if self._live else None)
                if self._closing:
                    return
                calls, self._new = self._new, []
            try:
                if calls:
                    self._submit_all(calls)
                self._look()
            except Exception as error:  # sbatch refused, say: every waiting call must learn of it
                for call in [*calls, *self._live]:
                    if not call.future.done():
                        call.future.set_exception(error)
                self._live.clear()

    def _submit_all(self, calls: list[_SlurmCall]) -> None:
        wanted = [call for call in calls if call.losses or call.future.set_running_or_notify_cancel()]
        with self._submitit.batch():
            for call in wanted:
                call.job = self._submitit.submit(Resumable(), call.fn, *call.args)
        for call in wanted:
            call.missing = 0
            call.future.worker = f"{_TAG}{self._where}:{call.job.job_id}"  # type: ignore[attr-defined]
            call.future.since = time.time()  # type: ignore[attr-defined]
        self._live += wanted

    def _look(self) -> None:
        queued = self._queued()
        again: list[_SlurmCall] = []
        for call in list(self._live):
            answered = call.job.paths.result_pickle.exists()
            if queued is None:
                gone = not answered and call.job.done()
            else:
                call.missing = 0 if answered or call.job.job_id in queued else call.missing + 1
                gone = call.missing >= _LOOKS
            if not answered and not gone:
                continue
            self._live.remove(call)
            if answered and self._take(call):
                continue
            call.losses += 1
            if call.losses < LOSSES:
                again.append(call)
            else:
                error = WorkerLostError(
                    f"{LOSSES} jobs ended without an answer; see the last, {call.job.job_id}, in {self._folder}"
                )
                call.future.set_exception(error)
        if again:
            self._submit_all(again)

    def _take(self, call: _SlurmCall) -> bool:
        """Hand over a job's answer; ``False`` if it cannot be read."""
        try:
            outcome, value = pickle.loads(call.job.paths.result_pickle.read_bytes())
        except (OSError, EOFError, pickle.UnpicklingError):
            return False  # not whole, or not yet
        except Exception as error:  # it is whole, and cannot be read here: that costs this call, not the others
            text = f"its answer could not be read: {type(error).__name__}: {error}"
            call.future.set_exception(RuntimeError(text))
            return True
        if outcome == "error":
            call.future.set_exception(RuntimeError(value))
        else:
            call.future.set_result(value)
        return True

    def _queued(self) -> set[str] | None:
        """The jobs that SLURM knows as waiting or running; ``None`` where there is no SLURM to ask."""
        if self._cluster != "slurm":
            return None
        # Not sacct: it needs an accounting database, which small clusters do not have.
        found = _ask("squeue", "--noheader", "--array", "--format=%i", "--me")
        if found is None:  # the controller is away for a moment: nothing is known to be gone
            return {call.job.job_id for call in self._live}
        return set(found.split())


def _ask(*command: str) -> str | None:
    """What one of SLURM's commands says; ``None`` where it fails, is not there, or takes too long."""
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=ASK_SECONDS)
        if done.returncode == 0:
            return done.stdout
    return None


def cluster_name() -> str:
    """The cluster that this machine submits to; empty where SLURM does not say."""
    for line in (_ask("scontrol", "show", "config") or "").splitlines():
        name, _, value = line.partition("=")
        if name.strip() == "ClusterName":
            return value.strip()
    return ""


def open_slurm(workers: int | None, device: str, options: Mapping[str, Any]) -> JobExecutor:
    """The executor ``slurm``."""
    cuda = device.startswith("cuda")
    cluster = options.get("cluster", "slurm")
    parameters: dict[str, Any] = {
        "name": "critgrad",
        "timeout_min": options.get("time", 60),
        "cpus_per_task": options.get("cpus", 1),
        "gpus_per_node": options.get("gpus", 1 if cuda else 0) or None,
    }
    if cluster == "slurm":
        more = dict(pair.split("=", 1) for pair in options.get("sbatch", "").split(",") if "=" in pair)
        parameters["slurm_array_parallelism"] = workers or options.get("array", 100)
        parameters |= {"slurm_partition": options.get("partition"), "slurm_additional_parameters": more or None}
    return SlurmExecutor(
        folder=options.get("folder", "slurm_jobs"),
        cluster=cluster,
        array=options.get("array", workers or 100),
        per_job=options.get("per_job", 1),
        poll=options.get("poll", 2.0),
        parameters={name: value for name, value in parameters.items() if value is not None},
    )
