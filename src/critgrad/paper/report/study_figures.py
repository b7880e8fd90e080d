"""Figures of how the outcome depends on the options: sensitivity, ablations, label noise, convex tasks."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from critgrad.lab.report.drawn import Data, Drawn, band, band_words, bound, outcome_cell
from critgrad.lab.report.figure import (
    FigureAxis,
    Heat,
    Line,
    Points,
    arrows_text,
    clean,
    over_epochs,
    slug,
    value_axis,
    whisker_words,
    whiskers,
    without_far,
)
from critgrad.lab.report.palette import style_of
from critgrad.lab.report.table import Cell, Table, interval, number, shown, table_of, word
from critgrad.lab.stats import Interval
from critgrad.lab.words import interval_text

from .worded import EPOCHS, worded


def sensitivity(data: Data, where: str) -> Drawn:
    cells = {(cell["topC"], cell["decay"]): cell for cell in data["cells"]}
    topCs, decays = (sorted({key[i] for key in cells}) for i in (0, 1))
    values = [[cells[c, d]["test"] if (c, d) in cells else None for d in decays] for c in topCs]
    texts = [[_cell_text(cells.get((c, d))) for d in decays] for c in topCs]
    chosen = data["chosen"]
    ring = None
    if chosen["topC"] in topCs and chosen["decay"] in decays:
        ring = (topCs.index(chosen["topC"]), decays.index(chosen["decay"]))
    heat = Heat(values, texts, f"test {data['metric']}", data["higher_is_better"], ring)
    words = {"where": where, "optimizer": data["optimizer"], "metric": data["metric"]}
    ringed = f"; ringed: topC {chosen['topC']}, decay {chosen['decay']:g} (where it starts from)" if ring else ""
    whole = len(cells) > len(topCs) * len(decays) / 2  # else these are the two lines alone
    identity = ("sensitivity", where, data["optimizer"])
    axes = (FigureAxis("", labels=tuple(f"{value:g}" for value in values)) for values in (decays, topCs))
    map_of_all = worded("sensitivity", identity, words | {"ringed": ringed}, [heat], *axes, rows=max(7, len(topCs) + 2))
    figures = [map_of_all] if whole else []
    # The paper's two figures: the row and the column through the chosen values.
    for name, others, fixed, at in (
        ("decay", decays, "topC", _nearest(topCs, chosen["topC"])),
        ("topC", topCs, "decay", _nearest(decays, chosen["decay"])),
    ):
        places = [(at, value) if name == "decay" else (value, at) for value in others]
        line = [cells[place] for place in places if place in cells]
        if len(line) < 2:
            continue
        # Evenly spread: .9, .95 and .99 are steps, not neighbours.
        x = [float(place) for place in range(len(line))]
        drawn = _banded(data["optimizer"], x, line)
        steps = FigureAxis("", ticks=tuple(x), names=tuple(f"{cell[name]:g}" for cell in line))
        tested = value_axis("", [cell["test"] for cell in line])
        more = {"name": name, "fixed": fixed, "at": at, "band": band_words(line)}
        figures.append(worded("sensitivity-line", (*identity, name), words | more, [drawn], steps, tested))
    heads = tuple((n, "") for n in ("topC", "decay", "runs", f"test {data['metric']}", "diverged", "training loss"))
    rows = [
        [number(c["topC"]), number(c["decay"]), number(c["runs"]), outcome_cell(c), number(c["diverged"])]
        + [number(c["train_loss"])]
        for c in data["cells"]
    ]
    title = f"{where}: {data['optimizer']}: every cell"
    table = Table(slug("table-sensitivity", where), heads, rows, data["cells"], title, folded=True)
    return Drawn(tuple(figures), (table,))


def _banded(optimizer: str, x: Sequence[float], cells: Sequence[Data]) -> Line:
    low, high = (clean(band(cell)[end] for cell in cells) for end in (0, 1))
    return Line(optimizer, x, clean(c["test"] for c in cells), style_of(optimizer), low, high, markers=True)


def _nearest(values: Sequence[float], wanted: float) -> float:
    return min(values, key=lambda value: abs(value - wanted))


def _cell_text(cell: Data | None) -> str:
    if cell is None:
        return ""
    return shown(cell["test"], 3) + (" ✕" if cell["diverged"] else "")


def noise(data: Data, where: str) -> Drawn:
    lines = [
        _banded(line["optimizer"], [100 * point["flip_y"] for point in line["points"]], line["points"])
        for line in data["lines"]
    ]
    points = [point for line in data["lines"] for point in line["points"]]
    figure = worded("noise", ("noise", where), {"where": where, "band": band_words(points)}, lines)
    flips = sorted({point["flip_y"] for point in points})
    heads = (("optimizer", ""), *((f"{flip:g}", "share of labels flipped") for flip in flips))
    rows = []
    for line in data["lines"]:
        found = {point["flip_y"]: point["test"] for point in line["points"]}
        rows.append([word(line["optimizer"]), *[number(found.get(flip), 3) for flip in flips]])
    title = f"{where}: accuracy by share of flipped labels"
    return Drawn((figure,), (Table(slug("table-noise", where), heads, rows, data["lines"], title),))


def convex(data: Data, where: str) -> Drawn:
    lines = [
        over_epochs(line["optimizer"], line["mean"], style_of(line["optimizer"]), line["low"], line["high"])
        for line in data["lines"]
    ]
    losses = value_axis("", [v for line in data["lines"] for v in line["mean"]])
    figure = worded("convex", ("convex", where), {"where": where}, lines, EPOCHS, losses)
    heads = tuple((n, "") for n in ("optimizer", "runs", "diverged", "first epoch", "last epoch"))
    rows = [
        [word(v["optimizer"]), number(v["runs"]), number(v["diverged"]), number(v["mean"][0]), number(v["mean"][-1])]
        for v in data["lines"]
    ]
    records = [{**v, "first": v["mean"][0], "last": v["mean"][-1]} for v in data["lines"]]
    records = [{k: v for k, v in record.items() if k not in ("mean", "low", "high")} for record in records]
    return Drawn((figure,), (Table(slug("table-convex", where), heads, rows, records, f"{where}: training loss"),))


def _gap(row: Data) -> Interval:
    found = row["difference"]
    return Interval(found["mean"], bound(found["low"], -1), bound(found["high"], 1), row["runs"])


def ablation(data: Data, where: str) -> Drawn:
    figures, tables = [], []
    for study, rows in data["studies"].items():
        varied = [row for row in rows if row["difference"] is not None]
        varied.sort(key=lambda row: (row["optimizer"], -row["difference"]["mean"]))
        if varied:
            labels = [f"{row['optimizer']}: {row['variant']}" for row in varied]
            found = [_gap(row) for row in varied]
            points = Points(
                "difference to the default",
                labels,
                clean(gap.mean for gap in found),
                *whiskers(found),
                [style_of(row["optimizer"]) for row in varied],
                [
                    interval_text(gap, "+") + (f", {row['diverged']} diverged" if row["diverged"] else "")
                    for gap, row in zip(found, varied)
                ],
            )
            points, axis = without_far(points, "")
            usual = ", ".join(dict.fromkeys(f"{row['reference']} for {row['optimizer']}" for row in varied))
            words = {"where": where, "study": study, "metric": data["metric"], "usual": usual}
            words |= {"whiskers": whisker_words(found), "arrows": arrows_text(axis)}
            named, identity = FigureAxis("", labels=tuple(labels)), ("ablation", where, study)
            figures.append(worded("ablation", identity, words, [points], axis, named, reference=0.0, rows=len(labels)))
        cells: dict[str, Callable[[Data], Cell]] = {
            "optimizer": lambda row: word(row["optimizer"]),
            "variant": lambda row: word(row["variant"]),
            "runs": lambda row: number(row["runs"]),
            f"test {data['metric']}": outcome_cell,
            "minus the default": _minus_default,
            "diverged": lambda row: number(row["diverged"]),
        }
        name = slug("table-ablation", where, study)
        tables.append(table_of(name, list(cells.items()), rows, rows, f"{where}: {study}", folded=True))
    return Drawn(tuple(figures), tuple(tables))


def _minus_default(row: Data) -> Cell:
    if row["difference"] is None:
        return word("default" if row["variant"] == row["reference"] else "-")
    return interval(_gap(row), signed=True)
