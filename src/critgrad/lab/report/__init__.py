"""``critgrad report``: one self-contained page from a ledger, and its figures as files.

>>> from critgrad.lab.report import write_report
>>> write_report(Path("runs.db"), Path("report.html"), formats=("svg",))  # doctest: +SKIP
"""

from __future__ import annotations

from pathlib import Path

from .page import render
from .sections import build
from .source import Source

__all__ = ["FORMATS", "write_report"]

FORMATS = ("svg", "pdf", "png")


def write_report(ledger: Path, out: Path, *, formats: tuple[str, ...] = (), title: str = "critgrad") -> list[Path]:
    """Write the page of a ledger to ``out``, and each figure in each of ``formats`` into a folder beside it.

    Args:
        ledger: the file that holds the runs; it is only read.
        out: the page to write, ``report.html``; its figures go to ``report-figures/``.
        formats: some of ``svg``, ``pdf``, ``png`` (drawn by matplotlib from the same data).
        title: of the page.

    Returns:
        The files written, the page first.
    """
    # One option may carry several: --format svg,pdf.
    wanted = tuple(dict.fromkeys(name.strip().lower() for text in formats for name in text.split(",") if name.strip()))
    for name in wanted:
        if name not in FORMATS:
            raise ValueError(f"Invalid format: {name!r}, expected some of {', '.join(FORMATS)}")
    report = build(Source(Path(ledger)))
    out = Path(out)
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(render(report, title, Path(ledger).name), encoding="utf-8")
    written = [out]
    if wanted:
        from .files import write_figures

        written += write_figures(report.figures, out.with_name(f"{out.stem}-figures"), wanted)
    return written
