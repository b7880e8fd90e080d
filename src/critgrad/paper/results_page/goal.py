"""What we set out to reach: one optimizer of ours that beats the best equally tuned rival on six of the paper's nine tasks.

For Adam it is ``NAdam_F``, for SGD ``Nesterov_F`` with a memory for each tensor: a search on CIFAR-10 chose both before they
ran on the other tasks. A task is won by the rule of the primaries, and at equal wall-clock, too.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from critgrad.lab.ledger import Row
from critgrad.lab.stats import Comparison, Interval, paired_difference
from critgrad.lab.train.loop import best_epoch

from ..protocol import ARMS, paper_values
from ..protocol.records import ArmResult, Outcome
from . import rules
from .findings import Findings
from .judged import families
from .rules import Ruling
from .text import interval, labels, page, probability, table

NINE = tuple(dict.fromkeys(row.task for row in paper_values.BEST))
# Of each family the frozen candidate; where only the other was announced (Penn Treebank, before the search's end), that one.
CANDIDATES: Mapping[str, tuple[str, ...]] = {"Adam": ("F-rival",), "SGDM": ("F-tensor", "F-rival")}
CANNOT_COUNT = labels("cannot count")


@dataclass(frozen=True)
class GoalCell:
    """One task with one family. Without a comparison ``why`` says what is missing."""

    task: str
    family: str
    why: str = ""
    name: str = ""  # of the experiment
    found: Comparison | None = None
    clock: Interval | None = None  # the difference at equal wall-clock
    epochs: tuple[int, int] | None = None  # that ours and the rival have there
    # The same difference at each number of epochs that the timed seeds give one by one, and between; of one seed nothing.
    around: Mapping[int, Interval] = field(default_factory=dict)
    part: bool = False  # on a part of the data
    to_each: tuple[tuple[str, Interval], ...] = ()  # the difference to each of those it was announced against

    @property
    def won(self) -> bool | None:
        """``None`` as long as it is open: not run, or won but not timed."""
        if self.found is None:
            return False if self.task in CANNOT_COUNT else None
        if self.found.verdict != "better":
            return False
        return None if self.clock is None else self.clock.low > 0

    @property
    def doubtful(self) -> str:
        """The epochs at which another timed run would have it decided otherwise: ``not at 17``; empty where there are none."""
        if self.found is None or self.found.verdict != "better" or self.clock is None:
            return ""
        other = [epochs for epochs, found in self.around.items() if (found.low > 0) != self.won]
        return f"{'not at' if self.won else 'at'} {', '.join(map(str, other))}" if other else ""


def cells(findings: Findings) -> list[GoalCell]:
    """All nine tasks with both families."""
    # What was asked later first: it stands in the first one's place. A check takes over what another experiment has chosen.
    asked = [o for o in (*findings.followed, *findings.claimable) if o.registration.question != "check"]
    tests = [families(findings)[role] for role in ("F-rival", "F-tensor") if role in families(findings)]
    judged = {(found.outcome.name, found.row.family): found.row for of_role in tests for found in of_role.rows}
    rows = {row.key: row for row in findings.books.done}

    def cell(task: str, family: str) -> GoalCell:
        if task in CANNOT_COUNT:
            return GoalCell(task, family, CANNOT_COUNT[task])
        there = [o for o in asked if paper_values.name_of(o.task) == task and family in o.registration.families]
        for role in CANDIDATES[family]:
            for outcome in there:
                found, ours = judged.get((outcome.name, f"{family}_{role}")), outcome.arm(family, role)
                rivals = [arm for arm in outcome.arms if found and (arm.family, arm.label) == (family, found.rival)]
                if found and ours and rivals:
                    timed = _at_equal_time(outcome, ours, rivals[0], rows)
                    part = any(state != "whole" for state, _ in outcome.data)
                    each = to_each(outcome, family, role)
                    return GoalCell(task, family, "", outcome.name, found, *timed, part, each)
        return GoalCell(task, family, "its experiment has no such arm" if there else "not run, or not to its end")

    return [cell(task, family) for family in CANDIDATES for task in NINE]


def to_each(outcome: Outcome, family: str, role: str) -> tuple[tuple[str, Interval], ...]:
    """The differences to all that a primary was announced against: which is the best is chosen on the tuning seeds; on others
    it may not be.
    """
    against = next(primary.against for primary in outcome.registration.primary if primary.arm == role)
    found = ((ARMS[other].label_in(family), outcome.minus(family, role, other)) for other in against)
    return tuple((label, difference) for label, difference in found if difference is not None)


def _at_equal_time(
    outcome: Outcome, ours: ArmResult, rival: ArmResult, rows: Mapping[str, Row]
) -> tuple[Interval | None, tuple[int, int] | None, Mapping[int, Interval]]:
    """Ours cut to the epochs that fit into the rival's time, against the whole rival: seeds paired, from the curves.

    By the median of the timed epochs, and around it at all epochs between those that the timed seeds give one by one. A
    tuned momentum is timed by its base, which is the same optimizer.
    """
    cost = rival.cost or getattr(outcome.arm(rival.family, "base"), "cost", None)
    if ours.cost is None or cost is None:
        return None, None, {}

    def fitting(mine: float, its: float) -> int:
        return min(ours.epochs, max(1, math.floor(rival.epochs * its / mine)))

    def difference(epochs: int) -> Interval:
        higher = outcome.registration.higher_is_better
        cut = [_value_after(rows[key], epochs, higher) for key in ours.keys]
        return paired_difference(cut, rival.values, higher_is_better=higher)

    epochs = fitting(ours.cost.epoch_seconds, cost.epoch_seconds)
    alone = [fitting(mine, cost.by_seed[seed]) for seed, mine in ours.cost.by_seed.items() if seed in cost.by_seed]
    around = range(min(alone), max(alone) + 1) if len(alone) > 1 else ()
    return difference(epochs), (epochs, rival.epochs), {number: difference(number) for number in around}


def _value_after(row: Row, epochs: int, higher: bool) -> float:
    """The test value of a run that had ended after so many epochs; one that diverged has its worst value anyway."""
    if row.summary["diverged"]:
        return float(row.summary["test"])
    curves = {name: np.asarray(row.curves[name], float)[:epochs] for name in ("valid", "valid_loss", "test")}
    return float(curves["test"][best_epoch(higher, curves["valid"].tolist(), curves["valid_loss"].tolist())])


def six_of_nine(findings: Findings) -> tuple[str, Ruling]:
    """The verdict: holds where both families have six; not confirmed as soon as one of them cannot have them any more."""
    found = cells(findings)
    ran = list(dict.fromkeys(cell.name for cell in found if cell.found is not None))
    won = {family: [cell.won for cell in found if cell.family == family] for family in CANDIDATES}
    return f"fair: {', '.join(ran)}" if ran else "", rules.six_wins(won)


def goal_page(findings: Findings) -> str:
    """The table behind the verdict; nothing where none of the tasks has been run with what the search chose."""
    found = cells(findings)
    if all(cell.found is None for cell in found):
        return ""
    head = ("task", "arm", "best rival on the tuning seeds", "difference", "Holm", "at equal wall-clock", "better?")
    made = table(head, [_line(cell) for cell in found], ("difference", "Holm"))
    each = [f"- {cell.name}: {cell.found.arm} minus {each_text(cell.to_each)}\n" for cell in found if cell.found]
    return page("goal", table=made, each="".join(each))


def each_text(found: Sequence[tuple[str, Interval]]) -> str:
    """``Adam +1.30 ± 0.51, NAdam +0.47 ± 0.49``."""
    return ", ".join(f"{name} {interval(difference, '+')}" for name, difference in found)


def _line(cell: GoalCell) -> list[str]:
    family = {"Adam": "NAdam_F", "SGDM": "Nesterov_F"}[cell.family]
    if cell.found is None:
        return [cell.task, family, "-", "-", "-", "-", cell.why]
    row, clock = cell.found, "not timed"
    if cell.clock is not None and cell.epochs is not None:
        ends = dict.fromkeys((min(cell.around), max(cell.around))) if cell.around else {}
        alone = f"{' to '.join(map(str, ends))} by single timed runs" if ends else ""  # of each seed
        parts = [f"{cell.epochs[0]} epochs for {cell.epochs[1]}", alone, cell.doubtful]
        clock = f"{interval(cell.clock, '+')} ({'; '.join(filter(None, parts))})"
    difference = interval(row.interval, "+")
    label = cell.name + (", part of the data" if cell.part else "")
    won = {True: "yes", False: "no", None: "open"}[cell.won]
    if cell.doubtful:
        won = f"{'yes' if cell.won else 'no'}, but {cell.doubtful} epochs"
    return [label, row.arm, row.rival, difference, probability(row.p_holm), clock, won]
