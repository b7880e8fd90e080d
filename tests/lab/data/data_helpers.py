"""A small data set to look for, and a cache folder of the test's own."""

from __future__ import annotations

import gzip
import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import numpy as np
import pytest

from critgrad.lab.tasks.data import DATASETS, DataSource, Record, store
from critgrad.lab.tasks.data.dataset import Parts
from critgrad.lab.tasks.data.files import File

TEXT = b"one two three\nfour five six\n" * 20
PACKED = gzip.compress(TEXT, mtime=0)


def read_toy(read: Callable[[str], bytes]) -> Parts:
    lengths = [len(word) for word in read("toy/words.txt").split()]
    return Parts({"train": np.array(lengths, np.int32)}, {"longest": max(lengths)}, "All of it.")


@dataclass
class Toy:
    """A data set of one file, registered as ``toy`` for the test."""

    data: Path
    cache: Path
    monkeypatch: pytest.MonkeyPatch

    def register(self, url: str | None = None, sha256: str | None = None, content: str | None = None) -> None:
        file = File("toy/words.txt.gz", sha256 or digest(PACKED), content or digest(TEXT), url, "the toy shop")
        record = Record("toy", "a toy", "none", "nobody", (DataSource((file,), read_toy, "whole"),))
        self.monkeypatch.setattr(store, "DATASETS", MappingProxyType({**DATASETS, "toy": record}))
        store._load.cache_clear()

    def put(self, name: str, content: bytes) -> Path:
        path = self.data / "toy" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        store._load.cache_clear()
        return path


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def point_cache_at(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Send the cache to a folder of the test, whatever the platform calls it."""
    monkeypatch.setattr("critgrad.lab.tasks.data.files.cache_root", lambda: folder)
    monkeypatch.setattr("critgrad.lab.tasks.data.store.cache_root", lambda: folder)
    return folder
