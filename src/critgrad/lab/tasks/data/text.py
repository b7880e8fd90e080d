"""Language modelling streams, and SNLI's sentence pairs."""

from __future__ import annotations

import io
import re
import zipfile
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache

import numpy as np

from ...errors import LabError
from .dataset import Parts, vocabulary
from .files import Open

EOS = "<eos>"
PAD, UNK = 0, 1
SNLI_LENGTH = 20
SNLI_MIN_COUNT = 2
LABELS = {"entailment": 0, "neutral": 1, "contradiction": 2}

# Words as in GloVe's vocabulary: "don't" is "do n't", "it's" is "it 's", punctuation stands alone.
NOT = re.compile(r"n't\b")
TOKEN = re.compile(r"n't\b|\w+|'(?:s|re|ve|ll|d|m)\b|[^\w\s]")


def stream(text: str, ids: dict[str, int]) -> np.ndarray:
    """Turn each line's words and an end mark into ids; a new word gets the next free one."""
    lines = text.split("\n")
    if lines[-1] == "":  # the newline that ends the file begins no line
        lines.pop()
    return np.array([ids.setdefault(word, len(ids)) for line in lines for word in (*line.split(), EOS)], np.int32)


def lm(folder: str, pattern: str) -> Callable[[Open], Parts]:
    """Return the reader of three token files; ``pattern`` is a file name with the part's name left open."""

    def reader(read: Open) -> Parts:
        ids: dict[str, int] = {}
        arrays = {p: stream(read(f"{folder}/{pattern.format(p)}").decode(), ids) for p in ("train", "valid", "test")}
        counts = ", ".join(f"{part} {len(array):,}" for part, array in arrays.items())
        arrays["vocab"] = vocabulary(list(ids))
        note = f"All three files as published: {counts} tokens, {len(ids):,} types with {EOS}."
        return Parts(arrays, {"vocab_size": len(ids), "eos": ids[EOS]}, note)

    return reader


def tokens(sentence: str) -> list[str]:
    """Lower-case a sentence and cut it into words and punctuation.

    >>> tokens("They don't know it's a dog.")
    ['they', 'do', "n't", 'know', 'it', "'s", 'a', 'dog', '.']
    """
    return TOKEN.findall(NOT.sub(" n't", sentence.lower()))


def vocabulary_of(sentences: Iterable[Sequence[str]], special: Sequence[str], min_count: int) -> dict[str, int]:
    """Number the special words, then the words seen ``min_count`` times or more, in order of first appearance."""
    counts = Counter(word for sentence in sentences for word in sentence)
    words = [*special, *(word for word, count in counts.items() if count >= min_count and word not in special)]
    return {word: i for i, word in enumerate(words)}


def padded(rows: Sequence[Sequence[int]], length: int, pad: int = PAD) -> np.ndarray:
    """Cut or fill each row to ``length``."""
    out = np.full((len(rows), length), pad, np.int32)
    for i, row in enumerate(rows):
        out[i, : min(len(row), length)] = row[:length]
    return out


Pairs = list[tuple[str, str, int]]


def pairs_of(table: bytes) -> Pairs:
    """Read premise, hypothesis and label from a table with SNLI's header; pairs without a gold label are dropped."""
    header, *lines = table.decode().split("\n")
    names = header.rstrip("\r").split("\t")
    try:
        label, premise, hypothesis = (names.index(name) for name in ("gold_label", "sentence1", "sentence2"))
    except ValueError as error:
        raise LabError(f"Invalid SNLI header: {names}, expected gold_label, sentence1 and sentence2") from error
    rows = [line.split("\t") for line in lines if line]
    return [(row[premise], row[hypothesis], LABELS[row[label]]) for row in rows if row[label] in LABELS]


def snli(train: Pairs, valid: Pairs, test: Pairs, origin: str) -> Parts:
    """Number the words of the training pairs and lay all pairs out as rows of 20."""
    parts = {"train": train, "valid": valid, "test": test}
    once = lru_cache(maxsize=16)(tokens)  # a premise stands in three pairs in a row
    cut = {part: [(once(p), tokens(h)) for p, h, _ in pairs] for part, pairs in parts.items()}
    words = (sentence[:SNLI_LENGTH] for pair in cut["train"] for sentence in pair)
    ids = vocabulary_of(words, ("<pad>", "<unk>"), SNLI_MIN_COUNT)
    arrays: dict[str, np.ndarray] = {}
    for part, pairs in parts.items():
        for side, column in (("premise", 0), ("hypothesis", 1)):
            rows = [[ids.get(word, UNK) for word in pair[column]] for pair in cut[part]]
            arrays[f"{part}_{side}"] = padded(rows, SNLI_LENGTH)
        arrays[f"{part}_y"] = np.array([label for _, _, label in pairs], np.uint8)
    arrays["vocab"] = vocabulary(list(ids))
    info = {"vocab_size": len(ids), "classes": 3, "length": SNLI_LENGTH, "pad": PAD, "unk": UNK, "labels": list(LABELS)}
    note = (
        f"{origin}: {len(train):,} / {len(valid):,} / {len(test):,} pairs with a gold label; words seen at least "
        f"{SNLI_MIN_COUNT} times in train (so that <unk> is trained too), others are <unk>; cut at {SNLI_LENGTH} words."
    )
    return Parts(arrays, info, note)


def snli_tsv(read: Open) -> Parts:
    """SNLI from the three tables: the first 100,000 training pairs."""
    files = "train_first100k", "dev_labelled", "test"
    train, valid, test = (pairs_of(read(f"snli/snli_1.0_{name}.tsv")) for name in files)
    return snli(train, valid, test, "The first 100,000 training pairs")


def snli_archive(read: Open) -> Parts:
    """SNLI, all of it, from snli_1.0.zip."""
    with zipfile.ZipFile(io.BytesIO(read("snli/snli_1.0.zip"))) as archive:
        tables = [archive.read(f"snli_1.0/snli_1.0_{part}.txt") for part in ("train", "dev", "test")]
    train, valid, test = map(pairs_of, tables)
    return snli(train, valid, test, "All of SNLI 1.0")
