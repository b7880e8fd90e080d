"""Packed ledgers: read as they are, written by a merge alone."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from ledger_helpers import result, trial

from critgrad.lab.ledger import Ledger, LedgerError
from critgrad.lab.ledger.merge import merge


@pytest.fixture
def plain(tmp_path: Path) -> Path:
    path = tmp_path / "plain.db"
    with Ledger.open(path, write=True, create=True) as book:
        for seed in range(40):
            book.add(trial(seed), result(seed))
    return path


def test_a_packed_ledger_is_smaller_and_has_the_same_runs(plain: Path, tmp_path: Path) -> None:
    packed = tmp_path / "packed.db.xz"
    assert merge(packed, [plain]).added == 40
    assert packed.stat().st_size < plain.stat().st_size
    assert not list(tmp_path.glob(".packed*"))
    with Ledger.open(packed) as book, Ledger.open(plain) as right:
        assert book.path == packed
        for row, other in zip(book.rows(), right.rows(), strict=True):
            assert (row.key, row.summary, row.finished) == (other.key, other.summary, other.finished)
            assert all(np.array_equal(values, other.curves[name]) for name, values in row.curves.items())


def test_a_merge_adds_to_a_packed_ledger_and_reads_from_one(plain: Path, tmp_path: Path) -> None:
    packed, more = tmp_path / "packed.db.xz", tmp_path / "more.db"
    merge(packed, [plain])
    with Ledger.open(more, write=True, create=True) as book:
        book.add(trial(40), result(40))
    merged = merge(packed, [more, plain])
    assert (merged.added, merged.known) == (1, 40)
    assert merge(tmp_path / "all.db", [packed]).added == 41


def test_a_merge_that_fails_leaves_the_packed_ledger_as_it_was(plain: Path, tmp_path: Path) -> None:
    packed = tmp_path / "packed.db.xz"
    merge(packed, [plain])
    before = packed.read_bytes()
    with pytest.raises(LedgerError, match="no ledger at"):
        merge(packed, [tmp_path / "none.db"])
    assert packed.read_bytes() == before


def test_no_command_writes_runs_into_a_packed_ledger(plain: Path, tmp_path: Path) -> None:
    packed = tmp_path / "packed.db.xz"
    merge(packed, [plain])
    with pytest.raises(LedgerError, match="is packed: `critgrad merge` writes it"):
        Ledger.open(packed, write=True)


@pytest.mark.parametrize("damage", [lambda data: data[:-20], lambda data: b"no xz at all" + data])
def test_a_damaged_file_is_named(plain: Path, tmp_path: Path, damage) -> None:
    packed = tmp_path / "packed.db.xz"
    merge(packed, [plain])
    packed.write_bytes(damage(packed.read_bytes()))
    with pytest.raises(LedgerError, match=r"packed\.db\.xz.*damaged or not packed with xz"):
        Ledger.open(packed)
