"""Processes on this machine. A small pool of our own, because the standard one breaks as a whole when one worker is killed.

One thread of the coordinator waits for everything at once: new calls, answers, deaths. Each worker has a pipe to itself, so a
worker that dies in the middle of an answer leaves nothing half-read for the others.

NOTE [no orphans]: workers must not outlive a killed coordinator. Linux sends them a signal when the thread that started them
ends (so one thread starts all of them); elsewhere, and beside it, a thread in the worker waits for the parent's end. Each is a
process group with what it starts (a loader's workers, subprocesses), which ends where it is ended.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import pickle
import signal
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import BrokenExecutor, Future
from dataclasses import dataclass, field
from multiprocessing import connection, get_context, parent_process, resource_tracker
from typing import Any

from ...errors import LabError
from .base import LOSSES, JobExecutor, TrialTimeoutError, WorkerLostError, default_workers
from .mps import MpsService, service_for

_FALSE_STARTS = 3
_LONGEST_WAIT = 3600.0  # seconds; poll knows no more than some weeks
_PR_SET_PDEATHSIG = 1


@dataclass
class _Call:
    data: bytes
    future: Future[Any]
    losses: int = 0


@dataclass
class _Worker:
    process: Any
    pipe: connection.Connection
    end: int  # ready to be read once the process has ended
    call: _Call | None = None
    ready: bool = field(default=False)
    begun: bool = False  # with its call, after all imports
    since: float = 0.0  # when
    ended: bool = False  # by us: it is not to be given another


class LocalPool(JobExecutor):
    """A pool of spawned processes that survives the death of any of them.

    A worker serves one call after the other until the pool is closed: what it has loaded stays. With a ``service`` the
    workers are its clients; it is stopped with the pool.
    """

    name = "local"

    def __init__(self, workers: int, service: MpsService | None = None) -> None:
        self.slots = 2 * workers  # as many again as are running: a worker never waits for the coordinator
        self._limit = workers
        self._service = service
        self._context = get_context("spawn")
        self._calls: deque[_Call] = deque()
        self._workers: list[_Worker] = []
        self._false_starts = 0
        self._mutex = threading.Lock()
        self._closing: str | None = None
        self._seconds: float | None = None
        self._bell, self._button = self._context.Pipe(duplex=False)
        self._thread = threading.Thread(target=self._run, name="critgrad-pool", daemon=True)
        self._thread.start()

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Queue a call."""
        call = _Call(pickle.dumps((fn, args, kwargs)), Future())
        with self._mutex:
            if self._closing is not None:
                raise RuntimeError("the pool is closed")
            self._calls.append(call)
            self._button.send_bytes(b"call")
        return call.future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Close the pool. With ``cancel_futures`` running calls are ended, too, and their workers killed."""
        with self._mutex:
            # The reason before the bell: the pool's thread looks once when it is woken.
            self._closing = "now" if cancel_futures else self._closing or "done"
            self._button.send_bytes(b"close")
        if wait or cancel_futures:
            self._thread.join()

    def limit(self, seconds: float | None) -> None:
        """End calls that run for longer; the time that a worker takes to start does not count."""
        if seconds is not None and not seconds > 0:
            raise LabError(f"Invalid --trial-timeout: {seconds:g}, expected a number of seconds above 0")
        with self._mutex:
            self._seconds = seconds
            self._button.send_bytes(b"limit")

    # -- in the pool's thread ------------------------------------------------------------------------------------------

    def _run(self) -> None:
        if hasattr(signal, "pthread_sigmask"):
            # The first spawn would start the tracker, and that unblocks SIGINT in this thread: so start it before the mask.
            resource_tracker.ensure_running()
            # Workers inherit this: Ctrl-C in a terminal reaches the whole group, and is the coordinator's to answer.
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            while not self._finished():
                self._assign()
                self._wait()
        except BaseException as error:
            self._closing = "now"
            self._give_up(BrokenExecutor(f"the pool of workers failed: {error!r}\n{traceback.format_exc()}"))
        finally:
            self._stop_workers()

    def _finished(self) -> bool:
        if self._closing == "now":
            self._give_up(None)
            return True
        return self._closing == "done" and not self._calls and not any(worker.call for worker in self._workers)

    def _assign(self) -> None:
        """Hand calls to idle workers, new ones if need be."""
        while True:
            idle = next((worker for worker in self._workers if worker.call is None and not worker.ended), None)
            if not self._calls or (idle is None and len(self._workers) >= self._limit):
                return
            call = self._calls.popleft()
            # A call that was lost with its worker is running already, as far as its future knows.
            if not call.losses and not call.future.set_running_or_notify_cancel():
                continue
            worker = idle or self._start()
            worker.call, worker.begun = call, False
            call.future.worker = f"process {worker.process.pid}"  # type: ignore[attr-defined]
            call.future.since = time.time()  # type: ignore[attr-defined]
            # If it has died meanwhile, its sentinel says so, and the call is made again.
            with contextlib.suppress(OSError):
                worker.pipe.send_bytes(call.data)

    def _start(self) -> _Worker:
        ours, theirs = self._context.Pipe()
        environment = {} if self._service is None else dict(self._service.environment)
        process = self._context.Process(
            target=_serve, args=(theirs, os.getpid(), environment), name="critgrad-worker", daemon=True
        )
        with _without_main():
            process.start()
        theirs.close()  # so that the worker's death closes its end for good
        worker = _Worker(process, ours, _end_of(process))
        self._workers.append(worker)
        return worker

    def _wait(self) -> None:
        """Until something happens; then answer all of it."""
        pipes = {worker.pipe: worker for worker in self._workers}
        sentinels = {worker.end: worker for worker in self._workers}
        ready = connection.wait([self._bell, *pipes, *sentinels], self._patience())
        if self._bell in ready:
            self._bell.recv_bytes()
        for thing in ready:
            worker = pipes.get(thing)  # type: ignore[call-overload]
            if worker is not None:
                self._receive(worker)
        for thing in ready:
            worker = sentinels.get(thing)  # type: ignore[arg-type]
            if worker is not None:
                while worker.pipe.poll() and self._receive(worker):
                    pass  # what it had sent in full before it died counts
                self._bury(worker)
        self._end_late()

    def _patience(self) -> float | None:
        """Seconds until the next call has run for too long."""
        if self._seconds is None:
            return None
        begun = [worker.since for worker in self._workers if worker.call is not None and worker.begun]
        return min(max(0.0, min(begun) + self._seconds - time.monotonic()), _LONGEST_WAIT) if begun else None

    def _end_late(self) -> None:
        """End the calls that have run for too long: each costs its worker, and the next call starts another."""
        if self._seconds is None:
            return
        for worker in self._workers:
            call = worker.call
            if call is not None and worker.begun and time.monotonic() - worker.since >= self._seconds:
                worker.call, worker.ended = None, True
                _kill(worker)  # its sentinel will say when
                text = f"it ran for more than {self._seconds:g} s and was ended (--trial-timeout)"
                call.future.set_exception(TrialTimeoutError(text))

    def _receive(self, worker: _Worker) -> bool:
        """Take one message; ``False`` if the worker's end is closed."""
        try:
            data = worker.pipe.recv_bytes()
        except (EOFError, OSError):
            _kill(worker)  # it is dying or beyond help; its sentinel will say when
            return False
        try:
            kind, value = pickle.loads(data)
        except Exception as error:  # whatever an unpickler may raise: it costs this call, not the pool
            kind, value = "error", f"its answer could not be read: {type(error).__name__}: {error}"
        if kind == "ready":
            worker.ready, self._false_starts = True, 0
            return True
        if kind == "begun":
            worker.begun, worker.since = True, time.monotonic()
            return True
        call, worker.call = worker.call, None
        if call is not None:
            if kind == "result":
                call.future.set_result(value)
            else:
                call.future.set_exception(RuntimeError(value))
        return True

    def _bury(self, worker: _Worker) -> None:
        self._workers.remove(worker)
        _kill(worker)  # what it has left; nobody else has its number before it is joined
        worker.process.join()
        _close(worker)
        code = worker.process.exitcode
        if not worker.ready and code > 0:
            self._false_starts += 1
        call = worker.call
        if call is not None:
            call.losses += 1
            if call.losses < LOSSES:
                self._calls.appendleft(call)
            else:
                hint = " (killed, perhaps for want of memory)" if code == -9 else ""
                error = WorkerLostError(
                    f"{LOSSES} workers died while they ran this; the last with exit code {code}{hint}"
                )
                call.future.set_exception(error)
        if self._false_starts >= _FALSE_STARTS:
            error_text = (
                f"{_FALSE_STARTS} workers in a row could not start (exit code {code}): see their messages above"
            )
            self._give_up(BrokenExecutor(error_text))
            self._false_starts = 0

    def _give_up(self, error: Exception | None) -> None:
        """End all calls: with an error, or as cancelled."""
        with self._mutex:
            calls = [*self._calls, *(worker.call for worker in self._workers if worker.call is not None)]
            self._calls.clear()
        for worker in self._workers:
            if worker.call is not None:
                worker.call = None
                _kill(worker)
        for call in calls:
            if error is None and call.future.cancel():
                continue  # it had not begun
            if not call.future.done():
                call.future.set_exception(error or WorkerLostError("stopped"))

    def _stop_workers(self) -> None:
        for worker in self._workers:
            worker.pipe.close()  # an idle worker leaves by itself
        for worker in self._workers:
            worker.process.join(timeout=5)
            if worker.process.is_alive():
                _kill(worker)
                worker.process.join()
            _close(worker)
        self._workers.clear()
        if self._service is not None:
            self._service.stop()


