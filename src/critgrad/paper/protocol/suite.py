"""Several tasks at once: their primaries under one correction, and one number for each arm over all of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from critgrad.lab.stats import Comparison, SuiteScore, normalised, suite_difference, suite_score

from .arms import ARMS
from .outcome import judged
from .records import Outcome


@dataclass(frozen=True)
class SuiteRow:
    """An arm over the tasks that have it. Scores: 0 is the value before training, 1 the tuned base's mean test value."""

    family: str
    arm: str
    label: str
    tasks: tuple[str, ...]
    score: SuiteScore  # interquartile mean over tasks and seeds
    difference: SuiteScore | None  # to the base, seeds paired


def suite(outcomes: Iterable[Outcome]) -> list[Comparison]:
    """The primaries of several tasks, corrected together."""
    return judged([pair for outcome in outcomes for pair in outcome.pairs])


def suite_table(outcomes: Sequence[Outcome]) -> list[SuiteRow]:
    """Every arm's interquartile mean over the tasks in which both it and its base have numbers."""
    names = [name for outcome in outcomes for name in ((row.family, row.arm) for row in outcome.arms)]
    rows = []
    for family, arm in dict.fromkeys(names):
        mine: dict[str, Sequence[float]] = {}
        base: dict[str, Sequence[float]] = {}
        for outcome in outcomes:
            found, reference = outcome.arm(family, arm), outcome.arm(family, "base")
            if found is None or reference is None or outcome.initial is None:
                continue
            if outcome.initial == reference.test.mean:
                continue  # the base has learnt nothing: there is no scale
            scale = outcome.initial, reference.test.mean
            mine[outcome.task] = normalised(found.values, *scale).tolist()
            base[outcome.task] = normalised(reference.values, *scale).tolist()
        if mine:
            difference = None if arm == "base" else suite_difference(mine, base)
            label = ARMS[arm].label_in(family)
            rows.append(SuiteRow(family, arm, label, tuple(mine), suite_score(mine), difference))
    return rows
