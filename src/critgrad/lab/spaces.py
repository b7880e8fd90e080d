"""Search spaces: axes, the scrambled Sobol points on them, and what happens when the best point lies on an edge.

Every axis has a fixed column of one Sobol sequence. Arms that search the same axis therefore try the same values of it
in the same order: trial ``i`` has one learning rate for the base, for its rival and for every memory.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise
from typing import Any, NamedTuple

import torch

from .errors import LabError, require_known
from .stats import EdgeAxis, at_edge

# One column of the Sobol sequence for each name, whatever the arm: that is what makes points shared.
COLUMNS = {"lr": 0, "momentum": 1, "beta1": 1, "topC": 2, "decay": 3, "rho": 4, "aggr": 5}
_DIMENSION = 6
_MARGIN = 0.05  # the outer share of an axis that counts as its edge
_DIGITS = 4  # significant digits of a drawn value: readable, and the same on every machine


class _Scale(NamedTuple):
    """A scale as a function to the line on which values are drawn evenly, and its inverse."""

    forward: Callable[[float], float]
    back: Callable[[float], float]


# "complement" is a logarithmic scale of 1 - x: .9 to .99 is as far as .99 to .999. It runs downwards, hence the signs.
_SCALES = {
    "log": _Scale(math.log, math.exp),
    "linear": _Scale(float, float),
    "complement": _Scale(lambda x: -math.log(1 - x), lambda z: 1 - math.exp(-z)),
}


@dataclass(frozen=True)
class Axis:
    """One hyper-parameter's range.

    Args:
        scale: ``"log"``, ``"linear"``, ``"complement"`` (even in the logarithm of ``1 - x``) or ``"choice"``.
        low, high: the ends, both included.
        integer: whole numbers only.
        choices: of a ``"choice"``.
        widen: decades to add beyond an end at which a best point lies; 0: the end is the method's own, only flagged.

    >>> axis = Axis("log", 1e-4, 1.0)
    >>> axis.value(0.5), round(axis.place(0.01), 6)
    (0.01, 0.5)
    """

    scale: str
    low: float = 0.0
    high: float = 1.0
    integer: bool = False
    choices: tuple[Any, ...] = ()
    widen: float = 0.0

    def __post_init__(self) -> None:
        if self.scale == "choice":
            if not self.choices:
                raise LabError("Invalid axis: a choice needs choices")
            return
        require_known(self.scale, (*_SCALES, "choice"), "scale")
        if not self.low < self.high:
            raise LabError(f"Invalid range: {self.low} to {self.high}, expected low < high")
        if self.scale == "log" and self.low <= 0:
            raise LabError(f"Invalid range: {self.low} to {self.high}, a log scale begins above 0")
        if self.scale == "complement" and not self.high < 1:
            raise LabError(f"Invalid range: {self.low} to {self.high}, a complement scale ends below 1")
        if self.widen and self.scale != "log":
            raise LabError(f"Invalid widen: {self.widen}, only a log scale is widened by decades")

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Axis:
        """From a registration's entry."""
        unknown = set(values) - set(cls.__dataclass_fields__)
        if unknown:
            raise LabError(f"Invalid axis: {sorted(unknown)[0]!r}, expected {', '.join(cls.__dataclass_fields__)}")
        return cls(**{**values, "choices": tuple(values.get("choices", ()))})

    @property
    def decades(self) -> float:
        """The width of a log scale."""
        return math.log10(self.high / self.low)

    def value(self, u: float) -> Any:
        """The value at place ``u`` in [0, 1)."""
        if self.scale == "choice":
            return self.choices[min(int(u * len(self.choices)), len(self.choices) - 1)]
        scale = _SCALES[self.scale]
        if self.integer:
            # Each whole number owns the half-open piece around it, so that the ends are as likely as their neighbours.
            low, high = scale.forward(self.low - 0.5), scale.forward(self.high + 0.5)
            return int(min(max(round(scale.back(low + u * (high - low))), self.low), self.high))
        low, high = scale.forward(self.low), scale.forward(self.high)
        return min(max(_rounded(scale.back(low + u * (high - low)), self.scale), self.low), self.high)

    def place(self, value: float) -> float:
        """Where a value lies: 0 at the low end, 1 at the high end (outside of that: beyond the ends)."""
        scale = _SCALES[self.scale]
        low, high = scale.forward(self.low), scale.forward(self.high)
        return (scale.forward(value) - low) / (high - low)

    def beyond(self, side: str, decades: float) -> Axis:
        """The range that widening adds at one side: the new piece alone."""
        factor = 10.0**decades
        if side == "low":
            return replace(self, low=_rounded(self.low / factor, "log"), high=self.low)
        return replace(self, low=self.high, high=_rounded(self.high * factor, "log"))


