"""Ledgers into one another and out into tables."""

from __future__ import annotations

import csv
import importlib
from pathlib import Path

import numpy as np
import pytest
from ledger_helpers import REPORT, TUNE, result, trial

from critgrad.lab.ledger import Ledger, LedgerError
from critgrad.lab.transfer import export, merge, same_numbers


def make(path: Path, seeds: range, role: tuple = (TUNE,), shift: int = 0) -> Path:
    with Ledger.open(path, write=True, create=True) as ledger:
        for seed in seeds:
            ledger.add(trial(seed), result(seed + shift), role)
    return path


def test_merge_is_the_union_by_key(tmp_path: Path) -> None:
    a, b = make(tmp_path / "a.db", range(0, 6)), make(tmp_path / "b.db", range(4, 9), (REPORT,))
    merged = merge(tmp_path / "all.db", [a, b])
    assert (merged.added, merged.known, merged.conflicts) == (9, 2, [])
    with Ledger.open(tmp_path / "all.db") as ledger:
        rows = {row.trial.seed: row for row in ledger.rows()}
    assert sorted(rows) == list(range(9))
    assert set(rows[5].roles) == {TUNE, REPORT}
    assert all(same_numbers(row, result(seed)) and row.provenance == result().provenance for seed, row in rows.items())
    assert merge(tmp_path / "all.db", [a, b]).added == 0


def test_merge_keeps_the_first_of_two_that_differ_and_says_so(tmp_path: Path) -> None:
    a, b = make(tmp_path / "a.db", range(2)), make(tmp_path / "b.db", range(1, 3), shift=10)
    merged = merge(tmp_path / "all.db", [a, b])
    assert merged.conflicts == [trial(1).key]
    assert trial(1).key in merged.text
    with Ledger.open(tmp_path / "all.db") as ledger:
        row = ledger.row(trial(1).key)
    assert row is not None
    assert same_numbers(row, result(1))


def test_times_do_not_make_two_runs_differ(tmp_path: Path) -> None:
    first, second = result(1), result(1)
    second.curves["seconds"] = second.curves["seconds"] + 1
    second.summary["step_ms"] = 77.0
    assert same_numbers(first, second)
    second.curves["valid"] = np.nextafter(second.curves["valid"], 2)
    assert not same_numbers(first, second)


def test_merge_takes_analyses_and_documents_and_lets_done_win_over_failed(tmp_path: Path) -> None:
    with Ledger.open(tmp_path / "a.db", write=True, create=True) as ledger:
        ledger.fail(trial(0), "ValueError: no", [TUNE])
        ledger.put_document("registration:1", "one")
        ledger.put_document("registration:2", "mine")
    with Ledger.open(tmp_path / "b.db", write=True, create=True) as ledger:
        ledger.add(trial(0), result(0), [REPORT])
        ledger.fail(trial(1), "ValueError: no")
        ledger.put_document("registration:2", "yours")
        ledger.put_document("registration:3", "three")
        ledger.put_analysis("spectrum", "digits-mlp", "Adam_C", {"n": 1}, {"a": np.arange(3)}, [trial(0).key])
        ledger.put_state("sweep", {"running": []})
    merged = merge(tmp_path / "a.db", [tmp_path / "b.db"])
    assert (merged.added, merged.failed, merged.documents) == (1, 1, ["registration:2"])
    with Ledger.open(tmp_path / "a.db") as ledger:
        assert {row.trial.seed: row.status for row in ledger.rows(status=None)} == {0: "done", 1: "failed"}
        assert set(ledger.rows()[0].roles) == {TUNE, REPORT}
        assert [ledger.document(f"registration:{n}") for n in (1, 2, 3)] == ["one", "mine", "three"]
        (analysis,) = ledger.analyses(task="digits-mlp")
        assert (analysis.data, analysis.keys, analysis.arrays["a"].tolist()) == ({"n": 1}, (trial(0).key,), [0, 1, 2])
        assert ledger.state("sweep") is None


def test_a_ledger_cannot_be_merged_into_itself(tmp_path: Path) -> None:
    path = make(tmp_path / "a.db", range(1))
    with pytest.raises(LedgerError, match="into itself"):
        merge(path, [path])


def test_a_source_that_is_missing_leaves_the_target_as_it_was(tmp_path: Path) -> None:
    path = make(tmp_path / "a.db", range(2))
    with pytest.raises(LedgerError, match=r"no ledger at .*missing\.db"):
        merge(path, [tmp_path / "missing.db"])
    with Ledger.open(path) as ledger:
        assert len(ledger.rows()) == 2


@pytest.fixture
def mixed(tmp_path: Path) -> Path:
    """Runs with different hyper-parameters, of which one failed."""
    with Ledger.open(tmp_path / "runs.db", write=True, create=True) as ledger:
        ledger.add(trial(0, settings={"epochs": 3}), result(0), [TUNE, REPORT])
        ledger.add(trial(1, hyper={"lr": 1, "betas": [0.9, 0.99]}, optimizer="Adam"), result(1))
        ledger.fail(trial(2), 'Traceback\nValueError: a, "b"\n')
    return tmp_path / "runs.db"


def test_csv_has_one_row_per_run_and_a_column_per_hyper_parameter(mixed: Path, tmp_path: Path) -> None:
    with Ledger.open(mixed) as ledger:
        assert export(ledger, tmp_path / "runs.csv") == 3
    with open(tmp_path / "runs.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["seed"] for row in rows] == ["0", "1", "2"]
    assert [(row["hyper.lr"], row["hyper.topC"], row["hyper.betas"]) for row in rows] == [
        ("0.1", "5", ""),
        ("1", "", "[0.9, 0.99]"),
        ("0.1", "5", ""),
    ]
    assert (rows[0]["purpose"], rows[0]["settings.epochs"]) == ("tune;report", "3")
    assert float(rows[1]["test"]) == result(1).summary["test"]
    assert (rows[2]["status"], rows[2]["error"], rows[2]["test"]) == ("failed", 'ValueError: a, "b"', "")
    assert list(rows[0])[:4] == ["key", "task", "optimizer", "seed"]
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_parquet_has_the_same_rows_with_types(mixed: Path, tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    with Ledger.open(mixed) as ledger:
        export(ledger, tmp_path / "runs.parquet")
    rows = parquet.read_table(tmp_path / "runs.parquet").to_pylist()
    assert [row["seed"] for row in rows] == [0, 1, 2]
    assert [row["hyper.lr"] for row in rows] == [0.1, 1.0, 0.1]
    assert rows[1]["test"] == result(1).summary["test"]
    assert rows[2]["test"] is None
    assert rows[0]["diverged"] is False


def test_parquet_without_its_package_says_what_to_install(
    mixed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(name: str, *arguments: object) -> object:
        raise ModuleNotFoundError(name)

    monkeypatch.setattr(importlib, "import_module", missing)
    with Ledger.open(mixed) as ledger, pytest.raises(ModuleNotFoundError, match="pip install pyarrow"):
        export(ledger, tmp_path / "runs.parquet")
    assert not (tmp_path / "runs.parquet").exists()


def test_another_ending_is_refused(mixed: Path, tmp_path: Path) -> None:
    with Ledger.open(mixed) as ledger, pytest.raises(ValueError, match=r"\.csv or \.parquet"):
        export(ledger, tmp_path / "runs.xlsx")
