"""What is put into a ledger comes out of it, and nothing else."""

from __future__ import annotations

import math
import sqlite3
from pathlib import Path

import numpy as np
import pytest
from ledger_helpers import REPORT, TUNE, result, trial

from critgrad.lab.ledger import Ledger, LedgerError, Role


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "runs.db"


def test_a_run_comes_back_bit_for_bit(path: Path) -> None:
    given = result(1)
    with Ledger.open(path, write=True, create=True) as ledger:
        assert ledger.add(trial(1, settings={"epochs": 20}, probe=("memory",)), given, [TUNE, REPORT])
    with Ledger.open(path) as ledger:
        (row,) = ledger.rows()
    assert row.trial == trial(1, settings={"epochs": 20}, probe=("memory",))
    assert row.key == row.trial.key
    assert (row.status, row.error, set(row.roles)) == ("done", None, {TUNE, REPORT})
    assert row.summary == given.summary
    assert row.provenance == given.provenance
    assert row.curves.keys() == given.curves.keys()
    for name, curve in given.curves.items():
        assert row.curves[name].dtype == curve.dtype
        assert row.curves[name].tobytes() == curve.tobytes()
        assert row.curves[name].shape == curve.shape


@pytest.mark.parametrize(
    "array",
    [
        np.array(3.5),
        np.array([]),
        np.array([math.nan, -math.inf, -0.0]),
        np.arange(12, dtype=np.int32).reshape(3, 4).T,
        np.array([True, False]),
        np.array([1.5, 2.5], dtype=">f4"),
        np.zeros((0, 3), dtype=np.float32),
        np.array([1 + 2j]),
    ],
    ids=["scalar", "empty", "special", "transposed", "flags", "big-endian", "no rows", "complex"],
)
def test_arrays_of_all_kinds_come_back(path: Path, array: np.ndarray) -> None:
    with Ledger.open(path, write=True, create=True) as ledger:
        ledger.put_analysis("spectrum", "digits-mlp", "Adam_C", {"n": 2}, {"a": array}, [trial(1).key, trial(2).key])
        (analysis,) = ledger.analyses("spectrum")
    back = analysis.arrays["a"]
    assert back.shape == array.shape
    assert back.dtype == array.dtype.newbyteorder("=")
    np.testing.assert_array_equal(
        np.signbit(back) if back.dtype.kind == "f" else back, np.signbit(array) if back.dtype.kind == "f" else array
    )
    np.testing.assert_array_equal(back, array)
    assert analysis.keys == (trial(1).key, trial(2).key)


def test_a_number_that_is_not_finite_comes_back_as_none(path: Path) -> None:
    given = result()
    given.summary["final_train_loss"] = math.nan
    given.summary["best_epoch"] = None
    with Ledger.open(path, write=True, create=True) as ledger:
        ledger.add(trial(), given)
        row = ledger.row(trial().key)
    assert row is not None
    assert row.summary == {**given.summary, "final_train_loss": None}


def test_the_first_result_of_a_key_stays_and_roles_add_up(path: Path) -> None:
    with Ledger.open(path, write=True, create=True) as ledger:
        assert ledger.add(trial(), result(1), [TUNE])
        assert not ledger.add(trial(), result(2), [TUNE, REPORT])
        assert not ledger.fail(trial(), "too late")
        (row,) = ledger.rows(status=None)
    assert row.summary == result(1).summary
    assert sorted(row.roles) == sorted([TUNE, REPORT])


def test_a_failed_run_can_become_done_but_not_the_other_way(path: Path) -> None:
    with Ledger.open(path, write=True, create=True) as ledger:
        assert ledger.fail(trial(), "Traceback ...\nValueError: no", [TUNE])
        assert ledger.rows() == []
        (row,) = ledger.rows(status="failed")
        assert (row.error, row.curves, row.summary) == ("Traceback ...\nValueError: no", {}, {})
        assert (ledger.done([row.key]), ledger.failed([row.key])) == (set(), {row.key})
        assert ledger.add(trial(), result(), [REPORT])
        (row,) = ledger.rows(status=None)
    assert (row.status, row.error, set(row.roles)) == ("done", None, {TUNE, REPORT})


def test_rows_match_all_that_is_asked_within_one_role(path: Path) -> None:
    other = Role("paper-best", "SGD", "SGD", "paper")
    with Ledger.open(path, write=True, create=True) as ledger:
        ledger.add(trial(0), result(), [TUNE])
        ledger.add(trial(1, registration="r1"), result(), [TUNE, other])
        ledger.add(trial(2, task="mnist-mlp", optimizer="Adam"), result(), [other])

        def seeds(**filters: str) -> list[int]:
            return [row.trial.seed for row in ledger.rows(**filters)]

        assert seeds() == [0, 1, 2]
        assert seeds(task="digits-mlp") == [0, 1]
        assert seeds(optimizer="Adam") == [2]
        assert seeds(registration="r1") == [1]
        assert seeds(track="fair") == [0, 1]
        assert seeds(arm="SGD", family="SGD") == [1, 2]
        assert seeds(track="fair", arm="SGD") == []
        assert seeds(purpose="paper", task="digits-mlp") == [1]
        assert ledger.counts() == [
            ("digits-mlp", "fair", "Adam_C", "done", 2),
            ("digits-mlp", "paper-best", "SGD", "done", 1),
            ("mnist-mlp", "paper-best", "SGD", "done", 1),
        ]


