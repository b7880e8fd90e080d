"""A native core that cannot be had: tried once, remembered with its reason, told in one line, and steps go on without."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from helpers import GradientStream, parameters, run

import critgrad
from critgrad.engines.native import build as compiled

pytestmark = pytest.mark.skipif(os.name != "posix", reason="shell scripts stand for compilers")
has_compiler = pytest.mark.skipif(compiled.compiled_core() is None, reason="no C compiler")

# The module alone: without torch a process takes a moment. Its own log handler is Python's last resort, stderr.
PROCESS = """
import importlib.util, sys
spec = importlib.util.spec_from_file_location("compiled", sys.argv[1])
compiled = importlib.util.module_from_spec(spec)
spec.loader.exec_module(compiled)
compiled.SOURCE, compiled.LONGEST_BUILD = compiled.Path(sys.argv[2]), float(sys.argv[3])
for _ in range(3):
    core = compiled.compiled_core()
    assert (core is None) == (compiled.why_no_core() is not None)
print(compiled.why_no_core())
"""

FUNCTIONS = "".join(f"void {name}(void *w) {{}}\n" for name in ("measure", "decide", "damp", "apply"))


def a_process(longest=30.0) -> tuple[str, list[str]]:
    """What ``why_no_core`` and the log say in a new process."""
    command = [sys.executable, "-c", PROCESS, compiled.__file__, str(compiled.SOURCE), str(longest)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip(), done.stderr.splitlines()


@pytest.fixture(autouse=True)
def cache(monkeypatch, tmp_path) -> Path:
    monkeypatch.setenv("CRITGRAD_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("CRITGRAD_NATIVE", raising=False)
    monkeypatch.delenv("CRITGRAD_CFLAGS", raising=False)
    return tmp_path / "cache" / "critgrad"


@pytest.fixture
def small_source(monkeypatch, tmp_path) -> Path:
    """In place of ``native.c``: built in a moment."""
    source = tmp_path / "native.c"
    source.write_text(FUNCTIONS)
    monkeypatch.setattr(compiled, "SOURCE", source)
    return source


@pytest.fixture
def fresh():
    """No core is known yet in this process, and none of this is known afterwards."""
    compiled.compiled_core.cache_clear()
    yield
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


def step_with_adam() -> None:
    params = parameters(((7, 3), (5,)), torch.float32)
    before = [p.detach().clone() for p in params]
    opt = critgrad.Adam_C(params)
    run(opt, params, GradientStream(params), 3)
    assert critgrad.inspect(opt).engine == "torch"
    assert all(torch.isfinite(p).all() and not torch.equal(p, was) for p, was in zip(params, before, strict=True))


def test_a_build_that_fails_is_tried_once(compiler, cache):
    calls = compiler("echo 'note: here' >&2", "echo 'some-cc: error:   no such  thing' >&2", "exit 1")
    first, second = a_process(), a_process()
    assert calls.read_text() == "called\n"
    why, lines = first
    assert why.startswith("the native core could not be built: some-cc: error: no such thing (remembered in ")
    assert lines == [why]
    assert second == first
    (kept,) = cache.iterdir()
    assert kept.name.startswith("native-")
    assert kept.read_text() == "the native core could not be built: some-cc: error: no such thing\n"
    assert str(kept) in why


def test_what_was_remembered_is_tried_again_when_asked(compiler, cache):
    calls = compiler("exit 3")
    assert "some-cc ended with status 3" in a_process()[0]
    for path in cache.iterdir():
        path.unlink()
    a_process()
    assert calls.read_text() == 2 * "called\n"
    compiler("exit 3", "# another compiler")
    a_process()
    assert calls.read_text() == 3 * "called\n"


def test_other_flags_are_another_core(compiler, monkeypatch):
    calls = compiler('case "$*" in *-DWORKS*) exit 0;; *) exit 1;; esac')
    a_process()
    monkeypatch.setenv("CRITGRAD_CFLAGS", "-DWORKS '-DTWO WORDS'")
    assert "could not be loaded" in a_process()[0]
    assert len(calls.read_text().split()) == 3  # what cannot be loaded is built again, once
    a_process()
    assert len(calls.read_text().split()) == 3


def test_flags_that_cannot_be_read_are_told(monkeypatch):
    monkeypatch.setenv("CRITGRAD_CFLAGS", "'-O1")
    why, lines = a_process()
    assert why.startswith("the native core could not be built: ")
    assert lines == [why]


def test_a_compiler_that_hangs_is_ended_with_what_it_has_started(compiler, tmp_path):
    calls = compiler(f"sleep 600 & echo $! > {tmp_path}/sleeper", "wait")
    start = time.monotonic()
    first, second = a_process(longest=0.2), a_process(longest=0.2)
    assert time.monotonic() - start < 60
    assert calls.read_text() == "called\n"
    assert first == second
    assert "some-cc took longer than 0.2 seconds" in first[0]
    sleeper = Path("/proc", (tmp_path / "sleeper").read_text().strip(), "stat")
    if Path("/proc/self/stat").exists():
        assert not sleeper.exists() or sleeper.read_text().split()[2] == "Z"


def test_a_compiler_that_is_ended_from_outside_has_not_failed(compiler):
    calls = compiler("kill -TERM $$")
    why, lines = a_process()
    assert "remembered" not in why
    assert lines == [why]
    a_process()
    assert calls.read_text() == 2 * "called\n"


def test_no_compiler_is_no_warning(monkeypatch, tmp_path, cache):
    monkeypatch.setenv("CC", str(tmp_path / "nothing"))
    why, lines = a_process()
    assert why == f"there is no native core: no compiler {tmp_path}/nothing"
    assert lines == []
    assert not cache.exists()


@pytest.mark.parametrize("trouble", ["a file", "not ours alone"])
def test_a_folder_that_cannot_be_used_is_told(trouble, compiler, cache):
    calls = compiler("exit 1")
    if trouble == "a file":
        cache.parent.write_text("")
    else:
        cache.mkdir(parents=True)
        cache.chmod(0o777)
    why, lines = a_process()
    assert why.startswith("the native core could not be built: ")
    assert str(cache) in why
    assert lines == [why]
    assert not calls.exists()


@pytest.mark.usefixtures("fresh")
def test_a_folder_that_cannot_be_written_is_told(compiler, monkeypatch, caplog):
    """Root may write everywhere, so the refusal is a made one."""

    def refuse(**options):
        raise PermissionError(13, "Permission denied", options["dir"])

    calls = compiler("exit 1")
    monkeypatch.setattr(compiled.tempfile, "mkstemp", refuse)
    step_with_adam()
    assert "Permission denied" in compiled.why_no_core()
    assert caplog.messages == [compiled.why_no_core()]
    assert not calls.exists()


@has_compiler
@pytest.mark.parametrize("left", ["nothing", "text", "half", "another library"])
def test_a_core_that_is_spoilt_is_built_again(left, small_source, cache):
    library = compiled.build()
    whole = library.read_bytes()
    if left == "another library":
        small_source.write_text("int other;")
        library.write_bytes(compiled.build().read_bytes())
        small_source.write_text(FUNCTIONS)
    else:
        library.write_bytes({"nothing": b"", "text": b"no library", "half": whole[: len(whole) // 2]}[left])
    a_process()  # the symbols of a library that could be loaded stay as they are in one process
    assert a_process() == ("None", [])
    assert len(library.read_bytes()) == len(whole)


TROUBLES = ["fails", "hangs", "no folder", "no compiler", "no library", "ends at once"]


@pytest.mark.parametrize("trouble", TROUBLES)
@pytest.mark.usefixtures("fresh")
def test_optimizers_step_without_a_core(trouble, compiler, cache, monkeypatch, tmp_path, caplog):
    compiler({"hangs": "sleep 600", "ends at once": "kill -9 $$", "no library": "exit 0"}.get(trouble, "exit 1"))
    if trouble == "hangs":
        monkeypatch.setattr(compiled, "LONGEST_BUILD", 0.1)
    elif trouble == "no folder":
        cache.parent.write_text("")
    elif trouble == "no compiler":
        monkeypatch.setenv("CC", str(tmp_path / "nothing"))
    with caplog.at_level(logging.INFO, logger="critgrad"):
        for _ in range(2):
            step_with_adam()
    (line,) = [record for record in caplog.records if record.name == "critgrad"]
    assert line.getMessage() == compiled.why_no_core()
    assert "\n" not in line.getMessage()
    assert line.exc_info is None
    assert line.levelno == (logging.INFO if trouble == "no compiler" else logging.WARNING)


@has_compiler
@pytest.mark.usefixtures("fresh", "small_source")
def test_with_a_core_there_is_nothing_to_tell(caplog):
    assert compiled.why_no_core() is None
    assert not [record for record in caplog.records if record.name == "critgrad"]


@pytest.mark.slow
def test_a_whole_program_says_it_once(compiler):
    calls = compiler("echo 'error: not today' >&2", "exit 1")
    program = """if True:
        import critgrad, torch
        for _ in range(2):
            p = torch.nn.Parameter(torch.ones(9))
            opt = critgrad.Adam_C([p])
            for _ in range(3):
                p.grad = torch.ones(9)
                opt.step()
        assert (p < 1).all()
    """
    for _ in range(2):
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        assert len(done.stderr.splitlines()) == 1
        assert done.stderr.startswith("the native core could not be built: error: not today (remembered in ")
    assert calls.read_text() == "called\n"
