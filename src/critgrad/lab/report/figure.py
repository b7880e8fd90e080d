"""A figure as data: what is drawn, in a form that knows nothing of drawing."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any, TypeAlias

from ..stats import Comparison, Interval, Speedup
from ..words import FEWEST_FOR_INTERVAL
from .palette import Ink, Style

Number: TypeAlias = float | None
LARGEST_LINE = 160  # points of a line that are embedded
DECADES = 30.0  # largest over smallest value from which on an axis is logarithmic


@dataclass(frozen=True)
class FigureAxis:
    """An axis; ``title`` carries the unit. ``labels`` makes it one of categories, first at the top or left."""

    title: str
    log: bool = False
    labels: tuple[str, ...] | None = None
    range: tuple[float, float] | None = None
    ticks: tuple[float, ...] | None = None
    names: tuple[str, ...] | None = None  # of the ticks
    whole: bool = False  # epochs, trials: no ticks between


@dataclass(frozen=True)
class Line:
    """A line, with a band between ``low`` and ``high`` where they are given."""

    name: str
    x: Sequence[float]
    y: Sequence[Number]
    style: Style
    low: Sequence[Number] | None = None
    high: Sequence[Number] | None = None
    steps: bool = False  # a histogram's outline: y[i] holds from x[i] to x[i + 1]
    markers: bool = False
    shown: bool = True  # else it waits in the legend
    group: str | None = None  # lines of one group go on and off together

    @property
    def key(self) -> str:
        """What the legend toggles."""
        return self.group or self.name


@dataclass(frozen=True)
class Bars:
    """Horizontal bars, one per category of the y axis, from ``start`` to ``value``, with intervals and marks.

    ``marks``: ``">"`` (at least), ``"<"`` (at most), ``"?"`` (unknown), ``""``. ``notes`` stand beside the bars.
    """

    name: str
    labels: Sequence[str]
    values: Sequence[Number]
    inks: Sequence[Ink]
    start: Sequence[float]
    low: Sequence[Number] | None = None
    high: Sequence[Number] | None = None
    marks: Sequence[str] | None = None
    notes: Sequence[str] | None = None


@dataclass(frozen=True)
class Points:
    """A forest plot: one point per category of the y axis, with its interval."""

    name: str
    labels: Sequence[str]
    values: Sequence[Number]
    low: Sequence[Number]
    high: Sequence[Number]
    styles: Sequence[Style]
    notes: Sequence[str] | None = None  # a column of words beside the points
    hover: Sequence[str] | None = None


@dataclass(frozen=True)
class Heat:
    """A heat map; both axes have labels. ``values[row][column]``, row 0 at the bottom."""

    values: Sequence[Sequence[Number]]
    texts: Sequence[Sequence[str]]
    title: str  # of the colours
    bright_is_high: bool = True
    ring: tuple[int, int] | None = None  # (row, column) of the chosen cell


Series: TypeAlias = Line | Bars | Points | Heat


@dataclass(frozen=True)
class Figure:
    """One figure. ``id`` names its element on the page and its file."""

    id: str
    title: str
    x: FigureAxis
    y: FigureAxis
    series: tuple[Series, ...]
    caption: str = ""
    reference: float | None = None  # a line across the x axis: no difference
    rows: int = 0  # of categories, for the height

    @property
    def height(self) -> int:
        """In pixels, without the legend."""
        return 110 + 30 * self.rows if self.rows else 360


def clean(values: Iterable[Number]) -> list[Number]:
    """Six digits are enough for an eye; what is not finite is not drawn."""
    return [None if v is None or not math.isfinite(v) else float(f"{v:.6g}") for v in values]


Ends: TypeAlias = Interval | Comparison | Speedup  # what an interval is drawn from


def whiskers(found: Sequence[Ends]) -> tuple[list[Number], list[Number]]:
    """The ends that are drawn: of two values, whose interval says nothing, none."""
    known = [(each.low, each.high) if each.n >= FEWEST_FOR_INTERVAL else (None, None) for each in found]
    return clean(low for low, _ in known), clean(high for _, high in known)


def whisker_words(found: Sequence[Ends], what: str = "95 % t-interval") -> str:
    """What a caption says of them."""
    return what if any(each.n >= FEWEST_FOR_INTERVAL for each in found) else "too few for intervals"


def spans_decades(values: Iterable[Number]) -> bool:
    """Whether a logarithmic axis shows more."""
    known = [v for v in values if v is not None and math.isfinite(v)]
    return bool(known) and min(known) > 0 and max(known) / min(known) >= DECADES


def value_axis(title: str, values: Iterable[Number], *, log: bool | None = None) -> FigureAxis:
    """An axis for these values: logarithmic where they span decades (or as ``log`` says), with ticks at 1, 2, 5.

    What lies beyond the values (the lower edge of a band at 0) does not stretch it.
    """
    known = [v for v in values if v is not None and math.isfinite(v)]
    if not (spans_decades(known) if log is None else log) or not known or min(known) <= 0:
        return FigureAxis(title)
    low, high = min(known), max(known)
    if high / low < 2:
        low, high = low / 1.2, high * 1.2
    span = math.log10(high / low)
    steps: tuple[float, ...] = (1,) if span >= 2.2 else (1, 2, 5) if span >= 0.8 else (1, 1.5, 2, 3, 5, 7)
    steps = (1, 1.2, 1.5, 1.8, 2, 2.5, 3, 4, 5, 6, 7, 8, 9) if span < 0.4 else steps
    every = 1 if span < 8 else math.ceil(span / 6)
    pad = (high / low) ** 0.06
    window = (low / pad, high * pad)
    decades = range(math.floor(math.log10(low)) - 1, math.ceil(math.log10(high)) + 1, every)
    ticks = [float(f"{step * 10.0**decade:.3g}") for decade in decades for step in steps]
    inside = tuple(tick for tick in ticks if window[0] <= tick <= window[1])
    return FigureAxis(title, log=True, range=window, ticks=inside if len(inside) > 1 else None)


FAR = 20  # times the middle of all reaches


def without_far(points: Points, title: str) -> tuple[Points, FigureAxis]:
    """A forest plot and its axis, so that a point far beyond all others (runs that ended at the worst value) does not press
    these together: it stands at the axis' edge, and its number says so by an arrow.
    """
    reaches = [
        max(abs(v) for v in (value, low, high) if v is not None)
        for value, low, high in zip(points.values, points.low, points.high)
        if value is not None
    ]
    limit = FAR * median(reaches) if reaches else 0.0
    far = [value is not None and abs(value) > limit > 0 for value in points.values]
    if not any(far):
        return points, FigureAxis(title)
    near = [0.0]
    for values in (points.values, points.low, points.high):
        near += [value for value, beyond in zip(values, far) if value is not None and not beyond]
    pad = 0.05 * (max(near) - min(near))
    edges = (min(near) - pad, max(near) + pad)

    def beside(values: Sequence[Number], edge: bool) -> list[Number]:
        """The same without what is far, which stands at an edge or, its interval, nowhere."""
        moved = [edges[(value or 0) > 0] if edge else None for value in points.values]
        return [other if beyond else value for value, other, beyond in zip(values, moved, far)]

    notes = points.notes or [""] * len(far)
    told = [
        f"{'◂' if (value or 0) < 0 else '▸'} {note}" if beyond else note
        for value, note, beyond in zip(points.values, notes, far)
    ]
    low, high = (beside(values, False) for values in (points.low, points.high))
    cut = replace(points, values=beside(points.values, True), low=low, high=high, notes=told)
    return cut, FigureAxis(title, range=(edges[0] - pad, edges[1] + pad))


def arrows_text(axis: FigureAxis) -> str:
    """What a caption says of the arrows of such an axis."""
    return "; ◂ ▸: beyond the axis" if axis.range else ""


def thinned(count: int, largest: int = LARGEST_LINE) -> list[int]:
    """Which points of a long line to keep: evenly spread, first and last among them.

    >>> thinned(5, 3), len(thinned(100_000))
    ([0, 2, 4], 160)
    """
    if count <= largest:
        return list(range(count))
    return [round(i * (count - 1) / (largest - 1)) for i in range(largest)]


def over_epochs(
    name: str,
    y: Sequence[Number],
    style: Style,
    low: Sequence[Number] | None = None,
    high: Sequence[Number] | None = None,
    few: int = 0,
    **more: Any,
) -> Line:
    """A line of one value for each epoch (or trial), thinned; with markers where there are no more than ``few``."""
    keep = thinned(len(y))
    x = [float(i + 1) for i in keep]
    ends = [None if values is None else clean(values[i] for i in keep) for values in (low, high)]
    return Line(name, x, clean(y[i] for i in keep), style, ends[0], ends[1], markers=len(keep) <= few, **more)


def slug(*words: object) -> str:
    """A name fit for an id and a file.

    >>> slug("curves", "ptb-lstm@b420", "Adam")
    'curves-ptb-lstm-b420-Adam'
    """
    text = "-".join(str(word) for word in words)
    return "".join(c if c.isalnum() or c in "-_." else "-" for c in text).strip("-")
