"""The file that announces a fair experiment, before it is run: what is tried, on which seeds, judged by what.

One JSON file per task in ``critgrad/paper/registrations``, and ``TASK+QUESTION.json`` for what is asked of it later. Its
content is hashed and the hash is part of every trial's key: rows of a changed plan answer no question of this one. ``notes``
say why; they are part of the hash, too.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from critgrad.lab.errors import LabError, MissingFileError
from critgrad.lab.run.spec import ENGINES, Trial, content_hash
from critgrad.lab.spaces import Axis, widest_step

from .arms import ARMS, FAMILIES
from .rungs import Rung, announced, check, entries, text, whole

FORMAT = 1
FOLDER = Path(__file__).parents[1] / "registrations"
DIRECTIONS = ("max", "min")
LEAST_DECADES = 4.0  # of a learning rate
LEAST_DECADES_LATER = 1.0  # of a later question, which may look closer where the first one has found its best


@dataclass(frozen=True)
class Timing:
    """Single runs that are only timed: the cost columns, and how much longer the base may train."""

    seeds: tuple[int, ...]
    epochs: int  # enough for the 20 + 200 steps that are timed, and two at least: the first is not counted
    arms: tuple[str, ...] = ("base", "C", "F", "rival")


@dataclass(frozen=True)
class Primary:
    """A comparison that a claim may rest on: ``arm`` against the best of ``against`` on the tuning seeds."""

    arm: str
    against: tuple[str, ...]


@dataclass(frozen=True)
class Registration:
    """One announced experiment."""

    task: str
    metric: str
    direction: str
    epochs: int
    batch_size: int
    engine: str
    trials: int  # points of the search space for each tuned arm
    space_seed: int
    lr: Mapping[str, Axis]  # by family
    axes: Mapping[str, Mapping[str, Axis]]  # by group ("momentum", "C", "F"), then by hyper-parameter
    tuning_seeds: tuple[int, ...]
    report_seeds: tuple[int, ...]
    families: tuple[str, ...]
    arms: tuple[str, ...]
    primary: tuple[Primary, ...]
    target: float = 0.99  # share of the way from the initial to the base's best validation value
    widenings: int = 2  # times that the learning rate's range may grow
    settings: Mapping[str, Any] = field(default_factory=dict)  # of the task, beside epochs and batch size
    rungs: tuple[Rung, ...] = ()
    timing: Timing | None = None
    notes: Mapping[str, str] = field(default_factory=dict)
    question: str = ""  # what a later experiment on the same task asks, in a word; "" for the task's first
    path: Path | None = field(default=None, compare=False)  # the file it was read from, if unchanged since

    def __post_init__(self) -> None:
        _check(self)

    @property
    def name(self) -> str:
        """The file's: ``TASK``, or ``TASK+QUESTION``."""
        return f"{self.task}+{self.question}" if self.question else self.task

    @property
    def higher_is_better(self) -> bool:
        """The metric's direction."""
        return self.direction == "max"

    @property
    def widest_step(self) -> float:
        """The largest factor between neighbouring learning rates, before any widening."""
        return max(widest_step(axis, "lr", self.space_seed, self.trials) for axis in self.lr.values())

    @property
    def trial_settings(self) -> dict[str, Any]:
        """Of every trial. Epochs and batch size are always said: a task's defaults may change, this may not."""
        return {**self.settings, "epochs": self.epochs, "batch_size": self.batch_size}

    def trial(
        self, optimizer: str, hyper: Mapping[str, Any], seed: int, epochs: int | None = None, **more: Any
    ) -> Trial:
        """One run of the experiment: for all epochs, or for so many. ``more`` is of ``Trial``."""
        settings = self.trial_settings | ({} if epochs is None else {"epochs": epochs})
        return Trial(
            self.task, optimizer, hyper, seed, settings, registration=self.hash, **{"engine": self.engine, **more}
        )

    @property
    def every_rung(self) -> tuple[Rung, ...]:
        """The rounds of every arm's search; the last one has all seeds and all epochs."""
        return whole(self.rungs, len(self.tuning_seeds), self.epochs)

    @property
    def rungs_text(self) -> str:
        """How points are stopped after few epochs; nothing where they are not."""
        return text(self.rungs)

    @property
    def tuning_runs(self) -> int:
        """Runs that the search of one arm takes, without widenings."""
        runs, points = 0, self.trials
        done: set[tuple[int | None, int]] = set()
        for rung in self.every_rung:
            wanted = {(rung.epochs, seed) for seed in self.tuning_seeds[: rung.seeds]}
            runs += points * len(wanted - done)
            done |= wanted
            points = rung.keep
        return runs

    def to_dict(self) -> dict[str, Any]:
        """As plain values, in the file's layout."""
        plain = {name: _plain(getattr(self, name)) for name in _ENTRIES if name != "question" or self.question}
        space = {"seed": self.space_seed, "lr": _plain(self.lr), **_plain(self.axes)}
        return {"format": FORMAT, **plain, **entries(self.rungs), "space": space, "notes": dict(self.notes)}

    @cached_property
    def hash(self) -> str:
        """Of the content: what trials carry."""
        return content_hash(self.to_dict())

    def changed(self, **changes: Any) -> Registration:
        """Another experiment: the same with some values replaced. It has another hash, and no file announced it."""
        changes = {name: value for name, value in changes.items() if value is not None}
        if all(getattr(self, name) == value for name, value in changes.items()):
            return self
        return replace(self, **changes, path=None)


