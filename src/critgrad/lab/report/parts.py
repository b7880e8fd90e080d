"""What a page is made of: sections of blocks, each with tables and figures."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from .figure import Figure
from .table import Table


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
