"""The paper's gains beside ours: in its table, at its settings run here, and with base and memory tuned alike."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from critgrad.lab.tasks import task_of

from ..protocol import paper_values
from ..protocol.families import FAMILIES
from .findings import Findings
from .goal import NINE
from .nine_tasks import TunedPair, fair_pairs, gain, paper_runs
from .papers import NOT_COMPARABLE
from .text import interval, page, seeds_text, short, table

Cell = tuple[str, "float | None"]  # what stands there, and the gain
COLUMNS = ("the paper's table", "its settings, here", "tuned alike, here")


def three_gains(findings: Findings) -> list[tuple[str, tuple[float, ...]]]:
    """The pairs that have all three, each with its gains."""
    found = [(f"{task} {name}", [share for _, share in cells]) for task, name, cells in _pairs(findings)]
    return [(label, tuple(s for s in shares if s is not None)) for label, shares in found if None not in shares]


def _pairs(findings: Findings) -> list[tuple[str, str, list[Cell]]]:
    """Task, memory, and a cell for each column."""
    announced = [outcome for outcome in findings.outcomes if outcome.standing.registered]
    fair, paper = fair_pairs(announced), paper_runs(findings)
    out = []
    for task in (name for name in NINE if name not in NOT_COMPARABLE):
        higher = task_of(task).metric.higher_is_better
        run = paper.get(task)
        theirs = {row.optimizer: row.test.value for row in paper_values.best_of(task)}
        here = {} if run is None else {row.optimizer: row.test.mean for row in run.found}
        seeds = "" if run is None else f"; {seeds_text(len(run.track.seeds))}"
        tuned = {pair.mine.family: pair for pair in fair.get(task, ())}
        for family in FAMILIES:
            cells = _pair(theirs, family, higher, ""), _pair(here, family, higher, seeds)
            out.append((task, f"{family}_C", [*cells, _tuned(tuned.get(family), task)]))
    return out


def gains_page(findings: Findings) -> str:
    """All pairs of which there is anything; nothing where there is none."""
    rows = [
        [task, name, *[text for text, _ in cells]]
        for task, name, cells in _pairs(findings)
        if sum(share is not None for _, share in cells) > 1
    ]
    made = table(("task", "memory", *COLUMNS), rows)
    return page("gains", table=made, counted=gains_text(findings)) if rows else ""


def _pair(means: Mapping[str, float], family: str, higher: bool, more: str) -> Cell:
    base, mine = means.get(family), means.get(f"{family}_C")
    if not base or mine is None:
        return "not run", None
    share = gain(mine, base, higher)
    return f"{short(base, 4)}, {short(mine, 4)} ({share:+.1%}{more})", share


def _tuned(pair: TunedPair | None, task: str) -> Cell:
    if pair is None:
        return "not run", None
    outcome, mine, base = pair
    labels = ([] if outcome.name == task else [outcome.name]) + ([] if outcome.decided else ["not finished"])
    difference = interval(outcome.difference(mine, base), "+")
    means = {mine.family: base.test.mean, f"{mine.family}_C": mine.test.mean}
    more = f"; {difference}; {seeds_text(len(mine.values))}"
    text, share = _pair(means, mine.family, outcome.registration.higher_is_better, more)
    return f"{', '.join(labels)}: {text}" if labels else text, share


def gains_text(findings: Findings) -> str:
    """Of the pairs that have all three: how many gain, and the median."""
    shares = np.array([shares for _, shares in three_gains(findings)])
    if not len(shares):
        return ""
    parts = [f"{name}: {(of > 0).sum()} gain, median {np.median(of):+.1%}" for name, of in zip(COLUMNS, shares.T)]
    return f"Of the {len(shares)} pairs that have all three, {'; '.join(parts)}."
