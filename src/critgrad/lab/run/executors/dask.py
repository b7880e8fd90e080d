"""Any Dask cluster, by the address of its scheduler; without one, a cluster of processes on this machine."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any

from ...errors import LabError
from .base import LOSSES, JobExecutor, WorkerLostError, default_workers


class DaskExecutor(JobExecutor):
    """Calls become tasks of a Dask cluster, which gives the tasks of a dead worker to another one."""

    name = "dask"

    def __init__(self, workers: int, address: str | None) -> None:
        import dask
        from distributed import Client, LocalCluster

        # Of this process's scheduler; a remote one has its own (`distributed.scheduler.allowed-failures`).
        dask.config.set({"distributed.scheduler.allowed-failures": LOSSES - 1})
        self._cluster = None
        if address is None:
            self._cluster = LocalCluster(
                n_workers=workers, threads_per_worker=1, processes=True, dashboard_address=None
            )
        try:
            self._client = Client(address or self._cluster, set_as_default=False)
        except (OSError, ValueError) as error:  # nobody there, or no address
            raise LabError(f"Invalid address of the executor dask: {address!r}, {error}") from error
        try:
            require_one_thread(self._client.nthreads())
        except LabError:
            self._client.close()
            raise
        # Never answered from Dask's cache: a trial that failed may be tried again.
        self._calls = self._client.get_executor(pure=False)

    @property
    def slots(self) -> int:  # type: ignore[override]
        """Two calls per thread of the cluster as it is now: it may grow and shrink."""
        return max(2, 2 * sum(self._client.nthreads().values()))

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Make the call somewhere in the cluster."""
        from distributed.scheduler import KilledWorker

        outer: Future[Any] = Future()
        inner = self._calls.submit(fn, *args, **kwargs)
        outer.worker = "dask"  # type: ignore[attr-defined]

        def hand_over(done: Future[Any]) -> None:
            if outer.cancelled() or done.cancelled():
                outer.cancel()
                return
            error = done.exception()
            if error is None:
                outer.set_result(done.result())
            elif isinstance(error, KilledWorker):
                outer.set_exception(WorkerLostError(f"{LOSSES} workers died while they ran this ({error})"))
            else:
                outer.set_exception(error)

        inner.add_done_callback(hand_over)
        return outer

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Leave the cluster; end it if it is ours."""
        self._calls.shutdown(wait=wait and not cancel_futures)
        self._client.close()
        if self._cluster is not None:
            self._cluster.close()


def require_one_thread(threads: Mapping[str, int]) -> None:
    """Refuse workers with several threads: trials in one process would draw from each other's random numbers.

    A worker that joins later and has several runs one trial at a time all the same (``worker.perform``).
    """
    for worker, count in threads.items():
        if count > 1:
            raise LabError(
                f"Invalid Dask worker {worker}: it has {count} threads, and trials that share a process share torch's "
                f"random numbers; start the workers with `dask worker ADDRESS --nworkers {count} --nthreads 1`"
            )


def open_dask(workers: int | None, device: str, options: Mapping[str, Any]) -> JobExecutor:
    """The executor ``dask``."""
    return DaskExecutor(workers or default_workers(device), options.get("address"))
