"""The browser of tests/lab/browser.py, and the page built once."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[3] / "benchmarks"))
from browser import chromium  # noqa: F401 (a fixture)
from playground_frames.frames import Frames

from critgrad.lab.playground import build


@pytest.fixture(scope="session")
def frames():
    return Frames()


@pytest.fixture(scope="session")
def page_file(tmp_path_factory):
    return build(tmp_path_factory.mktemp("playground") / "page.html")
