"""Finding, verifying, preparing and keeping data."""

from __future__ import annotations

import gzip
import lzma
import os
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from data_helpers import PACKED, TEXT, Toy

from critgrad.lab.replacing import replacing
from critgrad.lab.tasks import data
from critgrad.lab.tasks.data import dataset as datasets
from critgrad.lab.tasks.data import files, store


@pytest.mark.parametrize(
    "name, content",
    [
        ("words.txt", TEXT),
        ("words.txt.gz", PACKED),
        ("words.txt.gz", gzip.compress(TEXT, 1, mtime=5)),
        ("words.txt.xz", lzma.compress(TEXT)),
    ],
    ids=["plain", "published", "another gzip", "xz"],
)
def test_a_file_is_found_in_any_packing_and_gives_the_same_hash(toy: Toy, name: str, content: bytes) -> None:
    toy.put(name, content)
    loaded = data.load("toy")
    assert loaded.arrays["train"][:3].tolist() == [3, 3, 5]
    assert (loaded.state, loaded.note, loaded.info["longest"]) == ("whole", "All of it.", 5)
    assert loaded.sha256 == datasets.digest({"train": np.array([3, 3, 5, 4, 4, 3] * 20, np.int32)})


def test_files_are_found_in_the_cache_folder_too(toy: Toy) -> None:
    (toy.cache / "toy").mkdir(parents=True)
    (toy.cache / "toy" / "words.txt").write_bytes(TEXT)
    assert data.load("toy").info["longest"] == 5


@pytest.mark.parametrize("name", ["words.txt", "words.txt.gz", "words.txt.xz"])
def test_one_flipped_bit_is_found_and_named(toy: Toy, name: str) -> None:
    packed = {"words.txt": TEXT, "words.txt.gz": PACKED, "words.txt.xz": lzma.compress(TEXT)}[name]
    path = toy.put(name, packed[:30] + bytes([packed[30] ^ 1]) + packed[31:])
    with pytest.raises(data.DataCorrupt, match=r"expected sha256 [0-9a-f]{64}, found") as caught:
        data.load("toy")
    assert str(path) in str(caught.value)
    assert [entry.status for entry in data.check("toy")] == ["corrupt"]


def test_a_packed_file_that_holds_something_else_shows_both_hashes(toy: Toy) -> None:
    toy.put("words.txt.gz", gzip.compress(TEXT + b"more\n"))
    with pytest.raises(data.DataCorrupt) as caught:
        data.load("toy")
    assert caught.value.expected == files.hash_of(toy.put("words.txt", TEXT))
    assert len(caught.value.found) == 64
    assert caught.value.found != caught.value.expected


def test_a_missing_file_is_named_with_its_origin_and_its_place(toy: Toy) -> None:
    with pytest.raises(data.DataMissing) as caught:
        data.load("toy")
    message = str(caught.value)
    assert "toy/words.txt.gz" in message
    assert "the toy shop" in message
    assert str(toy.data / "toy" / "words.txt.gz") in message
    assert isinstance(caught.value, FileNotFoundError)
    assert [entry.status for entry in data.check("toy")] == ["missing"]


def test_an_archive_whose_content_hash_is_unknown_is_accepted_only_as_published() -> None:
    archive = data.DATASETS["cifar10"].sources[1].files[0]
    assert archive.content is None
    assert list(archive.candidates()) == ["cifar10/cifar-10-binary.tar.gz"]


@pytest.mark.parametrize("place", ["prepared/toy.npz", "toy.npz"])
def test_prepared_and_raw_data_are_the_same_data(toy: Toy, place: str) -> None:
    raw_file = toy.put("words.txt", TEXT)
    raw = data.load("toy")
    written = data.prepare("toy", toy.data / place)
    assert written == toy.data / place
    raw_file.unlink()
    store._load.cache_clear()
    prepared = data.load("toy")
    assert prepared == replace(raw, arrays=prepared.arrays)
    assert prepared.arrays.keys() == raw.arrays.keys()
    np.testing.assert_array_equal(prepared.arrays["train"], raw.arrays["train"])
    assert prepared.arrays["train"].dtype == np.int32
    assert [entry.status for entry in data.check("toy")] == ["ok"]


