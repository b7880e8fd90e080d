"""Figures of what the memory holds: ages, norms, and what damping does to the gradient."""

from __future__ import annotations

import math

from critgrad.lab.report.drawn import Data, Drawn
from critgrad.lab.report.figure import FigureAxis, Heat, Line, Series, clean, over_epochs, slug, thinned, value_axis
from critgrad.lab.report.palette import Style, step_style, style_of
from critgrad.lab.report.table import Table, number, word

from .worded import EPOCHS, worded


def staleness(data: Data, where: str) -> Drawn:
    figures = []
    cells = data["cells"]
    decays = sorted({cell["decay"] for cell in cells})
    for topC in sorted({cell["topC"] for cell in cells}):
        lines: list[Series] = []
        here = [cell for cell in cells if cell["topC"] == topC]
        for cell in here:
            edges, share = cell["edges"], cell["share"]
            style = step_style(decays.index(cell["decay"]), len(decays))
            name = f"decay {cell['decay']:g}"
            lines.append(Line(name, edges, clean([*[100 * s for s in share], 0.0]), style, steps=True))
        largest = max(edge for cell in here for edge, share in zip(cell["edges"][1:], cell["share"]) if share)
        doubled = tuple(2.0**k for k in range(math.ceil(math.log2(largest)) + 1))
        ticks = doubled[:: 1 + len(doubled) // 9]
        ages = FigureAxis("", log=True, range=(1.0, largest), ticks=ticks)
        figures.append(worded("staleness", ("staleness", where, topC), {"where": where, "topC": topC}, lines, ages))
    heads = tuple((name, "") for name in ("topC", "decay", "runs", "mean age", "median", "largest"))
    rows = [[number(c[name]) for name in ("topC", "decay", "runs", "mean", "median", "max")] for c in cells]
    table = Table(slug("table-staleness", where), heads, rows, cells, f"{where}: ages in steps")
    return Drawn(tuple(figures), (table,))


def norms(data: Data, where: str) -> Drawn:
    found = data["lines"]
    lines: list[Series] = []
    for index, line in enumerate(found):
        style = step_style(index, len(found))
        name = f"topC {line['topC']}"
        solid, dotted = Style(style.ink, "solid", 2.2, style.marker), Style(style.ink, "dot", 1.8, style.marker)
        lines.append(over_epochs(f"{name}: stored", line["gc"], solid, group=name))
        lines.append(over_epochs(f"{name}: current", line["gt"], dotted, group=name))
    values = [v for line in lines if isinstance(line, Line) for v in line.y]
    figure = worded("gt-vs-gc", ("gt-vs-gc", where), {"where": where}, lines, EPOCHS, value_axis("", values))
    heads = (("topC", ""), ("runs", ""), ("stored / current", "median over epochs and seeds"), ("test", ""))
    rows = [[number(v["topC"]), number(v["runs"]), number(v["ratio"], 3), number(v["test"])] for v in found]
    records = [{name: v[name] for name in ("topC", "runs", "ratio", "test")} for v in found]
    return Drawn((figure,), (Table(slug("table-gt-vs-gc", where), heads, rows, records, f"{where}: ratio of norms"),))


def damping(data: Data, where: str) -> Drawn:
    figures = []
    for key, factor in (("span_share", 100.0), ("damped_ratio", 1.0)):
        lines: list[Series] = []
        for line in data["lines"]:
            y = [None if value is None else factor * value for value in line[key]]
            lines.append(over_epochs(line["optimizer"], y, style_of(line["optimizer"]), few=25))
        figures.append(worded(f"damping-{key}", ("damping", where, key), {"where": where}, lines, EPOCHS))
    for line in data["lines"]:
        spectrum = line["spectrum"]
        keep = thinned(len(spectrum), 40)
        values = [
            [math.log10(spectrum[i][k]) if spectrum[i][k] and spectrum[i][k] > 1e-12 else None for i in keep]
            for k in range(len(spectrum[0]))
        ]
        heat = Heat(values, [], "log10 of λ / λ₁")
        axes = (FigureAxis("", labels=tuple(str(i + 1) for i in shown)) for shown in (keep, range(len(values))))
        identity, words = ("damping", where, "spectrum", line["optimizer"]), {"where": where, **line}
        figures.append(worded("damping-spectrum", identity, words, [heat], *axes))
    heads = tuple((n, "") for n in ("optimizer", "runs", "span, first epoch (%)", "last (%)", "|d|/|g|, first", "last"))
    rows = []
    for v in data["lines"]:
        share, ratio = v["span_share"], v["damped_ratio"]
        ends = (100 * share[0], 100 * share[-1], ratio[0], ratio[-1])
        rows.append([word(v["optimizer"]), number(v["runs"]), *(number(value, 3) for value in ends)])
    table = Table(slug("table-damping", where), heads, rows, data["lines"], f"{where}: damping")
    return Drawn(tuple(figures), (table,))
