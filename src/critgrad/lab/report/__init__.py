"""One self-contained page, and its figures as files: what a report is made of, and how it is written."""

from __future__ import annotations

from pathlib import Path

from ..errors import require_known
from .page import render
from .parts import Page, PageBlock, Section

__all__ = ["FORMATS", "Page", "PageBlock", "Section", "write_page"]

FORMATS = ("svg", "pdf", "png")


def formats_of(texts: tuple[str, ...]) -> tuple[str, ...]:
    """The formats that were asked for; one text may carry several: ``svg,pdf``."""
    wanted = tuple(dict.fromkeys(name.strip().lower() for text in texts for name in text.split(",") if name.strip()))
    for name in wanted:
        require_known(name, FORMATS, "format", "some")
    return wanted


def write_page(report: Page, out: Path, *, formats: tuple[str, ...] = (), title: str, ledger: str) -> list[Path]:
    """Write a page to ``out``, and each figure in each of ``formats`` into a folder beside it; the files, the page first."""
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(render(report, title, ledger), encoding="utf-8")
    written = [out]
    if formats:
        from .drawing import write_figures

        written += write_figures(report.figures, out.with_name(f"{out.stem}-figures"), formats)
    return written