def from_dict(values: Mapping[str, Any], path: Path | None = None) -> Registration:
    """From a parsed file; unknown and missing entries are errors that name them."""
    if values.get("format") != FORMAT:
        raise LabError(f"Invalid format of a registration: {values.get('format')!r}, expected {FORMAT}")
    known = {"format", "space", "race", "rungs", "notes", *_ENTRIES}
    unknown, missing = sorted(set(values) - known), sorted({"space", *_REQUIRED} - set(values))
    if unknown:
        raise LabError(f"Invalid entry of a registration: {unknown[0]!r}, expected some of {', '.join(sorted(known))}")
    if missing:
        raise LabError(f"The registration has no {missing[0]!r}")
    space = dict(values["space"])
    seed, lr = space.pop("seed"), space.pop("lr")
    plain = {name: values[name] for name in values if name not in ("format", "space")}
    plain |= {name: tuple(plain[name]) for name in ("tuning_seeds", "report_seeds", "families", "arms")}
    plain["primary"] = tuple(Primary(p["arm"], tuple(p["against"])) for p in plain["primary"])
    plain["rungs"], timing = announced(plain.pop("race", None), plain.get("rungs")), plain.get("timing")
    lists = {name: tuple(value) for name, value in (timing or {}).items() if isinstance(value, list)}
    plain["timing"] = None if timing is None else Timing(**{**timing, **lists})
    return Registration(
        **plain,
        space_seed=seed,
        lr={family: Axis.from_dict(axis) for family, axis in lr.items()},
        axes={g: {name: Axis.from_dict(axis) for name, axis in axes.items()} for g, axes in space.items()},
        path=path,
    )


# Entries that have a form of their own in the file; the others stand there as they are.
_OWN_FORM = ("space_seed", "lr", "axes", "rungs", "notes", "path")
_ENTRIES = {each.name: each for each in fields(Registration) if each.name not in _OWN_FORM}
_REQUIRED = [name for name, each in _ENTRIES.items() if each.default is MISSING and each.default_factory is MISSING]


def load(path: Path | str) -> Registration:
    """Read and check a registration file."""
    path = Path(path)
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise LabError(f"{path} is not JSON: {error}") from None
    try:
        return from_dict(values, path)
    except (TypeError, ValueError, KeyError) as error:
        raise LabError(f"{path}: {error}") from error


def registered() -> list[str]:
    """The names of the registrations: a task's, or a task's and a question."""
    return sorted(path.stem for path in FOLDER.glob("*.json"))


def find(name: str) -> Registration:
    """The registration of that name, or an error that lists those that there are."""
    path = FOLDER / f"{name}.json"
    if not path.exists():
        raise MissingFileError(
            f"No registration for {name!r}: the fair track runs only what was announced. There are {registered()}; "
            f"write {path.name} after their pattern, commit it, and run again"
        )
    return load(path)


