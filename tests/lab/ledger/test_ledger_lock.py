"""One writer at a time, and its lock dies with it."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest
from ledger_helpers import result, trial

from critgrad.lab.ledger import Ledger, LedgerError, holder_of
from critgrad.lab.ledger.lock import lock_path

HOLD = """
import sys, time
from pathlib import Path
from critgrad.lab.ledger.lock import WriterLock
lock = WriterLock(Path(sys.argv[1]))
print("held", flush=True)
time.sleep(600)
"""


def test_a_second_writer_is_refused_and_told_who_the_first_is(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    with Ledger.open(path, write=True, create=True) as first:
        with pytest.raises(LedgerError, match=rf"process {os.getpid()} on .*critgrad merge"):
            Ledger.open(path, write=True)
        first.add(trial(), result())
        holder = holder_of(path)
        assert holder is not None
        assert holder.pid == os.getpid()
    assert holder_of(path) is None
    assert not lock_path(path).exists()
    Ledger.open(path, write=True).close()


def test_one_ledger_by_two_names_has_one_lock(tmp_path: Path) -> None:
    path, link = tmp_path / "runs.db", tmp_path / "link.db"
    link.symlink_to(path)
    with Ledger.open(path, write=True, create=True), pytest.raises(LedgerError, match="Another process"):
        Ledger.open(link, write=True)


def test_the_lock_of_a_killed_writer_is_free(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    Ledger.open(path, write=True, create=True).close()
    source = Path(__file__).parents[3] / "src"
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(path)],
        env={**os.environ, "PYTHONPATH": str(source)},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    holder = holder_of(path)
    assert holder is not None
    assert holder.pid == process.pid
    with pytest.raises(LedgerError, match=f"process {process.pid} "):
        Ledger.open(path, write=True)
    process.kill()
    process.communicate()
    assert holder_of(path) is None
    Ledger.open(path, write=True).close()


def test_looking_for_the_holder_does_not_disturb_a_writer(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    for _ in range(20):
        with Ledger.open(path, write=True, create=True):
            assert holder_of(path) is not None
        assert holder_of(path) is None


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(LedgerError, match="nowhere"):
        Ledger.open(tmp_path / "nowhere" / "runs.db", write=True, create=True)


def test_a_disk_without_locks_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    Ledger.open(tmp_path / "runs.db", write=True, create=True).close()
    monkeypatch.setattr("fcntl.flock", refuses)
    with pytest.raises(LedgerError, match=r"flock says .*No locks available.*--ledger OTHER.db"):
        Ledger.open(tmp_path / "runs.db", write=True)
    lock_path(tmp_path / "runs.db").touch()
    with pytest.warns(RuntimeWarning, match="Who writes to .* is not known"):
        assert holder_of(tmp_path / "runs.db") is None
