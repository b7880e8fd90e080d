"""A study's file: read, checked key by key, and made plain values. What is wrong is one line that says what is allowed."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from ..errors import LabError, MissingPackageError
from ..spaces import Axis
from ..train.schedule import KINDS
from .axes import axis_of

FORMAT = 1
DIRECTIONS = ("min", "max")
SCHEDULES = tuple(KINDS)
PRECISIONS = ("highest", "high", "medium")  # of float32 products, as torch.set_float32_matmul_precision calls them
LARGEST_SEED = 2**31 - 1
MOST_EPOCHS = 10**9
MOST = 1000  # replicates, trials, report seeds: a slip of the finger is not to fill the memory


class StudyError(LabError):
    """Something in a study's files that its author can put right: the exit status of a wrong command line."""

    exit_code = 2


@dataclass(frozen=True)
class ArmFile:
    """An arm as the file has it; dotted names (``betas.0``) set a place in a sequence."""

    name: str
    optimizer: str
    fixed: Mapping[str, Any] = field(default_factory=dict)
    search: Mapping[str, Axis] = field(default_factory=dict)
    texts: Mapping[str, str] = field(default_factory=dict)  # of the axes, as they stand in the file


@dataclass(frozen=True)
class Schedule:
    """What happens to every arm's learning rate; ``warmup`` is a share of all steps."""

    kind: str = "constant"
    warmup: float = 0.0


@dataclass(frozen=True)
class StudyFile:
    """A study's file as values. ``direction`` and ``epochs`` are empty where a built-in task knows its own."""

    path: Path
    text: str
    title: str
    task: str
    direction: str
    epochs: int
    replicates: int
    trials: int
    report_seeds: int
    seed: int
    margin: float | None
    precision: str
    schedule: Schedule
    settings: Mapping[str, Any]
    arms: Mapping[str, ArmFile]
    claims: tuple[tuple[str, tuple[str, ...]], ...]

    @property
    def folder(self) -> Path:
        """Where the file and all that belongs to it lie."""
        return self.path.parent

    @property
    def task_is_file(self) -> bool:
        """Whether the task is somebody's own, not one of `critgrad tasks`."""
        return self.task.endswith(".py")

    def error(self, text: str) -> StudyError:
        """What is wrong with this file, in one line."""
        return StudyError(f"{self.path.name}: {text}")


@dataclass(frozen=True)
class _Key:
    """A key of the file: what it may be, in code and in words, and what it is where it is not given (``...``: it must be)."""

    fits: Callable[[Any], bool]
    expected: str
    default: Any = ...


def _whole(low: int, high: float = math.inf) -> Callable[[Any], bool]:
    return lambda value: type(value) is int and low <= value <= high


def _number(low: float, high: float = sys.float_info.max) -> Callable[[Any], bool]:
    return lambda value: type(value) in (int, float) and low <= value <= high


def _one_of(*names: Any) -> Callable[[Any], bool]:
    return lambda value: type(value) is type(names[0]) and value in names


def _text(value: Any) -> bool:
    return isinstance(value, str) and value.isprintable() and bool(value.strip())


def _table(value: Any) -> bool:
    return isinstance(value, dict)


