"""What is searched: axes as a study's file writes them (``"log 1e-4 1e-1"``), and the points of a replicate.

NOTE [points that stay]: every axis has a scrambled Sobol sequence of its own, drawn from the study's seed, the replicate, the
axis's name and its range. So two arms with the same axis try the same values of it, and nothing that is added to a study (an
arm, an axis, a replicate, more trials) moves the points that were there. One sequence alone would put all axes on a diagonal:
its points 1, 2, 3-4, 5-8, ... are therefore shuffled within each of these pieces, which leaves the first 2^k as even as they
were.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from itertools import combinations
from typing import Any

import torch

from ..errors import LabError
from ..spaces import Axis
from ..train.streams import stream, stream_seed
from ..words import value_of

LARGEST_WHOLE = 2**53  # of those that are drawn as floats
OUTER = 0.1  # the share of a range at each of its ends that is said where many choices lie there


def _ranged(scale: str, integer: bool = False) -> Callable[[Sequence[str]], Axis]:
    def make(words: Sequence[str]) -> Axis:
        if len(words) != 2:
            raise LabError(f"it has {len(words)} values, expected LOW and HIGH")
        low, high = (_number(word, integer) for word in words)
        if not low < high:
            raise LabError(f"LOW is {low:g} and HIGH is {high:g}, expected LOW < HIGH")
        if scale == "log" and low <= 0:
            raise LabError(f"LOW is {low:g}, expected a value above 0, of which there is a logarithm")
        if scale == "complement" and high >= 1:
            raise LabError(f"HIGH is {high:g}, expected a value below 1")
        axis = Axis(scale, low, high, integer=integer)
        if not integer and axis.value(0.25) == axis.value(0.75):
            raise LabError("expected a LOW and a HIGH further apart: values are drawn with four digits")
        return axis

    return make


def _choice(words: Sequence[str]) -> Axis:
    choices = tuple(map(value_of, words))
    if len(choices) < 2 or any(_same(one, other) for one, other in combinations(choices, 2)):
        raise LabError("expected two or more different values")
    for word, value in zip(words, choices):
        if (
            word[0] == ","
            or word[-1] == ","
            or any(isinstance(v, float) and not math.isfinite(v) for v in _each(value))
        ):
            raise LabError(f"{word!r}, expected finite numbers and texts with spaces between them")
    return Axis("choice", choices=choices)


def _each(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list) else (value,)


def _same(one: Any, other: Any) -> bool:
    return one == other and isinstance(one, bool) == isinstance(other, bool)


def _number(word: str, integer: bool) -> float:
    try:
        value = int(word) if integer else float(word)
    except ValueError:
        value = math.nan
    if not abs(value) <= (LARGEST_WHOLE if integer else sys.float_info.max):
        raise LabError(f"{word[:40]!r}, expected {'a whole number, 2^53 at most' if integer else 'a number'}")
    return value


KINDS: Mapping[str, Callable[[Sequence[str]], Axis]] = {
    "log": _ranged("log"),
    "linear": _ranged("linear"),
    "one-minus": _ranged("complement"),
    "int": _ranged("linear", integer=True),
    "log-int": _ranged("log", integer=True),
    "choice": _choice,
}
FORMS = "'log LOW HIGH', 'linear LOW HIGH', 'one-minus LOW HIGH', 'int LOW HIGH', 'log-int LOW HIGH' or 'choice A B C'"


def axis_of(text: str) -> Axis:
    """The axis that a file's text means.

    >>> axis_of("log 1e-4 1e-1").value(0.5), axis_of("int 1 3").value(0.5), axis_of("choice 2 KotH").value(0.9)
    (0.003162, 2, 'KotH')
    """
    kind, *words = text.split() or [""]
    if kind not in KINDS:
        raise LabError(f"expected {FORMS}")
    return KINDS[kind](words)


def points(space: Mapping[str, Axis], seed: int, replicate: int, count: int) -> list[dict[str, Any]]:
    """The points of one search, the values in the order of the space.

    >>> lr = axis_of("log 1e-4 1e-1")
    >>> both = points({"momentum": axis_of("one-minus 0.5 0.99"), "lr": lr}, seed=1, replicate=1, count=8)
    >>> [point["lr"] for point in both] == [point["lr"] for point in points({"lr": lr}, 1, 1, 8)]
    True
    """
    columns = {name: _places(seed, replicate, f"{name} {_range(axis)}", count) for name, axis in space.items()}
    return [{name: axis.value(columns[name][row]) for name, axis in space.items()} for row in range(count)]


def _range(axis: Axis) -> str:
    """A range in one form: ``1e-4`` and ``0.0001`` are the same."""
    return f"{axis.scale} {axis.low!r} {axis.high!r} {axis.integer} {axis.choices!r}"


@lru_cache(maxsize=1024)
def _places(seed: int, replicate: int, axis: str, count: int) -> tuple[float, ...]:
    engine = torch.quasirandom.SobolEngine(1, scramble=True, seed=stream_seed(seed, "points", replicate, axis) % 2**31)
    size = 1 << max(0, count - 1).bit_length()
    drawn = engine.draw(size, dtype=torch.float64)[:, 0]
    shuffling = stream(seed, "order of points", replicate, axis)
    begin, out = 0, []
    while begin < size:
        end = max(1, 2 * begin)
        piece = drawn[begin:end]
        out.append(piece[torch.randperm(len(piece), generator=shuffling)])
        begin = end
    return tuple(torch.cat(out)[:count].tolist())


def near_end(axis: Axis, value: Any) -> bool:
    """Whether a chosen value lies in the outer tenth of its range, at either end.

    >>> lr = axis_of("log 1e-4 1e-1")
    >>> near_end(lr, 1.5e-4), near_end(lr, 1e-3), near_end(axis_of("int 1 5"), 1)
    (True, False, False)
    """
    if axis.scale == "choice":
        return False
    # A whole number owns the piece around it.
    whole = Axis(axis.scale, axis.low - 0.5, axis.high + 0.5) if axis.integer else axis
    return not OUTER <= round(whole.place(float(value)), 9) <= 1 - OUTER


def names_of_options(names: Sequence[str]) -> list[str]:
    """The optimizer's options that (dotted) names set: ``betas.0`` sets a place of ``betas``."""
    return list(dict.fromkeys(name.partition(".")[0] for name in names))


def settled(values: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments of an optimizer from values with dotted names; the other places come from the values, else the defaults.

    >>> settled({"lr": 0.1, "betas.0": 0.5}, {"betas": (0.9, 0.999)})
    {'lr': 0.1, 'betas': (0.5, 0.999)}
    """
    out = {name: _tuples(value) for name, value in values.items() if "." not in name}
    for name, value in values.items():
        option, dot, place = name.partition(".")
        if dot:
            known = out.get(option, defaults.get(option))
            if not isinstance(known, (list, tuple)) or int(place) >= len(known):
                raise LabError(f"{name}: there is no such place in {option} = {known!r}; give {option} under fixed")
            out[option] = (*known[: int(place)], value, *known[int(place) + 1 :])
    return out


def _tuples(value: Any) -> Any:
    return tuple(_tuples(item) for item in value) if isinstance(value, list) else value
