"""A ledger that several machines may see has no write-ahead log: its index is memory, which they do not share."""

from __future__ import annotations

from pathlib import Path

import pytest
from ledger_helpers import result, trial

from critgrad.lab.ledger import Ledger, disk

MOUNTS = """22 1 8:1 / / rw - ext4 /dev/sda rw
30 22 0:40 / /home rw,relatime shared:1 - nfs4 server:/home rw
31 30 8:2 / /home/me/fast\\040disk rw - xfs /dev/sdb rw
"""


@pytest.mark.parametrize(
    "path, kind",
    [("/var/runs.db", "ext4"), ("/home/me/runs.db", "nfs4"), ("/home/me/fast disk/x.db", "xfs"), ("/homes/x", "ext4")],
)
def test_the_deepest_mount_counts(tmp_path: Path, path: str, kind: str) -> None:
    (tmp_path / "mounts").write_text(MOUNTS)
    assert disk.kind_of(Path(path), tmp_path / "mounts") == kind
    assert disk.kind_of(Path(path), tmp_path / "none") == ""


@pytest.mark.parametrize("shared, mode", [(True, "delete"), (False, "wal")])
def test_a_shared_disk_gets_a_rollback_journal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shared: bool, mode: str
) -> None:
    path = tmp_path / "runs.db"
    Ledger.open(path, write=True, create=True).close()  # whatever it had before
    monkeypatch.setattr("critgrad.lab.ledger.schema.on_network", lambda _: shared)
    with Ledger.open(path, write=True) as book:
        book.add(trial(1), result(1))
        assert book._connection.execute("PRAGMA journal_mode").fetchone()[0] == mode
        with Ledger.open(path) as reader:
            assert reader.keys() == [trial(1).key]
        assert (tmp_path / "runs.db-wal").exists() is not shared
