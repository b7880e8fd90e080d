"""Figures drawn by matplotlib: inside the page as SVG in the page's colours, and as files."""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any

from ..errors import MissingPackageError
from .figure import Bars, Figure, Heat, Line, Number, Points
from .palette import AXIS, GRID, TEXT, Ink

_DASHES: dict[str, tuple[float, ...]] = {
    "solid": (),
    "dash": (5, 2.5),
    "dot": (1, 1.8),
    "dashdot": (5, 2, 1, 2),
    "longdash": (9, 3),
    "longdashdot": (9, 2.5, 1, 2.5),
}
_MARKERS = {
    "circle": "o",
    "square": "s",
    "diamond": "D",
    "triangle-up": "^",
    "triangle-down": "v",
    "triangle-right": ">",
    "cross": "P",
    "x": "X",
    "star": "*",
    "hexagon": "h",
    "pentagon": "p",
    "bowtie": "8",
    "hourglass": "d",
}
_ARROWS = {">": ">", "<": "<", "?": "x"}
_BLACK = "#000001"  # on coloured cells, whatever the page's scheme: plain black would be left to the page
BAND = 0.16  # opacity
CROWD = 5  # lines from which on bands are paler, or they hide each other
WIDTH = 6.2  # inches
DPI = 72  # an SVG's unit is a point


@dataclass(frozen=True)
class LegendEntry:
    """A name that switches its lines on and off."""

    name: str
    sample: str  # an SVG of its line
    shown: bool


@dataclass(frozen=True)
class Inline:
    """A figure as a part of a page. ``points``: (entry of the legend or None, x, y, text) of what a pointer can ask for."""

    svg: str
    legend: tuple[LegendEntry, ...]
    points: tuple[tuple[int | None, float, float, str], ...]


@contextmanager
def _settings(salt: str) -> Iterator[Any]:
    """matplotlib, without anything of the user's own settings."""
    try:  # here: the lab trains without it
        import matplotlib
    except ImportError:
        raise MissingPackageError("Pages and figures need another package: pip install 'critgrad[lab]'") from None
    # Text stays text in an SVG. The salt makes the same figure the same file, and no two figures of a page share a name.
    look: dict[str, Any] = {
        "svg.fonttype": "none",
        "svg.hashsalt": salt,
        "pdf.fonttype": 42,
        "font.size": 10,
        "axes.axisbelow": True,
        "axes.edgecolor": AXIS.light,
        "grid.color": GRID.light,
    }
    look |= dict.fromkeys(("text.color", "axes.labelcolor", "xtick.color", "ytick.color"), TEXT.light)
    context: Any = matplotlib.rc_context
    with context(), context(matplotlib.rcParamsDefault), context(look):
        yield matplotlib


def _canvas(figure: Figure) -> Any:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure as Canvas

    canvas = Canvas(figsize=(WIDTH, max(2.4, figure.height / 90)), dpi=DPI, layout="constrained")
    FigureCanvasAgg(canvas)
    return canvas


def write_figures(figures: Sequence[Figure], folder: Path, formats: Sequence[str]) -> list[Path]:
    """Write every figure in every format; one file each, named as on the page."""
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for figure in figures:
        with _settings("critgrad"):
            canvas = _canvas(figure)
            axes = _draw(figure, canvas, hidden=False)
            axes.set_title(figure.title, fontsize=10.5, loc="left", wrap=True)
            handles, labels = axes.get_legend_handles_labels()
            if len(labels) > 1:
                place: dict[str, Any] = {"loc": "outside lower center", "ncols": 3, "handlelength": 3.2}
                canvas.legend(handles, labels, fontsize=8.5, frameon=False, **place)
            for name in formats:
                path = folder / f"{figure.id}.{name}"
                metadata = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}.get(name)
                canvas.savefig(path, format=name, dpi=160, bbox_inches="tight", metadata=metadata)
                written.append(path)
    return written


def inline(figure: Figure) -> Inline:
    """A figure for a page: its colours follow the page's scheme, its title and its legend are the page's."""
    lines = [series for series in figure.series if isinstance(series, Line)]
    keys = list(dict.fromkeys(line.key for line in lines))
    with _settings(figure.id):
        canvas = _canvas(figure)
        axes = _draw(figure, canvas, hidden=True)
        text = StringIO()
        canvas.savefig(text, format="svg", dpi=DPI, transparent=True, metadata={"Date": None})
        height = canvas.get_figheight() * DPI
        points = tuple(
            (keys.index(key) if key is not None else None, round(x, 1), round(height - y, 1), what)
            for key, place, what in _told(figure)
            for x, y in [axes.transData.transform(place)]
            if math.isfinite(x + y)
        )
    svg = _for_page(text.getvalue(), _inks(figure))
    first = {line.key: line for line in reversed(lines)}
    legend = tuple(LegendEntry(key, _sample(first[key]), first[key].shown) for key in keys)
    for number, entry in enumerate(legend):
        if not entry.shown:
            svg = svg.replace(f'data-entry="{number}"', f'data-entry="{number}" display="none"')
    return Inline(svg, legend if len(legend) > 1 else (), points)


