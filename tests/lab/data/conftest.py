"""Data folders of a test's own, and the real data where there is any."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from data_helpers import Toy, point_cache_at

from critgrad.lab.tasks.data import store

REAL = os.environ.get("CRITGRAD_DATA")


@pytest.fixture
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Toy]:
    monkeypatch.setenv("CRITGRAD_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("CRITGRAD_OFFLINE", "1")
    made = Toy(tmp_path / "data", point_cache_at(tmp_path / "cache", monkeypatch), monkeypatch)
    made.register()
    yield made
    store._load.cache_clear()


@pytest.fixture
def real(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of real data; the cache is the test's own, so that nothing of an earlier run is read."""
    if not REAL:
        pytest.skip("needs real data: set CRITGRAD_DATA")
    monkeypatch.setenv("CRITGRAD_OFFLINE", "1")
    point_cache_at(tmp_path / "cache", monkeypatch)
    return Path(REAL)
