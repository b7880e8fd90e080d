"""Figures in plotly's form: plain dicts, with colours as references that the page resolves for its colour scheme."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from .figure import Bars, Figure, FigureAxis, Heat, Line, Number, Points
from .palette import Ink, Style

BAND = 0.16  # opacity
CROWD = 5  # lines from which on bands are paler, or they hide each other
_ARROWS = {">": "triangle-right", "<": "triangle-left", "?": "x-thin-open"}


class Inks:
    """The colours in use, numbered. ``"@3"`` stands for the third one, ``"@3/0.16"`` for a thin wash of it."""

    def __init__(self) -> None:
        self.known: dict[Ink, int] = {}

    def __call__(self, ink: Ink, opacity: float = 1.0) -> str:
        index = self.known.setdefault(ink, len(self.known))
        return f"@{index}" if opacity == 1.0 else f"@{index}/{opacity:g}"

    @property
    def pairs(self) -> list[tuple[str, str]]:
        """(light, dark), by number."""
        return [(ink.light, ink.dark) for ink in self.known]


def spec(figure: Figure, inks: Inks) -> dict[str, Any]:
    """Traces, layout and legend of one figure."""
    traces: list[dict[str, Any]] = []
    legend: list[dict[str, Any]] = []
    shapes: list[dict[str, Any]] = []
    heat = False
    crowded = sum(isinstance(series, Line) and series.shown for series in figure.series) > CROWD
    wash = BAND / 2 if crowded else BAND
    for series in figure.series:
        if isinstance(series, Line):
            traces += _line(series, inks, wash, figure.y.range[0] if figure.y.log and figure.y.range else None)
            if all(entry["group"] != series.key for entry in legend):
                legend.append(_legend(series, inks))
        elif isinstance(series, Bars):
            traces += _bars(series, inks)
        elif isinstance(series, Points):
            traces += _points(series, inks)
        else:
            traces.append(_heat(series, figure))
            heat = True
            if series.ring is not None:
                row, column = series.ring
                box = {"x0": column - 0.5, "x1": column + 0.5, "y0": row - 0.5, "y1": row + 0.5}
                # Black and white: one of them is seen on every colour.
                shapes += [
                    {"type": "rect", **box, "line": {"color": colour, "width": width}}
                    for colour, width in (("#000000", 4), ("#ffffff", 1.6))
                ]
    if figure.reference is not None:
        line = {"color": "~axis", "width": 1.2, "dash": "dot"}
        at = figure.reference
        shapes.append({"type": "line", "x0": at, "x1": at, "y0": 0, "y1": 1, "yref": "paper", "line": line})
    layout: dict[str, Any] = {
        "height": figure.height,
        "xaxis": _axis(figure.x, False, heat) | _whole_steps(figure),
        "yaxis": _axis(figure.y, True, heat),
        "shapes": shapes,
    }
    rows = any(isinstance(series, (Bars, Points)) for series in figure.series)
    if rows:
        layout["yaxis"]["range"] = [len(figure.y.labels or ()) - 0.4, -0.6]  # first at the top
        layout["margin"] = {"r": 14}
    return {"data": traces, "layout": layout, "legend": legend}


def _axis(axis: FigureAxis, vertical: bool, heat: bool) -> dict[str, Any]:
    out: dict[str, Any] = {"title": {"text": axis.title}, "automargin": True}
    if axis.labels is not None:
        out |= {"type": "category", "showgrid": not heat and not vertical}
        out |= {"categoryorder": "array", "categoryarray": list(axis.labels)}
    elif axis.log:
        out["type"] = "log"
    if axis.whole:
        out |= {"tickformat": "d", "nticks": 8}
    if axis.ticks is not None:
        out |= {"tickvals": list(axis.ticks), "ticktext": list(axis.names or (f"{tick:g}" for tick in axis.ticks))}
    if axis.range is not None:
        out["range"] = [math.log10(end) for end in axis.range] if axis.log else list(axis.range)
    return out


def _whole_steps(figure: Figure) -> dict[str, Any]:
    """One tick for each epoch where they are few: half epochs have no name."""
    xs = [x for series in figure.series if isinstance(series, Line) for x in series.x]
    return {"dtick": 1} if figure.x.whole and xs and max(xs) - min(xs) <= 10 else {}


def _line(series: Line, inks: Inks, wash: float, floor: float | None = None) -> list[dict[str, Any]]:
    style = series.style
    shape = {"shape": "hv"} if series.steps else {}
    visible: bool | str = True if series.shown else "legendonly"
    common = {
        "type": "scatter",
        "x": list(series.x),
        "legendgroup": series.key,
        "visible": visible,
        "showlegend": False,
    }
    traces: list[dict[str, Any]] = []
    if series.low is not None and series.high is not None and _some(series.low) and _some(series.high):
        edge = {**common, "mode": "lines", "line": {"width": 0, **shape}, "hoverinfo": "skip"}
        low = [v if v is None or floor is None else max(v, floor) for v in series.low]
        traces.append({**edge, "y": low})
        traces.append({**edge, "y": list(series.high), "fill": "tonexty", "fillcolor": inks(style.ink, wash)})
    main: dict[str, Any] = {
        **common,
        "y": list(series.y),
        "name": series.name,
        "mode": "lines+markers" if series.markers else "lines",
        "line": {"color": inks(style.ink), "dash": style.dash, "width": style.width, **shape},
        "hovertemplate": "%{y:.5g}<extra>" + series.name.replace("<", "&lt;") + "</extra>",
    }
    if series.markers:
        main["marker"] = {"symbol": style.marker, "size": 7}
    if series.steps:
        main |= {"fill": "tozeroy", "fillcolor": inks(style.ink, 0.08)}
    return [*traces, main]


def _some(values: Sequence[Number]) -> bool:
    return any(value is not None for value in values)


def _legend(series: Line, inks: Inks) -> dict[str, Any]:
    style: Style = series.style
    return {
        "name": series.key,
        "group": series.key,
        "ink": inks(style.ink),
        "dash": style.dash,
        "width": style.width,
        "shown": series.shown,
    }


def _errors(
    values: Sequence[Number], low: Sequence[Number] | None, high: Sequence[Number] | None, colour: str
) -> Mapping[str, Any] | None:
    if low is None or high is None:
        return None
    above = [None if v is None or h is None else max(0.0, h - v) for v, h in zip(values, high)]
    below = [None if v is None or b is None else max(0.0, v - b) for v, b in zip(values, low)]
    if not _some(above) and not _some(below):
        return None
    return {
        "type": "data",
        "symmetric": False,
        "array": [0 if a is None else a for a in above],
        "arrayminus": [0 if b is None else b for b in below],
        "color": colour,
        "thickness": 1.6,
        "width": 5,
    }


def _bars(series: Bars, inks: Inks) -> list[dict[str, Any]]:
    notes = series.notes or [""] * len(series.labels)
    length = [None if v is None else v - s for v, s in zip(series.values, series.start)]
    bar: dict[str, Any] = {
        "type": "bar",
        "orientation": "h",
        "name": series.name,
        "y": list(series.labels),
        "x": length,
        "base": list(series.start),
        "width": 0.62,
        "marker": {"color": [inks(ink, 0.85) for ink in series.inks]},
        "customdata": list(notes),
        "hovertemplate": "%{y}: %{customdata}<extra></extra>",
        "showlegend": False,
    }
    errors = _errors(series.values, series.low, series.high, "~text")
    # The whiskers and the numbers hang on invisible points at the bars' ends: a bar's own would start at its base.
    ends = [v if v is not None else s for v, s in zip(series.values, series.start)]
    tips: dict[str, Any] = {
        "type": "scatter",
        "mode": "markers",
        "x": ends,
        "y": list(series.labels),
        "marker": {"size": 0.1, "color": "~text"},
        "hoverinfo": "skip",
        "showlegend": False,
    }
    if errors is not None:
        tips["error_x"] = errors
    traces = [bar, tips, _numbers(series.labels, notes)]
    marked = [(label, end, mark) for label, end, mark in zip(series.labels, ends, series.marks or ()) if mark]
    if marked:
        traces.append(
            {
                "type": "scatter",
                "mode": "markers",
                "x": [end for _, end, _ in marked],
                "y": [label for label, _, _ in marked],
                "marker": {"symbol": [_ARROWS[mark] for _, _, mark in marked], "size": 13, "color": "~text"},
                "hoverinfo": "skip",
                "showlegend": False,
            }
        )
    return traces


def _numbers(labels: Sequence[str], notes: Sequence[str]) -> dict[str, Any]:
    """The values in words, in a column of their own at the right edge, where no mark can cover them."""
    return {
        "type": "scatter",
        "mode": "text",
        "x": [1.0] * len(labels),
        "y": list(labels),
        "xaxis": "x2",
        "text": list(notes),
        "textposition": "middle left",
        "textfont": {"size": 12, "color": "~text"},
        "hoverinfo": "skip",
        "showlegend": False,
        "meta": "numbers",
    }


def _points(series: Points, inks: Inks) -> list[dict[str, Any]]:
    notes = series.notes or series.hover or [""] * len(series.labels)
    traces: list[dict[str, Any]] = []
    for index, label in enumerate(series.labels):
        style = series.styles[index]
        value = series.values[index]
        point: dict[str, Any] = {
            "type": "scatter",
            "mode": "markers",
            "x": [value],
            "y": [label],
            "marker": {"symbol": style.marker, "size": 10, "color": inks(style.ink)},
            "customdata": [notes[index]],
            "hovertemplate": "%{y}: %{customdata}<extra></extra>",
            "showlegend": False,
        }
        errors = _errors([value], [series.low[index]], [series.high[index]], inks(style.ink))
        if errors is not None:
            point["error_x"] = {**errors, "thickness": 2.2}
        traces.append(point)
    if series.notes is not None:
        traces.append(_numbers(series.labels, notes))
    return traces


def _heat(series: Heat, figure: Figure) -> dict[str, Any]:
    out: dict[str, Any] = {
        "type": "heatmap",
        "x": list(figure.x.labels or ()),
        "y": list(figure.y.labels or ()),
        "z": [[None if v is None else float(f"{v:.6g}") for v in row] for row in series.values],
        "colorscale": "Cividis",
        "reversescale": not series.bright_is_high,
        "colorbar": {
            "title": {"text": series.title, "side": "right", "font": {"size": 12}},
            "tickfont": {"size": 11},
            "thickness": 12,
            "outlinewidth": 0,
        },
        "hoverongaps": False,
        "hovertemplate": f"{figure.x.title} %{{x}}, {figure.y.title} %{{y}}: %{{z:.5g}}<extra></extra>",
        "xgap": 1,
        "ygap": 1,
    }
    if series.texts:
        out |= {"text": [list(row) for row in series.texts], "texttemplate": "%{text}", "textfont": {"size": 11}}
    return out
