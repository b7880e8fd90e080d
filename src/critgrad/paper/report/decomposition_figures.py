"""How much of a difference is step size, delay, kernel shape, selection: bars that begin where the last one ended."""

from __future__ import annotations

import math
from collections.abc import Sequence

from critgrad.lab.report.figure import Bars, Figure, FigureAxis, Number, clean, slug
from critgrad.lab.report.palette import EFFECTS, GREY
from critgrad.lab.words import interval_text

from ..protocol.records import Decomposition


def decomposition_figures(task: str, metric: str, unit: str, parts: Sequence[Decomposition]) -> list[Figure]:
    """What a memory's difference to its base is made of, as a waterfall from 0 to the whole difference."""
    out = []
    for part in parts:
        terms = list(reversed(part.terms))  # from the base up: step size first
        labels, start, values, low, high, notes = [], [], [], [], [], []
        at = 0.0
        for term in terms:
            found = term.difference
            labels.append(term.effect)
            start.append(at)
            values.append(at + found.mean)
            low.append(_shifted(at, found.low))
            high.append(_shifted(at, found.high))
            notes.append(interval_text(found, "+"))
            at += found.mean
        total = part.total
        labels.append("total")
        start.append(0.0)
        values.append(total.mean)
        low.append(_shifted(0.0, total.low))
        high.append(_shifted(0.0, total.high))
        notes.append(interval_text(total, "+"))
        inks = [EFFECTS[0] if term.difference.mean >= 0 else EFFECTS[1] for term in terms] + [GREY[0]]
        name = f"{part.family}_{part.arm}"
        bars = Bars("effect", labels, clean(values), inks, start, clean(low), clean(high), None, notes)
        out.append(
            Figure(
                slug("decompose", task, name),
                f"{task}: {name} minus {part.family}, taken apart",
                FigureAxis(f"improvement of test {metric}{f' ({unit})' if unit else ''}; right is better"),
                FigureAxis("", labels=tuple(labels)),
                (bars,),
                "each bar starts where the one above ends: "
                + "; ".join(f"{term.effect}: {term.minuend} − {term.subtrahend}" for term in terms)
                + ". Whiskers: 95 % t-interval of that effect alone",
                reference=0.0,
                rows=len(labels),
            )
        )
    return out


def _shifted(at: float, value: float) -> Number:
    return at + value if math.isfinite(value) else None
