"""What a fair experiment says, as plain records: the command line and the report page both read these."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from critgrad.lab.ledger.committed import Standing
from critgrad.lab.ledger.reach import Reach
from critgrad.lab.stats import BestSoFar, Comparison, Interval, Pair, Speedup, paired_difference

from .arms import ARMS
from .registration import Registration


@dataclass(frozen=True)
class Cost:
    """From single runs that were only timed; bank rows carry no times."""

    step_ms: float  # median time of optimizer.step
    step_ms_low: float
    step_ms_high: float
    epoch_seconds: float
    peak_bytes: int | None
    by_seed: Mapping[int, float]  # an epoch's seconds in each of the runs: how sure the median of them is


@dataclass(frozen=True)
class ArmResult:
    """One arm of one family on the report seeds."""

    family: str
    arm: str
    label: str
    optimizer: str
    hyper: Mapping[str, Any]  # without what differs from seed to seed
    tuned: bool
    note: str  # how a derived arm was computed
    trials: int  # points tried; 0 for a derived arm
    tuning_runs: int
    edges: Mapping[str, str]  # {"lr": "high"}: a better value may lie beyond
    tied: int  # points that share the best tuning value
    valid: float | None  # mean over the tuning seeds at the chosen point
    seeds: tuple[int, ...]
    values: tuple[float, ...]  # test metric, one for each seed; a diverged run has the worst value
    test: Interval
    diverged: int
    train_loss: Interval  # of the last epoch; a diverged run counts as the worst of all arms
    reach: Mapping[str, Reach]
    speedup: Mapping[str, Speedup]  # over the family's base
    cost: Cost | None
    best_after: BestSoFar | None  # expected best against number of trials
    epochs: int
    keys: tuple[str, ...]  # of the reported runs

    @property
    def divergence_rate(self) -> float:
        """Share of the reported runs."""
        return self.diverged / len(self.seeds)


@dataclass(frozen=True)
class Term:
    """One effect: ``minuend`` minus ``subtrahend``, positive where the minuend is better."""

    effect: str
    minuend: str
    subtrahend: str
    difference: Interval


@dataclass(frozen=True)
class Decomposition:
    """The difference between a memory and its tuned base as a sum of effects. The terms add up to ``total``."""

    family: str
    arm: str
    terms: tuple[Term, ...]
    total: Interval


@dataclass(frozen=True)
class Missing:
    """An arm without numbers, and why."""

    family: str
    arm: str
    reason: str


@dataclass(frozen=True)
class Outcome:
    """All tables of one fair experiment."""

    registration: Registration
    standing: Standing
    arms: tuple[ArmResult, ...]
    primary: tuple[Comparison, ...]
    descriptive: tuple[Comparison, ...]
    missing: tuple[Missing, ...]
    targets: Mapping[str, float | None]
    widened: Mapping[str, tuple[str, ...]]  # by family, the sides to which the learning rate's range grew
    trials: Mapping[str, int]  # by family, the points of each tuned arm
    pending: Mapping[str, int]  # runs still wanted, by purpose
    data: tuple[tuple[str, str], ...]  # (state, sha256) of the data behind the rows
    mixed: tuple[str, ...]  # where the reported runs were not all made in one way, in words
    runs: int
    initial: float | None  # median validation value before training
    pairs: tuple[Pair, ...] = field(default=(), repr=False)  # of the primaries: a suite corrects over all tasks

    @property
    def task(self) -> str:
        """The task's name."""
        return self.registration.task

    @property
    def name(self) -> str:
        """The experiment's: the task's, and what was asked of it later."""
        return self.registration.name

    @cached_property
    def decompositions(self) -> tuple[Decomposition, ...]:
        """Of each memory of which every arm that its effects need has numbers."""
        out = []
        for family in self.registration.families:
            for arm in ARMS.values():
                terms = [Term(*effect, found) for effect in arm.effects if (found := self.minus(family, *effect[1:]))]
                total = self.minus(family, arm.name)
                if total is not None and arm.effects and len(terms) == len(arm.effects):
                    out.append(Decomposition(family, arm.name, tuple(terms), total))
        return tuple(out)

    @property
    def complete(self) -> bool:
        """Whether nothing is left to run."""
        return not self.pending

    @property
    def decided(self) -> bool:
        """Whether every tuned arm is chosen and reported, and so every announced comparison: at most controls are missing."""
        announced = len(self.registration.families) * len(self.registration.primary)
        return len(self.primary) == announced and not any(ARMS[row.arm].tuned for row in self.missing)

    @property
    def to_go(self) -> str:
        """What is left to run, of all families, in words; empty when nothing is."""
        return "" if self.complete else f"not finished: {sum(self.pending.values())} runs to go"

    @property
    def warnings(self) -> tuple[str, ...]:
        """What must stand beside the numbers."""
        out = [] if self.standing.registered else [self.standing.text]
        out += [self.to_go] if self.to_go else []
        out += [f"the rows come from {len(self.data)} different data sets"] if len(self.data) > 1 else []
        out += [f"the data is {state}" for state, _ in self.data if state != "whole"]
        ends = [(row.label, row.edges["lr"]) for row in self.arms if "lr" in row.edges]
        at_end = [f"{name}: the best learning rate lies at the {end} end of all that were tried" for name, end in ends]
        return (*out, *self.mixed, *at_end)

    def arm(self, family: str, name: str) -> ArmResult | None:
        """One arm, if it has numbers."""
        return next((row for row in self.arms if (row.family, row.arm) == (family, name)), None)

    def difference(self, mine: ArmResult, other: ArmResult) -> Interval:
        """One arm minus another, seeds paired; positive where the first is better, whatever the metric's direction."""
        return paired_difference(mine.values, other.values, higher_is_better=self.registration.higher_is_better)

    def minus(self, family: str, name: str, other: str = "base") -> Interval | None:
        """The same by name; ``None`` where one of the two has no numbers."""
        mine, its = self.arm(family, name), self.arm(family, other)
        return None if mine is None or its is None else self.difference(mine, its)
