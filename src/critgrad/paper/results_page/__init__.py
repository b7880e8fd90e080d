"""``docs/results.md``: what was run, what came out and what that says about each claim, written from ledgers alone.

>>> from critgrad.paper.results_page import write_results
>>> write_results([Path("results/small-tasks.db.xz")], Path("docs/results.md"))  # doctest: +SKIP
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from .findings import gather
from .page import render

__all__ = ["render_results", "write_results"]


def render_results(ledgers: Sequence[Path]) -> str:
    """The page as text. The same ledgers give the same bytes, in whichever order and on whichever day."""
    return render(gather(ledgers))


def write_results(ledgers: Sequence[Path], out: Path) -> Path:
    """Write the page of some ledgers; they are only read."""
    text = render_results(ledgers)
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(text, encoding="utf-8")
    return out
