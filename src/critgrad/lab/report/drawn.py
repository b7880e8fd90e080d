"""What the figures of all analyses share."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..stats import Interval
from ..words import FEWEST_FOR_INTERVAL
from .figure import Figure
from .table import Cell, Table, interval

Data = Mapping[str, Any]


@dataclass(frozen=True)
class Drawn:
    """What an analysis puts on the page."""

    figures: tuple[Figure, ...] = ()
    tables: tuple[Table, ...] = ()


def band(cell: Data) -> tuple[float | None, float | None]:
    """What is drawn around a mean: its t-interval, or the range of fewer than three runs."""
    if cell["runs"] >= FEWEST_FOR_INTERVAL:
        return cell["low"], cell["high"]
    return min(cell["values"]), max(cell["values"])


def band_words(cells: Sequence[Data]) -> str:
    """The same in words."""
    few = any(cell["runs"] < FEWEST_FOR_INTERVAL for cell in cells)
    seeds = sorted({cell["runs"] for cell in cells})
    count = f"{seeds[0]}" if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]}"
    return f"mean and {'range' if few else '95 % t-interval'} over {count} seeds"


def outcome_cell(cell: Data) -> Cell:
    return interval(Interval(cell["test"], bound(cell["low"], -1), bound(cell["high"], 1), cell["runs"]))


def bound(value: float | None, sign: int) -> float:
    return sign * math.inf if value is None else value
