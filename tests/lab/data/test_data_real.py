"""The real data: counts that everybody knows, and the hashes that results will carry."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest

from critgrad.lab.tasks import data
from critgrad.lab.tasks.data import bpe, convex, dialogue, files, images, store
from critgrad.lab.tasks.data.dataset import words_of


def reader(name: str):
    """Open the real raw files of a data set by their plain paths."""
    source = data.DATASETS[name].sources[0]
    places = {file.plain: files.find(file, files.roots()) for file in source.files}

    def read(plain: str) -> bytes:
        path = places[plain]
        assert path is not None, plain
        return files.read(path)

    return read


@pytest.mark.parametrize("name", ["mnist", "ptb", "wikitext2", "snli", "multiwoz", "sgd", "covtype", "rcv1", "reuters"])
def test_the_files_here_are_the_published_ones(real: Path, name: str) -> None:
    assert {entry.status for entry in data.check(name)} == {"ok"}


def test_the_recorded_content_hashes_are_those_of_the_unpacked_files(real: Path) -> None:
    seen = 0
    for name in ("mnist", "ptb", "rcv1", "multiwoz-roberta"):
        for file in data.DATASETS[name].sources[0].files:
            path = files.find(file, (real,))
            if path is not None and path.suffix in (".gz", ".xz") and path.stat().st_size < 2_000_000:
                assert files.hash_of(path, path.suffix) == file.content, file.path
                seen += 1
    assert seen >= 10


@pytest.mark.slow
def test_mnist_is_whole(real: Path) -> None:
    arrays = data.load("mnist").arrays
    assert [len(arrays[f"{part}_x"]) for part in ("train", "valid", "test")] == [50_000, 10_000, 10_000]
    pixels = np.concatenate([arrays["train_x"], arrays["valid_x"]])
    assert pixels.mean() / 255 == pytest.approx(0.1307, abs=5e-5)
    assert np.bincount(arrays["test_y"]).tolist() == [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]


@pytest.mark.slow
def test_a_mosaic_is_the_first_batch_of_the_original_archive(real: Path) -> None:
    read = reader("cifar10")
    x = images.mosaic(read("cifar10/train_1.webp"))
    with np.load(real / "cifar10" / "labels.npz", allow_pickle=False) as file:
        y = file["train"][:10_000]
    records = np.concatenate([y[:, None], x.reshape(10_000, -1)], axis=1).tobytes()
    # The sha256 of data_batch_1.bin in the authors' cifar-10-binary.tar.gz.
    assert hashlib.sha256(records).hexdigest() == "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5"
    assert x.reshape(10_000, 3, -1).mean((0, 2)) / 255 == pytest.approx([0.4914, 0.4822, 0.4465], abs=5e-3)


def test_covtype_rows_are_drawn_once_for_features_and_labels(real: Path) -> None:
    loaded = data.load("covtype")
    arrays = loaded.arrays
    assert loaded.sha256 == "0e92f6e9daf565f20c93effebbb45d7e58b716a011c2d72f2fab97584c512e06"
    with np.load(real / "covtype" / "covtype.npz", allow_pickle=False) as file:
        rows = convex.draw(581_012)
        np.testing.assert_array_equal(arrays["train_y"], file["y"][rows[:4000]] - 1)
        elevation = file["numeric"][0, rows[:4000]].astype(float)
    np.testing.assert_allclose(arrays["train_x"][:, 0], (elevation - elevation.mean()) / elevation.std(), atol=1e-5)
    assert np.unique(arrays["train_y"]).tolist() == list(range(7))


def test_rcv1_rows_have_unit_length(real: Path) -> None:
    arrays = data.load("rcv1").arrays
    assert [len(arrays[f"{part}_y"]) for part in ("train", "valid", "test")] == [1124, 125, 498]
    squares = np.add.reduceat(arrays["train_x_values"].astype(float) ** 2, arrays["train_x_rows"][:-1])
    np.testing.assert_allclose(squares, 1, atol=1e-3)
    assert max(int(arrays[f"{part}_x_columns"].max()) for part in ("train", "valid", "test")) == 47_117 - 1


@pytest.mark.slow
def test_reuters_has_five_thousand_stories(real: Path) -> None:
    loaded = data.load("reuters")
    assert [len(loaded.arrays[f"{part}_y"]) for part in ("train", "valid", "test")] == [4000, 500, 500]
    assert "10,377" in loaded.note
    assert 0.3 < loaded.arrays["train_y"].mean() < 0.45


def test_ptb_has_ten_thousand_types(real: Path) -> None:
    loaded = data.load("ptb")
    words = words_of(loaded.arrays["vocab"])
    assert len(words) == loaded.info["vocab_size"] == 10_000
    assert [len(loaded.arrays[part]) for part in ("train", "valid", "test")] == [929_589, 73_760, 82_430]
    assert [words[i] for i in loaded.arrays["train"][:3]] == ["aer", "banknote", "berlitz"]
    assert words[loaded.info["eos"]] == "<eos>"


@pytest.mark.slow
def test_wikitext2_has_33278_types(real: Path) -> None:
    loaded = data.load("wikitext2")
    assert loaded.info["vocab_size"] == len(words_of(loaded.arrays["vocab"])) == 33_278
    assert [len(loaded.arrays[part]) for part in ("train", "valid", "test")] == [2_088_628, 217_646, 245_569]


@pytest.mark.slow
def test_snli_has_its_labelled_pairs_and_is_kept_after_a_slow_reading(
    real: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store._load.cache_clear()
    loaded = data.load("snli")
    assert [len(loaded.arrays[f"{part}_y"]) for part in ("train", "valid", "test")] == [99_890, 9_842, 9_824]
    assert loaded.state == "part"
    assert np.bincount(loaded.arrays["test_y"]).tolist() == [3368, 3219, 3237]
    words = words_of(loaded.arrays["vocab"])
    first = [words[i] for i in loaded.arrays["train_premise"][0] if i]
    assert first == ["a", "person", "on", "a", "horse", "jumps", "over", "a", "broken", "down", "airplane", "."]
    assert (loaded.arrays["test_premise"] == 1).sum() / (loaded.arrays["test_premise"] > 0).sum() < 0.02
    (kept,) = (tmp_path / "cache" / "derived").iterdir()
    assert kept.name.startswith("snli-")
    store._load.cache_clear()
    monkeypatch.setattr(store, "parts_of", lambda source, places: pytest.fail("read the raw files again"))
    again = data.load("snli")
    assert (again.sha256, again.note, again.info) == (loaded.sha256, loaded.note, loaded.info)


@pytest.mark.slow
def test_multiwoz_parts_are_those_of_the_task(real: Path) -> None:
    parts = dialogue.multiwoz_dialogues(reader("multiwoz"))
    assert {part: len(dialogues) for part, dialogues in parts.items()} == {
        "train": 2121 + 1000 - 147,
        "valid": 147,
        "test": 1000,
    }
    assert {part: len(dialogue.pairs(dialogues)) for part, dialogues in parts.items()} == {
        "train": 9982 + (7374 - 1000) - (734 - 147),
        "valid": 734,
        "test": 7372 - 1000,
    }


def test_both_origins_of_multiwoz_are_cut_into_the_same_words(real: Path) -> None:
    read = reader("multiwoz")
    valid = dialogue.plain(read("multiwoz/multiwoz2.1_single_domain_valid.txt").decode())
    dev = dialogue.table(read("multiwoz/multiwoz2.0_dev.tsv").decode())

    def cut(turns: list[str]) -> tuple[tuple[str, ...], ...]:
        return tuple(tuple(dialogue.tokens(turn)) for turn in turns)

    known = {cut(turns[:-1])[: len(turns) - 1] for turns in valid}
    found = {cut(turns) for turns in dev} & known
    assert len(found) > 0.9 * len(valid)


def test_sgd_answers_follow_users(real: Path) -> None:
    lines = reader("sgd")("sgd/sgd_dev_text.jsonl").splitlines()
    parts = dialogue.sgd(lambda name: b"\n".join(lines[:50]))
    assert parts.arrays["train_source"].shape[1] == 64
    assert np.all((parts.arrays["train_target"] == 3).sum(1) == 1)
    assert len(lines) == 2098


@pytest.mark.slow
def test_roberta_tokens_are_those_of_the_tokenizers_library(real: Path) -> None:
    read = reader("multiwoz-roberta")
    vocab, merges = read("roberta_tokenizer/vocab.json"), read("roberta_tokenizer/merges.txt")
    tokenizer = bpe.BPE.from_files(vocab, merges)
    assert tokenizer.encode("Hello world") == [31414, 232]
    assert len(tokenizer.vocab) == 50_265
    tokenizers = pytest.importorskip("tokenizers", reason="tokenizers is not installed")
    theirs = tokenizers.Tokenizer(tokenizers.models.BPE(tokenizer.vocab, list(tokenizer.ranks)))
    theirs.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    turns = dialogue.table(read("multiwoz/multiwoz2.0_dev.tsv").decode())[:20]
    wiki = reader("wikitext2")("wikitext2/wiki.test.tokens").decode().split("\n")
    sentences = [turn for dialog in turns for turn in dialog][:200] + [line for line in wiki if line.strip()][:20]
    assert len(sentences) == 220
    for sentence in sentences:
        assert tokenizer.encode(sentence) == theirs.encode(sentence).ids, sentence


@pytest.mark.slow
def test_multiwoz_rows_for_roberta_hold_every_response(real: Path) -> None:
    loaded = data.load("multiwoz-roberta")
    tokens, response = loaded.arrays["train_tokens"], loaded.arrays["train_response"]
    rows = np.arange(len(tokens))
    assert tokens.shape == (15_769, 128)
    assert np.all(tokens[:, 0] == 0)
    assert np.all(tokens[rows, response - 1] == 2)
    assert np.all((tokens == 2).sum(1) == 2)


def test_a_prepared_file_stands_for_the_raw_ones(real: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    raw = data.load("rcv1")
    data.prepare("rcv1", tmp_path / "box")
    monkeypatch.setenv("CRITGRAD_DATA", str(tmp_path / "box"))
    prepared = data.load("rcv1")
    assert prepared is not raw
    assert (prepared.sha256, prepared.state, prepared.note) == (raw.sha256, raw.state, raw.note)
