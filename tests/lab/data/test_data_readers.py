"""Each reader on a small file made by hand."""

from __future__ import annotations

import io
import json
import tarfile
import zipfile

import numpy as np
import pytest

from critgrad.lab.tasks.data import bpe, convex, dialogue, images, text
from critgrad.lab.tasks.data.dataset import vocabulary, words_of
from critgrad.lab.tasks.data.noise import make_classification


def test_idx_gives_the_values_in_shape() -> None:
    data = bytes([0, 0, 8, 3, 0, 0, 0, 2, 0, 0, 0, 1, 0, 0, 0, 3, 1, 2, 3, 4, 5, 255])
    assert images.idx(data).tolist() == [[[1, 2, 3]], [[4, 5, 255]]]


@pytest.mark.parametrize(
    "data", [b"", b"\0\0\x0d\1\0\0\0\0", b"\0\0\x08\1\0\0\0\3ab"], ids=["empty", "floats", "short"]
)
def test_a_wrong_idx_file_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match="Invalid IDX"):
        images.idx(data)


def test_mnist_validates_on_the_last_ten_thousand() -> None:
    def idx(array: np.ndarray) -> bytes:
        return bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">u4").tobytes() + array.tobytes()

    n = 10_007
    files = {
        "mnist/train-images-idx3-ubyte": idx((np.arange(4 * n) // 4 % 251).astype(np.uint8).reshape(n, 2, 2)),
        "mnist/train-labels-idx1-ubyte": idx((np.arange(n) % 10).astype(np.uint8)),
        "mnist/t10k-images-idx3-ubyte": idx(np.full((3, 2, 2), 9, np.uint8)),
        "mnist/t10k-labels-idx1-ubyte": idx(np.array([1, 2, 3], np.uint8)),
    }
    arrays = images.mnist(files.__getitem__).arrays
    assert arrays["train_x"][:, 0].tolist() == list(range(7))
    assert arrays["valid_y"][:3].tolist() == [7, 8, 9]
    assert arrays["valid_x"].shape == (10_000, 4)
    assert arrays["test_y"].tolist() == [1, 2, 3]


def test_a_cifar_record_is_label_then_channels_then_rows() -> None:
    pixels = np.arange(3072, dtype=np.int64).astype(np.uint8)
    x, y = images.records(bytes([7]) + pixels.tobytes() + bytes([3]) + pixels[::-1].tobytes(), 1)
    assert x.shape == (2, 3, 32, 32)
    assert y.tolist() == [7, 3]
    assert x[0, 1, 2, 5] == (1024 + 2 * 32 + 5) % 256
    _, fine = images.records(bytes([11, 42]) + pixels.tobytes(), 2)
    assert fine.tolist() == [42]
    with pytest.raises(ValueError, match="3073"):
        images.records(b"abc", 1)


def test_the_cifar_archives_are_read_member_by_member() -> None:
    def tar(folder: str, members: dict[str, bytes]) -> bytes:
        out = io.BytesIO()
        with tarfile.open(fileobj=out, mode="w") as archive:
            for name, content in members.items():
                entry = tarfile.TarInfo(f"{folder}/{name}")
                entry.size = len(content)
                archive.addfile(entry, io.BytesIO(content))
        return out.getvalue()

    def batch(label: bytes, n: int) -> bytes:
        return (label + bytes([label[-1]]) * 3072) * n

    ten = {f"data_batch_{k}.bin": batch(bytes([k]), 2001) for k in range(5, 0, -1)} | {
        "test_batch.bin": batch(b"\6", 1)
    }
    parts = images.cifar10_archive({"cifar10/cifar-10-binary.tar": tar("cifar-10-batches-bin", ten)}.__getitem__)
    assert parts.arrays["train_y"].tolist() == [1] * 5
    assert parts.arrays["valid_y"][-1] == 5
    assert np.all(parts.arrays["valid_x"][:, 0, 0, 0] == parts.arrays["valid_y"])
    assert parts.arrays["test_x"].shape == (1, 3, 32, 32)
    hundred = {"train.bin": batch(b"\1\x63", 10_001), "test.bin": batch(b"\1\x07", 1)}
    parts = images.cifar100_archive({"cifar100/cifar-100-binary.tar": tar("cifar-100-binary", hundred)}.__getitem__)
    assert (parts.arrays["train_y"].tolist(), parts.arrays["test_y"].tolist()) == ([0x63], [7])
    with pytest.raises(ValueError, match=r"data_batch_3\.bin"):
        images.members(tar("x", {"data_batch_1.bin": b""}), ("data_batch_1.bin", "data_batch_3.bin"))


def test_a_mosaic_is_cut_row_by_row() -> None:
    image = pytest.importorskip("PIL.Image", reason="Pillow is not installed")
    tiles = np.random.default_rng(0).integers(0, 256, (6, 3, 32, 32), dtype=np.uint8)
    picture = tiles.reshape(2, 3, 3, 32, 32).transpose(0, 3, 1, 4, 2).reshape(64, 96, 3)
    out = io.BytesIO()
    image.fromarray(picture).save(out, "WEBP", lossless=True)
    np.testing.assert_array_equal(images.mosaic(out.getvalue()), tiles)
    out = io.BytesIO()
    image.fromarray(picture[:50]).save(out, "PNG")
    with pytest.raises(ValueError, match="96 x 50 pixels"):
        images.mosaic(out.getvalue())


def test_without_pillow_the_error_names_the_cure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "PIL", None)
    with pytest.raises(ImportError, match="pip install Pillow"):
        images.mosaic(b"")


def test_both_forms_of_covtype_give_the_same_arrays() -> None:
    rng = np.random.default_rng(0)
    n = 5100
    numeric = rng.integers(-100, 3000, (10, n)).astype(np.int16)
    wilderness, soil, y = (rng.integers(low, high, n).astype(np.uint8) for low, high in ((0, 4), (0, 40), (1, 8)))
    packed = io.BytesIO()
    np.savez(packed, numeric=numeric, wilderness=wilderness, soil=soil, y=y)
    full = np.hstack([numeric.T, np.eye(4, dtype=int)[wilderness], np.eye(40, dtype=int)[soil], y[:, None].astype(int)])
    lines = "".join(",".join(map(str, row)) + "\n" for row in full.tolist()).encode()
    ours = convex.covtype_npz(lambda name: packed.getvalue()).arrays
    theirs = convex.covtype_csv(lambda name: lines).arrays
    assert all(np.array_equal(ours[key], theirs[key]) for key in ours)
    assert {key: len(array) for key, array in ours.items() if key.endswith("y")} == {
        "train_y": 4000,
        "valid_y": 500,
        "test_y": 500,
    }
    rows = np.random.RandomState(100).permutation(n)[:5000]
    np.testing.assert_array_equal(np.concatenate([ours[f"{p}_y"] for p in ("train", "valid", "test")]), y[rows] - 1)
    train = full[rows[:4000], :54].astype(float)
    np.testing.assert_allclose(ours["train_x"], (train - train.mean(0)) / train.std(0), rtol=1e-5, atol=1e-5)


def test_a_column_that_never_varies_is_zero_and_not_a_division_by_zero() -> None:
    x = np.zeros((20, 54), np.int64)
    x[:, 0] = np.arange(20)
    arrays = convex.covtype_rows(x, np.ones(20, np.uint8)).arrays
    assert np.all(arrays["train_x"][:, 1:] == 0)
    assert arrays["train_x"][:, 0].std() == pytest.approx(1)


def test_libsvm_lines_count_columns_from_one() -> None:
    rows, y = convex.libsvm("+1 1:0.5 7:2e-1\n-1 3:1 # a comment\n-1\n")
    assert rows == [([0, 6], [0.5, 0.2]), ([2], [1.0]), ([], [])]
    assert y.tolist() == [1, -1, -1]
    arrays = convex.csr("train_x", rows)
    assert arrays["train_x_rows"].tolist() == [0, 2, 3, 3]
    assert arrays["train_x_columns"].dtype == np.int32
    with pytest.raises(ValueError, match="LIBSVM line 2: 'nonsense"):
        convex.libsvm("+1 1:1\nnonsense here\n")


def test_tfidf_is_scikit_learns() -> None:
    sklearn_text = pytest.importorskip("sklearn.feature_extraction.text", reason="scikit-learn is not installed")
    rng = np.random.default_rng(0)
    documents = [" ".join(f"Word{i}" for i in rng.zipf(1.5, 30) % 200) + " a x9" for _ in range(60)]
    rows, words = convex.tfidf(documents, 45)
    theirs = sklearn_text.TfidfVectorizer(min_df=3).fit(documents[:45])
    assert words == list(theirs.get_feature_names_out())
    dense = np.zeros((60, len(words)))
    for i, (columns, values) in enumerate(rows):
        dense[i, columns] = values
    np.testing.assert_allclose(dense, theirs.transform(documents).toarray(), atol=1e-12)


@pytest.mark.parametrize("tenths", range(11))
def test_the_noise_data_are_scikit_learns(tenths: int) -> None:
    sklearn_datasets = pytest.importorskip("sklearn.datasets", reason="scikit-learn is not installed")
    x, y = make_classification(tenths / 10)
    theirs = sklearn_datasets.make_classification(
        n_samples=500, n_features=10, n_informative=7, n_redundant=0, n_repeated=0, n_classes=2,
        n_clusters_per_class=1, weights=None, flip_y=tenths / 10, class_sep=0.5, hypercube=True, shift=0.4, scale=1.0,
        shuffle=True, random_state=1403,
    )  # fmt: skip
    np.testing.assert_array_equal(x, theirs[0])
    np.testing.assert_array_equal(y, theirs[1])


def test_a_stream_ends_each_line_and_numbers_words_as_they_come() -> None:
    files = {"t/train": b"a b\n\nb c\n", "t/valid": b"c d\n", "t/test": b"a"}
    parts = text.lm("t", "{}")(files.__getitem__)
    assert parts.arrays["train"].tolist() == [0, 1, 2, 2, 1, 3, 2]
    assert parts.arrays["valid"].tolist() == [3, 4, 2]
    assert parts.arrays["test"].tolist() == [0, 2]
    assert words_of(parts.arrays["vocab"]) == ["a", "b", "<eos>", "c", "d"]
    assert parts.info["vocab_size"] == 5


def test_a_vocabulary_survives_its_bytes() -> None:
    words = ["<pad>", "naïve", "日本", "", "a"]
    assert words_of(vocabulary(words)) == words


TABLE = (
    "gold_label\tsentence1\tsentence2\tpairID\n"
    "neutral\tA dog runs.\tA dog doesn't run.\t1\n"
    "-\tNobody\tknows\t2\n"
    "entailment\tA dog runs.\tA cat\t3\n"
)


def test_snli_drops_unlabelled_pairs_and_makes_rare_words_unknown() -> None:
    other = "gold_label\tsentence1\tsentence2\ncontradiction\tA zebra runs.\tA\n"
    parts = text.snli(text.pairs_of(TABLE.encode()), text.pairs_of(other.encode()), [], "A table")
    words = words_of(parts.arrays["vocab"])
    assert words == ["<pad>", "<unk>", "a", "dog", "runs", "."]
    assert parts.arrays["train_y"].tolist() == [1, 0]
    assert parts.arrays["train_premise"][0, :5].tolist() == [2, 3, 4, 5, 0]
    assert parts.arrays["train_hypothesis"][0, :7].tolist() == [2, 3, 1, 1, 1, 5, 0]
    assert parts.arrays["valid_premise"][0, :4].tolist() == [2, 1, 4, 5]
    assert parts.arrays["test_premise"].shape == (0, 20)
    assert parts.info["vocab_size"] == 6


def test_snlis_own_archive_is_read_by_its_header() -> None:
    table = b"gold_label\tsentence1_parse\tsentence1\tsentence2\ncontradiction\t(S)\tMen sit\tMen sit\n"
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for part in ("train", "dev", "test"):
            archive.writestr(f"snli_1.0/snli_1.0_{part}.txt", table)
    parts = text.snli_archive({"snli/snli_1.0.zip": out.getvalue()}.__getitem__)
    assert words_of(parts.arrays["vocab"])[2:] == ["men", "sit"]
    assert parts.arrays["valid_y"].tolist() == [2]
    with pytest.raises(ValueError, match="Invalid SNLI header"):
        text.pairs_of(b"label\tpremise\n")


PLAIN = "#hotel#\n1 i need a room\twhich day ?\n2 monday\tbooked at 12:45\n\n#taxi#\n1 a taxi please\twhere to ?\n"
TSV = (
    "# Dialogue ID\tTurn Index\tUser Utterance\tSystem Response\tstate\n"
    "A.json\t0\tI need a room.\t\tnone\n"
    "A.json\t1\tMonday!\tWhich day?\tnone\n"
    "B.json\t0\tHello, it's me\t\tnone\n"
)


def test_the_answer_stands_on_the_line_in_the_text_and_on_the_next_line_in_the_table() -> None:
    assert dialogue.plain(PLAIN) == [
        ["i need a room", "which day ?", "monday", "booked at 12:45"],
        ["a taxi please", "where to ?"],
    ]
    assert dialogue.table(TSV) == [["I need a room.", "Which day?", "Monday!"], ["Hello, it's me"]]
    assert dialogue.pairs(dialogue.table(TSV)) == [(["I need a room."], "Which day?")]
    assert len(dialogue.pairs(dialogue.plain(PLAIN))) == 3


def test_dialogues_of_the_validation_set_are_left_out_of_train_whatever_their_punctuation() -> None:
    valid = dialogue.plain("#x#\n1 i need a room\twhich ?\n2 monday\tok\n")
    assert dialogue.without(dialogue.table(TSV), valid) == [["Hello, it's me"]]
    assert dialogue.without(dialogue.table(TSV), dialogue.plain("#x#\n1 i need a room\tok\n")) == dialogue.table(TSV)


def test_pairs_hold_the_marked_history_and_the_answer_with_its_end() -> None:
    turns = dialogue.plain(PLAIN) * 2
    parts = dialogue.arrays_of({"train": turns, "valid": turns[:1], "test": [["Zebras, anyone?", "No room."]]}, "")
    words = words_of(parts.arrays["vocab"])
    assert words[:6] == ["<pad>", "<unk>", "<sos>", "<eos>", "<user>", "<system>"]

    def said(row: np.ndarray) -> list[str]:
        return [words[i] for i in row if i]

    history = " ".join(said(parts.arrays["valid_source"][1]))
    assert history == "<user> i need a room <system> which day ? <user> monday"
    assert said(parts.arrays["valid_target"][1]) == ["booked", "at", "12:45", "<eos>"]
    assert said(parts.arrays["test_source"][0]) == ["<user>", "<unk>", "<unk>", "?"]
    assert said(parts.arrays["test_target"][0]) == ["<unk>", "room", "<eos>"]


def test_long_histories_keep_their_end_and_long_answers_their_beginning() -> None:
    long = " ".join(f"w{i}" for i in range(100))
    parts = dialogue.arrays_of({"train": [[long, long]] * 2}, "")
    words = words_of(parts.arrays["vocab"])
    assert words[parts.arrays["train_source"][0, -1]] == "w99"
    assert [words[i] for i in parts.arrays["train_target"][0, -2:]] == ["w38", "<eos>"]


def test_sgd_turns_alternate() -> None:
    line = json.dumps({"id": "1", "turns": ["Hi there", "Hello\u2028you", "Bye", "Bye"]}, ensure_ascii=False)
    parts = dialogue.sgd(lambda name: f"{line}\n{line}\n".encode())
    assert [len(parts.arrays[f"{part}_target"]) for part in ("train", "valid", "test")] == [4, 4, 4]


def small_bpe() -> bpe.BPE:
    letters = sorted(bpe.byte_letters().values())
    merges = [("l", "o"), ("lo", "w"), ("Ġ", "low"), ("e", "r")]
    words = ["<s>", "<pad>", "</s>", "<unk>", *letters, *("".join(pair) for pair in merges)]
    return bpe.BPE({word: i for i, word in enumerate(words)}, merges)


def test_byte_pairs_merge_by_rank() -> None:
    tokenizer = small_bpe()
    words = {i: word for word, i in tokenizer.vocab.items()}
    assert [words[i] for i in tokenizer.encode("low lower")] == ["low", "Ġlow", "er"]
    assert len(tokenizer.encode("é")) == 2
    assert len(set(bpe.byte_letters().values())) == 256


def test_a_causal_row_keeps_the_response_and_cuts_the_oldest_context() -> None:
    tokenizer = small_bpe()
    tokens, response = bpe.rows_of(tokenizer, [["low " * 30, "lower"], ["low", "low " * 50]], length=16)
    first, second = tokens.tolist()
    answer = tokenizer.encode(" lower")
    assert first[0] == bpe.BOS
    assert first[int(response[0]) - 1] == bpe.EOS
    assert first[int(response[0]) :] == [*answer, bpe.EOS]
    assert first[1 : int(response[0]) - 1] == tokenizer.encode(" low") * 11
    assert second[:2] == [bpe.BOS, bpe.EOS]
    assert second[-1] == bpe.EOS
    short, begin = bpe.rows_of(tokenizer, [["low", "low"]], length=32)
    assert short[0, int(begin[0]) + 2 :].tolist() == [bpe.PAD] * (32 - int(begin[0]) - 2)


def test_byte_pairs_are_those_of_the_tokenizers_library_on_strange_text() -> None:
    tokenizers = pytest.importorskip("tokenizers", reason="tokenizers is not installed")
    ours = small_bpe()
    theirs = tokenizers.Tokenizer(tokenizers.models.BPE(ours.vocab, list(ours.ranks)))
    theirs.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    strange = [
        "I'm  low's\u00a0lower\n\n 12½Ⅷ٣ x²  ",
        "日本語low—er  …  \t\tlow",
        "a\u0301e\u200d_low__ 'sll 'Slow",
        "",
        "  ",
    ]
    for line in strange:
        assert ours.encode(line) == theirs.encode(line).ids, line
