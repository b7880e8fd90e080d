"""Ledgers of made-up runs, the pages made from them once, and the browser of tests/lab/browser.py."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parent))
import report_helpers as helpers
from browser import chromium  # noqa: F401 (a fixture)

from critgrad.paper.report import write_report

MAKERS = {
    "one": helpers.one_run,
    "compare": helpers.comparison,
    "fair": helpers.fair_sweep,
    "analyses": helpers.every_analysis,
    "paper": helpers.paper_tracks,
}


@pytest.fixture(scope="session")
def made(tmp_path_factory):
    """``made(name)``: (ledger, page) of that kind."""
    known = {}

    def get(name):
        if name not in known:
            folder = tmp_path_factory.mktemp(name)
            ledger = folder / "runs.db"
            MAKERS[name](ledger)
            known[name] = ledger, write_report(ledger, folder / "page.html", title=f"page of {name}")[0]
        return known[name]

    return get
