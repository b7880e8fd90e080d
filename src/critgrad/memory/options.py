"""The options of a memory: names, defaults, and the rule each value must obey.

Every option lives in ``param_groups``, so it is saved with the optimizer and may differ from group to group.
"""

from __future__ import annotations

import difflib
import math
import numbers
import warnings
from collections.abc import Callable, Collection, Container, Iterable, Mapping
from typing import Any

import torch

from .aggregations import AGGREGATIONS, Aggregation, aggregation_of
from .formats import FORMATS
from .policies import POLICIES, Policy

SCOPES = ("global", "group", "tensor")

DEFAULTS: dict[str, Any] = {
    "topC": 5,
    "decay": 0.7,
    "aggr": "mean",
    "kappa": 1.0,
    "rho": 0.3,
    "policy": "KotH",
    "every": 10,
    "scope": "global",
    "max_age": None,
    "seed": 0,
    "memory_dtype": None,
    "memory_device": None,
}

# With aggr="fisher" other values have proved good (see the docs, "Adding and damping").
FISHER_DEFAULTS = {"topC": 10, "decay": 0.99, "rho": 0.3}

# Saved by their names: functions are not saved.
OBJECTS: dict[str, tuple[Any, Any]] = {"policy": (Policy, POLICIES), "aggr": (Aggregation, AGGREGATIONS)}

# What a checkpoint does not change: these describe the memory that was allocated, not how it is used.
KEPT_ON_LOAD = ("topC", "scope", "memory_dtype", "memory_device")

# One memory over several groups can only have one of each of these.
AGREE_IN_A_MEMORY = ("topC", "decay", "policy", "every", "max_age", "seed")

# option -> the only value of another option that looks at it
_GOES_WITH = {"rho": ("aggr", "fisher"), "every": ("policy", "sparse")}


