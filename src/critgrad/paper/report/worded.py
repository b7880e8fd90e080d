"""Figures whose words stand in ``figures.json``: the title, what the axes are, the caption."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from critgrad.lab.report.figure import Figure, FigureAxis, Series, slug

_WORDS = json.loads((Path(__file__).parent / "figures.json").read_text(encoding="utf-8"))
PLAIN_AXIS = FigureAxis("")
EPOCHS = FigureAxis("", whole=True)


def worded(
    name: str,
    identity: Sequence[object],
    values: Mapping[str, object],
    series: Sequence[Series],
    x: FigureAxis = PLAIN_AXIS,
    y: FigureAxis = PLAIN_AXIS,
    **look: Any,
) -> Figure:
    """The figure of that name in the file, with ``values`` in its words; the axes come without their titles."""
    words = {part: text.format_map(values) for part, text in _WORDS[name].items()}
    x, y = replace(x, title=words["x"]), replace(y, title=words["y"])
    return Figure(slug(*identity), words["title"], x, y, tuple(series), words["caption"], **look)