def _tables(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(map(_table, value))


def _names(value: Any) -> bool:
    return _text(value) or (isinstance(value, list) and bool(value) and all(map(_text, value)))


_TOP = {
    "format": _Key(_one_of(FORMAT), f"{FORMAT}"),
    "title": _Key(_text, "a text on one line", ""),
    "task": _Key(_text, "a Python file beside this one, or a name of `critgrad tasks`"),
    "direction": _Key(_one_of(*DIRECTIONS), "'min' or 'max'", ""),
    "epochs": _Key(_whole(1, MOST_EPOCHS), "a whole number >= 1, 10^9 at most", 0),
    "replicates": _Key(_whole(2, MOST), f"a whole number >= 2, {MOST} at most", 10),
    "trials": _Key(_whole(1, MOST), f"a whole number >= 1, {MOST} at most", 8),
    "report_seeds": _Key(_whole(1, MOST), f"a whole number >= 1, {MOST} at most", 2),
    "seed": _Key(_whole(1, LARGEST_SEED), "a whole number, 1 to 2^31 - 1", 1),
    "margin": _Key(_number(0.0), "a number >= 0", None),
    "precision": _Key(_one_of(*PRECISIONS), f"one of {', '.join(PRECISIONS)}", PRECISIONS[0]),
    "schedule": _Key(_table, "a table with kind and warmup", {}),
    "settings": _Key(_table, "a table with settings of a built-in task", {}),
    "arms": _Key(lambda value: _table(value) and len(value) > 1, "two or more tables [arms.NAME]"),
    "claims": _Key(_tables, "tables [[claims]]", []),
}
_ARM = {
    "optimizer": _Key(_text, "'module:name', 'file.py:name', or a name of `critgrad optimizers`"),
    "fixed": _Key(_table, "a table of options and values", {}),
    "search": _Key(_table, "a table of options and axes", {}),
}
_PLACES = frozenset(map(str, range(100)))  # in a sequence
_SCHEDULE = {
    "kind": _Key(_one_of(*SCHEDULES), f"one of {', '.join(SCHEDULES)}", SCHEDULES[0]),
    "warmup": _Key(_number(0.0, 1.0), "a share of all steps, 0 to 1", 0.0),
}
_CLAIM = {
    "arm": _Key(_text, "the name of an arm"),
    "against": _Key(_names, "the name of an arm, or a list of them"),
}


def read(path: str | Path) -> StudyFile:
    """The study of a file."""
    path = Path(path).absolute()
    path = path.parent.resolve() / path.name  # modules are known by where they lie
    text, values = _load(path)

    def bad(text: str) -> StudyError:
        return StudyError(f"{path.name}: {text}")

    top = _checked(values, _TOP, "", bad)
    for name in top["arms"]:
        if not _text(name):
            raise bad(f"an arm is called {_shown(name)}, expected a text on one line")
    arms = {name: _arm(name, value, bad) for name, value in top["arms"].items()}
    claims = [_checked(claim, _CLAIM, f"claims[{place}].", bad) for place, claim in enumerate(top["claims"], 1)]
    first = next(iter(arms))
    asked = [(claim["arm"], claim["against"]) for claim in claims] or [(name, first) for name in arms if name != first]
    task = top["task"]
    if task.endswith(".py") and top["settings"]:
        raise bad("settings: only a built-in task has settings; put those of your own into its file")
    if task.endswith(".py"):
        for name in ("direction", "epochs"):
            if name not in values:
                raise bad(f"{name} is missing, expected {_TOP[name].expected}")
    if "epochs" in values and "epochs" in top["settings"]:
        raise bad("settings.epochs: epochs stands above, too, expected one of both")
    schedule, settings = Schedule(**_checked(top["schedule"], _SCHEDULE, "schedule.", bad)), top["settings"]
    if "schedule" in values and schedule == Schedule() and not task.endswith(".py"):
        # A built-in task may have another of its own.
        settings = {**settings, "schedule": schedule.kind, "warmup": schedule.warmup}
    return StudyFile(
        path=path,
        text=text,
        title=top["title"] or path.parent.name,
        task=task,
        direction=top["direction"],
        epochs=top["epochs"],
        schedule=schedule,
        settings=settings,
        arms=arms,
        claims=_claims(asked, arms, bad),
        **{name: top[name] for name in ("replicates", "trials", "report_seeds", "seed", "margin", "precision")},
    )


_Bad = Callable[[str], StudyError]


def _load(path: Path) -> tuple[str, dict[str, Any]]:
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        try:
            import tomli as tomllib
        except ModuleNotFoundError:
            raise MissingPackageError("Studies need tomli where Python is older than 3.11: pip install tomli") from None
    if path.is_dir():
        raise StudyError(f"{path.name}: a folder, expected the file in it, such as {path.name}/study.toml")
    try:
        text = path.read_text(encoding="utf-8-sig")  # some editors begin a file with a mark
    except FileNotFoundError:
        raise StudyError(
            f"{path.name}: there is no such file in {path.parent}; `critgrad study new` writes one"
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise StudyError(f"{path.name}: cannot be read: {error}") from None
    try:
        return text, tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        twice = "twice" in str(error) or "overwrite" in str(error).lower()
        hint = "a name stands there twice (arms and keys need names of their own)" if twice else "not TOML"
        raise StudyError(f"{path.name}: {hint}: {error}") from None
    except (ValueError, RecursionError) as error:  # a number of thousands of digits, lists of lists of lists
        raise StudyError(f"{path.name}: cannot be read: {error}") from None


def _checked(values: Mapping[str, Any], keys: Mapping[str, _Key], where: str, bad: _Bad) -> dict[str, Any]:
    """The values of a table with its defaults; the first that is wrong is told."""
    for name in values:
        if name not in keys:
            near = get_close_matches(name, keys, 1)
            hint = f"; did you mean {near[0]}?" if near else "; it stands in the task's file" if name == "data" else ""
            raise bad(f"unknown key {where}{name}, expected one of {', '.join(keys)}{hint}")
    for name, key in keys.items():
        if name not in values and key.default is ...:
            raise bad(f"{where}{name} is missing, expected {key.expected}")
        if name in values and not key.fits(values[name]):
            raise bad(f"{where}{name} is {_shown(values[name])}, expected {key.expected}")
    return {name: values.get(name, key.default) for name, key in keys.items()}


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _arm(name: str, value: Any, bad: _Bad) -> ArmFile:
    where = f"arms.{name}."
    if not isinstance(value, dict):
        raise bad(f"arms.{name} is {_shown(value)}, expected a table [arms.{name}]")
    values = _checked(value, _ARM, where, bad)
    fixed = _flat(values["fixed"], f"{where}fixed.", bad)
    for option, given in fixed.items():
        if not _plain(given):
            raise bad(
                f"{where}fixed.{option} is {_shown(given)}, expected a finite number, a text, true, false or a list"
            )
    texts = _flat(values["search"], f"{where}search.", bad)
    search = {}
    for option, text in texts.items():
        said = f"{where}search.{option} is {_shown(text)}"
        if not isinstance(text, str):
            raise bad(f"{said}, expected a text such as 'log 1e-4 1e-1'")
        if option in fixed:
            raise bad(f"{said}, and stands under fixed, too: expected one of both")
        try:
            search[option] = axis_of(text)
        except LabError as error:
            raise bad(f"{said}: {error}") from None
    return ArmFile(name, values["optimizer"].strip(), fixed, search, texts)


def _flat(table: Mapping[str, Any], where: str, bad: _Bad) -> dict[str, Any]:
    """A table whose dotted names TOML may have read as tables: ``{"betas": {"0": ...}}`` is ``{"betas.0": ...}``."""
    out: dict[str, Any] = {}
    for name, value in table.items():
        inner = {f"{name}.{place}": each for place, each in value.items()} if isinstance(value, dict) else {name: value}
        twice = next((each for each in inner if each in out), None)
        if twice is not None:
            raise bad(f"{where}{twice} stands there twice, expected it once")
        out |= inner or {name: value}
    for name, value in out.items():
        option, dot, place = name.partition(".")
        if not option.isidentifier() or (dot and place not in _PLACES) or value == {}:
            raise bad(f"{where}{name}: expected an option (lr) or a place in one (betas.0)")
    return out


def _plain(value: Any) -> bool:
    if isinstance(value, list):
        return all(map(_plain, value))
    return isinstance(value, (bool, str, int)) or (isinstance(value, float) and math.isfinite(value))


def _claims(
    asked: list[tuple[str, Any]], arms: Mapping[str, ArmFile], bad: _Bad
) -> tuple[tuple[str, tuple[str, ...]], ...]:
    out: list[tuple[str, tuple[str, ...]]] = []
    for arm, against in asked:
        claim = _claim(arm, against, arms, bad)
        if any(claim[0] == known[0] and set(claim[1]) == set(known[1]) for known in out):
            raise bad(
                f"the claim of {arm!r} against {', '.join(map(repr, claim[1]))} stands there twice, expected it once"
            )
        out.append(claim)
    return tuple(out)


def _claim(arm: str, against: Any, arms: Mapping[str, ArmFile], bad: _Bad) -> tuple[str, tuple[str, ...]]:
    rivals = (against,) if isinstance(against, str) else tuple(against)
    for name in (arm, *rivals):
        if name not in arms:
            raise bad(f"a claim is about the arm {name!r}, expected one of {', '.join(arms)}")
    if arm in rivals or len(set(rivals)) < len(rivals):
        raise bad(
            f"a claim sets {arm!r} against {', '.join(map(repr, rivals))}, expected other arms, each of them once"
        )
    return arm, rivals
