"""Figures and tables of the analyses, each from what ``collect`` gives and from nothing else."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..protocol.paper_values import RUN_TIME_TOPC
from ..statistics import Interval
from .figure import Axis, Bars, Figure, Heat, Line, Points, Series, clean, slug, spans_decades, thinned
from .palette import PAPER, Style, step_style, style_of
from .table import Cell, Table, interval, interval_text, number, shown, word

Data = Mapping[str, Any]


@dataclass(frozen=True)
class Drawn:
    """What an analysis puts on the page."""

    figures: tuple[Figure, ...] = ()
    tables: tuple[Table, ...] = ()


# -- staleness ---------------------------------------------------------------------------------------------------------


def _staleness(data: Data, where: str) -> Drawn:
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
        figures.append(
            Figure(
                slug("staleness", where, topC),
                f"{where}: ages of stored gradients, topC {topC}",
                Axis("age (steps)", log=True),
                Axis("share of slots (%)"),
                tuple(lines),
                "bins double in width; at the ends of all epochs, all seeds",
            )
        )
    heads = tuple((name, "") for name in ("topC", "decay", "runs", "mean age", "median", "largest"))
    rows = [
        [
            number(c["topC"]),
            number(c["decay"]),
            number(c["runs"]),
            number(c["mean"]),
            number(c["median"]),
            number(c["max"]),
        ]
        for c in cells
    ]
    return Drawn(
        tuple(figures), (Table(slug("table-staleness", where), heads, rows, cells, f"{where}: ages in steps"),)
    )


# -- gt-vs-gc ----------------------------------------------------------------------------------------------------------


def _norms(data: Data, where: str) -> Drawn:
    found = data["lines"]
    lines: list[Series] = []
    for index, line in enumerate(found):
        style = step_style(index, len(found))
        keep = thinned(len(line["gc"]))
        x = [float(i + 1) for i in keep]
        name = f"topC {line['topC']}"
        solid = Style(style.ink, "solid", 2.2, style.marker)
        lines.append(Line(f"{name}: stored", x, clean(line["gc"][i] for i in keep), solid, group=name))
        dotted = Style(style.ink, "dot", 1.8, style.marker)
        lines.append(Line(f"{name}: current", x, clean(line["gt"][i] for i in keep), dotted, group=name))
    values = [v for line in lines if isinstance(line, Line) for v in line.y]
    figure = Figure(
        slug("gt-vs-gc", where),
        f"{where}: stored and current gradients",
        Axis("epoch", whole=True),
        Axis("gradient norm at the end of the epoch", log=spans_decades(values)),
        tuple(lines),
        "mean over seeds; solid: mean norm of the stored gradients, dotted: norm of the current one",
    )
    heads = (("topC", ""), ("runs", ""), ("stored / current", "median over epochs and seeds"), ("test", ""))
    rows = [[number(v["topC"]), number(v["runs"]), number(v["ratio"], 3), number(v["test"])] for v in found]
    records = [{name: v[name] for name in ("topC", "runs", "ratio", "test")} for v in found]
    return Drawn((figure,), (Table(slug("table-gt-vs-gc", where), heads, rows, records, f"{where}: ratio of norms"),))


# -- sensitivity -------------------------------------------------------------------------------------------------------


def _sensitivity(data: Data, where: str) -> Drawn:
    cells = {(cell["topC"], cell["decay"]): cell for cell in data["cells"]}
    topCs, decays = (sorted({key[i] for key in cells}) for i in (0, 1))
    values = [[cells[c, d]["test"] if (c, d) in cells else None for d in decays] for c in topCs]
    texts = [[_cell_text(cells.get((c, d))) for d in decays] for c in topCs]
    chosen = data["chosen"]
    ring = None
    if chosen["topC"] in topCs and chosen["decay"] in decays:
        ring = (topCs.index(chosen["topC"]), decays.index(chosen["decay"]))
    heat = Heat(values, texts, f"test {data['metric']}", data["higher_is_better"], ring)
    title = f"{where}: {data['optimizer']}"
    ringed = f"; ringed: topC {chosen['topC']}, decay {chosen['decay']:g} (where it starts from)" if ring else ""
    figures = [
        Figure(
            slug("sensitivity", where, data["optimizer"]),
            f"{title}, test {data['metric']} by topC and decay",
            Axis("decay", labels=tuple(f"{d:g}" for d in decays)),
            Axis("topC", labels=tuple(str(c) for c in topCs)),
            (heat,),
            f"mean over seeds, bright is better; a cross marks cells with diverged runs{ringed}",
            rows=max(7, len(topCs) + 2),
        )
    ]
    # The paper's two figures: the row and the column through the chosen values.
    for name, others, fixed, at in (
        ("decay", decays, "topC", _nearest(topCs, chosen["topC"])),
        ("topC", topCs, "decay", _nearest(decays, chosen["decay"])),
    ):
        line = [
            cells[(at, v) if name == "decay" else (v, at)]
            for v in others
            if ((at, v) if name == "decay" else (v, at)) in cells
        ]
        if len(line) < 2:
            continue
        x = [float(cell[name]) for cell in line]
        drawn = Line(
            data["optimizer"],
            x,
            clean(cell["test"] for cell in line),
            style_of(data["optimizer"]),
            clean(cell["low"] for cell in line),
            clean(cell["high"] for cell in line),
            markers=True,
        )
        figures.append(
            Figure(
                slug("sensitivity", where, data["optimizer"], name),
                f"{title}, {name} at {fixed} {at:g}",
                Axis(name, log=name == "topC", ticks=tuple(x) if name == "topC" else None),
                Axis(f"test {data['metric']}", log=spans_decades(cell["test"] for cell in line)),
                (drawn,),
                f"mean and 95 % t-interval over {line[0]['runs']} seeds",
            )
        )
    heads = tuple((n, "") for n in ("topC", "decay", "runs", f"test {data['metric']}", "diverged", "training loss"))
    rows = [
        [
            number(c["topC"]),
            number(c["decay"]),
            number(c["runs"]),
            _test(c),
            number(c["diverged"]),
            number(c["train_loss"]),
        ]
        for c in data["cells"]
    ]
    table = Table(slug("table-sensitivity", where), heads, rows, data["cells"], f"{title}: every cell", folded=True)
    return Drawn(tuple(figures), (table,))


def _nearest(values: Sequence[float], wanted: float) -> float:
    return min(values, key=lambda value: abs(value - wanted))


def _cell_text(cell: Data | None) -> str:
    if cell is None:
        return ""
    return shown(cell["test"], 3) + (" ✕" if cell["diverged"] else "")


def _test(cell: Data) -> Cell:
    return interval(Interval(cell["test"], _bound(cell["low"], -1), _bound(cell["high"], 1), cell["runs"]))


def _bound(value: float | None, sign: int) -> float:
    return sign * math.inf if value is None else value


# -- noise, convex -----------------------------------------------------------------------------------------------------


def _noise(data: Data, where: str) -> Drawn:
    lines: list[Series] = []
    for line in data["lines"]:
        points = line["points"]
        lines.append(
            Line(
                line["optimizer"],
                [100 * point["flip_y"] for point in points],
                clean(point["test"] for point in points),
                style_of(line["optimizer"]),
                clean(point["low"] for point in points),
                clean(point["high"] for point in points),
                markers=True,
            )
        )
    figure = Figure(
        slug("noise", where),
        f"{where}: accuracy with flipped labels",
        Axis("labels flipped (%)"),
        Axis("test accuracy (%)"),
        tuple(lines),
        "mean and 95 % t-interval over seeds; flipped labels are in the test part, too",
    )
    flips = sorted({point["flip_y"] for line in data["lines"] for point in line["points"]})
    heads = (("optimizer", ""), *((f"{flip:g}", "share of labels flipped") for flip in flips))
    rows = []
    for line in data["lines"]:
        found = {point["flip_y"]: point["test"] for point in line["points"]}
        rows.append([word(line["optimizer"]), *[number(found.get(flip), 3) for flip in flips]])
    table = Table(
        slug("table-noise", where), heads, rows, data["lines"], f"{where}: accuracy by share of flipped labels"
    )
    return Drawn((figure,), (table,))


def _convex(data: Data, where: str) -> Drawn:
    lines: list[Series] = []
    for line in data["lines"]:
        keep = thinned(len(line["mean"]))
        lines.append(
            Line(
                line["optimizer"],
                [float(i + 1) for i in keep],
                clean(line["mean"][i] for i in keep),
                style_of(line["optimizer"]),
                clean(line["low"][i] for i in keep),
                clean(line["high"][i] for i in keep),
            )
        )
    figure = Figure(
        slug("convex", where),
        f"{where}: training loss of a convex task",
        Axis("epoch", whole=True),
        Axis("training loss", log=spans_decades(v for line in data["lines"] for v in line["mean"])),
        tuple(lines),
        "mean and range over seeds",
    )
    heads = tuple((n, "") for n in ("optimizer", "runs", "diverged", "first epoch", "last epoch"))
    rows = [
        [word(v["optimizer"]), number(v["runs"]), number(v["diverged"]), number(v["mean"][0]), number(v["mean"][-1])]
        for v in data["lines"]
    ]
    records = [{**v, "first": v["mean"][0], "last": v["mean"][-1]} for v in data["lines"]]
    records = [{k: v for k, v in record.items() if k not in ("mean", "low", "high")} for record in records]
    return Drawn((figure,), (Table(slug("table-convex", where), heads, rows, records, f"{where}: training loss"),))


# -- runtime, spectrum -------------------------------------------------------------------------------------------------


def _runtime(data: Data, where: str) -> Drawn:
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
        figures.append(
            Figure(
                slug("runtime", where),
                f"{where}: time of an epoch against topC",
                Axis("topC"),
                Axis("time of an epoch, times that of Adam", log=spans_decades(ratios)),
                tuple(lines),
                f"here: {data['device']}; Adam is topC 0",
            )
        )
    heads = (
        ("topC", ""),
        ("runs", ""),
        ("step (ms)", "median time of optimizer.step"),
        ("epoch (s)", "training only"),
        ("to Adam", "time of an epoch"),
        ("paper, epoch (min)", ""),
        ("paper, to Adam", ""),
        ("peak memory (MB)", ""),
    )
    rows = []
    for p in points:
        minutes = paper.get(p["topC"])
        ratio = minutes / base if minutes and base else None
        peak = p["peak_bytes"] / 1e6 if p["peak_bytes"] else None
        rows.append(
            [
                number(p["topC"]),
                number(p["runs"]),
                number(p["step_ms"], 3),
                number(p["epoch_seconds"], 3),
                number(p["epoch_ratio"], 3),
                number(minutes),
                number(ratio, 3),
                number(peak),
            ]
        )
    return Drawn(
        tuple(figures), (Table(slug("table-runtime", where), heads, rows, points, f"{where} on {data['device']}"),)
    )


def _bytes(data: Data, where: str) -> Drawn:
    rows = data["rows"]
    labels = [row["label"] for row in rows]
    bars = Bars(
        "bytes",
        labels,
        clean(row["bytes"] for row in rows),
        [style_of(row["optimizer"]).ink for row in rows],
        [0.0] * len(rows),
        notes=[shown(row["bytes"], 3) for row in rows],
    )
    figure = Figure(
        slug("spectrum", where),
        "memory needs: state in bytes per parameter",
        Axis("bytes of optimizer state per parameter"),
        Axis("", labels=tuple(labels)),
        (bars,),
        "measured after two steps; the parameter itself (4 bytes) and its gradient are not counted",
        rows=round(0.75 * len(labels)) + 2,
    )
    cells = [[word(row["label"]), word(row["optimizer"]), number(row["bytes"])] for row in rows]
    heads = (("optimizer", ""), ("class", ""), ("bytes per parameter", ""))
    return Drawn(
        (figure,), (Table(slug("table-spectrum", where), heads, cells, rows, "bytes per parameter", folded=True),)
    )


# -- damping -----------------------------------------------------------------------------------------------------------


def _damping(data: Data, where: str) -> Drawn:
    figures = []
    for key, title, axis, factor in (
        ("span_share", "share of the gradient in the memory's span", "share of |g|² (%)", 100.0),
        ("damped_ratio", "norm of the damped direction", "|d| / |g|", 1.0),
    ):
        lines: list[Series] = []
        for line in data["lines"]:
            keep = thinned(len(line[key]))
            y = clean(None if line[key][i] is None else factor * line[key][i] for i in keep)
            lines.append(Line(line["optimizer"], [float(i + 1) for i in keep], y, style_of(line["optimizer"])))
        figures.append(
            Figure(
                slug("damping", where, key),
                f"{where}: {title}",
                Axis("epoch", whole=True),
                Axis(axis),
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
                Axis("epoch", labels=tuple(str(i + 1) for i in keep)),
                Axis("eigenvalue of the Gram matrix", labels=tuple(str(k + 1) for k in range(len(values)))),
                (heat,),
                "relative to the largest eigenvalue; mean over seeds",
            )
        )
    heads = tuple((n, "") for n in ("optimizer", "runs", "span, first epoch (%)", "last (%)", "|d|/|g|, first", "last"))
    rows = []
    for v in data["lines"]:
        share, ratio = v["span_share"], v["damped_ratio"]
        rows.append(
            [
                word(v["optimizer"]),
                number(v["runs"]),
                number(100 * share[0], 3),
                number(100 * share[-1], 3),
                number(ratio[0], 3),
                number(ratio[-1], 3),
            ]
        )
    return Drawn(
        tuple(figures), (Table(slug("table-damping", where), heads, rows, data["lines"], f"{where}: damping"),)
    )


# -- ablations ---------------------------------------------------------------------------------------------------------


def _ablation(data: Data, where: str) -> Drawn:
    figures, tables = [], []
    for study, rows in data["studies"].items():
        varied = [row for row in rows if row["difference"] is not None]
        varied.sort(key=lambda row: (row["optimizer"], -row["difference"]["mean"]))
        if varied:
            labels = [f"{row['optimizer']}: {row['variant']}" for row in varied]
            found = [row["difference"] for row in varied]
            intervals = [
                Interval(f["mean"], _bound(f["low"], -1), _bound(f["high"], 1), row["runs"])
                for f, row in zip(found, varied)
            ]
            points = Points(
                "difference to the default",
                labels,
                clean(f["mean"] for f in found),
                clean(f["low"] for f in found),
                clean(f["high"] for f in found),
                [style_of(row["optimizer"]) for row in varied],
                [
                    interval_text(i, signed=True) + (f", {row['diverged']} diverged" if row["diverged"] else "")
                    for i, row in zip(intervals, varied)
                ],
            )
            usual = ", ".join(dict.fromkeys(f"{row['reference']} for {row['optimizer']}" for row in varied))
            figures.append(
                Figure(
                    slug("ablation", where, study),
                    f"{where}: {study}",
                    Axis(f"improvement of test {data['metric']} over the default; right is better"),
                    Axis("", labels=tuple(labels)),
                    (points,),
                    f"paired difference with 95 % t-interval; default: {usual}",
                    reference=0.0,
                    rows=len(labels),
                )
            )
        heads = tuple(
            (n, "") for n in ("optimizer", "variant", "runs", f"test {data['metric']}", "minus the default", "diverged")
        )
        cells = []
        for row in rows:
            f = row["difference"]
            gap = None if f is None else Interval(f["mean"], _bound(f["low"], -1), _bound(f["high"], 1), row["runs"])
            cells.append(
                [
                    word(row["optimizer"]),
                    word(row["variant"]),
                    number(row["runs"]),
                    _test(row),
                    interval(gap, signed=True)
                    if gap
                    else word("default" if row["variant"] == row["reference"] else "-"),
                    number(row["diverged"]),
                ]
            )
        tables.append(Table(slug("table-ablation", where, study), heads, cells, rows, f"{where}: {study}", folded=True))
    return Drawn(tuple(figures), tuple(tables))


DRAW: dict[str, Callable[[Data, str], Drawn]] = {
    "sensitivity": _sensitivity,
    "staleness": _staleness,
    "gt-vs-gc": _norms,
    "ablation": _ablation,
    "damping": _damping,
    "noise": _noise,
    "convex": _convex,
    "runtime": _runtime,
    "spectrum": _bytes,
}
