"""The compiled core: ``core.c``, built by the system's compiler at first use and kept in a cache folder.

Whatever is missing (a compiler, a writable folder, time), there is no core and the plain path does the step;
``why_no_core`` and one line of the log ``critgrad`` say why. A build takes a second or two, once per machine; afterwards
the core is there in a millisecond, with no process started for it. A build that fails is not tried again either: its
reason lies beside the cores, in ``native-<key>.failed``, until that file is deleted or the compiler changes.

Environment: ``CC`` is the compiler, ``CRITGRAD_CFLAGS`` are flags after our own (a sanitizer's, say), ``CRITGRAD_CACHE`` is
where the folder ``critgrad`` is made. Another compiler, other flags or another CPU make another core.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import logging
import os
import platform
import shlex
import shutil
import signal
import struct
import subprocess
import tempfile
from pathlib import Path

SOURCE = Path(__file__).with_name("core.c")
FLAGS = ("-std=gnu11", "-O3", "-march=native", "-fno-math-errno", "-fPIC", "-shared", "-pthread")
LONGEST_BUILD = 30  # seconds; a machine that needs more is better off without
LONGEST_REASON = 300  # characters of what a compiler says
FROM_OUTSIDE = (-1, -2, -9, -15)  # a compiler that was told to end (hang-up, interrupt, kill, terminate) has not failed

log = logging.getLogger("critgrad")
_why: str | None = None  # of the last search for a core
_told: set[str] = set()  # two threads may search at once


class NoCoreError(Exception):
    """Why there is no core, in one line."""

    level = logging.WARNING


class NoCompilerError(NoCoreError):
    """Nothing to build with, which is nobody's mistake."""

    level = logging.INFO