def _end_of(process: Any) -> int:
    # The sentinel of multiprocessing waits for whatever the process has forked, too, which may sleep for ever.
    if sys.platform == "linux":
        with contextlib.suppress(OSError):
            return os.pidfd_open(process.pid)
    sentinel: int = process.sentinel
    return sentinel


def _kill(worker: _Worker) -> None:
    """A worker and what it has started."""
    try:
        os.killpg(worker.process.pid, signal.SIGKILL)
    except (AttributeError, OSError):  # it has no group of its own: not yet, or not on this system
        worker.process.kill()


def _close(worker: _Worker) -> None:
    worker.pipe.close()
    if worker.end != worker.process.sentinel:
        os.close(worker.end)


@contextlib.contextmanager
def _without_main() -> Iterator[None]:
    """Start a process that does not run the caller's script once more: a worker needs nothing of it, and a script that
    calls the lab without ``if __name__ == "__main__"`` would start workers in its workers.
    """
    main = sys.modules["__main__"]
    kept = {name: getattr(main, name) for name in ("__file__", "__spec__") if getattr(main, name, None) is not None}
    for name in kept:
        setattr(main, name, None)
    try:
        yield
    finally:
        for name, value in kept.items():
            setattr(main, name, value)


def open_local(workers: int | None, device: str, options: Mapping[str, Any]) -> JobExecutor:
    """The executor ``local``."""
    count = workers or default_workers(device)
    return LocalPool(count, service_for(count, device))


