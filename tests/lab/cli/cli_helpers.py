"""Calling commands: in this process where nothing else is asked, in a real one where it matters."""

from __future__ import annotations

import contextlib
import io
import os
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from critgrad.cli import main
from critgrad.lab.ledger import Ledger, Row
from critgrad.paper.protocol import Registration, find

SOURCE = Path(__file__).parents[3] / "src"
ENTRY = "import sys; from critgrad.cli import main; sys.exit(main())"


def call(*words: object) -> tuple[int, str, str]:
    """Exit code, standard output and standard error of a command, in this process."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = main([str(word) for word in words])
        except SystemExit as end:  # argparse's
            code = end.code
    return code, out.getvalue(), err.getvalue()


@dataclass
class Cli:
    folder: Path

    def __call__(self, *words: object, code: int = 0) -> str:
        """What a command prints; its exit code must be the expected one."""
        found, out, err = call(*words)
        assert found == code, out + err
        return out + err

    def error(self, *words: object, code: int = 1) -> str:
        """The one line of a command that a user can put right."""
        found, out, err = call(*words)
        assert found == code, out + err
        lines = [line for line in err.splitlines() if line.strip()]
        assert len(lines) == 1, err
        assert lines[0].startswith("Error: ")
        assert "Traceback" not in out + err
        return lines[0]

    def rows(self, ledger: str = "runs.db", **which: Any) -> list[Row]:
        with Ledger.open(self.folder / ledger) as book:
            return book.rows(**which)


def process(*words: object, module: bool = False, prelude: str = "", **environment: str) -> subprocess.Popen[str]:
    """The command as a process of its own: the script's entry point, or ``python -m critgrad.lab``."""
    start = "import runpy; runpy.run_module('critgrad.lab', run_name='__main__', alter_sys=True)" if module else ENTRY
    paths = os.pathsep.join(filter(None, [str(SOURCE), os.environ.get("PYTHONPATH", "")]))
    values = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1", **environment}
    command = [sys.executable, "-c", f"{prelude}\n{start}", *map(str, words)]
    return subprocess.Popen(command, env=values, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def finished(*words: object, code: int = 0, **options: Any) -> str:
    out, err = process(*words, **options).communicate(timeout=300)
    assert f"{out}\n{err}".count("Traceback") == 0, err
    return out if code == 0 else err


def same_numbers(a: Row, b: Row) -> None:
    """Two runs bit for bit, but for what a clock says."""
    clocks = {"seconds", "step_ms", "step_ms_low", "step_ms_high", "train_seconds", "peak_bytes", "run_bytes"}
    assert a.curves.keys() == b.curves.keys()
    for name in a.curves.keys() - clocks:
        np.testing.assert_array_equal(a.curves[name], b.curves[name], err_msg=name)
    for name in (a.summary.keys() | b.summary.keys()) - clocks:
        assert a.summary[name] == b.summary[name], name


def small_registration(**changes: Any) -> Registration:
    """A fair experiment of a few seconds: the digits' plan on their twin, one family, two epochs."""
    values: dict[str, Any] = {
        "task": "digits-mlp@tiny",
        "epochs": 2,
        "batch_size": 16,
        "engine": "single",
        "trials": 2,
        "tuning_seeds": (100,),
        "report_seeds": (0, 1),
        "families": ("SGD",),
        "arms": ("base", "C", "F", "rival", "momentum", "C-step", "C-momentum", "C-yoked"),
        "rungs": (),
        "timing": None,
        "widenings": 0,
        "path": None,
    }
    return replace(find("digits-mlp"), **{**values, **changes})
