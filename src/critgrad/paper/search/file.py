"""The file that says what a search tries, on which tasks, at which points and seeds.

One JSON file per search in ``critgrad/paper/searches``. What concerns one task is hashed, and the hash is part of every
trial's key: rows of a changed plan answer no question of this one, and a task can be added without touching the others.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from critgrad.lab.errors import LabError, MissingFileError
from critgrad.lab.run.spec import Trial, content_hash
from critgrad.lab.spaces import Axis, Point, draw

from ..protocol.rungs import Rung

FORMAT = 1
FOLDER = Path(__file__).parents[1] / "searches"
BASE = "base"
# What ran the variants (Adam_X, Lion_F, ...) is gone: their runs can be read, and LAST_RUN is the last commit that can make
# more of them.
LAST_RUN = "b716de46cea0"


@dataclass(frozen=True)
class SearchArm:
    """What is tried: an optimizer in each family, options that are not searched, and a line that says why."""

    name: str
    why: str
    optimizer: Mapping[str, str]  # by family; a family that is not there does not have the arm
    options: Mapping[str, Any] = field(default_factory=dict)


def has_memory(optimizer: str) -> bool:
    """Whether an optimizer takes the options of a memory; a variant (``_X``) does."""
    return optimizer.endswith(("_C", "_F", "_X"))


@dataclass(frozen=True)
class Search:
    """A search on one task."""

    name: str
    task: str
    direction: str
    epochs: int
    batch_size: int
    trials: int  # points for each arm
    tuning_seeds: tuple[int, ...]
    rungs: tuple[Rung, ...]  # by seeds
    confirm_seeds: tuple[int, ...]
    confirm_keep: int  # variants of each family that are run on the confirming seeds
    against: tuple[str, ...]  # arms that are run there, too
    lr: Mapping[str, Axis]  # by family
    axes: Mapping[str, Axis]  # of every memory, where the arm has not fixed them
    fixed: Mapping[str, Any]  # of every memory
    arms: tuple[SearchArm, ...]
    space_seed: int
    settings: Mapping[str, Any] = field(default_factory=dict)
    engine: str = "bank"
    content: Mapping[str, Any] = field(default_factory=dict, repr=False)  # the part of the file that says all this
    path: Path | None = field(default=None, compare=False)

    @property
    def higher_is_better(self) -> bool:
        """The metric's direction."""
        return self.direction == "max"

    @property
    def families(self) -> tuple[str, ...]:
        """The bases, each with its own learning rates."""
        return tuple(self.lr)

    def is_variant(self, arm: SearchArm) -> bool:
        """Whether it is one of those among which a winner is looked for: all but those that it is held against."""
        return arm.name not in (BASE, *self.against)

    @property
    def trial_settings(self) -> dict[str, Any]:
        """Of every trial."""
        return {**self.settings, "epochs": self.epochs, "batch_size": self.batch_size}

    def to_dict(self) -> dict[str, Any]:
        """What is hashed: the file without its other tasks."""
        return dict(self.content)

    @cached_property
    def hash(self) -> str:
        """Of the content: what trials carry."""
        return content_hash(self.to_dict())

    def arms_of(self, family: str) -> list[SearchArm]:
        """The arms of a family, in the file's order."""
        return [arm for arm in self.arms if family in arm.optimizer]

    def space(self, family: str, arm: SearchArm) -> dict[str, Axis]:
        """What is searched for an arm."""
        memory = has_memory(arm.optimizer[family])
        own = {name: axis for name, axis in self.axes.items() if memory and name not in arm.options}
        return {"lr": self.lr[family], **own}

    def points(self, family: str, arm: SearchArm) -> list[Point]:
        """The points of an arm: point ``i`` has one learning rate and one rho in all arms of a family."""
        return draw(self.space(family, arm), self.space_seed, 0, self.trials)

    def trial(self, family: str, arm: SearchArm, point: Point, seed: int) -> Trial:
        """One run."""
        optimizer = arm.optimizer[family]
        fixed = self.fixed if has_memory(optimizer) else {}
        hyper = {**fixed, **arm.options, **point}
        return Trial(self.task, optimizer, hyper, seed, self.trial_settings, self.engine, registration=self.hash)


def searches() -> list[str]:
    """The searches that there are."""
    return sorted(path.stem for path in FOLDER.glob("*.json"))


def tasks_of(name: str, folder: Path = FOLDER) -> list[str]:
    """The tasks of a search."""
    return list(json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))["tasks"])


def find(name: str, task: str, folder: Path = FOLDER) -> Search:
    """A search on a task."""
    path = folder / f"{name}.json"
    if not path.exists():
        raise MissingFileError(f"No search {name!r}, expected one of {', '.join(searches())}")
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        return from_dict(name, task, values, path)
    except (KeyError, TypeError, json.JSONDecodeError) as error:
        raise LabError(f"{path}: {type(error).__name__} {error}") from error


def from_dict(name: str, task: str, values: Mapping[str, Any], path: Path | None = None) -> Search:
    """From a parsed file."""
    if values.get("format") != FORMAT:
        raise LabError(f"Invalid format of a search: {values.get('format')!r}, expected {FORMAT}")
    tasks = values["tasks"]
    if task not in tasks:
        raise LabError(f"Invalid task of the search {name}: {task!r}, expected one of {', '.join(tasks)}")
    mine = tasks[task]
    left_out = set(mine.get("without", ()))
    arms = [arm for arm in values["arms"] if arm["name"] not in left_out]
    content = {**values, "name": name, "tasks": {task: mine}, "arms": arms}
    confirm = values["confirm"]
    plain: dict[str, Any] = {entry: mine[entry] for entry in ("direction", "epochs", "batch_size", "trials")}
    plain |= {entry: tuple(mine[entry]) for entry in ("tuning_seeds", "confirm_seeds")}
    return Search(
        name=name,
        task=task,
        **plain,
        rungs=tuple(Rung(**rung) for rung in mine["race"]),
        confirm_keep=confirm["keep"],
        against=tuple(confirm["against"]),
        lr={family: Axis.from_dict(axis) for family, axis in mine["lr"].items()},
        axes={axis: Axis.from_dict(range_) for axis, range_ in values["space"]["memory"].items()},
        fixed=values["fixed"],
        arms=tuple(SearchArm(a["name"], a["why"], a["optimizer"], a.get("options", {})) for a in arms),
        space_seed=values["space"]["seed"],
        settings=mine.get("settings", {}),
        engine=values["engine"],
        content=content,
        path=path,
    )
