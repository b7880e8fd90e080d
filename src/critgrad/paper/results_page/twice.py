"""The luck of the search: how far the same difference moves when everything is tuned anew with other points, on other seeds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

from critgrad.lab.stats import Interval
from critgrad.lab.stats.student import t_quantile

from ..protocol.arms import ARMS
from .findings import Findings
from .text import fixed, interval, page, table


@dataclass(frozen=True)
class Twice:
    """One difference to the base, from two searches."""

    name: str
    family: str
    arm: str
    found: tuple[Interval, Interval]

    @property
    def z(self) -> float:
        """The change in standard errors."""
        errors = [each.half_width / t_quantile(each.n - 1) for each in self.found]
        return (self.found[0].mean - self.found[1].mean) / math.hypot(*errors)


def twice(findings: Findings) -> list[Twice]:
    """All that were searched twice with other points, on the same task for as long."""
    out = []
    for first, again in combinations(findings.outcomes, 2):
        a, b = first.registration, again.registration
        alike = (a.task, a.epochs, a.batch_size) == (b.task, b.epochs, b.batch_size)
        if not alike or a.space_seed == b.space_seed:
            continue
        for family in (name for name in a.families if name in b.families):
            for arm in (name for name in a.arms if name in b.arms and name != "base"):
                found = first.minus(family, arm), again.minus(family, arm)
                if found[0] is not None and found[1] is not None:
                    out.append(Twice(again.name, family, ARMS[arm].label_in(family), (found[0], found[1])))
    return out


def rms(rows: Sequence[Twice]) -> float:
    """Of their z."""
    return math.sqrt(sum(row.z**2 for row in rows) / len(rows)) if rows else math.nan


def without_the_largest(rows: Sequence[Twice]) -> tuple[Twice, float]:
    """The one that moved most, and what is left without it."""
    largest = max(rows, key=lambda row: abs(row.z))
    return largest, rms([row for row in rows if row is not largest])


def luck_page(findings: Findings) -> str:
    """All of them; nothing where nothing was searched twice."""
    rows = twice(findings)
    if not rows:
        return ""
    cells = [[r.name, r.arm, *[interval(each, "+") for each in r.found], fixed(r.z, 1, "+")] for r in rows]
    largest, rest = without_the_largest(rows)
    head = ("asked again as", "arm minus base", "first search", "second search", "z")
    moved = {"largest": f"{largest.arm} of {largest.name}", "rest": f"{rest:.1f}"}
    return page("luck", count=len(rows), factor=f"{rms(rows):.1f}", **moved, table=table(head, cells, head[2:]))
