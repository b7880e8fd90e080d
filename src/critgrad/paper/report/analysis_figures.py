"""Which figure belongs to which analysis; those of what a memory costs, and of what its difference to the base is made of."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import accumulate

from critgrad.lab.report.drawn import Data, Drawn
from critgrad.lab.report.figure import Bars, Figure, FigureAxis, Line, Points, Series, clean, slug, value_axis, whiskers
from critgrad.lab.report.palette import EFFECTS, GREY, PAPER, style_of
from critgrad.lab.report.table import Table, number, shown, table_of, word
from critgrad.lab.words import interval_text

from ..protocol.paper_values import RUN_TIME_TOPC
from ..protocol.records import Decomposition
from .inside_figures import damping, norms, staleness
from .study_figures import ablation, convex, noise, sensitivity
from .verdict_tables import columns
from .worded import worded


def runtime(data: Data, where: str) -> Drawn:
    points, printed = data["points"], data["paper_minutes"] or ()
    paper = dict(zip(RUN_TIME_TOPC, printed))
    x = [float(p["topC"]) for p in points]
    base = paper.get(0)
    beside = [(float(c), m / base) for c, m in paper.items() if m and base]
    lines: list[Series] = [Line("here", x, clean(p["epoch_ratio"] for p in points), style_of("Adam_C"), markers=True)]
    if beside:
        lines.append(Line("the paper", [c for c, _ in beside], clean(r for _, r in beside), PAPER, markers=True))
    ratios = [v for line in lines if isinstance(line, Line) for v in line.y]
    figures = []
    if len([v for v in ratios if v is not None]) > 1:
        times = value_axis("", ratios)
        figures.append(worded("runtime", ("runtime", where), {"where": where, **data}, lines, y=times))
    cells = {
        "topC": lambda p: number(p["topC"]),
        "runs": lambda p: number(p["runs"]),
        "step (ms)": lambda p: number(p["step_ms"], 3),
        "to Adam": lambda p: number(p["step_ratio"], 3),
        "epoch (s)": lambda p: number(p["epoch_seconds"], 3),
        "epoch, to Adam": lambda p: number(p["epoch_ratio"], 3),
        "paper, epoch (min)": lambda p: number(paper.get(p["topC"])),
        "paper, to Adam": lambda p: number(dict(beside).get(p["topC"]), 3),
        "peak memory (MB)": lambda p: number(p["peak_bytes"] / 1e6 if p["peak_bytes"] else None),
    }
    name, title = slug("table-runtime", where), f"{where} on {data['device']}"
    return Drawn(tuple(figures), (table_of(name, columns("runtime", cells), points, points, title),))


_VARIANTS = {"": "circle", "topC=5": "circle", "topC=5 bfloat16": "square", "topC=5 int8": "diamond", "topC=20": "star"}


def bytes_per_parameter(data: Data, where: str) -> Drawn:
    rows = data["rows"]
    variants: dict[str, list[Data]] = {}
    for row in rows:
        variants.setdefault(row["label"].partition(" ")[2], []).append(row)
    order = list(dict.fromkeys(row["optimizer"] for row in rows))  # rows come sorted by size
    series = [
        Points(
            variant,
            [row["optimizer"] for row in members],
            clean(row["bytes"] for row in members),
            [None] * len(members),
            [None] * len(members),
            [replace(style_of(row["optimizer"]), marker=_VARIANTS.get(variant, "x")) for row in members],
            hover=[f"{row['label']}: {shown(row['bytes'], 3)} bytes" for row in members],
        )
        for variant, members in variants.items()
    ]
    named = FigureAxis("", labels=tuple(order))
    figure = worded("spectrum", ("spectrum", where), {}, series, y=named, rows=round(0.8 * len(order)) + 1)
    cells = [[word(row["label"]), word(row["optimizer"]), number(row["bytes"])] for row in rows]
    heads = (("optimizer", ""), ("class", ""), ("bytes per parameter", ""))
    table = Table(slug("table-spectrum", where), heads, cells, rows, "bytes per parameter", folded=True)
    return Drawn((figure,), (table,))


def decomposition_figures(task: str, measured: str, parts: Sequence[Decomposition]) -> list[Figure]:
    """What a memory's difference to its base is made of, as a waterfall from 0 to the whole difference."""
    out = []
    for part in parts:
        terms = list(reversed(part.terms))  # from the base up: step size first
        labels, effects = (
            [*(term.effect for term in terms), "total"],
            [*(term.difference for term in terms), part.total],
        )
        start = [*accumulate((term.difference.mean for term in terms[:-1]), initial=0.0), 0.0]  # where each bar begins
        values = clean(first + found.mean for first, found in zip(start, effects))
        low, high = ([None if v is None else at + v for at, v in zip(start, ends)] for ends in whiskers(effects))
        notes = [interval_text(found, "+") for found in effects]
        inks = [EFFECTS[0] if term.difference.mean >= 0 else EFFECTS[1] for term in terms] + [GREY[0]]
        name = f"{part.family}_{part.arm}"
        drawn = Bars("effect", labels, values, inks, start, low, high, None, notes)
        words = {"where": task, "memory": name, "base": part.family, "measured": measured}
        words["terms"] = "; ".join(f"{term.effect}: {term.minuend} − {term.subtrahend}" for term in terms)
        known = any(v is not None for v in low)
        words["whiskers"] = ". Whiskers: 95 % t-interval of that effect alone" if known else ""
        named, identity = FigureAxis("", labels=tuple(labels)), ("decompose", task, name)
        out.append(worded("decompose", identity, words, [drawn], y=named, reference=0.0, rows=len(labels)))
    return out


# Which function draws which analysis. Each draws from what ``collect`` gives and from nothing else.
DRAW: dict[str, Callable[[Data, str], Drawn]] = {
    "sensitivity": sensitivity,
    "staleness": staleness,
    "gt-vs-gc": norms,
    "ablation": ablation,
    "damping": damping,
    "noise": noise,
    "convex": convex,
    "runtime": runtime,
    "spectrum": bytes_per_parameter,
}
