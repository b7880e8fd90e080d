"""Figures of what the memory holds: ages, norms, and what damping does to the gradient."""

from __future__ import annotations

import math

from critgrad.lab.report.drawn import Data, Drawn
from critgrad.lab.report.figure import (
    Figure,
    FigureAxis,
    Heat,
    Line,
    Series,
    clean,
    over_epochs,
    slug,
    thinned,
    value_axis,
)
from critgrad.lab.report.palette import Style, step_style, style_of
from critgrad.lab.report.table import Table, number, word


def staleness(data: Data, where: str) -> Drawn:
    figures = []
    cells = data["cells"]
    decays = sorted({cell["decay"] for cell in cells})
    for topC in sorted({cell["topC"] for cell in cells}):
        lines: list[Series] = []
        for cell in (cell for cell in cells if cell["topC"] == topC):
            edges, share = cell["edges"], cell["share"]
            style = step_style(decays.index(cell["decay"]), len(decays))
            name = f"decay {cell['decay']:g}"
            lines.append(Line(name, edges, clean([*[100 * s for s in share], 0.0]), style, steps=True))
        here = [cell for cell in cells if cell["topC"] == topC]
        largest = max(edge for cell in here for edge, share in zip(cell["edges"][1:], cell["share"]) if share)
        doubled = tuple(2.0**k for k in range(math.ceil(math.log2(largest)) + 1))
        ticks = doubled[:: 1 + len(doubled) // 9]
        figures.append(
            Figure(
                slug("staleness", where, topC),
                f"{where}: ages of stored gradients, topC {topC}",
                FigureAxis("age (steps)", log=True, range=(1.0, largest), ticks=ticks),
                FigureAxis("share of slots (%)"),
                tuple(lines),
                "bins double in width; at the ends of all epochs, all seeds",
            )
        )
    heads = tuple((name, "") for name in ("topC", "decay", "runs", "mean age", "median", "largest"))
    rows = [[number(c[name]) for name in ("topC", "decay", "runs", "mean", "median", "max")] for c in cells]
    return Drawn(
        tuple(figures), (Table(slug("table-staleness", where), heads, rows, cells, f"{where}: ages in steps"),)
    )


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
    figure = Figure(
        slug("gt-vs-gc", where),
        f"{where}: stored and current gradients",
        FigureAxis("epoch", whole=True),
        value_axis("gradient norm at the end of the epoch", values),
        tuple(lines),
        "mean over seeds; solid: mean norm of the stored gradients, dotted: norm of the current one",
    )
    heads = (("topC", ""), ("runs", ""), ("stored / current", "median over epochs and seeds"), ("test", ""))
    rows = [[number(v["topC"]), number(v["runs"]), number(v["ratio"], 3), number(v["test"])] for v in found]
    records = [{name: v[name] for name in ("topC", "runs", "ratio", "test")} for v in found]
    return Drawn((figure,), (Table(slug("table-gt-vs-gc", where), heads, rows, records, f"{where}: ratio of norms"),))


def damping(data: Data, where: str) -> Drawn:
    figures = []
    for key, title, axis, factor in (
        ("span_share", "share of the gradient in the memory's span", "share of |g|² (%)", 100.0),
        ("damped_ratio", "norm of the damped direction", "|d| / |g|", 1.0),
    ):
        lines: list[Series] = []
        for line in data["lines"]:
            y = [None if value is None else factor * value for value in line[key]]
            lines.append(over_epochs(line["optimizer"], y, style_of(line["optimizer"]), few=25))
        figures.append(
            Figure(
                slug("damping", where, key),
                f"{where}: {title}",
                FigureAxis("epoch", whole=True),
                FigureAxis(axis),
                tuple(lines),
                "mean over the epoch's steps and over seeds",
            )
        )
    for line in data["lines"]:
        spectrum = line["spectrum"]
        keep = thinned(len(spectrum), 40)
        values = [
            [math.log10(spectrum[i][k]) if spectrum[i][k] and spectrum[i][k] > 1e-12 else None for i in keep]
            for k in range(len(spectrum[0]))
        ]
        heat = Heat(values, [], "log10 of λ / λ₁")
        figures.append(
            Figure(
                slug("damping", where, "spectrum", line["optimizer"]),
                f"{where}: spectrum of the memory, {line['optimizer']}",
                FigureAxis("epoch", labels=tuple(str(i + 1) for i in keep)),
                FigureAxis("eigenvalue of the Gram matrix", labels=tuple(str(k + 1) for k in range(len(values)))),
                (heat,),
                "relative to the largest eigenvalue; mean over seeds",
            )
        )
    heads = tuple((n, "") for n in ("optimizer", "runs", "span, first epoch (%)", "last (%)", "|d|/|g|, first", "last"))
    rows = []
    for v in data["lines"]:
        share, ratio = v["span_share"], v["damped_ratio"]
        ends = (100 * share[0], 100 * share[-1], ratio[0], ratio[-1])
        rows.append([word(v["optimizer"]), number(v["runs"]), *(number(value, 3) for value in ends)])
    return Drawn(
        tuple(figures), (Table(slug("table-damping", where), heads, rows, data["lines"], f"{where}: damping"),)
    )
