"""Early stopping of a search: many points get little, the best go on, by rungs that are the same for every arm.

Announcements write rungs by seeds as ``"race"`` and rungs by epochs as ``"rungs"``, and are hashed so.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from critgrad.lab.errors import LabError


@dataclass(frozen=True)
class Rung:
    """The points that are still in the search run on the first ``seeds`` tuning seeds (``None``: all) for ``epochs`` epochs
    (``None``: all), each run from its start; the best ``keep`` of them go on.
    """

    keep: int
    seeds: int | None = None
    epochs: int | None = None


def announced(race: Mapping[str, int] | None, rungs: Mapping[str, Sequence[int]] | None) -> tuple[Rung, ...]:
    """From the two entries of a registration."""
    if race is not None and rungs is not None:
        raise LabError(f"Invalid rungs: {rungs!r}, expected no race beside them, one of them")
    if race is not None:
        return (Rung(race["keep"], seeds=race["first"]),)
    if rungs is None:
        return ()
    epochs, keep = rungs["epochs"], rungs["keep"]
    if not (isinstance(epochs, list) and isinstance(keep, list) and len(keep) == len(epochs) > 0):
        raise LabError(f"Invalid rungs: {dict(rungs)!r}, expected as many epochs as points to keep, one or more")
    return tuple(Rung(left, epochs=long) for long, left in zip(epochs, keep))


def entries(rungs: Sequence[Rung]) -> dict[str, Any]:
    """As they stand in a registration."""
    if rungs and rungs[0].seeds is not None:
        return {"race": {"first": rungs[0].seeds, "keep": rungs[0].keep}}
    kept = {"epochs": [rung.epochs for rung in rungs], "keep": [rung.keep for rung in rungs]}
    return {"race": None, **({"rungs": kept} if rungs else {})}


def within(rungs: Iterable[Rung], trials: int) -> tuple[Rung, ...]:
    """The same for so many points."""
    return tuple(replace(rung, keep=min(rung.keep, trials)) for rung in rungs)


def whole(rungs: Iterable[Rung], seeds: int, epochs: int) -> tuple[Rung, ...]:
    """With the numbers said, and the last one, which has all seeds and all epochs and chooses."""
    said = (replace(rung, seeds=rung.seeds or seeds, epochs=rung.epochs or epochs) for rung in rungs)
    return (*said, Rung(1, seeds, epochs))


def text(rungs: Sequence[Rung]) -> str:
    """Rungs by epochs in words; nothing where there are none.

    >>> text([Rung(3, epochs=3), Rung(2, epochs=8)])
    'all for 3 epochs, the best 3 for 8, the best 2 to the end'
    """
    if not any(rung.epochs for rung in rungs):
        return ""
    middle = [f"the best {rung.keep} for {after.epochs}" for rung, after in pairwise(rungs)]
    first = f"all for {rungs[0].epochs} epoch{'s' if rungs[0].epochs != 1 else ''}"
    return ", ".join([first, *middle, f"the best {rungs[-1].keep} to the end"])


def check(rungs: Sequence[Rung], trials: int, seeds: int, epochs: int) -> None:
    """Each rung asks more than the one before and less than all, and keeps no more points."""
    asked, points = (0, 0), trials
    for rung in rungs:
        now = (rung.seeds or 0, rung.epochs or 0)
        ints = all(type(number) is int for number in (rung.keep, *now))
        if not (ints and now > asked and now[0] < seeds and now[1] < epochs):
            limits = f"more than the one before, fewer than {seeds} seeds and {epochs} epochs"
            raise LabError(f"Invalid rung: {rung!r}, expected {limits}")
        if not 1 <= rung.keep <= points:
            raise LabError(f"Invalid rung: {rung!r}, expected to keep at least 1 point and no more than {points}")
        asked, points = now, rung.keep
