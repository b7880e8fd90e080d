"""How many figures a page gets, and which: no more than a browser bears, and some of every task."""

from __future__ import annotations

from collections.abc import Sequence

from .figure import Figure
from .parts import Page

LARGEST_PAGE = 240  # figures; a ledger of everything has more, and says so


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
