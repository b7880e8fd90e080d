"""The browser of tests/lab/browser.py, and the page built once."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))
from browser import chromium  # noqa: F401 (a fixture)

from critgrad.lab.playground import build
from critgrad.lab.playground.frames import Frames


@pytest.fixture(scope="session")
def frames():
    return Frames()


@pytest.fixture(scope="session")
def page_file(tmp_path_factory):
    return build(tmp_path_factory.mktemp("playground") / "page.html")