def widened(axis: Axis, sides: Sequence[str]) -> Axis:
    """The axis with ``axis.widen`` decades added at each of ``sides``.

    >>> widened(Axis("log", 1e-3, 1.0, widen=1.0), ["high"]).high
    10.0
    """
    for side in sides:
        piece = axis.beyond(side, axis.widen)
        axis = replace(axis, low=min(axis.low, piece.low), high=max(axis.high, piece.high))
    return axis


def extra_points(axis: Axis, trials: int) -> int:
    """How many points a widening adds for every arm: as dense as the first ones, at least two."""
    return max(2, math.ceil(trials * axis.widen / axis.decades))


Space = Mapping[str, Axis]  # by the hyper-parameter's name
Point = dict[str, Any]


def sobol(seed: int, first: int, count: int) -> list[dict[str, float]]:
    """Places in [0, 1) on every column's names: points ``first`` to ``first + count - 1`` of a scrambled sequence."""
    rows = _sequence(seed, first + count)[first:]
    return [{name: row[column] for name, column in COLUMNS.items()} for row in rows]


@lru_cache(maxsize=16)
def _sequence(seed: int, count: int) -> list[list[float]]:
    engine = torch.quasirandom.SobolEngine(_DIMENSION, scramble=True, seed=seed)
    return engine.draw(count, dtype=torch.float64).tolist()


def draw(space: Space, seed: int, first: int, count: int) -> list[Point]:
    """Points of a space. Spaces that share an axis get the same values on it.

    >>> lr = Axis("log", 1e-4, 1.0)
    >>> alone = draw({"lr": lr}, seed=1, first=0, count=8)
    >>> both = draw({"lr": lr, "topC": Axis("log", 2, 20, integer=True)}, seed=1, first=0, count=8)
    >>> [p["lr"] for p in alone] == [p["lr"] for p in both]
    True
    """
    for name in space:
        require_known(name, COLUMNS, "axis")
    return [{name: axis.value(u[name]) for name, axis in space.items()} for u in sobol(seed, first, count)]


def widest_step(axis: Axis, name: str, seed: int, trials: int) -> float:
    """The largest factor between neighbours among the points of a logarithmic axis: what lies between was tried by no arm.

    >>> lr = Axis("log", 1e-4, 1.0)
    >>> [round(widest_step(lr, "lr", seed, 8), 1) for seed in (20220425, 20261308)]
    [6.9, 3.4]
    """
    values = sorted(point[name] for point in draw({name: axis}, seed, 0, trials))
    return max((high / low for low, high in pairwise(values)), default=math.inf)


def edges(point: Mapping[str, Any], space: Space, tried: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """The axes on which a chosen point lies at an end (``{"lr": "high"}``): a better one may lie beyond.

    A learning rate (an axis that can be widened) is also at an end when no other trial went further; on the others,
    with few trials and many axes, some value is always the outermost, and only the margin counts.
    """
    found: dict[str, str] = {}
    for name, axis in space.items():
        if axis.scale == "choice":
            continue
        place = {name: axis.place(point[name])}
        others = [{name: axis.place(other[name])} for other in tried] if axis.widen else []
        found |= at_edge(place, {name: EdgeAxis(0.0, 1.0, "linear")}, others, margin=_MARGIN)
    return found


def _rounded(value: float, scale: str) -> float:
    if scale == "complement":
        return round(1 - _rounded(1 - value, "log"), 12)
    return float(f"{value:.{_DIGITS - 1}e}")


def rounded_lr(value: float) -> float:
    """A computed learning rate with as many digits as a drawn one."""
    return _rounded(value, "log")
