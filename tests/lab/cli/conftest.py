"""The commands in a folder of the test's own, with no data but the package's."""

from __future__ import annotations

import pytest
from cli_helpers import Cli

from critgrad.lab.screen.console import console


@pytest.fixture
def cli(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CRITGRAD_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("CRITGRAD_OFFLINE", "1")
    return Cli(tmp_path)


@pytest.fixture(autouse=True)
def _as_in_a_log(monkeypatch):
    """Tables as wide as in a log, whatever the terminal in which the tests run."""
    monkeypatch.setattr(console, "_width", None)
