"""Somebody's code runs here, and the next run must not notice: what it can change of the process is put back."""

from __future__ import annotations

import contextlib
import gc
import io
import multiprocessing
import os
import random
import signal
import sys
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn.modules import module as _modules

from ..train.streams import stream_seed

_SIGNALS = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGALRM") if hasattr(signal, name)]
_TAIL = 4000  # characters of what a run printed that a failure shows

_Setting = tuple[Callable[[], Any], Callable[[Any], Any]]


def _flag(module: Any, name: str) -> _Setting:
    return partial(getattr, module, name, None), partial(setattr, module, name)


def _set_environment(values: dict[str, str]) -> None:
    os.environ.clear()
    os.environ.update(values)


def _mask() -> int:
    mask = os.umask(0o077)  # there is no other way to ask
    os.umask(mask)
    return mask


def _global_hooks() -> dict[str, Any]:
    """Of all modules that there are. The tables are known by others, so what is in them is changed, not they."""
    tables = {name: value for name, value in vars(_modules).items() if name.startswith("_global_")}
    return {name: value.copy() if isinstance(value, dict) else value for name, value in tables.items()}


def _set_global_hooks(tables: dict[str, Any]) -> None:
    for name, value in tables.items():
        if isinstance(value, dict):
            getattr(_modules, name).clear()
            getattr(_modules, name).update(value)
        else:
            setattr(_modules, name, value)