def test_prepare_writes_below_the_data_folder_or_into_a_folder_given(toy: Toy, tmp_path: Path) -> None:
    toy.put("words.txt", TEXT)
    assert data.prepare("toy") == toy.data / "prepared" / "toy.npz"
    assert data.prepare("toy", tmp_path / "box") == tmp_path / "box" / "toy.npz"
    assert sorted(path.name for path in (toy.data / "prepared").iterdir()) == ["toy.npz"]


def test_prepare_goes_to_the_cache_where_the_data_folder_cannot_be_written(toy: Toy) -> None:
    toy.put("words.txt", TEXT)
    toy.monkeypatch.setattr(store, "writable", lambda folder: False)
    assert data.prepare("toy") == toy.cache / "prepared" / "toy.npz"
    (toy.data / "toy" / "words.txt").unlink()
    store._load.cache_clear()
    assert data.load("toy").info["longest"] == 5


def test_no_flipped_byte_in_a_prepared_file_changes_the_data_unnoticed(toy: Toy) -> None:
    toy.put("words.txt", TEXT)
    path = data.prepare("toy")
    original, sha256 = path.read_bytes(), data.load("toy").sha256
    named = 0
    for i in range(0, len(original), 4):
        path.write_bytes(original[:i] + bytes([original[i] ^ 0x15]) + original[i + 1 :])
        try:
            found = datasets.read(path, "toy", 1)
        except data.DataCorrupt as error:
            named += str(path) in str(error)
        else:  # bytes that mean nothing, such as a date; or the mark is gone, and the file no longer claims to be ours
            assert found is None or (found.sha256, found.info["longest"]) == (sha256, 5)
    assert named > len(original) // 8


def test_a_truncated_prepared_file_is_named_and_not_passed_over(toy: Toy) -> None:
    toy.put("words.txt", TEXT)
    path = data.prepare("toy")
    path.write_bytes(path.read_bytes()[:100])
    store._load.cache_clear()
    with pytest.raises(data.DataCorrupt, match=r"toy\.npz: .*unreadable"):
        data.load("toy")
    assert [entry.status for entry in data.check("toy")] == ["corrupt"]


def test_a_prepared_file_whose_arrays_were_exchanged_is_corrupt(toy: Toy) -> None:
    toy.put("words.txt", TEXT)
    path = data.prepare("toy")
    with np.load(path) as file:
        meta = file[datasets.META]
    np.savez(path, **{datasets.META: meta, "train": np.zeros(3, np.int32)})
    store._load.cache_clear()
    with pytest.raises(data.DataCorrupt, match="expected sha256"):
        data.load("toy")


def test_a_prepared_file_of_another_reader_version_gives_way_to_the_raw_files(toy: Toy) -> None:
    toy.put("words.txt", TEXT)
    path = data.prepare("toy")
    wrong = datasets.build("toy", datasets.Parts({"train": np.zeros(1, np.int32)}, {"longest": 0}, "old"), "whole")
    datasets.write(wrong, path, version=0)
    store._load.cache_clear()
    assert data.load("toy").info["longest"] == 5


def test_an_npz_with_pickled_objects_is_refused(toy: Toy) -> None:
    toy.put("words.txt", TEXT)
    path = data.prepare("toy")
    with np.load(path) as file:
        meta = file[datasets.META]
    np.savez(path, **{datasets.META: meta, "train": np.array([{}], dtype=object)})
    store._load.cache_clear()
    with pytest.raises(data.DataCorrupt, match="allow_pickle"):
        data.load("toy")


def test_a_slow_reading_is_kept_and_read_again_until_the_raw_file_changes(toy: Toy) -> None:
    toy.monkeypatch.setattr(store, "SLOW_SECONDS", -1.0)
    path = toy.put("words.txt", TEXT)
    first = data.load("toy")
    (kept,) = (toy.cache / "derived").iterdir()
    toy.monkeypatch.setattr(store, "parts_of", lambda source, places: pytest.fail("read the raw files again"))
    store._load.cache_clear()
    assert data.load("toy").sha256 == first.sha256
    path.write_bytes(TEXT.replace(b"one", b"two"))
    store._load.cache_clear()
    with pytest.raises(data.DataCorrupt):
        data.load("toy")
    assert kept.exists()


