"""``critgrad analyze decompose``: how much of a difference is step size, delay, kernel shape, selection (PROTOCOL 7)."""

from __future__ import annotations

from pathlib import Path

from ..ledger import Ledger
from ..protocol import find, tables
from ..protocol.records import Decomposition


def decompose(ledger: Path, task: str) -> tuple[Decomposition, ...]:
    """The decomposition of a task's fair sweep, from the derived arms that the ledger has."""
    with Ledger.open(ledger) as book:
        found = tables(book, find(task)).decompositions
    if not found:
        raise ValueError(
            f"No decomposition of {task!r} in {ledger}: it needs the derived arms of `critgrad sweep {task} --track fair`"
        )
    return found
