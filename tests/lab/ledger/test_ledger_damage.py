"""Damaged files, full disks, folders that cannot be written to: a clear error, and nothing committed is lost."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from ledger_helpers import REPORT, TUNE, result, trial

from critgrad.lab.ledger import Ledger, LedgerError
from critgrad.lab.ledger.merge import merge, same_numbers

HERE = Path(__file__).parent

FILL = """
import resource, signal, sys
from ledger_helpers import result, trial
from critgrad.lab.ledger import Ledger, LedgerError
path, limit, deadly = sys.argv[1], int(sys.argv[2]), sys.argv[3] == "deadly"
with Ledger.open(path, write=True) as ledger:
    if limit:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL if deadly else signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    try:
        for seed in range(1, 10_000):
            ledger.add(trial(seed), result(seed))
            print(seed, flush=True)
    except LedgerError as error:
        print("error", error, flush=True)
"""


def fill(path: Path, limit: int, how: str = "") -> tuple[int, list[str]]:
    paths = os.pathsep.join((str(HERE), str(HERE.parents[2] / "src")))
    command = [sys.executable, "-c", FILL, str(path), str(limit), how]
    done = subprocess.run(command, env={**os.environ, "PYTHONPATH": paths}, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout.splitlines()


def check_seeds(path: Path, reported: int) -> None:
    """All that was reported as written is there, whole; of the run that was being written, all or nothing."""
    with Ledger.open(path) as ledger:
        rows = ledger.rows()
    assert [row.trial.seed for row in rows] in (list(range(reported + 1)), list(range(reported + 2)))
    assert all(same_numbers(row, result(row.trial.seed)) for row in rows)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    with Ledger.open(tmp_path / "runs.db", write=True, create=True) as ledger:
        ledger.add(trial(0), result(0))
    return tmp_path / "runs.db"


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=512k", "tmpfs", str(folder)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("mounting a small disk needs the right to mount")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


@pytest.mark.slow
def test_a_full_disk_is_named_and_loses_nothing(small_disk: Path) -> None:
    path = small_disk / "runs.db"
    with Ledger.open(path, write=True, create=True) as ledger:
        ledger.add(trial(0), result(0))
    code, (*written, last) = fill(path, 0)
    assert code == 0
    assert last.startswith(f"error Ledger {path}: ")
    assert "full" in last
    check_seeds(path, len(written))
    # With room again (the log shrinks when it is written back), the same file goes on.
    subprocess.run(["mount", "-o", "remount,size=4m", str(small_disk)], check=True)
    with Ledger.open(path, write=True) as ledger:
        assert ledger.add(trial(20_000), result(1))


@pytest.mark.slow
def test_a_limit_on_file_sizes_is_an_error_and_loses_nothing(path: Path) -> None:
    code, (*written, last) = fill(path, 300_000)
    assert code == 0
    assert last.startswith(f"error Ledger {path}: ")
    assert written
    check_seeds(path, len(written))


@pytest.mark.slow
@pytest.mark.parametrize("limit", [150_001, 233_472, 300_000, 300_007])
def test_a_writer_killed_inside_a_write_loses_nothing_it_has_reported(path: Path, limit: int) -> None:
    """The limit lets the write stop after any byte, and the next one kill the process: a commit torn in the middle."""
    code, written = fill(path, limit, "deadly")
    assert code == -25  # SIGXFSZ
    assert written
    check_seeds(path, len(written))


def test_a_damaged_file_is_named_with_a_cure_and_left_alone(path: Path) -> None:
    with Ledger.open(path, write=True) as ledger:
        for seed in range(1, 60):
            ledger.add(trial(seed), result(seed))
    data = bytearray(path.read_bytes())
    data[8192 * 3 : 8192 * 8] = os.urandom(8192 * 5)
    path.write_bytes(data)
    with pytest.raises(LedgerError, match=r"runs\.db.*--salvage"):
        Ledger.open(path, write=True)
    assert path.read_bytes() == data


@pytest.mark.parametrize("text", [b"no database at all, but long enough to look like one" * 100, b"short"])
def test_a_file_that_is_no_database_is_refused_and_left_alone(tmp_path: Path, text: bytes) -> None:
    path = tmp_path / "notes.db"
    path.write_bytes(text)
    for write in (False, True):
        with pytest.raises(LedgerError, match=r"notes\.db.*(damaged|no ledger)"):
            Ledger.open(path, write=write)
    assert path.read_bytes() == text


def test_salvage_keeps_the_runs_that_can_still_be_read(path: Path, tmp_path: Path) -> None:
    with Ledger.open(path, write=True) as ledger:
        for seed in range(1, 100):
            ledger.add(trial(seed), result(seed), [TUNE, REPORT])
    data = bytearray(path.read_bytes())
    middle = len(data) // 2 // 8192 * 8192
    data[middle : middle + 2 * 8192] = b"\xff" * (2 * 8192)
    path.write_bytes(data)
    with pytest.raises(LedgerError, match="--salvage"):
        merge(tmp_path / "new.db", [path])
    merged = merge(tmp_path / "new.db", [path], salvage=True)
    with Ledger.open(tmp_path / "new.db", write=True) as ledger:
        rows = ledger.rows()
    assert 60 < len(rows) < 100
    assert merged.added == len(rows)
    assert merged.unreadable == 100 - len(rows)
    assert all(same_numbers(row, result(row.trial.seed)) for row in rows)


# Root may write anywhere, so the reader gives that up first.
READ = """
import os, sys
from critgrad.lab.ledger import Ledger
if os.getuid() == 0:
    os.setgid(65534)
    os.setuid(65534)
print(len(Ledger.open(sys.argv[1]).rows()), os.access(os.path.dirname(sys.argv[1]), os.W_OK))
"""


@pytest.mark.slow
def test_a_ledger_is_read_from_a_folder_that_cannot_be_written_to(path: Path) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        shutil.copy(path, folder / "runs.db")
        folder.chmod(0o555)
        command = [sys.executable, "-c", READ, str(folder / "runs.db")]
        paths = os.pathsep.join((str(HERE), str(HERE.parents[2] / "src")))
        values = {**os.environ, "PYTHONPATH": paths}
        done = subprocess.run(command, env=values, capture_output=True, text=True, check=False)
        folder.chmod(0o755)
    assert done.stdout == "1 False\n", done.stderr
