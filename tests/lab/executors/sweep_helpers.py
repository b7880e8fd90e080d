"""Starting, watching and killing sweeps."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

HERE = Path(__file__).parent
SOURCE = HERE.parents[2] / "src"
started: list[subprocess.Popen[str]] = []


def start(script: str, *arguments: object, log: Path | None = None, **environment: str) -> subprocess.Popen[str]:
    paths = [str(HERE), str(SOURCE), os.environ.get("PYTHONPATH", "")]
    values = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths)), "OMP_NUM_THREADS": "1", **environment}
    if log is not None:
        values["TOY_LOG"] = str(log)
    command = [sys.executable, str(HERE / script), *map(str, arguments)]
    process = subprocess.Popen(command, env=values, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    started.append(process)
    return process


def until(condition: Callable[[], object], what: str, seconds: float = 90) -> None:
    """Wait for a condition; generous, because the machine may be busy."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise AssertionError(f"waited {seconds} s in vain for: {what}")
        time.sleep(0.01)


def worker_pids(coordinator: int) -> list[int]:
    """The workers of a coordinator that are alive."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                if parent == coordinator and b"spawn_main" in (entry / "cmdline").read_bytes():
                    found.append(int(entry.name))
            except (OSError, ValueError, IndexError):
                continue
    return found


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"


def kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def lines(log: Path) -> list[list[str]]:
    return [line.split() for line in log.read_text().splitlines()] if log.exists() else []
