"""The executors by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ...errors import LabError, MissingPackageError, require_known
from .base import JobExecutor, open_inline
from .dask import open_dask
from .local import open_local
from .slurm import open_slurm

Open = Callable[["int | None", str, Mapping[str, Any]], JobExecutor]


@dataclass(frozen=True)
class ExecutorRecord:
    """An executor: ``options`` has the names, types and meanings of what it can be told."""

    name: str
    summary: str
    open: Open
    options: Mapping[str, tuple[type, str]] = field(default_factory=dict)
    needs: str = ""


EXECUTORS: Mapping[str, ExecutorRecord] = {
    record.name: record
    for record in (
        ExecutorRecord("local", "processes on this machine, one thread each", open_local),
        ExecutorRecord("inline", "this process, one trial after the other (for looking closely)", open_inline),
        ExecutorRecord(
            "dask",
            "a Dask cluster; one on this machine when no address is given",
            open_dask,
            {"address": (str, "of the scheduler, e.g. tcp://10.0.0.1:8786")},
            needs="dask[distributed]",
        ),
        ExecutorRecord(
            "slurm",
            "a SLURM cluster, through submitit",
            open_slurm,
            {
                "partition": (str, "where to run"),
                "time": (int, "minutes that a job may take; a longer one goes on from its checkpoint (60)"),
                "array": (int, "jobs in the queue at once (100)"),
                "per_job": (int, "trials per job, when they are short (1)"),
                "cpus": (int, "cores per job (1)"),
                "gpus": (int, "GPUs per job (1 on CUDA, else 0)"),
                "folder": (str, "for scripts and logs, on a disk that all nodes see (slurm_jobs)"),
                "poll": (float, "seconds between looks at the queue (2)"),
                "cluster": (str, "slurm, or local: processes of this machine that stand in for it"),
                "sbatch": (str, "more options as name=value, separated by commas"),
            },
            needs="submitit",
        ),
    )
}


def open_executor(
    name: str, *, workers: int | None = None, device: str = "cpu", options: Mapping[str, Any] | None = None
) -> JobExecutor:
    """The executor of that name, ready for calls. Options may be texts, as a command line gives them."""
    values = require_order(name, workers, options)
    record = EXECUTORS[name]
    try:
        return record.open(workers, device, values)
    except ModuleNotFoundError as error:
        if not record.needs:
            raise
        raise MissingPackageError(f"The executor {name} needs another package: pip install {record.needs!r}") from error


def require_order(name: str, workers: int | None, options: Mapping[str, Any] | None) -> dict[str, Any]:
    """Refuse what no executor could be opened with; its options as values."""
    require_known(name, EXECUTORS, "executor")
    if workers is not None and workers < 1:
        raise LabError(f"Invalid workers: {workers!r}, expected an int >= 1")
    record = EXECUTORS[name]
    values: dict[str, Any] = {}
    for option, value in (options or {}).items():
        if option not in record.options:
            known = ", ".join(record.options) or "none"
            raise LabError(f"Invalid option of the executor {name}: {option!r}, expected one of: {known}")
        kind = record.options[option][0]
        try:
            values[option] = kind(value)
        except ValueError:
            raise LabError(f"Invalid {option} of the executor {name}: {value!r}, expected {kind.__name__}") from None
    return values


class KeptExecutor:
    """An executor that stays open from one round of jobs to the next: its workers have loaded all they need."""

    def __init__(self) -> None:
        self._open: JobExecutor | None = None
        self._how: tuple[Any, ...] | None = None

    def get(self, name: str, *, workers: int | None, device: str, options: Mapping[str, Any] | None) -> JobExecutor:
        """The executor that is open, or a new one where another is asked for."""
        how = (name, workers, device, dict(options or {}))
        if self._open is None or self._how != how:
            self.close()
            self._open, self._how = open_executor(name, workers=workers, device=device, options=options), how
        return self._open

    def close(self) -> None:
        """End its workers; the next ``get`` opens a new one."""
        executor, self._open = self._open, None
        if executor is not None:
            executor.shutdown(wait=True)

    def forget(self) -> None:
        """Somebody has shut it down."""
        self._open = None