# -- in the worker -----------------------------------------------------------------------------------------------------


def _serve(pipe: connection.Connection, coordinator: int, environment: Mapping[str, str]) -> None:
    """Answer calls until the coordinator closes the pipe or is gone."""
    os.environ.update(environment)  # before anything looks at the GPU
    _die_with(coordinator)
    if hasattr(os, "setpgid"):
        os.setpgid(0, 0)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    pipe.send_bytes(pickle.dumps(("ready", None)))
    while True:
        try:
            data = pipe.recv_bytes()
        except (EOFError, OSError):
            return
        try:
            fn, args, kwargs = pickle.loads(data)
            # Seconds of imports, which are not the call's: its time begins after them.
            getattr(fn, "prepare", lambda *_: None)(*args)
            pipe.send_bytes(pickle.dumps(("begun", None)))
            answer = pickle.dumps(("result", fn(*args, **kwargs)))
        except Exception:
            answer = pickle.dumps(("error", traceback.format_exc()))
        pipe.send_bytes(answer)


def _die_with(coordinator: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != coordinator:  # it died before the request
            os._exit(1)

    def watch() -> None:
        parent = parent_process()
        if parent is not None:
            parent.join()
            os._exit(1)

    threading.Thread(target=watch, name="critgrad-watch", daemon=True).start()
