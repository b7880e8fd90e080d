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

        bars, at = [], 0.0  # each bar's name, where it starts, and its effect
        for term in terms:
            bars.append((term.effect, at, term.difference))
            at += term.difference.mean
        bars.append(("total", 0.0, part.total))
        labels, start = [name for name, _, _ in bars], [first for _, first, _ in bars]
        values, low, high = (
            clean(_shifted(first, getattr(found, end)) for _, first, found in bars) for end in ("mean", "low", "high")
        )
        notes = [interval_text(found, "+") for _, _, found in bars]
        inks = [EFFECTS[0] if term.difference.mean >= 0 else EFFECTS[1] for term in terms] + [GREY[0]]
        name = f"{part.family}_{part.arm}"
        drawn = Bars("effect", labels, values, inks, start, low, high, None, notes)
        out.append(
            Figure(
                slug("decompose", task, name),
                f"{task}: {name} minus {part.family}, taken apart",
                FigureAxis(f"improvement of test {metric}{f' ({unit})' if unit else ''}; right is better"),
                FigureAxis("", labels=tuple(labels)),
                (drawn,),
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
