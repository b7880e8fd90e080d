"""What a trial, a result and a random stream are."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from critgrad.lab.run.results import dumps, provenance
from critgrad.lab.run.spec import SCHEMA, Trial, content_hash
from critgrad.lab.train.streams import global_stream, stream, stream_seed
from critgrad.lab.words import default_device, listed, pairs, value_of

TRIAL = Trial("digits-mlp", "Adam_C", {"lr": 0.01, "topC": 5}, 3, {"epochs": 2}, probe=("memory",))


# -- trials ------------------------------------------------------------------------------------------------------------


def test_the_key_depends_on_content_and_not_on_order_or_form():
    again = Trial("digits-mlp", "Adam_C", {"topC": 5, "lr": 1e-2}, 3, {"epochs": 2}, probe=("memory", "memory"))
    assert again.key == TRIAL.key
    assert Trial("t", "o", {"betas": (0.9, 0.99)}).key == Trial("t", "o", {"betas": [0.9, 0.99]}).key
    assert Trial("t", "o", probe=("update", "memory")).key == Trial("t", "o", probe=("memory", "update")).key


def test_the_key_is_the_same_from_version_to_version():
    """Published ledgers are found by it: it must never change for a schema."""
    assert SCHEMA == 1
    assert TRIAL.key == "536c7e24d63649a9680e8235693e8f17"
    assert TRIAL.key == content_hash(TRIAL.to_dict())


@pytest.mark.parametrize(
    "change",
    [
        {"task": "mnist-mlp"},
        {"optimizer": "SGD_C"},
        {"hyper": {"lr": 0.02, "topC": 5}},
        {"seed": 4},
        {"settings": {"epochs": 3}},
        {"engine": "bank"},
        {"probe": ()},
        {"registration": "f" * 32},
    ],
)
def test_every_field_is_part_of_the_key(change):
    other = TRIAL.replace(**change)
    assert other.key != TRIAL.key
    assert Trial.from_dict(json.loads(json.dumps(other.to_dict()))) == other


@pytest.mark.parametrize(
    "change, said",
    [
        ({"engine": "tank"}, "Invalid engine: 'tank', expected one of single, bank"),
        ({"probe": ("age",)}, "Invalid probe: 'age'"),
        ({"seed": -1}, "Invalid seed: -1"),
        ({"seed": True}, "Invalid seed: True"),
        ({"seed": 1.0}, "Invalid seed: 1.0"),
        ({"hyper": {"lr": float("nan")}}, r"Invalid hyper\['lr'\]: nan, expected a finite number"),
        ({"hyper": {"lr": [1.0, float("inf")]}}, r"Invalid hyper\['lr'\]: inf"),
        ({"settings": {"epochs": {"a": 1}}}, r"Invalid settings\['epochs'\]"),
        ({"hyper": {"lr": torch.tensor(1.0)}}, r"Invalid hyper\['lr'\]"),
    ],
)
def test_what_cannot_be_hashed_is_refused(change, said):
    with pytest.raises((ValueError, TypeError), match=said):
        TRIAL.replace(**change)


def test_another_schema_is_refused():
    with pytest.raises(ValueError, match="Invalid schema of a trial: 0, expected 1"):
        Trial.from_dict({**TRIAL.to_dict(), "schema": 0})


# -- results -----------------------------------------------------------------------------------------------------------


def test_summaries_are_json_with_null_for_what_is_not_finite():
    text = dumps({"a": np.float32(0.5), "b": float("nan"), "c": [np.int64(3), float("inf")], "d": {"e": (1, None)}})
    assert json.loads(text) == {"a": 0.5, "b": None, "c": [3, None], "d": {"e": [1, None]}}


def test_provenance_names_versions_and_threads():
    found = provenance("cpu", ["critgrad", "train"])
    assert found["torch"] == torch.__version__
    assert found["threads"] == torch.get_num_threads()
    assert found["command"] == ["critgrad", "train"]
    assert found["accelerator"] is None


# -- streams -----------------------------------------------------------------------------------------------------------


def test_streams_differ_by_seed_and_purpose_and_by_nothing_else():
    seeds = {
        stream_seed(seed, what, epoch) for seed in range(20) for what in ("order", "dropout") for epoch in range(5)
    }
    assert len(seeds) == 200
    first, second = (torch.rand(4, generator=stream(3, "order", 1)) for _ in range(2))
    assert torch.equal(first, second)
    assert all(0 <= seed < 2**63 for seed in seeds)


def test_the_global_generator_is_put_back():
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    with global_stream(0, "init"):
        drawn = torch.rand(3)
    assert torch.equal(torch.rand(3), expected)
    with global_stream(0, "init"):
        assert torch.equal(torch.rand(3), drawn)


# -- words -------------------------------------------------------------------------------------------------------------


def test_words_become_values():
    assert pairs(["epochs=3", "lr=1e-3", "nesterov=True", "vectors=none", "betas=0.9,0.99", "file=a=b"], "--set") == {
        "epochs": 3,
        "lr": 0.001,
        "nesterov": True,
        "vectors": None,
        "betas": [0.9, 0.99],
        "file": "a=b",
    }
    assert value_of("") == ""
    for bad in ("epochs", "=3"):
        with pytest.raises(ValueError, match=f"Invalid --set: {bad!r}, expected NAME=VALUE"):
            pairs([bad], "--set")


def test_values_become_words():
    assert listed({"lr": 0.00123456, "topC": 5, "policy": "FIFO"}) == "lr=0.001235, topC=5, policy=FIFO"


def test_devices_are_checked_before_anything_is_run(monkeypatch):
    assert default_device("cpu") == "cpu"
    assert default_device("auto") == ("cuda" if torch.cuda.is_available() else "cpu")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    assert default_device("cuda:0") == "cuda:0"
    with pytest.raises(ValueError, match="torch sees 1 CUDA devices here"):
        default_device("cuda:1")
    with pytest.raises(ValueError, match="Invalid device: 'gpu'"):
        default_device("gpu")
