"""Who is in a bank: trials with their options settled, checked, and put into an order in which alike stand together."""

from __future__ import annotations

import inspect
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import nn

from critgrad.memory.aggregations import PICKS
from critgrad.memory.options import DEFAULTS as MEMORY_DEFAULTS

from ...errors import LabError
from ...run.spec import Trial, content_hash
from ..optimizers import donor_of, recipe_of, settled
from .families import FAMILIES, BankFamily

# Of a group: how a step is computed, not what. A bank has its own way.
_HOW = ("params", "fused", "foreach")
# The kinds of memory, in the order in which they stand in a bank.
NONE, SUMS, PICKED, DAMPS, BY_TENSOR = KINDS = ("none", "sums", "picks", "damps", "by tensor")

_CURE = "use --engine single"


@dataclass(frozen=True)
class Member:
    """One model of a bank: a trial, and its optimizer's options as the optimizer's own constructor settled them."""

    trial: Trial
    family: BankFamily
    options: Mapping[str, Any]
    memory: Mapping[str, Any] | None
    hidden: bool = False  # there for its decisions only: the donor of a yoked trial

    @property
    def kind(self) -> str:
        """What its memory does."""
        if self.memory is None:
            return NONE
        if self.memory["scope"] == "tensor":
            return BY_TENSOR
        aggr = self.memory["aggr"]
        return DAMPS if aggr == "fisher" else PICKED if aggr in PICKS else SUMS

    @property
    def update_key(self) -> tuple[str, Hashable]:
        """Models that are alike in this are updated in one call."""
        return self.family.name, self.family.shape(self.options)

    @property
    def order(self) -> tuple[Any, ...]:
        """Sorting by it puts together what is worked on together."""
        memory = self.memory or {"policy": "", "topC": 0}
        return KINDS.index(self.kind), *map(str, self.update_key), memory["policy"], memory["topC"]


def member(trial: Trial, weight_decay: float, hidden: bool = False) -> Member:
    """The member of a trial; ``ValueError`` for what a bank cannot do."""
    recipe = recipe_of(trial.optimizer)
    optimizer = settled(recipe, trial.hyper, [nn.Parameter(torch.zeros(1))], weight_decay)
    base = next((cls for cls in type(optimizer).__mro__ if cls in FAMILIES), None)
    if base is None:
        raise LabError(f"Invalid optimizer for a bank: {trial.optimizer}, its base is not known there; {_CURE}")
    family = FAMILIES[base]
    group = optimizer.param_groups[0]
    memory = {name: group[name] for name in MEMORY_DEFAULTS} if recipe.has_memory else None
    defaults = inspect.signature(base).parameters
    for name, value in group.items():
        if name in _HOW or name in family.follows or (memory is not None and name in memory):
            continue
        default = defaults[name].default if name in defaults else None
        if value != default:
            raise LabError(f"Invalid {name} of {trial.optimizer} in a bank: {value!r}, expected {default!r}; {_CURE}")
    options = {name: group[name] for name in family.follows if name in group}
    options.setdefault("decoupled_weight_decay", issubclass(base, torch.optim.AdamW))  # older torch has no such option
    if memory is not None:
        _check_memory(trial, memory)
        memory = memory if memory["topC"] else None
    if "donor_seed" in trial.hyper and memory is None:
        raise LabError(f"Invalid donor_seed for {trial.optimizer}: it has no memory whose decisions could be replayed")
    if memory is not None and memory["scope"] == "tensor":
        _check_by_tensor(trial)
    return Member(trial, family, options, memory, hidden)


def _check_by_tensor(trial: Trial) -> None:
    """What is recorded or replayed is defined for one memory over all parameters."""
    wanted = {**{name: name for name in trial.probe}, **{name: trial.hyper[name] for name in trial.hyper}}
    for name in ("damping", "decisions", "donor_seed", "memory"):
        if name in wanted:
            raise LabError(
                f"Invalid {name} of {trial.optimizer} in a bank: {wanted[name]!r}, expected none with scope='tensor'"
            )


def _check_memory(trial: Trial, memory: Mapping[str, Any]) -> None:
    scopes = ("global", "tensor") if memory["aggr"] == "fisher" else ("global",)
    for name, known in (("scope", scopes), ("memory_dtype", (None,)), ("memory_device", (None,))):
        if memory[name] not in known:
            expected = " or ".join(map(repr, known))
            raise LabError(
                f"Invalid {name} of {trial.optimizer} in a bank: {memory[name]!r}, expected {expected}; {_CURE}"
            )


def _run_key(trial: Trial) -> str:
    """Alike for trials that take the same steps."""
    return content_hash({"optimizer": trial.optimizer, "hyper": dict(trial.hyper), "seed": trial.seed})


@dataclass
class Crew:
    """The members in their order in the bank, and who is whose donor."""

    members: list[Member]
    place: list[int]  # of each trial, as given, among the members
    donors: list[int | None]  # of each member, among the members


def crew(trials: Sequence[Trial], weight_decay: float) -> Crew:
    """The members of a bank; a yoked trial's donor that is not among the trials is added, hidden."""
    if not trials:
        raise LabError("Invalid trials: none, expected at least one")
    first = trials[0]
    for trial in trials:
        if (trial.task, trial.settings) != (first.task, first.settings):
            raise LabError(
                f"Invalid trials: {trial.task} {dict(trial.settings)} beside {first.task} {dict(first.settings)}, "
                "expected one task with the same settings; split them with bank_groups"
            )
        if trial.engine != "bank":
            raise LabError(f'Invalid engine: {trial.engine!r}, expected "bank": a row must say how it was computed')
    members = [member(trial, weight_decay) for trial in trials]
    known = {_run_key(trial): i for i, trial in enumerate(trials)}
    donors: list[int | None] = []
    for trial in trials:
        donor = donor_of(trial)
        if _run_key(donor) not in known:
            known[_run_key(donor)] = len(members)
            members.append(member(donor, weight_decay, hidden=True))
        donors.append(None if donor is trial else known[_run_key(donor)])
    donors += [None] * (len(members) - len(trials))
    order = sorted(range(len(members)), key=lambda i: (*members[i].order, i))
    place = {old: new for new, old in enumerate(order)}
    return Crew(
        members=[members[i] for i in order],
        place=[place[i] for i in range(len(trials))],
        donors=[None if (at := donors[i]) is None else place[at] for i in order],
    )


def bank_groups(trials: Sequence[Trial], largest: int) -> list[list[Trial]]:
    """Trials split into banks of at most ``largest`` (hidden donors not counted), as even as can be.

    Trials of one task with the same settings go together, and among them those whose optimizers are alike, so that a
    bank needs few different updates and wastes few slots.
    """
    if largest < 1:
        raise LabError(f"Invalid size of a bank: {largest!r}, expected an int >= 1")
    by_task: dict[str, list[Trial]] = {}
    for trial in trials:
        by_task.setdefault(content_hash([trial.task, dict(trial.settings)]), []).append(trial)
    groups = []
    for together in by_task.values():
        # The weight decay of the task is the same for all of them and changes no order. A yoked trial sorts beside its
        # donor, so that both land in one bank.
        ordered = sorted(together, key=lambda trial: (*member(trial, 0.0).order, _run_key(donor_of(trial))))
        count = -(-len(ordered) // largest)
        cuts = [i * len(ordered) // count for i in range(count + 1)]
        groups += [ordered[a:b] for a, b in pairwise(cuts)]
    return groups
