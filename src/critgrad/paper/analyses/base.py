"""An analysis as a record: the trials it needs, and how their rows become the numbers of a figure.

Like a track of the protocol, an analysis is a pure function of the ledger: what it needs and the ledger has not is run,
then the rows are collected. Figures and terminal tables are drawn from what ``collect`` gives, and from nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from critgrad.lab.errors import LabError
from critgrad.lab.ledger import Ledger, Planned, Role, Row
from critgrad.lab.run.spec import ENGINES, Trial
from critgrad.lab.train.optimizers import OPTIMIZERS, recipe_of

from ..protocol import chosen_hyper

FIRST_SEED = 0
# They toss coins: each run gets coins of its own, or all seeds would store (or drop) at the same steps.
DRAWING = frozenset(("random", "MNDS", "CDS", "CSS", "RR", "NCPR"))


@dataclass(frozen=True)
class Options:
    """What a user may change about an analysis."""

    seeds: int = 5
    settings: Mapping[str, Any] = field(default_factory=dict)
    engine: str = "single"
    optimizer: str | None = None  # instead of the analysis's own
    lines: bool = False  # sensitivity: the paper's two lines through the chosen values instead of the whole grid

    def __post_init__(self) -> None:
        if self.seeds < 1:
            raise LabError(f"Invalid seeds: {self.seeds}, expected an int >= 1")
        if self.engine not in ENGINES:
            raise LabError(f"Invalid engine: {self.engine!r}, expected one of {', '.join(ENGINES)}")
        if self.optimizer is not None:
            recipe_of(self.optimizer)


Trials = Callable[[str, Options], list[Planned]]
Collect = Callable[[str, Sequence[Row]], dict[str, Any]]


@dataclass(frozen=True)
class Analysis:
    """One of ``critgrad analyze``'s names."""

    name: str
    tasks: Sequence[str]  # where the paper (or we) look; the first is the default
    trials: Trials = lambda task, options: []
    collect: Collect = lambda task, rows: {}
    # Measured in this process instead of by trials (bytes per parameter).
    measure: Callable[[str], dict[str, Any]] | None = None
    timed: bool = False  # its numbers are times: one run after the other, unless told otherwise
    varied: Sequence[str] = ()  # settings that it varies on purpose; runs that differ in others are no one figure
    # And those of different optimizers, or of other options than the memory's size and decay.
    of_one_optimizer: bool = False

    @property
    def purpose(self) -> str:
        """The purpose under which its rows stand in the ledger."""
        return f"analysis:{self.name}"

    def plan(self, ledger: Ledger, task: str, options: Options) -> list[Planned]:
        """The trials that are needed and not in the ledger yet."""
        planned = self.trials(task, options)
        done = ledger.done([item.trial.key for item in planned])
        for item in planned:
            if item.trial.key in done:
                ledger.add_roles(item.trial.key, item.roles)
        return [item for item in planned if item.trial.key not in done]

    def rows(self, ledger: Ledger, task: str) -> list[Row]:
        """What the ledger has for it."""
        return ledger.rows(task=task, purpose=self.purpose)


Arm = tuple[str, str, Mapping[str, Any], Mapping[str, Any]]  # its name, the optimizer, its options, the task's settings


def planned(
    analysis: str, task: str, options: Options, arms: Iterable[Arm], probe: tuple[str, ...] = ()
) -> list[Planned]:
    """For each arm of an analysis a trial for each seed."""
    seeds = range(FIRST_SEED, FIRST_SEED + options.seeds)
    out = []
    for arm, optimizer, hyper, settings in arms:
        role = Role("analysis", recipe_of(optimizer).family, arm, f"analysis:{analysis}")
        merged = {**options.settings, **settings}
        for seed in seeds:
            trial = Trial(task, optimizer, _of_run(hyper, seed), seed, merged, options.engine, probe)
            out.append(Planned(trial, (role,)))
    return out


def grid(task: str, optimizer: str, cells: Iterable[tuple[int, float]]) -> list[Arm]:
    """An arm for each (topC, decay)."""
    return [
        (f"topC={topC}, decay={decay:g}", optimizer, tuned(task, optimizer, topC=topC, decay=decay), {})
        for topC, decay in cells
    ]


def _of_run(hyper: Mapping[str, Any], seed: int) -> dict[str, Any]:
    return {**hyper, "seed": seed} if hyper.get("policy") in DRAWING else dict(hyper)


def with_memory(analysis: str, optimizer: str, roles: tuple[str, ...] = ("C", "F")) -> str:
    """The optimizer, or an error where the analysis has nothing to look at in it."""
    if recipe_of(optimizer).role not in roles:
        known = ", ".join(name for name, recipe in OPTIMIZERS.items() if recipe.role in roles)
        raise LabError(f"Invalid optimizer for {analysis}: {optimizer!r}, expected one of {known}")
    return optimizer


def tuned(task: str, optimizer: str, **changes: Any) -> dict[str, Any]:
    """The hyper-parameters an analysis starts from: chosen by a fair sweep, else the paper's best, else a default."""
    return {**chosen_hyper(task, optimizer), **changes}


def by_arm(rows: Sequence[Row], analysis: str) -> dict[str, list[Row]]:
    """Rows by the arm they stand for in this analysis, seeds in order. (One run may serve several analyses.)"""
    arms: dict[str, list[Row]] = {}
    for row in rows:
        for role in row.roles:
            if role.purpose == f"analysis:{analysis}":
                arms.setdefault(role.arm, []).append(row)
    return {arm: sorted(members, key=lambda row: row.trial.seed) for arm, members in arms.items()}
