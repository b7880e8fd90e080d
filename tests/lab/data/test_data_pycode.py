"""Python's standard library as data: the list, the pieces, and what is said where another Python runs."""

from __future__ import annotations

import hashlib
import platform
from collections import Counter
from pathlib import Path

import pytest

from critgrad.lab.tasks import data
from critgrad.lab.tasks.data import files, pycode, registry, store
from critgrad.lab.tasks.data.bpe import BPE, byte_letters, pieces_of
from critgrad.lab.tasks.data.dataset import build, words_of, write


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A standard library of the test's own."""
    folder = tmp_path / "lib"
    folder.mkdir()
    monkeypatch.setattr(files.sysconfig, "get_path", lambda name: str(folder))
    monkeypatch.setenv("CRITGRAD_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return folder


def test_the_list_is_sorted_has_no_tests_and_all_three_parts() -> None:
    paths = [file.path for file in pycode.FILES]
    assert paths == sorted(paths)
    assert len(set(paths)) == len(paths) > 500
    assert not [path for path in paths if {"test", "tests", "idle_test"} & set(path.split("/"))]
    shares = Counter(map(pycode.part_of, paths))
    assert min(shares["valid"], shares["test"]) > 20
    assert max(shares["valid"], shares["test"]) < 40


def test_merges_are_the_most_frequent_pairs_in_turn() -> None:
    merges = pycode.learn_merges(Counter({"abab": 3, "abc": 2, "cb": 4}), 3)
    assert merges == [("a", "b"), ("c", "b"), ("ab", "ab")]
    assert pycode.learn_merges(Counter({"xy": 1}), 5) == []  # seen once: no pair at all


def test_text_comes_back_from_its_pieces() -> None:
    text = "def f(x):\n    return x + 1  # größer\n\n"
    merges = pycode.learn_merges(Counter(pieces_of(text * 3)), 12)
    letters = byte_letters()
    names = [*(letters[byte] for byte in range(256)), *(left + right for left, right in merges)]
    ids = BPE({name: i for i, name in enumerate(names)}, merges).encode(text)
    back = {letter: byte for byte, letter in letters.items()}
    assert bytes(back[letter] for i in ids for letter in names[i]).decode() == text
    assert len(ids) < len(text.encode())


def test_a_small_library_is_read_and_split_by_file(library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"m{i}.py" for i in range(60)]
    texts = {name: f"def {name[:-3]}():\n    return {name!r}\n" for name in names}
    listed = tuple(files.File(name, hashlib.sha256(text.encode()).hexdigest()) for name, text in texts.items())
    monkeypatch.setattr(pycode, "FILES", listed)
    parts = pycode.pycode(lambda name: texts[name].encode())
    pieces = words_of(parts.arrays["vocab"])
    back = {letter: byte for byte, letter in byte_letters().items()}
    for part in ("train", "valid", "test"):
        said = bytes(back[letter] for i in parts.arrays[part] for letter in pieces[i]).decode()
        those = [texts[name] for name in sorted(names) if pycode.part_of(name) == part]
        assert those
        assert said == "".join(text + "\0" for text in those)


def test_another_library_is_refused_and_the_way_out_is_named(library: Path) -> None:
    with pytest.raises(data.DataMissing, match=f"that of Python {pycode.RELEASE} has.*critgrad data prepare"):
        data.load("pycode")
    for file in pycode.FILES:
        path = library / file.path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("something else\n")
    with pytest.raises(
        data.DataMissing,
        match=rf"is not that of Python {pycode.RELEASE} \(this is Python {platform.python_version()}\)",
    ):
        data.load("pycode")
    assert {entry.status for entry in data.check("pycode")} == {"missing"}


def test_a_packed_file_is_taken_anywhere_if_it_is_the_right_one(library: Path, tmp_path: Path) -> None:
    made = data.load("ptb@tiny")
    wrong = build("pycode", pycode.Parts(dict(made.arrays), dict(made.info), ""), "whole")
    write(wrong, tmp_path / "data" / "pycode.npz", 1)
    with pytest.raises(data.DataCorrupt, match=r"pycode\.npz"):
        data.load("pycode")


@pytest.mark.slow
@pytest.mark.skipif(platform.python_version() != pycode.RELEASE, reason="the list is of another Python")
def test_the_whole_library_gives_the_recorded_hash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    loaded = store.load("pycode")
    assert loaded.sha256 == registry.DATASETS["pycode"].sha256
    assert loaded.info["vocab_size"] == pycode.PIECES