def _cpu_flags() -> str:
    """What ``-march=native`` depends on: a home folder may be shared by different machines."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line for line in lines if line.startswith(("flags", "Features"))), "")


def _cache_folder() -> Path:
    home = os.environ.get("CRITGRAD_CACHE") or os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    folder = Path(home) / "critgrad"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = folder.stat()
    if hasattr(os, "getuid") and (found.st_uid != os.getuid() or found.st_mode & 0o022):
        raise NoCoreError(f"the native core could not be built: {folder} belongs to others or can be written by them")
    return folder


def _compiler() -> tuple[list[str], str]:
    """The command, and what tells one compiler from another: asking for its version would start a process."""
    command = shlex.split(os.environ.get("CC", "")) or ["cc" if shutil.which("cc") else "gcc"]
    path = shutil.which(command[0])
    if path is None:
        raise NoCompilerError(f"there is no native core: no compiler {command[0]}")
    path = os.path.realpath(path)
    found = os.stat(path)
    return command, f"{path} {found.st_size} {found.st_mtime_ns}"


def _flags() -> list[str]:
    return [*FLAGS, *shlex.split(os.environ.get("CRITGRAD_CFLAGS", ""))]


# -- what failed before ------------------------------------------------------------------------------------------------


def _remember(target: Path, why: str) -> NoCoreError:
    """Keep the reason for processes to come; where it cannot be written, they will find it out themselves."""
    failed = target.with_suffix(".failed")
    written = failed.with_suffix(f".{os.getpid()}")
    try:
        written.write_text(why + "\n", encoding="utf-8")
        os.replace(written, failed)
    except OSError:
        with contextlib.suppress(OSError):
            written.unlink()
        return NoCoreError(why)
    return NoCoreError(f"{why} (remembered in {failed}; delete it to try again)")


def _remembered(target: Path) -> NoCoreError | None:
    failed = target.with_suffix(".failed")
    try:
        why = " ".join(failed.read_text(encoding="utf-8", errors="replace").split())
    except FileNotFoundError:
        return None
    why = why or "the native core could not be built"
    return NoCoreError(f"{why} (remembered in {failed}; delete it to try again)")


# -- building ----------------------------------------------------------------------------------------------------------


def _first_error(said: bytes) -> str:
    lines = [" ".join(line.split()) for line in said.decode(errors="replace").splitlines()]
    lines = [line for line in lines if line]
    found = next((line for line in lines if "error" in line.lower()), lines[0] if lines else "")
    return found[:LONGEST_REASON]


def _compile(command: list[str]) -> None:
    # A session of its own: what the compiler has started ends with it, and holds no pipe open past the time.
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env={**os.environ, "LC_ALL": "C"},
        start_new_session=True,
    )
    try:
        _, said = process.communicate(timeout=LONGEST_BUILD)
    except BaseException:
        if hasattr(os, "killpg"):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        process.kill()
        process.wait()
        raise
    finally:
        if process.stderr is not None:
            process.stderr.close()
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command, stderr=said)


def build(again: bool = False) -> Path:
    """Compile ``core.c`` if this source, compiler and CPU have not been seen before; returns the library's path.

    ``again``: also where there is a library, for one that cannot be loaded.
    """
    command, identity = _compiler()
    flags = _flags()
    key = b"\0".join([SOURCE.read_bytes(), " ".join([identity, *command, *flags]).encode(), _cpu_flags().encode()])
    target = _cache_folder() / f"native-{hashlib.sha256(key).hexdigest()[:24]}.so"
    if target.exists() and not again:
        return target
    before = _remembered(target)
    if before is not None:
        raise before
    # Under another name first: a second process sees the whole file or none.
    handle, name = tempfile.mkstemp(prefix="native-", suffix=".so", dir=target.parent)
    os.close(handle)
    try:
        _compile([*command, *flags, str(SOURCE), "-o", name, "-lm"])
        os.replace(name, target)
    except (OSError, subprocess.SubprocessError) as error:
        if target.exists() and not again:
            return target  # another process had more luck
        if isinstance(error, subprocess.TimeoutExpired):
            why = f"{command[0]} took longer than {LONGEST_BUILD} seconds"
        elif isinstance(error, subprocess.CalledProcessError):
            why = _first_error(error.stderr) or f"{command[0]} ended with status {error.returncode}"
        else:
            why = str(error)
        why = f"the native core could not be built: {why}"
        if isinstance(error, subprocess.CalledProcessError) and error.returncode in FROM_OUTSIDE:
            raise NoCoreError(why) from error
        raise _remember(target, why) from error
    finally:
        if os.path.exists(name):
            os.unlink(name)
    return target


# -- torch's threads ---------------------------------------------------------------------------------------------------


@functools.cache
def _pool_of(process: int) -> int | None:
    with open("/proc/self/maps") as maps:
        loaded = {line.split(maxsplit=5)[5].strip() for line in maps if "libgomp" in line or "libiomp5" in line}
    for path in sorted(loaded, key=lambda path: "torch" not in path):
        library = ctypes.CDLL(path, mode=os.RTLD_NOLOAD | os.RTLD_LAZY)
        return ctypes.cast(library.GOMP_parallel, ctypes.c_void_p).value
    return None


def thread_pool() -> int | None:
    """``GOMP_parallel`` of the OpenMP that torch has loaded, or ``None``: then the core starts threads of its own.

    Torch's threads go on spinning for a while after each operation; others beside them would have to share their cores. A
    forked child has none of its parent's, and none are asked for there.
    """
    if os.getpid() != _PROCESS:
        return None
    try:
        return _pool_of(_PROCESS)
    except (OSError, AttributeError):  # another system, or another OpenMP
        return None


_PROCESS = os.getpid()


# -- loading -----------------------------------------------------------------------------------------------------------


def _is_whole(library: Path) -> bool:
    """Whether an ELF file reaches to its section headers, which stand last: the loader would crash on half of one."""
    with library.open("rb") as file:
        header = file.read(64)
        size = os.fstat(file.fileno()).st_size
    if len(header) < 64 or header[:5] != b"\x7fELF\x02":
        return True  # the loader says itself what is wrong
    order = "<" if header[5] == 1 else ">"
    (offset,) = struct.unpack_from(order + "Q", header, 40)
    each, count = struct.unpack_from(order + "HH", header, 58)
    return bool(offset + each * count <= size)


def _load(library: Path) -> ctypes.CDLL:
    if not _is_whole(library):
        raise OSError(f"{library}: the file is cut short")
    found = ctypes.CDLL(str(library))
    for function in (found.measure, found.decide, found.damp, found.apply):
        function.argtypes, function.restype = [ctypes.c_void_p], None
    return found


def _find() -> ctypes.CDLL:
    library = build()
    try:
        return _load(library)
    except (OSError, AttributeError):
        library = build(again=True)
    try:
        return _load(library)
    except (OSError, AttributeError) as error:
        raise _remember(library, f"the native core could not be loaded: {error}") from error


@functools.cache
def compiled_core() -> ctypes.CDLL | None:
    """The compiled core, or ``None`` where it cannot be had."""
    global _why
    try:
        found = _find()
    except Exception as error:  # whatever it is: the plain path needs none of this
        if not isinstance(error, NoCoreError):
            error = NoCoreError(f"the native core could not be built: {error}")
        _why = " ".join(str(error).split())
        if _why not in _told:
            _told.add(_why)
            log.log(error.level, "%s", _why)
        return None
    _why = None
    return found


def why_no_core() -> str | None:
    """Why there is no compiled core, in one line; ``None`` where there is one."""
    return None if compiled_core() is not None else _why
