from __future__ import annotations

import csv

import pytest

TINY = ("train", "digits-mlp@tiny", "--epochs", "1")


@pytest.fixture
def trained(cli):
    for seed in (0, 1):
        cli(*TINY, "-o", "SGD", "--seed", seed)
    cli(*TINY, "-o", "SGD", "--lr", "1e-9")
    return cli


def test_status_counts_by_task_track_and_arm(trained):
    line = next(line for line in trained("status").splitlines() if line.startswith("digits-mlp@tiny"))
    assert line.split() == ["digits-mlp@tiny", "train", "SGD", "3", "0", "0"]


def test_status_of_an_empty_ledger(cli):
    from critgrad.lab.ledger import Ledger

    Ledger.open(cli.folder / "runs.db", write=True, create=True).close()
    assert "no runs yet" in cli("status")
    assert "no finished runs" in cli("best")


def test_best_ranks_by_validation_over_the_seeds(trained):
    (line,) = [line for line in trained("best").splitlines() if line.startswith("digits-mlp@tiny")]
    assert "lr=0.8148" in line
    assert line.split()[-3] == "2"
    lines = [line for line in trained("best", "-n", 5).splitlines() if line.startswith("digits-mlp@tiny")]
    assert len(lines) == 2
    assert "lr=1e-09" in lines[1]


def test_export_has_one_line_for_each_run(trained):
    assert "3 runs in runs.csv" in trained("export", "runs.csv")
    with open(trained.folder / "runs.csv", newline="") as file:
        records = list(csv.DictReader(file))
    assert sorted(record["seed"] for record in records) == ["0", "0", "1"]
    assert {record["hyper.lr"] for record in records} == {"0.8148", "1e-09"}
    assert "Invalid file for an export" in trained.error("export", "runs.txt")


def test_merge_is_the_union(trained):
    trained(*TINY, "-o", "Adam", "--ledger", "other.db")
    trained(*TINY, "-o", "SGD", "--ledger", "other.db")
    text = trained("merge", "all.db", "runs.db", "other.db")
    assert "4 runs added, 1 known already" in text
    assert len(trained.rows("all.db")) == 4