def test_done_answers_for_many_keys_at_once(path: Path) -> None:
    keys = [trial(seed).key for seed in range(1300)]
    with Ledger.open(path, write=True, create=True) as ledger:
        with ledger.transaction():
            for seed in range(0, 1300, 2):
                ledger.add(trial(seed), result(epochs=1))
        assert ledger.done(keys) == set(keys[::2])


def test_a_transaction_that_raises_leaves_nothing_and_the_ledger_usable(path: Path) -> None:
    with Ledger.open(path, write=True, create=True) as ledger:

        def interrupted() -> None:
            with ledger.transaction():
                ledger.add(trial(0), result(), [TUNE])
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            interrupted()
        assert ledger.keys() == []
        ledger.add(trial(0), result(3), [TUNE])
        (row,) = ledger.rows()
    assert (row.summary, row.roles) == (result(3).summary, (TUNE,))


def test_thousands_of_runs_take_few_bytes(path: Path) -> None:
    with Ledger.open(path, write=True, create=True) as ledger, ledger.transaction():
        for seed in range(1000):
            given = result(seed, epochs=20)
            del given.curves["decisions"], given.curves["ages"]
            ledger.add(trial(seed), given, [TUNE])
    assert path.stat().st_size < 1.5 * 2**20


def test_documents_and_states_are_kept_by_name(path: Path) -> None:
    with Ledger.open(path, write=True, create=True) as ledger:
        ledger.put_document("registration:abc", "text")
        ledger.put_state("sweep", {"running": []})
        assert (ledger.document("registration:abc"), ledger.document("other")) == ("text", None)
        assert ledger.documents() == ["registration:abc"]
        assert ledger.state("sweep") == {"running": []}
        ledger.put_state("sweep", None)
        assert ledger.state("sweep") is None


def test_a_reader_sees_each_run_as_soon_as_it_is_written(path: Path) -> None:
    with Ledger.open(path, write=True, create=True) as writer, Ledger.open(path) as reader:
        for seed in range(3):
            writer.add(trial(seed), result(seed))
            assert [row.trial.seed for row in reader.rows()] == list(range(seed + 1))


def test_a_reader_cannot_write(path: Path) -> None:
    Ledger.open(path, write=True, create=True).close()
    with Ledger.open(path) as ledger, pytest.raises(LedgerError, match="opened for reading"):
        ledger.add(trial(), result())


def test_a_look_leaves_nothing_beside_the_ledger(path: Path) -> None:
    with Ledger.open(path, write=True, create=True) as ledger:
        ledger.add(trial(), result())
    before = {file: file.read_bytes() for file in path.parent.iterdir()}
    with Ledger.open(path) as ledger:
        assert len(ledger.rows()) == 1
    assert {file: file.read_bytes() for file in path.parent.iterdir()} == before


def test_a_missing_ledger_is_an_error_that_names_it(path: Path) -> None:
    for options in ({}, {"write": True}, {"create": True}):
        with pytest.raises(LedgerError, match=r"no ledger at .*runs\.db"):
            Ledger.open(path, **options)
    assert not path.exists()


def test_an_abandoned_empty_file_becomes_a_ledger_for_a_writer_and_says_so_to_a_reader(path: Path) -> None:
    path.touch()
    with pytest.raises(LedgerError, match="is empty"):
        Ledger.open(path)
    with Ledger.open(path, write=True) as ledger:
        ledger.add(trial(), result())
    with Ledger.open(path) as ledger:
        assert len(ledger.rows()) == 1


def test_a_newer_format_and_a_foreign_database_are_refused(path: Path, tmp_path: Path) -> None:
    Ledger.open(path, write=True, create=True).close()
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA user_version=99")
    connection.close()
    foreign = tmp_path / "other.db"
    with sqlite3.connect(foreign) as connection:
        connection.execute("CREATE TABLE runs (id)")
    connection.close()
    for write in (False, True):
        with pytest.raises(LedgerError, match=r"format 99.*up to 1"):
            Ledger.open(path, write=write)
        with pytest.raises(LedgerError, match="no ledger of critgrad"):
            Ledger.open(foreign, write=write)


def test_runs_of_an_older_meaning_are_left_out(path: Path) -> None:
    with Ledger.open(path, write=True, create=True) as ledger:
        ledger.add(trial(0), result())
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE specs SET schema = 0")
    connection.close()
    with Ledger.open(path) as ledger:
        assert ledger.rows(status=None) == []
        assert ledger.counts() == []