def _check(r: Registration) -> None:
    def require(holds: bool, what: str, value: object, expected: str) -> None:
        if not holds:
            raise LabError(f"Invalid {what}: {value!r}, expected {expected}")

    require(r.direction in DIRECTIONS, "direction", r.direction, " or ".join(DIRECTIONS))
    require(r.engine in ENGINES, "engine", r.engine, " or ".join(ENGINES))
    for name in ("epochs", "batch_size", "trials"):
        require(isinstance(getattr(r, name), int) and getattr(r, name) >= 1, name, getattr(r, name), "an int >= 1")
    require(0 < r.target <= 1, "target", r.target, "0 < target <= 1")
    require(len(set(r.tuning_seeds)) == len(r.tuning_seeds) > 0, "tuning_seeds", r.tuning_seeds, "different seeds")
    require(len(set(r.report_seeds)) == len(r.report_seeds) > 0, "report_seeds", r.report_seeds, "different seeds")
    shared = sorted(set(r.tuning_seeds) & set(r.report_seeds))
    require(not shared, "report_seeds", shared, "fresh ones, none of them a tuning seed")
    require(set(r.families) <= set(FAMILIES), "families", r.families, f"some of {', '.join(FAMILIES)}")
    unknown = [arm for arm in r.arms if arm not in ARMS]
    require(not unknown, "arms", unknown, f"some of {', '.join(ARMS)}")
    require("base" in r.arms, "arms", r.arms, "the base among them")
    for arm in r.arms:
        needs = [need for need in ARMS[arm].needs if need not in r.arms]
        require(not needs, f"arm {arm!r}", r.arms, f"also {needs}: it is derived from them")
        searches = [search for family, search in ARMS[arm].search.items() if family in r.families]
        searched = {axis for search in searches for axis in search.axes}
        missing = sorted(f"{group}.{name}" for group, name in searched if name not in r.axes.get(group, {}))
        require(not missing, "space", sorted(r.axes), f"also {', '.join(missing)}: the arm {arm!r} searches it")
    for primary in r.primary:
        absent = [arm for arm in (primary.arm, *primary.against) if arm not in r.arms]
        require(not absent, "primary", absent, "arms of this registration")
    arms = [p.arm for p in r.primary]
    require(len(set(arms)) == len(arms), "primary", arms, "one primary comparison for each arm")
    for family in r.families:
        require(family in r.lr, "space", sorted(r.lr), f"a learning rate's range for {family}")
        axis = r.lr[family]
        least = LEAST_DECADES_LATER if r.question else LEAST_DECADES
        wide = axis.scale == "log" and axis.decades >= least - 1e-9
        require(wide, f"lr of {family}", [axis.low, axis.high], f"a log scale over at least {least:g} decades")
    if r.timing is not None:
        require(r.timing.epochs >= 2, "timing", r.timing, "at least 2 epochs: the first is not counted")
        require(len(r.timing.seeds) > 0, "timing", r.timing, "at least one seed")
        absent = [arm for arm in r.timing.arms if arm not in r.arms or not ARMS[arm].tuned]
        require(not absent, "timing", absent, "tuned arms of this registration")
    check(r.rungs, r.trials, len(r.tuning_seeds), r.epochs)
    # A run of a rung would be found in the place of the timed one, and it was not alone on its machine.
    as_long = r.timing is not None and any(rung.epochs == r.timing.epochs for rung in r.rungs)
    shared = sorted(set(r.tuning_seeds) & set(r.timing.seeds)) if r.timing and as_long else []
    require(not shared, "timing", shared, "seeds that no rung of as many epochs has")


def _plain(value: Any) -> Any:
    """A value as JSON has it; of a range what is not as usual."""
    if isinstance(value, Axis):
        ends = ("choices",) if value.scale == "choice" else ("low", "high")
        marks = tuple(name for name in ("integer", "widen") if getattr(value, name))
        return {name: _plain(getattr(value, name)) for name in ("scale", *ends, *marks)}
    if isinstance(value, (Timing, Primary)):
        return _plain(vars(value))
    if isinstance(value, Mapping):
        return {name: _plain(of) for name, of in value.items()}
    return [_plain(of) for of in value] if isinstance(value, (tuple, list)) else value
