"""What a page is made of: sections of blocks, each with tables and figures; and how many figures it gets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from .figure import Figure
from .table import Table

LARGEST_PAGE = 240  # figures; a ledger of everything has more, and says so


@dataclass
class PageBlock:
    """A part of a section: what belongs to one task, or one experiment."""

    title: str = ""
    intro: str = ""
    warnings: tuple[str, ...] = ()
    tables: tuple[Table, ...] = ()
    figures: tuple[Figure, ...] = ()
    words: tuple[str, ...] = ()  # paragraphs before everything else: what it says
    terms: tuple[tuple[str, str], ...] = ()  # what the names in it mean


@dataclass
class Section:
    """A heading and its blocks."""

    id: str
    title: str
    intro: str = ""
    blocks: list[PageBlock] = field(default_factory=list)


@dataclass
class Page:
    """Everything that the page shows."""

    sections: list[Section]
    facts: list[tuple[str, str]]  # (what, how much) at the top of the page
    banners: list[str]
    analyses: dict[str, list[dict[str, Any]]]
    left_out: int = 0  # figures

    @property
    def tables(self) -> list[Table]:
        """All tables, in order."""
        return [table for section in self.sections for block in section.blocks for table in block.tables]

    @property
    def figures(self) -> list[Figure]:
        """All figures, in order."""
        return [figure for section in self.sections for block in section.blocks for figure in block.figures]


def capped(report: Page) -> Page:
    """No more figures than a browser bears: long sections lose some, of every task alike."""
    count = len(report.figures)
    if count <= LARGEST_PAGE:
        return report
    each = shares([sum(len(block.figures) for block in section.blocks) for section in report.sections], LARGEST_PAGE)
    for section, share in zip(report.sections, each):
        kept = of_every_task([figure for block in section.blocks for figure in block.figures], share)
        for block in section.blocks:
            block.figures = tuple(figure for figure in block.figures if figure.id in kept)
    report.left_out = count - len(report.figures)
    report.banners.append(
        f"{report.left_out} figures are not drawn: too many for one page. `critgrad merge --task` makes a ledger of one task"
    )
    return report


def shares(counts: Sequence[int], limit: int) -> list[int]:
    """As many of each as fit in all: what one does not need goes to the others.

    >>> shares([2, 30, 50, 0], 60)
    [2, 29, 29, 0]
    """
    given = [0] * len(counts)
    while (wanting := [i for i, count in enumerate(counts) if given[i] < count]) and sum(given) < limit:
        more = max(1, (limit - sum(given)) // len(wanting))
        for i in wanting:
            given[i] = min(counts[i], given[i] + min(more, limit - sum(given)))
    return given


def of_every_task(figures: Sequence[Figure], keep: int) -> set[str]:
    """The ids of the first figures of each task in turn, so many in all. A title begins with its task."""
    by_task: dict[str, list[str]] = {}
    for figure in figures:
        by_task.setdefault(figure.title.partition(",")[0], []).append(figure.id)
    in_turn = [
        ids[k] for k in range(max(map(len, by_task.values()), default=0)) for ids in by_task.values() if k < len(ids)
    ]
    return set(in_turn[:keep])
