"""What all executors have in common."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from concurrent.futures import Executor, Future
from typing import Any

from ...errors import LabError

# A call that was running when so many workers died is to blame for it.
LOSSES = 3


class WorkerLostError(RuntimeError):
    """The process that worked on a call is gone, again and again."""


class TrialTimeoutError(RuntimeError):
    """A call took longer than it may; its worker was ended."""


class JobExecutor(Executor):
    """An executor that says how it wants to be fed.

    ``slots``: calls worth having in flight. ``batch``: single trials per call. ``detached``: workers may outlive the
    coordinator, so finished results must be kept where the next coordinator finds them.

    A future whose call is running has ``worker`` (a text that names the worker) and ``since`` where that is known.
    """

    name = "inline"
    slots = 1
    batch = 1
    detached = False

    def limit(self, seconds: float | None) -> None:
        """End calls that run for longer, and replace their workers; ``None``: let them run."""
        if seconds is not None:
            raise LabError(
                f"Invalid --trial-timeout with the executor {self.name}: it cannot end a trial that runs, expected "
                "--executor local (or, on SLURM, --executor-opt time=MINUTES)"
            )

    def reclaim(self, workers: list[str]) -> None:
        """Take back what a killed coordinator has left running; ``workers`` are the names that its futures had."""


class InlineExecutor(JobExecutor):
    """Runs each call at once, in this process."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Make the call now."""
        future: Future[Any] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:
            future.set_exception(error)
        return future


def open_inline(workers: int | None, device: str, options: Mapping[str, Any]) -> JobExecutor:
    """The executor ``inline``."""
    return InlineExecutor()


def default_workers(device: str) -> int:
    """One worker per core; one in all on an accelerator, which a single process can fill."""
    if device != "cpu":
        return 1
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
