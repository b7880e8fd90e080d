"""The page's figures as files, drawn by matplotlib from the same data in the same colours."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..errors import MissingPackageError
from .figure import Bars, Figure, FigureAxis, Heat, Line, Number, Points

_DASHES: dict[str, Any] = {
    "solid": "-",
    "dash": (0, (5, 2.5)),
    "dot": (0, (1, 1.8)),
    "dashdot": (0, (5, 2, 1, 2)),
    "longdash": (0, (9, 3)),
    "longdashdot": (0, (9, 2.5, 1, 2.5)),
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


def write_figures(figures: Sequence[Figure], folder: Path, formats: Sequence[str]) -> list[Path]:
    """Write every figure in every format; one file each, named as on the page."""
    try:
        import matplotlib
    except ImportError:
        raise MissingPackageError("Figures as files need matplotlib: pip install matplotlib") from None
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure as Canvas

    folder.mkdir(parents=True, exist_ok=True)
    written = []
    # Text stays text in an SVG; nothing is asked of a display, nothing of the user's own settings is used.
    # The salt makes the same figure the same file.
    look: dict[str, Any] = {
        "svg.fonttype": "none",
        "svg.hashsalt": "critgrad",
        "pdf.fonttype": 42,
        "font.size": 10,
        "axes.axisbelow": True,
    }
    context: Any = matplotlib.rc_context
    with context(), context(matplotlib.rcParamsDefault), context(look):
        for figure in figures:
            canvas = Canvas(figsize=(6.4, max(2.4, figure.height / 90)), layout="constrained")
            FigureCanvasAgg(canvas)
            _draw(figure, canvas)
            for name in formats:
                path = folder / f"{figure.id}.{name}"
                metadata = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}.get(name)
                canvas.savefig(path, format=name, dpi=160, bbox_inches="tight", metadata=metadata)
                written.append(path)
    return written


def _draw(figure: Figure, canvas: Any) -> None:
    axes = canvas.add_subplot()
    axes.set_title(figure.title, fontsize=10.5, loc="left", wrap=True)
    axes.grid(True, color="#e3e7ee", linewidth=0.8)
    for name in ("top", "right"):
        axes.spines[name].set_visible(False)
    for series in figure.series:
        if isinstance(series, Line):
            _line(axes, series)
        elif isinstance(series, Bars):
            _bars(axes, series)
        elif isinstance(series, Points):
            _points(axes, series, figure)
        else:
            _heat(canvas, axes, figure, series)
    _axes(axes, figure)
    lines = [series for series in figure.series if isinstance(series, Line) and series.shown]
    if len(lines) > 1:
        canvas.legend(
            *zip(*[(handle, label) for handle, label in zip(*axes.get_legend_handles_labels())]),
            loc="outside lower center",
            ncols=3,
            fontsize=8.5,
            frameon=False,
            handlelength=3.2,
        )


def _axes(axes: Any, figure: Figure) -> None:
    heat = any(isinstance(series, Heat) for series in figure.series)
    axes.set_xlabel(figure.x.title)
    axes.set_ylabel(figure.y.title)
    for axis, which in ((figure.x, "x"), (figure.y, "y")):
        if axis.labels is None and axis.log:
            (axes.set_xscale if which == "x" else axes.set_yscale)("log")
        if axis.range is not None:
            (axes.set_xlim if which == "x" else axes.set_ylim)(*axis.range)
        if axis.ticks is not None:
            _ticks(axes, axis, which)
        if axis.whole:
            from matplotlib.ticker import MaxNLocator

            (axes.xaxis if which == "x" else axes.yaxis).set_major_locator(MaxNLocator(integer=True, nbins=8))
    if figure.reference is not None:
        axes.axvline(figure.reference, color="#566072", linestyle=":", linewidth=1)
    if figure.y.labels is not None and not heat:
        axes.set_yticks(range(len(figure.y.labels)), figure.y.labels, fontsize=9)
        axes.set_ylim(len(figure.y.labels) - 0.4, -0.6)
        axes.grid(False, axis="y")


def _ticks(axes: Any, axis: FigureAxis, which: str) -> None:
    from matplotlib.ticker import NullFormatter

    labels = axis.names or [f"{tick:g}" for tick in axis.ticks or ()]
    (axes.set_xticks if which == "x" else axes.set_yticks)(axis.ticks, labels)
    (axes.xaxis if which == "x" else axes.yaxis).set_minor_formatter(NullFormatter())


def _floats(values: Sequence[Number] | None) -> list[float]:
    return [math.nan if value is None else value for value in values or ()]


def _line(axes: Any, series: Line) -> None:
    if not series.shown:
        return
    style = series.style
    colour, steps = style.ink.light, {"drawstyle": "steps-post"} if series.steps else {}
    if series.low is not None and series.high is not None:
        low, high = _floats(series.low), _floats(series.high)
        axes.fill_between(series.x, low, high, color=colour, alpha=0.16, linewidth=0)
    marker = _MARKERS.get(style.marker, "o") if series.markers else None
    y = _floats(series.y)
    axes.plot(
        series.x,
        y,
        label=series.name,
        color=colour,
        linestyle=_DASHES[style.dash],
        linewidth=0.8 * style.width,
        marker=marker,
        markersize=4.5,
        **steps,
    )
    if series.steps:
        axes.fill_between(series.x, y, color=colour, alpha=0.08, step="post", linewidth=0)


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
        axes.errorbar(ends, rows, xerr=whiskers, fmt="none", ecolor="#1c212b", elinewidth=1.2, capsize=3)
    for row, mark in enumerate(series.marks or ()):
        if mark:
            axes.plot(ends[row], row, marker=_ARROWS[mark], color="#1c212b", markersize=8, clip_on=False)
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
            fmt=_MARKERS.get(style.marker, "o"),
            color=style.ink.light,
            markersize=6,
            elinewidth=1.8,
            capsize=3,
        )
    _notes(axes, series.notes)


def _heat(canvas: Any, axes: Any, figure: Figure, series: Heat) -> None:
    import numpy as np

    values = np.array([_floats(row) for row in series.values], float)
    image = axes.imshow(values, origin="lower", aspect="auto", cmap="cividis" if series.bright_is_high else "cividis_r")
    axes.grid(False)
    canvas.colorbar(image, ax=axes, label=series.title)
    for labels, put in ((figure.x.labels or (), axes.set_xticks), (figure.y.labels or (), axes.set_yticks)):
        every = max(1, math.ceil(len(labels) / 14))
        put(range(0, len(labels), every), labels[::every])
    known = values[np.isfinite(values)]
    middle = (known.min() + known.max()) / 2 if known.size else 0.0
    for row, texts in enumerate(series.texts):
        for column, text in enumerate(texts):
            bright = (values[row, column] > middle) == series.bright_is_high
            axes.text(column, row, text, ha="center", va="center", fontsize=8, color="black" if bright else "white")
    if series.ring is not None:
        from matplotlib.patches import Rectangle

        row, column = series.ring
        for colour, width in (("black", 4.0), ("white", 1.6)):
            axes.add_patch(Rectangle((column - 0.5, row - 0.5), 1, 1, fill=False, edgecolor=colour, linewidth=width))
