"""A native core that cannot be had: tried once, remembered with its reason, told in one line, and steps go on without."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import time
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
from helpers import GradientStream, parameters, run

import critgrad
from critgrad.engines.native import build as compiled

pytestmark = pytest.mark.skipif(os.name != "posix", reason="shell scripts stand for compilers")

# The module alone: without torch a process takes a moment. Its own log handler is Python's last resort, stderr.
PROCESS = """
import importlib.util, sys
spec = importlib.util.spec_from_file_location("compiled", sys.argv[1])
compiled = importlib.util.module_from_spec(spec)
spec.loader.exec_module(compiled)
compiled.SOURCE = compiled.Path(sys.argv[2])
for _ in range(3):
    assert (compiled.compiled_core() is None) == (compiled.why_no_core() is not None)
print(compiled.why_no_core())
"""


def a_process() -> tuple[str, list[str]]:
    """What ``why_no_core`` and the log say in a new process."""
    command = [sys.executable, "-c", PROCESS, compiled.__file__, str(compiled.SOURCE)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip(), done.stderr.splitlines()


@pytest.fixture(autouse=True)
def cache(monkeypatch, tmp_path):
    """A new folder; no core is known yet in this process, and none of this is known afterwards."""
    monkeypatch.setenv("CRITGRAD_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("CRITGRAD_NATIVE", raising=False)
    monkeypatch.delenv("CRITGRAD_CFLAGS", raising=False)
    compiled.compiled_core.cache_clear()
    yield tmp_path / "cache" / "critgrad"
    compiled.compiled_core.cache_clear()


@pytest.fixture
def compiler(monkeypatch, tmp_path):
    """Sets ``CC`` to a script that counts its calls."""

    def make(*lines: str) -> Path:
        script, calls = tmp_path / "some-cc", tmp_path / "calls"
        script.write_text("\n".join(["#!/bin/sh", f"echo called >> {calls}", *lines, ""]))
        script.chmod(0o755)
        monkeypatch.setenv("CC", str(script))
        return calls

    return make


def test_what_fails_is_tried_once(compiler, cache):
    calls = compiler("echo 'note: here' >&2", "echo 'some-cc: error: no such  thing' >&2", "exit 1")
    why, lines = a_process()
    (kept,) = cache.glob("native-*")
    reason = f"some-cc: error: no such thing (remembered in {kept}; delete it to try again)"
    assert why == f"there is no native core: {reason}"
    assert a_process() == (why, lines) == (why, [why])
    assert (kept.suffix, kept.read_text()) == (".failed", "some-cc: error: no such  thing\n")
    assert calls.read_text() == "called\n"


def test_what_failed_is_tried_again_when_asked(compiler, cache, monkeypatch):
    calls = compiler("exit 3")
    assert "some-cc ended with status 3" in a_process()[0]
    next(cache.iterdir()).unlink()
    a_process()
    compiler("exit 3", "# another compiler")
    a_process()
    monkeypatch.setenv("CRITGRAD_CFLAGS", "-DOTHER '-DTWO WORDS'")
    a_process()
    assert calls.read_text() == 4 * "called\n"
    assert len(list(cache.glob("native-*.failed"))) == 3


def test_a_compiler_that_hangs_is_not_waited_for(compiler, monkeypatch):
    """Nor is what it has started, which holds its pipes open."""
    compiler("sleep 20")
    monkeypatch.setattr(compiled, "LONGEST_BUILD", 0.2)
    start = time.monotonic()
    assert "some-cc took longer than 0.2 seconds (remembered in " in compiled.why_no_core()
    assert time.monotonic() - start < 10


@pytest.mark.skipif(compiled.compiled_core() is None, reason="no C compiler")
def test_a_core_that_is_spoilt_is_remembered(cache, monkeypatch, tmp_path):
    small = tmp_path / "small.c"  # built in a moment
    small.write_text("".join(f"void {name}(void *w) {{}}\n" for name in ("measure", "decide", "damp", "apply")))
    monkeypatch.setattr(compiled, "SOURCE", small)
    library = compiled.build()
    library.write_bytes(b"no library")
    why, lines = a_process()
    assert why.startswith(f"there is no native core: it could not be loaded: {library}: ")
    assert a_process() == (why, lines) == (why, [why])
    library.with_suffix(".failed").unlink()
    assert a_process() == ("None", [])
    assert list(cache.iterdir()) == [library]


TROUBLES = {
    "fails": "some-cc ended with status 1 (remembered in ",
    "no library": "No such file or directory",
    "no compiler": "no compiler",
    "bad flags": "No closing quotation",
    "no folder": "Not a directory",
    "open folder": "belongs to others or can be written by them",
    "closed folder": "Permission denied",
}


@pytest.mark.parametrize("trouble", TROUBLES)
def test_optimizers_step_without_a_core(trouble, compiler, cache, monkeypatch, tmp_path, caplog):
    calls = compiler("exit 0" if trouble == "no library" else "exit 1")
    if trouble == "no compiler":
        monkeypatch.setenv("CC", str(tmp_path / "nothing"))
    elif trouble == "bad flags":
        monkeypatch.setenv("CRITGRAD_CFLAGS", "'-O1")
    elif trouble == "no folder":
        cache.parent.write_text("")
    elif trouble == "open folder":
        cache.mkdir(parents=True)
        cache.chmod(0o777)
    elif trouble == "closed folder":  # root may write everywhere, so the refusal is a made one
        refusal = PermissionError(13, "Permission denied")
        monkeypatch.setattr(compiled.tempfile, "TemporaryDirectory", Mock(side_effect=refusal))
    with caplog.at_level(logging.INFO, logger="critgrad"):
        for _ in range(2):
            params = parameters(((7, 3), (5,)), torch.float32)
            before = [p.detach().clone() for p in params]
            opt = critgrad.Adam_C(params)
            run(opt, params, GradientStream(params), 3)
            assert critgrad.inspect(opt).engine == "torch"
            assert all(p.isfinite().all() and not torch.equal(p, was) for p, was in zip(params, before))
    (line,) = [record for record in caplog.records if record.name == "critgrad"]
    assert (line.getMessage(), line.exc_info) == (compiled.why_no_core(), None)
    assert TROUBLES[trouble] in line.getMessage()
    assert "\n" not in line.getMessage()
    assert line.levelno == (logging.INFO if trouble == "no compiler" else logging.WARNING)
    tried = trouble in ("fails", "no library")
    assert (calls.exists(), len(list(cache.glob("*")))) == (tried, int(tried))  # a reason is kept, and nothing else