# What can be asked for and set again by the same kind of value.
_GET_AND_SET: tuple[_Setting, ...] = (
    (torch.get_default_dtype, torch.set_default_dtype),
    (torch.get_num_threads, torch.set_num_threads),
    (torch.is_grad_enabled, torch.set_grad_enabled),
    (torch.is_anomaly_enabled, torch.autograd.set_detect_anomaly),
    (torch.are_deterministic_algorithms_enabled, torch.use_deterministic_algorithms),
    # torch's newer way to ask for TF32 (since 2.9); where it was asked for, the older question is an error.
    _flag(torch.backends, "fp32_precision"),
    (torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
    *(_flag(torch.backends.cudnn, name) for name in ("benchmark", "deterministic", "enabled", "allow_tf32")),
    _flag(torch.backends.mkldnn, "enabled"),
    *(
        (getattr(torch.backends.cuda, f"{kind}_sdp_enabled"), getattr(torch.backends.cuda, f"enable_{kind}_sdp"))
        for kind in ("flash", "mem_efficient", "math", "cudnn")
        if hasattr(torch.backends.cuda, f"enable_{kind}_sdp")
    ),
    (_global_hooks, _set_global_hooks),
    (gc.isenabled, lambda on: gc.enable() if on else gc.disable()),
    (_mask, os.umask),
    *(
        (partial(torch.is_autocast_enabled, kind), partial(torch.set_autocast_enabled, kind))
        for kind in ("cpu", "cuda")
    ),
    # Nothing else tells whether torch takes the smallest numbers for 0.
    (lambda: not torch.tensor(1e-40, dtype=torch.float32, device="cpu").mul(1.0).item(), torch.set_flush_denormal),
    (np.geterr, lambda modes: np.seterr(**modes)),
    (os.getcwd, os.chdir),
    (lambda: dict(os.environ), _set_environment),
    (lambda: [*(sys.path or ())], lambda names: setattr(sys, "path", [*names])),
    (lambda: [*(sys.argv or ())], lambda words: setattr(sys, "argv", [*words])),
    (sys.getrecursionlimit, sys.setrecursionlimit),
    # Not torch.set_default_device("cpu"): that would put a hook before every operation.
    (torch.get_default_device, lambda device: torch.set_default_device(None if device.type == "cpu" else device)),
)


def settings_now() -> list[Any]:
    """How the process is set, for ``set_to``."""
    return [_now(get) for get, _ in _GET_AND_SET]


def set_to(values: list[Any]) -> None:
    """Set the process as it was."""
    for (get, put), value in zip(_GET_AND_SET, values):
        if _now(get) != value and value is not None:
            put(value)


@contextmanager
def guarded() -> Iterator[Callable[[], str]]:
    """Run somebody's code: afterwards the process is as it was. Gives a function that tells the end of what it printed.

    A child that the code forked and that comes back here ends here: it would answer in its parent's place.
    """
    owner, before = os.getpid(), _forked()
    with ExitStack() as stack:
        said = stack.enter_context(_output())
        stack.enter_context(warnings.catch_warnings())
        stack.callback(_end_forked, before)
        stack.enter_context(_process())
        stack.enter_context(_random_numbers())
        try:
            yield said
        finally:
            if os.getpid() != owner:
                os._exit(0)


@contextmanager
def _process() -> Iterator[None]:
    before = settings_now()
    # NOTE [children of a worker]: workers end with their head and are "daemonic" for that, which forbids them children of their
    # own: a DataLoader with workers could not be used. Only the mark goes: the head still ends them.
    marks: dict[str, Any] = getattr(multiprocessing.current_process(), "_config", {})
    daemon = marks.pop("daemon", None)
    main = threading.current_thread() is threading.main_thread()
    handlers = {number: signal.getsignal(number) for number in _SIGNALS} if main else {}
    timer = signal.getitimer(signal.ITIMER_REAL) if main and hasattr(signal, "getitimer") else None
    try:
        yield
    finally:
        if daemon is not None:
            marks["daemon"] = daemon
        set_to(before)
        if timer is not None:
            signal.setitimer(signal.ITIMER_REAL, *timer)
        for number, handler in handlers.items():
            if handler is not None and signal.getsignal(number) is not handler:
                signal.signal(number, handler)


def _now(get: Callable[[], Any]) -> Any:
    try:
        return get()
    except (OSError, RuntimeError):  # the working directory has been removed; a question that torch no longer answers
        return None


@contextmanager
def _random_numbers() -> Iterator[None]:
    cuda = torch.cuda.is_initialized()
    states = torch.get_rng_state(), np.random.get_state(), random.getstate()
    of_cuda = torch.cuda.get_rng_state_all() if cuda else []
    try:
        yield
    finally:
        torch.set_rng_state(states[0])
        np.random.set_state(states[1])
        random.setstate(states[2])
        if cuda:
            torch.cuda.set_rng_state_all(of_cuda)


def _forked() -> set[int]:
    """Children that are copies of this process, made by ``os.fork``. Others (a loader's workers, a compiler's) look after
    themselves, and may be wanted by the next run.
    """
    try:
        here = Path("/proc/self/task", str(threading.get_native_id()), "children").read_text().split()
        known = {str(child.pid) for child in multiprocessing.active_children()} if here else set()
        mine = Path("/proc/self/cmdline").read_bytes() if here else b""
        # One that has ended has no command line any more.
        return {
            int(pid) for pid in here if pid not in known and Path("/proc", pid, "cmdline").read_bytes() in (mine, b"")
        }
    except OSError:  # no such files on this system, or just gone
        return set()


def _end_forked(before: set[int]) -> None:
    for pid in _forked() - before:
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


@contextmanager
def _output() -> Iterator[Callable[[], str]]:
    """Keep what is printed from the screen, which shows the progress. In a worker that holds for its own children, too."""
    if multiprocessing.parent_process() is None:
        text = io.StringIO()
        with contextlib.redirect_stdout(text), contextlib.redirect_stderr(text):
            yield lambda: text.getvalue()[-_TAIL:]
        return
    streams = sys.stdout, sys.stderr
    kept = [os.dup(number) for number in (1, 2)]
    with tempfile.TemporaryFile() as file:

        def tail() -> str:
            _flush(*streams)
            end = os.fstat(file.fileno()).st_size
            return os.pread(file.fileno(), _TAIL, max(0, end - _TAIL)).decode(errors="replace")

        _flush(*streams)
        for number in (1, 2):
            os.dup2(file.fileno(), number)
        try:
            yield tail
        finally:
            _flush(*streams)
            for number, copy in zip((1, 2), kept):
                os.dup2(copy, number)
                os.close(copy)
            # The code may have closed them; the files below stay open.
            sys.stdout, sys.stderr = (
                open(number, "w", closefd=False) if stream is not None and stream.closed else stream  # noqa: SIM115
                for number, stream in zip((1, 2), streams)
            )


def _flush(*streams: Any) -> None:
    for stream in streams:
        with contextlib.suppress(Exception):  # closed by the code, or never there
            stream.flush()


def reseed(seed: int, *purpose: object) -> None:
    """Set every global generator, Python's and numpy's among them, to the stream of a seed for one purpose."""
    value = stream_seed(seed, *purpose)
    torch.default_generator.manual_seed(value)
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed_all(value)
    np.random.seed(value % 2**32)
    random.seed(value)
