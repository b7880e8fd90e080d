"""``critgrad report``: one self-contained page from a ledger, and its figures as files.

>>> from critgrad.paper.report import write_report
>>> write_report(Path("runs.db"), Path("report.html"), formats=("svg",))  # doctest: +SKIP
"""

from __future__ import annotations

import json
from pathlib import Path

from critgrad.lab.report import formats_of, write_page
from critgrad.lab.report.palette import ARM_STYLES, GREY, RIVALS, Style

from ..protocol.announced import AnnouncedSource
from .sections import build

__all__ = ["write_report"]

# How the paper's controls are drawn: the grey of rivals and controls, the dash, the width, the marker.
_LOOKS = json.loads((Path(__file__).parent / "looks.json").read_text(encoding="utf-8"))
ARM_STYLES.update({arm: Style(GREY[grey], *look) for arm, (grey, *look) in _LOOKS.items()}, AggMo=RIVALS["AggMo"])


def write_report(ledger: Path, out: Path, *, formats: tuple[str, ...] = (), title: str | None = None) -> list[Path]:
    """Write the page of a ledger to ``out``, and each figure in each of ``formats`` into a folder beside it.

    Args:
        ledger: the file that holds the runs; it is only read.
        out: the page to write, ``report.html``; its figures go to ``report-figures/``.
        formats: some of ``svg``, ``pdf``, ``png`` (drawn by matplotlib from the same data).
        title: of the page; by default the tasks that it is about.

    Returns:
        The files written, the page first.
    """
    wanted = formats_of(formats)
    source = AnnouncedSource(Path(ledger))
    tasks = source.tasks
    title = title or f"critgrad: {', '.join(tasks) if 0 < len(tasks) < 4 else f'{len(tasks)} tasks'}"
    report = build(source)
    return write_page(report, Path(out), formats=wanted, title=title, ledger=Path(ledger).name)
