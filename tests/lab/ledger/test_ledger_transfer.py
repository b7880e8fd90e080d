"""Ledgers into one another and out into tables."""

from __future__ import annotations

import csv
import importlib
from pathlib import Path

import numpy as np
import pytest
from ledger_helpers import REPORT, TUNE, result, trial

from critgrad.lab.ledger import Ledger, LedgerError, Role, committed
from critgrad.lab.ledger.export import export
from critgrad.lab.ledger.merge import merge, published, rounded, same_numbers
from critgrad.lab.run.results import Result, loss_is_known
from critgrad.paper.commands import name_commits
from critgrad.paper.protocol.registration import find
from critgrad.paper.protocol.tuning import tie_breaker


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


def test_merge_names_the_commit_of_runs_from_a_box_without_git(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    announcement = find("digits-mlp")
    source = make(tmp_path / "box.db", range(2))
    with monkeypatch.context() as box, Ledger.open(source, write=True) as ledger:
        box.setattr(committed, "_git", lambda *_: None)
        assert not committed.record(ledger, announcement).registered
    answers = {"ls-files": "digits-mlp.json", "status": "", "hash-object": "abc", "log": "c0ffee", "show": "0"}
    monkeypatch.setattr(committed, "_git", lambda path, command, *_: answers[command])
    merge(tmp_path / "all.db", [source], afterwards=name_commits)
    with Ledger.open(tmp_path / "all.db") as ledger:
        assert committed.standing(ledger, announcement).commit == "c0ffee"


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


# -- the published form ------------------------------------------------------------------------------------------------

TIMED = Role("fair", "Adam", "C", "analysis:timing")


def test_rounding_goes_to_the_nearest_keeps_five_digits_and_is_done_once() -> None:
    rng = np.random.default_rng(0)
    values = np.concatenate([rng.normal(size=2000) * 10.0 ** rng.integers(-30, 30, 2000), [0.0, -0.0, 1.0]])
    small = rounded(values)
    assert small.dtype == np.float32
    assert (np.abs(small.astype(float) / np.where(values == 0, 1, values) - (values != 0)) <= 2.0**-16).all()
    assert np.array_equal(rounded(small), small)
    assert not (small.view(np.uint32) & 0xFF).any()
    errors = (small.astype(float) - values)[:2000] / np.abs(values[:2000])
    assert abs(errors.mean()) < 2.0**-16 / 20  # cutting off would be off by half a unit on average
    assert np.array_equal(rounded(np.array([np.nan, np.inf, -np.inf, 1e300])), [np.nan, np.inf, -np.inf, np.inf], True)


def test_a_loss_that_is_not_there_is_not_published_as_none() -> None:
    """None says that a run diverged; one without curves may have had a loss."""
    plain = result(0)
    assert "valid_loss" not in published(Result({}, plain.summary), [TUNE]).summary
    assert loss_is_known(plain.summary, plain.curves)
    assert not loss_is_known(plain.summary, {})
    assert not loss_is_known({**plain.summary, "valid_loss": None}, {})  # as earlier versions wrote it
    diverged = {**plain.summary, "diverged": True, "best_epoch": None}
    assert loss_is_known(diverged, {})
    assert published(Result({}, diverged), [TUNE]).summary["valid_loss"] is None


def test_a_published_run_keeps_summaries_whole_numbers_and_what_choices_rest_on(tmp_path: Path) -> None:
    source = tmp_path / "full.db"
    plain = result(0)
    plain.curves |= {"update_rms": np.random.default_rng(3).random(20), "copy": plain.curves["valid"].copy()}
    plain.provenance["command"] = [
        "/home/me/src/critgrad/lab/__main__.py",
        "sweep",
        "--shard",
        "1/2",
        "--ledger",
        "a/b.db",
    ]
    with Ledger.open(source, write=True, create=True) as ledger:
        for seed, roles in enumerate([(REPORT,), (TUNE,), (TUNE, TIMED), ()]):
            ledger.add(trial(seed), plain, roles, finished=100.0 + seed)
        ledger.fail(trial(9), "ValueError: no", finished=7.0)
        ledger.put_document("registration:1", "text")
    merged = merge(tmp_path / "small.db", [source], compact=True)
    assert (merged.added, merged.failed, merged.conflicts) == (4, 1, [])
    with Ledger.open(tmp_path / "small.db") as ledger:
        rows = {row.trial.seed: row for row in ledger.rows(status=None)}
        assert ledger.document("registration:1") == "text"
    exact = {
        0: {"ages", "decisions", "update_rms", "valid", "copy"},
        2: {"ages", "decisions", "update_rms", "valid", "copy", "seconds"},
        3: {"ages", "decisions", "update_rms", "valid", "copy"},
    }
    tuned = rows[1]
    loss = float(plain.curves["valid_loss"][plain.summary["best_epoch"] - 1])
    assert (tuned.curves, tuned.summary) == ({}, {**plain.summary, "valid_loss": loss})
    assert tie_breaker(tuned) == loss
    for seed, names in exact.items():
        row = rows[seed]
        assert row.summary == {**plain.summary}
        assert row.finished == 100.0 + seed
        assert {name for name, values in plain.curves.items() if np.array_equal(row.curves[name], values)} == names
        assert all(np.allclose(row.curves[name], values, rtol=2e-5) for name, values in plain.curves.items())
        assert row.provenance["command"] == [
            "python",
            "-m",
            "critgrad.lab",
            "sweep",
            "--shard",
            "1/2",
            "--ledger",
            "b.db",
        ]
    assert (rows[9].status, rows[9].finished) == ("failed", 7.0)


def test_a_published_ledger_is_one_smaller_file_that_can_be_merged_again(tmp_path: Path) -> None:
    full = make(tmp_path / "full.db", range(200))
    small = tmp_path / "small.db"
    merge(small, [full], compact=True)
    assert small.stat().st_size < 0.8 * full.stat().st_size
    assert not small.with_name("small.db-wal").exists()
    for target, source, form in ((small, full, True), (small, full, False), (full, small, False)):
        again = merge(target, [source], compact=form)
        assert (again.added, again.known, again.conflicts) == (0, 200, [])
    other = make(tmp_path / "other.db", range(3), shift=50)
    assert len(merge(small, [other], compact=True).conflicts) == 3


def test_runs_of_some_tasks_and_runs_without_curves(tmp_path: Path) -> None:
    full = make(tmp_path / "full.db", range(5))
    with Ledger.open(full, write=True) as ledger:
        ledger.add(trial(0, task="mnist-mlp"), result(7))
    bare = tmp_path / "bare.db"
    assert merge(bare, [full], compact=True, curves=False, tasks=["mnist-mlp"]).added == 1
    with Ledger.open(bare) as ledger:
        (row,) = ledger.rows()
    assert (row.curves, row.summary) == ({}, result(7).summary)
    assert merge(bare, [full]).conflicts == []  # the same run, of which less was kept
    with pytest.raises(ValueError, match="curves=False"):
        merge(tmp_path / "x.db", [full], curves=False)
