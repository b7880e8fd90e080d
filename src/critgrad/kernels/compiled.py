"""The compiled core: ``native.c``, built by the system's compiler at first use and kept in a cache folder.

Whatever is missing (a compiler, a writable folder, time), there is no core and the plain path does the step, without a
word. A build takes a second or two, once per machine; afterwards the core is there in a millisecond, with no process
started for it.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
from pathlib import Path

SOURCE = Path(__file__).with_name("native.c")
FLAGS = ("-std=gnu11", "-O3", "-march=native", "-fno-math-errno", "-fPIC", "-shared", "-pthread")
LONGEST_BUILD = 30  # seconds; a machine that needs more is better off without


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
        raise PermissionError(f"{folder} can be written by others")
    return folder


def _compiler() -> tuple[list[str], str]:
    """The command, and what tells one compiler from another: asking for its version would start a process."""
    command = shlex.split(os.environ.get("CC", "")) or ["cc" if shutil.which("cc") else "gcc"]
    path = shutil.which(command[0])
    if path is None:
        raise FileNotFoundError(f"no compiler {command[0]}")
    path = os.path.realpath(path)
    found = os.stat(path)
    return command, f"{path} {found.st_size} {found.st_mtime_ns}"


def build() -> Path:
    """Compile ``native.c`` if this source, compiler and CPU have not been seen before; returns the library's path."""
    command, identity = _compiler()
    key = b"\0".join([SOURCE.read_bytes(), " ".join([identity, *command, *FLAGS]).encode(), _cpu_flags().encode()])
    target = _cache_folder() / f"native-{hashlib.sha256(key).hexdigest()[:24]}.so"
    if not target.exists():
        # Under another name first: a second process sees the whole file or none.
        handle, name = tempfile.mkstemp(suffix=".so", dir=target.parent)
        os.close(handle)
        try:
            subprocess.run(
                [*command, *FLAGS, str(SOURCE), "-o", name, "-lm"],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=LONGEST_BUILD,
                check=True,
            )
            os.replace(name, target)
        finally:
            if os.path.exists(name):
                os.unlink(name)
    return target


@functools.cache
def compiled_core() -> ctypes.CDLL | None:
    """The compiled core, or ``None`` where it cannot be had."""
    try:
        found = ctypes.CDLL(str(build()))
        for function in (found.step, found.measure, found.decide, found.damp, found.update):
            function.argtypes, function.restype = [ctypes.c_void_p], None
    except Exception:
        return None  # the plain path needs none of this
    return found
