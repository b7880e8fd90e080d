"""The synthetic twins: the arrays of the real sets, the same every time, and something to learn in them."""

from __future__ import annotations

import numpy as np
import pytest

from critgrad.lab.tasks import data
from critgrad.lab.tasks.data import tiny
from critgrad.lab.tasks.data.dataset import build, words_of
from critgrad.lab.tasks.data.noise import make_classification

XY = {f"{part}_{column}" for part in ("train", "valid", "test") for column in ("x", "y")}
CSR = {f"{part}_{c}" for part in ("train", "valid", "test") for c in ("x_values", "x_columns", "x_rows", "y")}
LM = {"train", "valid", "test", "vocab"}
SNLI = {f"{part}_{c}" for part in ("train", "valid", "test") for c in ("premise", "hypothesis", "y")} | {"vocab"}
PAIRS = {f"{part}_{c}" for part in ("train", "valid", "test") for c in ("source", "target")} | {"vocab"}
CAUSAL = {f"{part}_{c}" for part in ("train", "valid", "test") for c in ("tokens", "response")}

ARRAYS = {
    "digits": XY,
    "mnist": XY,
    "cifar10": XY,
    "cifar100": XY,
    "covtype": XY,
    "rcv1": CSR,
    "reuters": CSR,
    "noise": XY,
    "ptb": LM,
    "wikitext2": LM,
    "snli": SNLI,
    "multiwoz": PAIRS,
    "sgd": PAIRS,
    "multiwoz-roberta": CAUSAL,
    "pycode": LM,
}


def test_every_data_set_has_a_twin() -> None:
    assert set(tiny.TINY) == set(data.DATASETS) == set(ARRAYS)


@pytest.mark.parametrize("name", ARRAYS)
def test_a_twin_has_the_promised_arrays_and_is_the_same_every_time(name: str) -> None:
    twin = data.load(f"{name}@tiny")
    assert set(twin.arrays) == ARRAYS[name]
    assert (twin.name, twin.state) == (f"{name}@tiny", "synthetic")
    assert build(twin.name, tiny.TINY[name](), "synthetic").sha256 == twin.sha256
    assert sum(array.nbytes for array in twin.arrays.values()) < 4_000_000
    if "vocab" in twin.arrays:
        words = words_of(twin.arrays["vocab"])
        assert len(words) == len(set(words)) == twin.info["vocab_size"]
    for key, array in twin.arrays.items():
        if key.endswith("_y"):
            assert int(array.max()) < twin.info["classes"]


@pytest.mark.parametrize("name, shape", [("mnist", (784,)), ("cifar10", (3, 32, 32)), ("cifar100", (3, 32, 32))])
def test_the_nearest_class_mean_knows_the_images(name: str, shape: tuple[int, ...]) -> None:
    arrays = data.load(f"{name}@tiny").arrays
    x, y = arrays["train_x"].reshape(len(arrays["train_x"]), -1).astype(float), arrays["train_y"]
    means = np.stack([x[y == label].mean(0) for label in range(int(y.max()) + 1)])
    test = arrays["test_x"].reshape(len(arrays["test_x"]), -1).astype(float)
    distance = (means**2).sum(1) - 2 * test @ means.T
    assert arrays["train_x"].shape[1:] == shape
    assert np.mean(distance.argmin(1) == arrays["test_y"]) > 0.9


def test_the_last_word_tells_the_next_one() -> None:
    arrays = data.load("ptb@tiny").arrays
    counts = np.ones((50, 50))
    np.add.at(counts, (arrays["train"][:-1], arrays["train"][1:]), 1)
    share = counts / counts.sum(1, keepdims=True)
    entropy = -np.log(share[arrays["test"][:-1], arrays["test"][1:]]).mean()
    assert entropy < 0.5 * np.log(50)


def test_answers_follow_from_questions() -> None:
    arrays = data.load("multiwoz@tiny").arrays
    source, target = arrays["train_source"], arrays["train_target"]
    partner: dict[int, set[int]] = {}
    for asked, answered in zip(source.tolist(), target.tolist()):
        for word, answer in zip([w for w in asked[1:] if w], answered):
            partner.setdefault(word, set()).add(answer)
    assert len(partner) == 44
    assert all(len(answers) == 1 for answers in partner.values())
    assert np.all((target == 3).sum(1) == 1)


def test_a_causal_row_has_its_response_where_it_says() -> None:
    arrays = data.load("multiwoz-roberta@tiny").arrays
    tokens, response = arrays["test_tokens"], arrays["test_response"]
    rows = np.arange(len(tokens))
    assert np.all(tokens[:, 0] == 0)
    assert np.all(tokens[rows, response - 1] == 2)
    assert np.all(tokens[rows, response] >= 4)


@pytest.mark.parametrize("name, flip", [("noise", 0.0), ("noise@0", 0.0), ("noise@0.3", 0.3), ("noise@1", 1.0)])
def test_noise_levels_are_names(name: str, flip: float) -> None:
    loaded = data.load(name)
    assert loaded.info["flip_y"] == flip
    assert loaded.name == ("noise" if flip == 0 else name)
    assert loaded.arrays["train_x"].shape == (400, 10)
    np.testing.assert_array_equal(loaded.arrays["test_x"], loaded.arrays["valid_x"])


@pytest.mark.parametrize("name, flip", [("noise@tiny", 0.0), ("noise@0@tiny", 0.0), ("noise@0.3@tiny", 0.3)])
def test_the_tiny_twin_has_the_noise_levels_too(name: str, flip: float) -> None:
    loaded = data.load(name)
    assert loaded.info["flip_y"] == flip
    assert loaded.name == ("noise@tiny" if flip == 0 else name)
    assert loaded.arrays["train_x"].shape == (160, 10)
    assert loaded.state == "synthetic"


@pytest.mark.parametrize("flip", [0.0, 0.3, 1.0])
def test_noise_redraws_that_share_of_the_labels_and_leaves_the_points_alone(flip: float) -> None:
    # The levels differ in the order of rows and columns too, as scikit-learn's do: a row is known by its values.
    def label_of(level: float) -> dict[tuple[float, ...], int]:
        x, y = make_classification(level)
        return {tuple(sorted(row)): label for row, label in zip(x.tolist(), y.tolist())}

    clean, noisy = label_of(0.0), label_of(flip)
    assert clean.keys() == noisy.keys()
    assert abs(np.mean([clean[row] != noisy[row] for row in clean]) - flip / 2) < 0.05


def test_the_digits_need_no_folder_and_keep_their_split(monkeypatch: pytest.MonkeyPatch, tmp_path_factory) -> None:
    monkeypatch.setenv("CRITGRAD_DATA", str(tmp_path_factory.mktemp("empty")))
    digits = data.load("digits")
    assert {key: array.shape for key, array in digits.arrays.items() if key.endswith("x")} == {
        "train_x": (1197, 64),
        "valid_x": (300, 64),
        "test_x": (300, 64),
    }
    assert (digits.state, digits.info["scale"]) == ("whole", 1 / 16)
    assert digits.sha256 == "b454111bf64e1dd365c00341915b2115eeb8e642fed16732b9b77feae4431ee1"
    assert [entry.status for entry in data.check("digits")] == ["ok"]
