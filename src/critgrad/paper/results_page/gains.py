"""The paper's gains beside ours: in its table, at its settings run here, and with base and memory tuned alike."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from critgrad.lab.stats import paired_difference
from critgrad.lab.tasks import task_of

from ..protocol import paper_values
from ..protocol.families import FAMILIES
from .findings import Findings
from .goal import NINE
from .nine_tasks import TunedPair, fair_pairs, gain, paper_runs
from .papers import NOT_COMPARABLE
from .text import interval, seeds_text, short, table

TEXT = """
## The paper's gains, and what tuning leaves of them

Every pair of the paper's table that was run here: base, then the same with the memory added, test values. First its own
table, then its settings run here, nothing tuned, then base and memory tuned alike and reported on fresh seeds (batch
size and epochs are the experiment's, see its section; where its name is not the task's, it stands in front). In
brackets the gain in % of the base's value, positive where the memory is better, and for the last the difference with
its interval. This is against the base alone: against the best rival the memory is judged [below](#the-suite).

"""
COLUMNS = ("the paper's table", "its settings, here", "tuned alike, here")


def gains_section(findings: Findings) -> str:
    """All pairs of which there is anything; nothing where there is none."""
    announced = [outcome for outcome in findings.outcomes if outcome.standing.registered]
    fair, paper = fair_pairs(announced), paper_runs(findings)
    rows: list[list[str]] = []
    whole: list[tuple[float, ...]] = []  # the gains of the pairs that have all three
    for task in (name for name in NINE if name not in NOT_COMPARABLE):
        higher = task_of(task).metric.higher_is_better
        run = paper.get(task)
        theirs = {row.optimizer: row.test.value for row in paper_values.best_of(task)}
        here = {} if run is None else {row.optimizer: row.test.mean for row in run.found}
        seeds = "" if run is None else f"; {seeds_text(len(run.track.seeds))}"
        tuned = {pair.mine.family: pair for pair in fair.get(task, ())}
        for family in FAMILIES:
            found = [
                _pair(theirs, family, higher, ""),
                _pair(here, family, higher, seeds),
                _tuned(tuned.get(family), task),
            ]
            shares = [share for _, share in found if share is not None]
            if len(shares) > 1:
                rows.append([task, f"{family}_C", *[text for text, _ in found]])
            if len(shares) == len(found):
                whole.append(tuple(shares))
    return TEXT + table(("task", "memory", *COLUMNS), rows) + _summary(whole) if rows else ""


def _pair(means: Mapping[str, float], family: str, higher: bool, more: str) -> tuple[str, float | None]:
    base, mine = means.get(family), means.get(f"{family}_C")
    if not base or mine is None:
        return "not run", None
    share = gain(mine, base, higher)
    return f"{short(base, 4)}, {short(mine, 4)} ({share:+.1%}{more})", share


def _tuned(pair: TunedPair | None, task: str) -> tuple[str, float | None]:
    if pair is None:
        return "not run", None
    outcome, mine, base = pair
    higher = outcome.registration.higher_is_better
    labels = ([] if outcome.name == task else [outcome.name]) + ([] if outcome.decided else ["not finished"])
    difference = interval(paired_difference(mine.values, base.values, higher_is_better=higher), "+")
    means = {mine.family: base.test.mean, f"{mine.family}_C": mine.test.mean}
    text, share = _pair(means, mine.family, higher, f"; {difference}; {seeds_text(len(mine.values))}")
    return f"{', '.join(labels)}: {text}" if labels else text, share


def _summary(whole: list[tuple[float, ...]]) -> str:
    """Of the pairs that have all three: how many gain, and the median."""
    if not whole:
        return ""
    parts = [
        f"{name}: {int((column > 0).sum())} gain, median {np.median(column):+.1%}"
        for name, column in zip(COLUMNS, np.array(whole).T)
    ]
    return f"\nOf the {len(whole)} pairs that have all three, {'; '.join(parts)}.\n"