def _is_int(value: Any, low: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= low


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _one_of(names: Iterable[str]) -> str:
    return "one of " + ", ".join(f'"{name}"' for name in names)


# option -> (test, what the error says was expected)
_RULES: dict[str, tuple[Callable[[Any], bool], str]] = {
    "topC": (lambda v: _is_int(v, 0), "an int >= 0"),
    "decay": (lambda v: _is_number(v) and 0 <= v <= 1, "0 <= decay <= 1"),
    "aggr": (
        lambda v: isinstance(v, Aggregation) or (isinstance(v, str) and v in AGGREGATIONS),
        _one_of(AGGREGATIONS) + " or a critgrad.Aggregation",
    ),
    "kappa": (lambda v: _is_number(v) and v >= 0, "a finite number >= 0"),
    "rho": (lambda v: _is_number(v) and v > 0, "a finite number > 0"),
    "policy": (
        lambda v: isinstance(v, Policy) or (isinstance(v, str) and v in POLICIES),
        _one_of(POLICIES) + " or a critgrad.Policy",
    ),
    "every": (lambda v: _is_int(v, 1), "an int >= 1"),
    "scope": (lambda v: isinstance(v, str) and v in SCOPES, _one_of(SCOPES)),
    "max_age": (lambda v: v is None or _is_int(v, 1), "None or an int >= 1"),
    "seed": (lambda v: _is_int(v, 0), "an int >= 0"),
    "memory_dtype": (
        lambda v: v is None or (isinstance(v, str) and v in FORMATS),
        "None or " + _one_of(FORMATS) + " (or the torch.dtype of that name)",
    ),
    "memory_device": (lambda v: v in (None, "cpu"), 'None or "cpu"'),
}


def check_option(name: str, value: Any) -> None:
    """Raise ``ValueError`` if ``value`` breaks the rule of the option ``name``."""
    test, expected = _RULES[name]
    if not test(value):
        raise ValueError(f"Invalid {name}: {value!r}, expected {expected}")
    if name in OBJECTS and not isinstance(value, str) and OBJECTS[name][1].get(value.name, value) != value:
        raise ValueError(
            f"Invalid {name}: {value.name!r} is the name of a built-in one, which a checkpoint of yours would bring back: "
            f"expected a critgrad.{OBJECTS[name][0].__name__} with a name of its own"
        )


def saved_form(value: Any) -> Any:
    """NOTE [names, not dtypes]: a checkpoint holds plain values only, so that every loader can read it.

    >>> saved_form(torch.bfloat16), saved_form(torch.device("cpu"))
    ('bfloat16', 'cpu')
    """
    if isinstance(value, torch.dtype):
        name = str(value).removeprefix("torch.")
        return "float8" if name.startswith("float8") else name
    if isinstance(value, torch.device):
        return str(value)
    if isinstance(value, (Policy, Aggregation)):
        return value.name
    if isinstance(value, bool) or not isinstance(value, numbers.Real):  # numpy's scalars are registered as Real
        return value
    return int(value) if isinstance(value, numbers.Integral) else float(value)


def check_options(groups: list[dict[str, Any]]) -> None:
    """Bring the options of all parameter groups to their saved form, in place, and check each of them.

    Groups that share one memory (``scope="global"``) must agree on what there is one of.
    """
    for group in groups:
        for name in DEFAULTS:
            group[name] = group[name] if name in OBJECTS else saved_form(group[name])
            check_option(name, group[name])
        if aggregation_of(group["aggr"]).damps and group["kappa"] > 1:
            raise ValueError(f'Invalid kappa: {group["kappa"]!r}, expected 0 <= kappa <= 1 with aggr="fisher"')
    together = [group for group in groups if group["topC"] > 0 and group["scope"] == "global"]
    for name in AGREE_IN_A_MEMORY:
        values = [group[name] for group in together]
        if any(value != values[0] for value in values[1:]):
            raise ValueError(
                f"Invalid {name}: {values!r} in groups that share one memory, expected one value; "
                'use scope="group" for memories of their own, or topC=0 to leave a group out'
            )


def read_options(groups: list[dict[str, Any]], keys: dict[str, str], usual: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The options of each group by their plain names, checked; under their ``keys`` the groups get them, too, and lack none."""
    complete(groups, usual, keys.values())
    options = [{name: group[key] for name, key in keys.items()} for group in groups]
    check_options(options)
    for group, mine in zip(groups, options):
        group.update({keys[name]: value for name, value in mine.items()})
    return options


def complete(groups: Iterable[dict[str, Any]], usual: Mapping[str, Any], keys: Iterable[str]) -> None:
    """Give each group those of our options that it lacks (others make groups and load them, too)."""
    for group in groups:
        group.update({key: usual[key] for key in keys if key not in group})


def default_options(given: dict[str, Any], aggr: str = "mean") -> dict[str, Any]:
    """All options, checked: what is given, else what suits the aggregation, else the defaults."""
    damping = FISHER_DEFAULTS if given.get("aggr") == "fisher" else {}
    options = {**DEFAULTS, "aggr": aggr, **damping, **given}
    check_options([options])
    return options


def option_keys(taken: Container[str]) -> dict[str, str]:
    """Our options by the keys they get beside a base that has ``taken`` names (Adadelta has a ``rho`` of its own)."""
    return {name: "critical_" + name if name in taken else name for name in DEFAULTS}


def _nearest(name: str, known: Iterable[str], cutoff: float) -> str | None:
    by_lower = {each.lower(): each for each in known}
    found = difflib.get_close_matches(name.lower(), by_lower, 1, cutoff)
    return by_lower[found[0]] if found else None


def unexpected(who: str, name: str, known: Collection[str]) -> TypeError:
    """The error for an argument that ``who`` does not take, with the one that may have been meant.

    >>> unexpected("Adam_C", "topc", ["lr", "topC"])
    TypeError("Adam_C got an unexpected argument 'topc' (did you mean 'topC'?), expected one of lr, topC")
    """
    meant = _nearest(name, known, cutoff=0.6)
    hint = f" (did you mean {meant!r}?)" if meant else ""
    return TypeError(f"{who} got an unexpected argument {name!r}{hint}, expected one of {', '.join(known)}")


def warn_of_idle(
    groups: list[Any], known: Container[str], options: list[Any], usual: Any, keys: dict[str, str], stacklevel: int
) -> None:
    """Warn of keys in groups that are nearly ours, and of options other than the ``usual`` ones that no group looks at."""
    said = []
    for name in [name for group in groups for name in group if isinstance(name, str) and name not in known]:
        if meant := _nearest(name, keys.values(), cutoff=0.85):  # others may be the user's own, as torch allows
            said.append(f"{name!r} in a parameter group has no effect: did you mean {meant!r}?")
    options = [mine for mine in options if mine["topC"] > 0]
    for name, (other, needed) in _GOES_WITH.items():
        # A Policy of one's own may look at anything.
        used = [mine[name] for mine in options if mine[other] == needed or not isinstance(mine[other], str)]
        for mine in options:
            if mine[name] not in (usual[name], *used):
                why = f'with {other}="{mine[other]}", only with "{needed}"'
                said.append(f"{keys[name]}={mine[name]} has no effect {why}")
    for text in dict.fromkeys(said):
        warnings.warn(text, stacklevel=stacklevel)
