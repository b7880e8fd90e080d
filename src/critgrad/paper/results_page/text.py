"""Numbers and tables as Markdown. A number has as many digits as its interval supports, and no more."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from critgrad.lab.stats import Interval
from critgrad.lab.words import fixed, interval_text


def interval(found: Interval, sign: str = "") -> str:
    """As everywhere; three digits where a single value leaves the spread unknown, and two values have their interval.

    >>> interval(Interval(92.2713, 92.215, 92.327, 20)), interval(Interval(0.51234, -math.inf, math.inf, 1), "+")
    ('92.271 ± 0.056', '0.512')
    """
    return interval_text(found, sign, fewest=2) if math.isfinite(found.half_width) else short(found.mean)


__all__ = ["behind", "capital", "fixed", "interval", "probability", "seeds_text", "short", "table", "values"]


def short(value: float | None, digits: int = 3) -> str:
    """A few significant digits; a dash where there is no number.

    >>> short(1234567.0), short(0.012345), short(None)
    ('1.23e+06', '0.0123', '-')
    """
    return "-" if value is None or not math.isfinite(value) else f"{value:.{digits}g}"


def probability(p: float | None) -> str:
    """``0.012``, ``< 0.001``, or a dash.

    >>> probability(0.0123), probability(1.9e-06), probability(None)
    ('0.012', '< 0.001', '-')
    """
    if p is None:
        return "-"
    return "< 0.001" if p < 0.001 else f"{p:.3f}"


def capital(words: str) -> str:
    """The same as a sentence begins; names of optimizers stay what they are.

    >>> capital("mean age"), capital("Adam_C +1")
    ('Mean age', 'Adam_C +1')
    """
    return words[:1].upper() + words[1:]


def seeds_text(count: int) -> str:
    """How many seeds stand behind a number.

    >>> seeds_text(1), seeds_text(5)
    ('1 seed', '5 seeds')
    """
    return f"{count} seed" if count == 1 else f"{count} seeds"


def values(hyper: Mapping[str, Any]) -> str:
    """Hyper-parameters, the learning rate first.

    >>> values({"topC": 5, "lr": 0.00123, "aggr": "sum"})
    'lr 0.00123, aggr sum, topC 5'
    """
    ordered = sorted(hyper, key=lambda name: (name != "lr", name))
    return ", ".join(
        f"{name} {short(hyper[name], 4) if isinstance(hyper[name], float) else hyper[name]}" for name in ordered
    )


def behind(settings: Mapping[str, Any]) -> str:
    """Settings at the end of a list of others; nothing where there are none.

    >>> "batch 64" + behind({"clip": 0.25}), "batch 64" + behind({})
    ('batch 64, clip 0.25', 'batch 64')
    """
    return f", {values(settings)}" if settings else ""


def table(head: Sequence[str], rows: Iterable[Sequence[str]], right: Sequence[str] = ()) -> str:
    """A Markdown table; ``right`` names the columns of numbers."""
    lines = [head, ["--:" if name in right else "---" for name in head], *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines) + "\n"
