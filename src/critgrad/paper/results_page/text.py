"""Numbers and tables as Markdown. A number has as many digits as its interval supports, and no more."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from critgrad.lab.stats import Interval
from critgrad.lab.words import fixed as fixed
from critgrad.lab.words import interval_text, show


def interval(found: Interval, sign: str = "") -> str:
    """As everywhere; three digits where a single value leaves the spread unknown, and two values have their interval.

    >>> interval(Interval(92.2713, 92.215, 92.327, 20)), interval(Interval(0.51234, -math.inf, math.inf, 1), "+")
    ('92.271 ± 0.056', '0.512')
    """
    return interval_text(found, sign, fewest=2) if math.isfinite(found.half_width) else short(found.mean)


def short(value: float | None, digits: int = 3) -> str:
    """A few significant digits; a dash where there is no number."""
    return show(value, digits)


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


def prose(name: str) -> str:
    """A Markdown file that lies beside this one."""
    return (Path(__file__).parent / f"{name}.md").read_text(encoding="utf-8").strip()


@cache
def labels(kind: str) -> dict[str, str]:
    """What families of tests, their rows in the summary and the figures are called in words."""
    found: dict[str, str] = json.loads((Path(__file__).parent / "labels.json").read_text(encoding="utf-8"))[kind]
    return found


def filled(text: str, values: Mapping[str, str]) -> str:
    """Names in braces by their values. A paragraph or an entry of a list goes where one of its names has none, a section where
    none of its names has one.

    >>> filled("One {a}.\\n\\n- {b}\\n- {a}\\n\\n## C\\n\\nAll:\\n\\n{c}", {"a": "1"})
    'One 1.\\n\\n- 1'
    """
    sections = [(section, NAME.findall(section)) for section in text.split("\n\n## ")]
    kept = "\n\n## ".join(section for section, names in sections if not names or any(name in values for name in names))
    out = []
    for block in kept.split("\n\n"):
        parts = [part for part in block.split("\n- ") if all(name in values for name in NAME.findall(part))]
        if parts:
            joined = "\n- ".join(parts)
            out.append(f"- {joined}" if block.startswith("- ") and not joined.startswith("- ") else joined)
    return NAME.sub(lambda match: values[match[1]], "\n\n".join(out))


NAME = re.compile(r"\{([\w.-]+)\}")


def page(name: str, /, **values: object) -> str:
    """The Markdown file of a page with its values; what is empty is not there."""
    return filled(prose(name), {key: str(value) for key, value in values.items() if value})
