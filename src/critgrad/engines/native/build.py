"""The compiled core: ``core.c``, built by the system's compiler at first use and kept in a cache folder.

Whatever is missing (a compiler, a writable folder, time), there is no core and torch's operations make the step;
``why_no_core`` and one line of the log ``critgrad`` say why. A build takes a second or two, once per machine; afterwards
the core is there in a millisecond, with no process started for it. What fails is not tried again either: its reason lies
beside the cores, in ``native-<key>.failed``, until that file is deleted or the compiler changes.

Environment: ``CC`` is the compiler, ``CRITGRAD_CFLAGS`` are flags after our own (a sanitizer's, say), ``CRITGRAD_CACHE`` is
where the folder ``critgrad`` is made. Another compiler, other flags or another CPU make another core.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import logging
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
from pathlib import Path

SOURCE = Path(__file__).with_name("core.c")
FLAGS = ("-std=gnu11", "-O3", "-march=native", "-fno-math-errno", "-fPIC", "-shared", "-pthread")
LONGEST_BUILD = 30  # seconds; a machine that needs more is better off without

log = logging.getLogger("critgrad")
_why: str | None = None  # the last reason told
_PROCESS = os.getpid()


class NoCompilerError(Exception):
    """Nothing to build with, which is nobody's mistake."""


def _cache_folder() -> Path:
    folder = Path(os.getenv("CRITGRAD_CACHE") or os.getenv("XDG_CACHE_HOME") or Path.home() / ".cache", "critgrad")
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = folder.stat()
    if hasattr(os, "getuid") and (found.st_uid != os.getuid() or found.st_mode & 0o022):
        raise PermissionError(f"{folder} belongs to others or can be written by them")
    return folder


def _key(compiler: str, command: list[str]) -> str:
    """Of source, compiler, flags and CPU (``-march=native``): a home folder may be shared by different machines."""
    found = os.stat(compiler)  # asking for its version would start a process
    cpu = Path("/proc/cpuinfo")
    lines = cpu.read_text().splitlines() if cpu.exists() else [f"flags: {platform.processor()}"]
    flags = next((line for line in lines if line.startswith(("flags", "Features"))), "")
    identity = " ".join([os.path.realpath(compiler), str(found.st_size), str(found.st_mtime_ns), *command])
    return hashlib.sha256(b"\0".join([SOURCE.read_bytes(), identity.encode(), flags.encode()])).hexdigest()[:24]


def _give_up(target: Path, why: str = "") -> None:
    """Raise why this core cannot be had and keep it for processes to come; without ``why``, what was kept, if anything."""
    failed = target.with_suffix(".failed")
    if why:
        failed.write_text(why + "\n", encoding="utf-8")
    elif failed.exists():
        why = failed.read_text(encoding="utf-8", errors="replace").strip()
    if why:  # an empty file is no reason: the disk was full
        raise RuntimeError(f"{why} (remembered in {failed}; delete it to try again)")


def build() -> Path:
    """Compile ``core.c`` if this source, compiler and CPU have not been seen before; returns the library's path."""
    command = shlex.split(os.getenv("CC", "")) or ["cc" if shutil.which("cc") else "gcc"]
    compiler = shutil.which(command[0])
    if compiler is None:
        raise NoCompilerError(f"no compiler {command[0]}")
    command += [*FLAGS, *shlex.split(os.getenv("CRITGRAD_CFLAGS", ""))]
    target = _cache_folder() / f"native-{_key(compiler, command)}.so"
    if target.exists():
        return target
    _give_up(target)
    # Under another name first: a second process sees the whole file or none.
    with tempfile.TemporaryDirectory(prefix="native-", dir=target.parent, ignore_cleanup_errors=True) as folder:
        made = os.path.join(folder, "core.so")
        command += [str(SOURCE), "-o", made, "-lm"]
        env = {**os.environ, "LC_ALL": "C"}  # errors are looked for in English
        try:
            # A session of its own: Ctrl-C, where the program goes on after it, is not the compiler's failure.
            subprocess.run(
                command, input=b"", capture_output=True, env=env, timeout=LONGEST_BUILD, start_new_session=True
            ).check_returncode()
            os.replace(made, target)
        except subprocess.TimeoutExpired:
            _give_up(target, f"{command[0]} took longer than {LONGEST_BUILD} seconds")
        except subprocess.CalledProcessError as error:
            lines = [line for line in error.stderr.decode(errors="replace").splitlines() if line.strip()]
            lines.sort(key=lambda line: "error" not in line.lower())
            _give_up(target, [*lines, f"{command[0]} ended with status {error.returncode}"][0][:300])
        except OSError as error:
            _give_up(target, str(error))
    return target


@functools.cache
def _pool() -> int | None:
    try:
        with open("/proc/self/maps") as maps:
            loaded = {line.split(maxsplit=5)[5].strip() for line in maps if "libgomp" in line or "libiomp5" in line}
        library = ctypes.CDLL(min(loaded, key=lambda path: "torch" not in path), mode=os.RTLD_NOLOAD | os.RTLD_LAZY)
        return ctypes.cast(library.GOMP_parallel, ctypes.c_void_p).value
    except (OSError, AttributeError, ValueError):  # another system, another OpenMP, or none
        return None


def thread_pool() -> int | None:
    """``GOMP_parallel`` of the OpenMP that torch has loaded, or ``None``: then the core starts threads of its own.

    Torch's threads go on spinning for a while after each operation; others beside them would have to share their cores. A
    forked child has none of its parent's, and none are asked for there.
    """
    return _pool() if os.getpid() == _PROCESS else None


@functools.cache
def compiled_core() -> ctypes.CDLL | None:
    """The compiled core, or ``None`` where it cannot be had."""
    global _why
    try:
        library = build()
        try:
            core = ctypes.CDLL(str(library))
            for function in (core.measure, core.decide, core.apply):
                function.argtypes, function.restype = [ctypes.c_void_p], None
            return core
        except (OSError, AttributeError) as error:
            library.unlink(missing_ok=True)  # built again once the reason is deleted, too
            _give_up(library, f"it could not be loaded: {error}")
    except Exception as error:  # whatever it is: torch's operations need none of this
        why = " ".join(f"there is no native core: {error}".split())
        if why != _why:  # two threads may search at once
            _why = why
            log.log(logging.INFO if isinstance(error, NoCompilerError) else logging.WARNING, "%s", why)
    return None


def why_no_core() -> str | None:
    """Why there is no compiled core, in one line; ``None`` where there is one."""
    return None if compiled_core() is not None else _why
