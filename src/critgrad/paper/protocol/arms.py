"""The arms of a fair experiment: what is tuned, and what is derived from a tuned memory to tell its effects apart.

A tuned arm has an optimizer and axes to search in each family; all get the same number of trials. A derived arm has no
tuning of its own: ``derived.py`` computes it from a memory arm's selected point. All of them stand in ``values/arms.json``; the
two families of SGD search momentum .9 in one and the same way: same points, same runs.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from critgrad.lab.spaces import Axis, Point

if TYPE_CHECKING:
    from .registration import Registration

# The paper's optimizers, in the order of its tables, and their bases.
PAPER = ("Adam", "Adam_C", "RMSprop", "RMSprop_C", "SGDM", "SGDM_C", "SGD", "SGD_C")
FAMILIES = ("SGD", "SGDM", "RMSprop", "Adam")
Pairs = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class ArmSearch:
    """A tuned arm in one family: the optimizer, what is fixed, and which axes (group, name) it searches beside lr."""

    optimizer: str
    fixed: Mapping[str, Any] = field(default_factory=dict)
    axes: Pairs = ()
    optional: Pairs = ()  # searched where the registration has them, else as fixed

    def space(self, registration: Registration, family: str) -> dict[str, Axis]:
        """Its axes, learning rate first."""
        drawn = [pair for pair in self.optional if pair[1] in registration.axes.get(pair[0], {})]
        own = {name: registration.axes[group][name] for group, name in (*self.axes, *drawn)}
        return {"lr": registration.lr[family], **own}

    def hyper(self, point: Point, seed: int) -> dict[str, Any]:
        """The optimizer's arguments at a point."""
        values = {**self.fixed, **point}
        if values.get("policy") == "random":
            values["seed"] = seed  # coins of its own for each run, or all seeds would store at the same steps
        return values


@dataclass(frozen=True)
class FairArm:
    """One arm. ``label`` names it in tables, with the family in the place of ``{}``; ``labels`` where that does not do."""

    name: str
    label: str
    summary: str
    search: Mapping[str, ArmSearch] = field(default_factory=dict)  # by family; empty for a derived arm
    needs: tuple[str, ...] = ()  # arms whose selected points a derived arm is computed from
    labels: Mapping[str, str] = field(default_factory=dict)  # by family
    against: tuple[str, ...] = ()  # what it is held against beside the base: its own controls and the other optimizers
    # What its difference to the base is made of, as (effect, minuend, subtrahend); they add up to the whole.
    effects: tuple[tuple[str, str, str], ...] = ()

    @property
    def tuned(self) -> bool:
        """Whether it is searched for; else it is derived."""
        return bool(self.search)

    def label_in(self, family: str) -> str:
        """Its name in the tables of a family."""
        return self.labels.get(family, self.label.format(family))


def _pairs(names: Iterable[str]) -> Pairs:
    """``["C.topC"]`` as (group, name)."""
    return tuple((group, axis) for group, _, axis in (name.partition(".") for name in names))


def _arm(name: str, label: str, summary: str, **more: Any) -> FairArm:
    """An entry of the file; axes stand with the arm where all families have the same."""
    axes, optional = more.get("axes", ()), _pairs(more.get("optional", ()))
    search = {
        family: ArmSearch(own["optimizer"], own.get("fixed", {}), _pairs(own.get("axes", axes)), optional)
        for family, own in more.get("search", {}).items()
    }
    lists = {entry: tuple(more.get(entry, ())) for entry in ("needs", "against")}
    effects = tuple((effect, one, other) for effect, one, other in more.get("effects", ()))
    return FairArm(name, label, summary, search, labels=more.get("labels", {}), effects=effects, **lists)


_FILE = Path(__file__).parents[1] / "values" / "arms.json"
ARMS: dict[str, FairArm] = {entry["name"]: _arm(**entry) for entry in json.loads(_FILE.read_text(encoding="utf-8"))}