def _inks(figure: Figure) -> set[Ink]:
    known = {AXIS, GRID, TEXT}
    for series in figure.series:
        if isinstance(series, Line):
            known.add(series.style.ink)
        elif isinstance(series, Bars):
            known.update(series.inks)
        elif isinstance(series, Points):
            known.update(style.ink for style in series.styles)
    return known


def _for_page(svg: str, inks: set[Ink]) -> str:
    """What matplotlib wrote, without what a page has already (its head, its fonts, names that all figures share)."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>|<!--.*?-->|<style.*?</style>", "", svg, flags=re.DOTALL)
    svg = re.sub(r' xmlns(:\w+)?="[^"]*"| (width|height)="[\d.]+pt"| version="[\d.]+"', "", svg)
    svg = re.sub(r' id="line-(\d+)-\d+"', r' data-entry="\1"', svg)
    svg = re.sub(r' id="[A-Za-z0-9.]+_\d+"', "", svg)
    svg = re.sub(r"font: ([\d.]+)px [^;\"]*", r"font-size: \1px", svg).replace("xlink:href", "href")
    twins = {ink.light: f"light-dark({ink.light},{ink.dark})" for ink in inks}
    return re.sub(r"\s*\n\s*", " ", re.sub(r"#[0-9a-f]{6}", lambda match: twins.get(match[0], match[0]), svg))


def _sample(line: Line) -> str:
    style = line.style
    dashes = " ".join(f"{style.width * length:g}" for length in _DASHES[style.dash])
    return (
        '<svg width="28" height="10" aria-hidden="true"><line x1="0" y1="5" x2="28" y2="5" '
        f'style="stroke: light-dark({style.ink.light},{style.ink.dark})" stroke-width="{style.width:g}" '
        f'stroke-dasharray="{dashes}"/></svg>'
    )


def _told(figure: Figure) -> Iterator[tuple[str | None, tuple[float, float], str]]:
    """What a pointer can ask for: (name in the legend, place in the axes, words)."""
    for series in figure.series:
        if isinstance(series, Line):
            yield from (
                (series.key, (x, y), f"{series.name}: {y:.5g}") for x, y in zip(series.x, series.y) if y is not None
            )
        elif isinstance(series, Heat):
            for row, values in enumerate(series.values):
                for column, value in enumerate(values):
                    x, y = (
                        labels[at] for labels, at in ((figure.x.labels or (), column), (figure.y.labels or (), row))
                    )
                    if value is not None:
                        yield None, (column, row), f"{figure.x.title} {x}, {figure.y.title} {y}: {value:.5g}"
        else:
            words = series.notes or (series.hover if isinstance(series, Points) else None) or [""] * len(series.labels)
            for label, value, what in zip(series.labels, series.values, words):
                if value is not None:
                    yield None, (value, (figure.y.labels or ()).index(label)), f"{label}: {what or f'{value:.5g}'}"


def _draw(figure: Figure, canvas: Any, *, hidden: bool) -> Any:
    """Draw all series; lines that wait in the legend only where they can be called (``hidden``)."""
    axes = canvas.add_subplot()
    axes.grid(True, linewidth=0.8)
    for name in ("top", "right"):
        axes.spines[name].set_visible(False)
    lines = [series for series in figure.series if isinstance(series, Line)]
    keys = list(dict.fromkeys(line.key for line in lines))
    wash = BAND / 2 if sum(line.shown for line in lines) > CROWD else BAND
    floor = figure.y.range[0] if figure.y.log and figure.y.range else -math.inf
    for series in figure.series:
        if isinstance(series, Line):
            if hidden or series.shown:
                _line(axes, series, keys.index(series.key), wash, floor)
        elif isinstance(series, Bars):
            _bars(axes, series)
        elif isinstance(series, Points):
            _points(axes, series, figure)
        else:
            _heat(canvas, axes, figure, series)
    _axes(axes, figure)
    return axes


def _axes(axes: Any, figure: Figure) -> None:
    from matplotlib.ticker import MaxNLocator, NullFormatter

    heat = any(isinstance(series, Heat) for series in figure.series)
    axes.set_xlabel(textwrap.fill(figure.x.title, 60))
    axes.set_ylabel(textwrap.fill(figure.y.title, 40))
    for axis, which, drawn in ((figure.x, "x", axes.xaxis), (figure.y, "y", axes.yaxis)):
        if axis.labels is None and axis.log:
            axes.set(**{f"{which}scale": "log"})
        if axis.range is not None:
            axes.set(**{f"{which}lim": axis.range})
        if axis.ticks is not None:
            drawn.set_ticks(axis.ticks, axis.names or [f"{tick:g}" for tick in axis.ticks])
            drawn.set_minor_formatter(NullFormatter())
        if axis.whole:
            drawn.set_major_locator(MaxNLocator(integer=True, nbins=8))
    if figure.reference is not None:
        axes.axvline(figure.reference, color=AXIS.light, linestyle=":", linewidth=1)
    if figure.y.labels is not None and not heat:
        axes.set_yticks(range(len(figure.y.labels)), figure.y.labels, fontsize=9)
        axes.set_ylim(len(figure.y.labels) - 0.4, -0.6)
        axes.grid(False, axis="y")


def _floats(values: Sequence[Number] | None) -> list[float]:
    return [math.nan if value is None else value for value in values or ()]


def _line(axes: Any, series: Line, entry: int, wash: float, floor: float) -> None:
    style, y = series.style, _floats(series.y)
    look = {"color": style.ink.light, "alpha": wash, "linewidth": 0}
    parts = []
    if series.low is not None and series.high is not None:
        low = [max(value, floor) for value in _floats(series.low)]
        parts.append(axes.fill_between(series.x, low, _floats(series.high), **look))
    if series.steps:
        parts.append(axes.fill_between(series.x, y, step="post", **{**look, "alpha": BAND / 2}))
    parts += axes.plot(
        series.x,
        y,
        label=series.name,
        color=style.ink.light,
        linestyle=(0, _DASHES[style.dash]) if _DASHES[style.dash] else "-",
        linewidth=0.8 * style.width,
        marker=_MARKERS[style.marker] if series.markers else None,
        markersize=4.5,
        drawstyle="steps-post" if series.steps else None,
    )
    for number, part in enumerate(parts):
        part.set_gid(f"line-{entry}-{number}")


def _whiskers(values: Sequence[Number], low: Sequence[Number] | None, high: Sequence[Number] | None) -> Any:
    if low is None or high is None:
        return None
    below = [0.0 if v is None or b is None else max(0.0, v - b) for v, b in zip(values, low)]
    above = [0.0 if v is None or h is None else max(0.0, h - v) for v, h in zip(values, high)]
    return [below, above]


def _notes(axes: Any, notes: Sequence[str] | None) -> None:
    """The values in words, right of the data."""
    for index, text in enumerate(notes or ()):
        axes.text(1.02, index, text, transform=axes.get_yaxis_transform(), fontsize=8.5, va="center")


def _bars(axes: Any, series: Bars) -> None:
    rows = range(len(series.labels))
    ends = [s if v is None else v for v, s in zip(series.values, series.start)]
    lengths = [end - begin for end, begin in zip(ends, series.start)]
    axes.barh(rows, lengths, left=series.start, height=0.62, color=[ink.light for ink in series.inks], alpha=0.85)
    whiskers = _whiskers(series.values, series.low, series.high)
    if whiskers is not None:
        axes.errorbar(ends, rows, xerr=whiskers, fmt="none", ecolor=TEXT.light, elinewidth=1.2, capsize=3)
    for row, mark in enumerate(series.marks or ()):
        if mark:
            axes.plot(ends[row], row, marker=_ARROWS[mark], color=TEXT.light, markersize=8, clip_on=False)
    _notes(axes, series.notes)


def _points(axes: Any, series: Points, figure: Figure) -> None:
    for row, style in enumerate(series.styles):
        value = series.values[row]
        if value is None:
            continue
        axes.errorbar(
            [value],
            [(figure.y.labels or ()).index(series.labels[row])],
            xerr=_whiskers([value], [series.low[row]], [series.high[row]]),
            fmt=_MARKERS[style.marker],
            color=style.ink.light,
            markersize=6,
            elinewidth=1.8,
            capsize=3,
        )
    _notes(axes, series.notes)


def _heat(canvas: Any, axes: Any, figure: Figure, series: Heat) -> None:
    import numpy as np
    from matplotlib import colormaps

    values = np.array([_floats(row) for row in series.values], float)
    rows, columns = (np.arange(count + 1) - 0.5 for count in values.shape)
    colours = colormaps["cividis" if series.bright_is_high else "cividis_r"].resampled(64)
    image = axes.pcolormesh(columns, rows, np.ma.masked_invalid(values), cmap=colours)
    axes.grid(False)
    canvas.colorbar(image, ax=axes, label=series.title, drawedges=False).outline.set_visible(False)
    for labels, put in ((figure.x.labels or (), axes.set_xticks), (figure.y.labels or (), axes.set_yticks)):
        every = max(1, math.ceil(len(labels) / 14))
        put(range(0, len(labels), every), labels[::every])
    known = values[np.isfinite(values)]
    middle = (known.min() + known.max()) / 2 if known.size else 0.0
    for row, texts in enumerate(series.texts):
        for column, text in enumerate(texts):
            bright = (values[row, column] > middle) == series.bright_is_high
            axes.text(column, row, text, ha="center", va="center", fontsize=8, color=_BLACK if bright else "white")
    if series.ring is not None:
        from matplotlib.patches import Rectangle

        row, column = series.ring
        for colour, width in ((_BLACK, 4.0), ("white", 1.6)):
            axes.add_patch(Rectangle((column - 0.5, row - 0.5), 1, 1, fill=False, edgecolor=colour, linewidth=width))
