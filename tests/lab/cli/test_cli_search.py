"""``critgrad search``."""

from __future__ import annotations

import json

import pytest

from critgrad.paper.search import file

SMALL = {
    "format": 1,
    "engine": "bank",
    "space": {"seed": 5, "memory": {"rho": {"scale": "log", "low": 1e-5, "high": 3.0}}},
    "fixed": {"topC": 3},
    "confirm": {"keep": 1, "against": ["base"]},
    "tasks": {
        "digits-mlp": {
            "direction": "max",
            "epochs": 1,
            "batch_size": 32,
            "trials": 2,
            "tuning_seeds": [10, 11],
            "race": [],
            "confirm_seeds": [20, 21],
            "lr": {"Adam": {"scale": "log", "low": 1e-3, "high": 1e-2}},
        }
    },
    "arms": [
        {"name": "base", "why": "the base", "optimizer": {"Adam": "Adam"}},
        {"name": "sparse", "why": "one step in ten", "optimizer": {"Adam": "Adam_F"}, "options": {"policy": "sparse"}},
    ],
}


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    made = tmp_path / "searches"
    made.mkdir()
    (made / "small.json").write_text(json.dumps(SMALL))
    monkeypatch.setattr(file, "FOLDER", made)
    monkeypatch.setattr(file.find, "__defaults__", (made,))
    return made


def test_a_search_is_read_and_says_who_can_run_it(cli):
    words = ("search", "digits-mlp", "--name", "small")
    assert "no ledger at" in cli.error(*words)
    assert not (cli.folder / "runs.db").exists()
    cli("train", "digits-mlp@tiny", "--epochs", 1)
    text = cli(*words)
    assert "Adam: not finished, 8 runs are next" in text
    assert "one step in ten" in text
    assert f"commit {file.LAST_RUN} can run them" in text
    assert cli(*words, "--table") == text


def test_wrong_words_are_told_in_a_line(cli):
    assert "No search 'smell', expected one of small" in cli("search", "digits-mlp", "--name", "smell", code=1)
    assert "Invalid task of the search small: 'mnist-mlp'" in cli("search", "mnist-mlp", "--name", "small", code=1)
    assert "Invalid family: 'SGD', expected some of Adam" in cli(
        "search", "digits-mlp", "--name", "small", "--families", "SGD", code=1
    )