def test_a_damaged_kept_reading_is_replaced(toy: Toy) -> None:
    toy.monkeypatch.setattr(store, "SLOW_SECONDS", -1.0)
    toy.put("words.txt", TEXT)
    first = data.load("toy")
    (kept,) = (toy.cache / "derived").iterdir()
    kept.write_bytes(b"PK nonsense")
    store._load.cache_clear()
    assert data.load("toy").sha256 == first.sha256
    store._load.cache_clear()
    assert datasets.read(kept, "toy", 1) is not None


def test_a_cache_folder_that_cannot_be_written_does_no_harm(toy: Toy) -> None:
    toy.monkeypatch.setattr(store, "SLOW_SECONDS", -1.0)
    toy.cache.write_text("a file where the folder should be")
    toy.put("words.txt", TEXT)
    assert data.load("toy").info["longest"] == 5


def test_a_write_that_fails_leaves_the_old_file_and_no_temporary_one(tmp_path: Path) -> None:
    target = tmp_path / "file"
    target.write_bytes(b"old")

    def interrupted() -> None:
        with replacing(target) as out:
            out.write(b"half of the n")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    assert target.read_bytes() == b"old"


def test_the_hash_sees_names_types_shapes_and_values_but_not_byte_order_or_layout() -> None:
    base = {"a": np.arange(6, dtype=np.int32).reshape(2, 3), "b": np.zeros(2, np.uint8)}
    h = datasets.digest(base)
    assert h == datasets.digest({"b": base["b"], "a": np.asfortranarray(base["a"])})
    assert h == datasets.digest({**base, "a": base["a"].astype(">i4")})
    changed = [base["a"].astype(np.int64), base["a"].reshape(3, 2), base["a"] + 1]
    hashes = {datasets.digest({**base, "a": array}) for array in changed}
    hashes.add(datasets.digest({"c": base["a"], "b": base["b"]}))
    assert len(hashes | {h}) == 5


def test_a_load_is_kept_for_the_process(toy: Toy) -> None:
    toy.put("words.txt", TEXT)
    assert data.load("toy") is data.load("toy")


@pytest.mark.parametrize(
    "name", ["mnits", "ptb@small", "ptb@", "noise@2", "noise@x", "noise@nan", "noise@", "noise@0.3@", "noise@0.3@small"]
)
def test_an_unknown_name_is_an_error_that_says_what_there_is(name: str) -> None:
    with pytest.raises(ValueError, match="expected"):
        data.load(name)


def test_a_near_miss_is_suggested() -> None:
    with pytest.raises(ValueError, match="did you mean 'mnist'"):
        data.load("mnits")


@pytest.mark.parametrize(
    "platform, variables, expected",
    [
        ("linux", {"XDG_CACHE_HOME": "/x"}, "/x/critgrad"),
        ("linux", {"XDG_CACHE_HOME": "", "HOME": "/h"}, "/h/.cache/critgrad"),
        ("darwin", {"HOME": "/h"}, "/h/Library/Caches/critgrad"),
        ("win32", {"LOCALAPPDATA": "/l"}, "/l/critgrad"),
    ],
)
@pytest.mark.skipif(os.name != "posix", reason="the paths are written as on POSIX")
def test_the_cache_folder_is_the_platform_s(
    monkeypatch: pytest.MonkeyPatch, platform: str, variables: dict[str, str], expected: str
) -> None:
    monkeypatch.setattr(sys, "platform", platform)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert files.cache_root().as_posix() == expected


def test_every_record_is_complete() -> None:
    for name, record in data.DATASETS.items():
        assert name == record.name
        assert all([record.summary, record.licence, record.citation])
        assert record.state in ("whole", "part", "synthetic")
        for file in record.files:
            assert file.sha256
            assert len(file.sha256) == 64
            assert file.origin, file.path
            assert len(file.content or file.sha256) == 64
