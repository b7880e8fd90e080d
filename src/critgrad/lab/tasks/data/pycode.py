"""Python's own standard library as text for a language model: nothing to download, and the same everywhere.

``pycode.txt`` names the files and their sha256. They are those of one release of Python; elsewhere a packed ``pycode.npz``
takes their place. The pieces (byte-pair encoding) are learned from the training files.
"""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from itertools import pairwise
from pathlib import Path

import numpy as np

from .bpe import BPE, byte_letters, merged, pieces_of
from .dataset import Parts, vocabulary
from .files import File, Open

Pair = tuple[str, str]

LIST = Path(__file__).with_name("pycode.txt")
PIECES = 2048  # 256 bytes and what was merged of them
END = 0  # between two files: the byte 0, which no source has


def _listed() -> tuple[str, tuple[File, ...]]:
    """The release that the list names in its first line, and its files."""
    first, *lines = LIST.read_text().splitlines()
    release = first.rsplit(" ", 1)[1]
    rows = (line.split("  ", 1) for line in lines)
    origin = f"the standard library of Python {release}"
    return release, tuple(File(path, sha256, sha256, origin=origin, stdlib=release) for sha256, path in rows)


RELEASE, FILES = _listed()


def part_of(path: str) -> str:
    """The split of a file, by its name: of twenty one is for validation, one for the test."""
    place = int(hashlib.sha256(path.encode()).hexdigest(), 16) % 20
    return {0: "valid", 1: "test"}.get(place, "train")


def learn_merges(pieces: Counter[str], count: int) -> list[Pair]:
    """The ``count`` merges that byte-pair encoding learns: always the most frequent pair, of equal ones the first by name."""
    letters = byte_letters()
    words = [[letters[byte] for byte in piece.encode()] for piece in pieces]
    weights = list(pieces.values())
    totals: Counter[Pair] = Counter()
    places: dict[Pair, set[int]] = defaultdict(set)
    for i, word in enumerate(words):
        for pair in pairwise(word):
            totals[pair] += weights[i]
            places[pair].add(i)
    merges: list[Pair] = []
    while len(merges) < count and totals:
        best = max(totals, key=lambda pair: (totals[pair], pair))
        if totals[best] < 2:
            break
        merges.append(best)
        for i in sorted(places.pop(best)):
            for pair in pairwise(words[i]):
                totals[pair] -= weights[i]
                if totals[pair] <= 0:
                    del totals[pair]
            words[i] = merged(words[i], best)
            for pair in pairwise(words[i]):
                totals[pair] += weights[i]
                places[pair].add(i)
        totals.pop(best, None)
    return merges


def pycode(read: Open) -> Parts:
    """The files in the order of their names, each followed by ``END``, as three streams of pieces."""
    texts: dict[str, list[str]] = {"train": [], "valid": [], "test": []}
    for file in sorted(FILES, key=lambda file: file.path):
        texts[part_of(file.path)].append(read(file.plain).decode("utf-8", "replace"))
    counts = Counter(piece for text in texts["train"] for piece in pieces_of(text))
    letters = byte_letters()
    merges = learn_merges(counts, PIECES - len(letters))
    names = [*(letters[byte] for byte in range(256)), *(left + right for left, right in merges)]
    bpe = BPE({name: i for i, name in enumerate(names)}, merges)
    arrays = {
        part: np.asarray([i for text in those for i in (*bpe.encode(text), END)], np.int32)
        for part, those in texts.items()
    }
    sizes = {part: sum(len(text.encode()) for text in those) for part, those in texts.items()}
    arrays["vocab"] = vocabulary(names)
    info = {"vocab_size": len(names), "eos": END, "bytes": sizes}
    note = (
        f"{len(FILES)} files of Python {RELEASE}, without tests and tables; split by file, 18 : 1 : 1 by their names."
    )
    return Parts(arrays, info, note)
