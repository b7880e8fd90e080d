"""The paper's claims about its nine tasks: how often a memory is the best of all eight, and by how much it gains at most."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from operator import attrgetter
from typing import NamedTuple

import numpy as np

from critgrad.lab.tasks import task_of
from critgrad.lab.words import counted

from ..protocol import paper_values
from ..protocol.arms import FAMILIES
from ..protocol.records import ArmResult, Outcome
from ..report.panels import PaperRun
from . import rules
from .findings import Findings
from .goal import NINE
from .papers import NOT_COMPARABLE, best_runs
from .rules import Ruling
from .text import interval, page, short, table


class TunedPair(NamedTuple):
    """A ``_C`` optimizer and its base, tuned alike in a fair experiment."""

    outcome: Outcome
    mine: ArmResult
    base: ArmResult

    @property
    def gain(self) -> float:
        """Of the memory, as a share of the base's value."""
        return gain(self.mine.test.mean, self.base.test.mean, self.outcome.registration.higher_is_better)


def pairs(outcomes: Iterable[Outcome]) -> list[TunedPair]:
    """Of every family of some fair experiments."""
    out = []
    for outcome in outcomes:
        for family in outcome.registration.families:
            mine, base = outcome.arm(family, "C"), outcome.arm(family, "base")
            if mine is not None and base is not None:
                out.append(TunedPair(outcome, mine, base))
    return out


def fair_pairs(outcomes: Iterable[Outcome]) -> dict[str, list[TunedPair]]:
    """On each of the nine tasks its pairs, one of a family.

    A variant (``@b420``) stands for its task. Experiments that differ in what they ask alone, not in how long and at which
    batch size they train, go together; of those that differ otherwise the one with most pairs stands for the task.
    """
    by_task: dict[str, dict[str, dict[str, TunedPair]]] = {}
    for pair in pairs(outcomes):
        plan = pair.outcome.registration
        if (task := paper_values.name_of(plan.task)) in NINE:
            alike = repr((plan.task, plan.epochs, plan.batch_size, sorted(plan.settings.items())))
            by_task.setdefault(task, {}).setdefault(alike, {}).setdefault(pair.mine.family, pair)
    most = {task: max(of.values(), key=len) for task, of in by_task.items()}
    return {task: [found[family] for family in FAMILIES if family in found] for task, found in most.items()}


def paper_runs(findings: Findings) -> dict[str, PaperRun]:
    """``paper-best`` on each of the nine tasks, as the paper had it where that was run; nothing that is not comparable."""
    found = best_runs(findings)
    return {task: found[task][0] for task in NINE if task in found and task not in NOT_COMPARABLE}


def _on_the_nine(fair: Mapping[str, Sequence[TunedPair]], paper: Mapping[str, PaperRun]) -> str:
    names = [name for found in fair.values() for name in dict.fromkeys(pair.outcome.name for pair in found)]
    parts = [f"fair: {', '.join(names)}"] if fair else []
    runs = [f"{task} ({counted(len(run.track.seeds), 'seed')})" for task, run in paper.items()]
    return "; ".join([*parts, *([f"paper-best: {', '.join(runs)}"] if runs else [])])


def best_of_eight(findings: Findings) -> tuple[str, Ruling]:
    """Claim 1."""
    fair, paper = fair_pairs(findings.judged), paper_runs(findings)
    tuned, untuned = {}, {}
    for task, found in fair.items():
        best = max if task_of(task).metric.higher_is_better else min
        tuned[task] = (
            best((arm for pair in found for arm in (pair.mine, pair.base)), key=attrgetter("test.mean")).arm == "C"
        )
    for task, run in paper.items():
        if len(run.found) == len(paper_values.OPTIMIZERS):
            best = max if run.panel.higher_is_better else min
            untuned[task] = best(run.found, key=attrgetter("test.mean")).optimizer.endswith("_C")
    return _on_the_nine(fair, paper), rules.best_of_eight(tuned, untuned)


def gain(mine: float, base: float, higher: bool) -> float:
    """As a share of the base's value, positive where it is better."""
    return (mine - base) / abs(base) if higher else (base - mine) / abs(base)


def _gain_in(means: Mapping[str, float], family: str, higher: bool) -> float | None:
    """Of a family's ``_C`` over its base; ``None`` where one of the two is missing."""
    base, mine = means.get(family), means.get(f"{family}_C")
    return gain(mine, base, higher) if base and mine is not None else None


def _printed(task: str) -> dict[str, float]:
    """The paper's own table."""
    return {row.optimizer: row.test.value for row in paper_values.best_of(task)}


def _means(run: PaperRun) -> dict[str, float]:
    return {row.optimizer: row.test.mean for row in run.found}


SHARE = 0.23  # the paper's largest improvement, as its text rounds it


def _where_the_paper_saw_it() -> list[tuple[str, str]]:
    """The tasks and families of the pairs with that gain in the paper's own table."""
    pairs = [(task, family) for task in NINE for family in FAMILIES]
    gains = [_gain_in(_printed(task), family, task_of(task).metric.higher_is_better) for task, family in pairs]
    return [pair for pair, share in zip(pairs, gains) if share is not None and share >= SHARE - 0.005]


def up_to(findings: Findings) -> tuple[str, Ruling]:
    """Claim 2."""
    fair, paper = fair_pairs(findings.judged), paper_runs(findings)
    # Other pairs of a task say nothing about the one in which the paper saw it.
    there = {(task, pair.mine.family): pair for task, found in fair.items() for pair in found if pair.base.test.mean}
    tuned: dict[str, float] = {}
    for task in dict.fromkeys(task for task, _ in there):
        best = max((pair for (of, _), pair in there.items() if of == task), key=lambda pair: pair.gain)
        mine, base = (f"{arm.label} {short(arm.test.mean, 4)}" for arm in (best.mine, best.base))
        tuned[f"{best.outcome.name} ({mine}, {base})"] = best.gain
    untuned = {}
    for task, run in paper.items():
        means = _means(run)
        shares = {family: _gain_in(means, family, run.panel.higher_is_better) for family in FAMILIES}
        if gains := {family: share for family, share in shares.items() if share is not None}:
            family = max(gains, key=lambda name: gains[name])  # a base that has failed, for one, should be seen as that
            pair = ", ".join(f"{name} {short(means[name])}" for name in (f"{family}_C", family))
            untuned[f"{task} ({pair})"] = gains[family]
    seen = _where_the_paper_saw_it()
    ruling = rules.up_to(tuned, untuned, run=set(there), needed=seen, share=SHARE)
    said = [
        f"{family}_C on {task} {f'{there[task, family].gain:+.1%}' if (task, family) in there else 'not run'}"
        for task, family in seen
    ]
    more = f"Where the paper's table has it, tuned alike: {', '.join(said)}."
    return _on_the_nine(fair, paper), ruling._replace(more=more)


# -- the paper's gains beside ours: in its table, at its settings run here, and with base and memory tuned alike -----------

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
        theirs, here = _printed(task), {} if run is None else _means(run)
        seeds = "" if run is None else f"; {counted(len(run.track.seeds), 'seed')}"
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
    share = _gain_in(means, family, higher)
    if share is None:
        return "not run", None
    return f"{short(means[family], 4)}, {short(means[f'{family}_C'], 4)} ({share:+.1%}{more})", share


def _tuned(pair: TunedPair | None, task: str) -> Cell:
    if pair is None:
        return "not run", None
    outcome, mine, base = pair
    labels = ([] if outcome.name == task else [outcome.name]) + ([] if outcome.decided else ["not finished"])
    difference = interval(outcome.difference(mine, base), "+")
    means = {mine.family: base.test.mean, f"{mine.family}_C": mine.test.mean}
    more = f"; {difference}; {counted(len(mine.values), 'seed')}"
    text, share = _pair(means, mine.family, outcome.registration.higher_is_better, more)
    return f"{', '.join(labels)}: {text}" if labels else text, share


def gains_text(findings: Findings) -> str:
    """Of the pairs that have all three: how many gain, and the median."""
    shares = np.array([shares for _, shares in three_gains(findings)])
    if not len(shares):
        return ""
    parts = [f"{name}: {(of > 0).sum()} gain, median {np.median(of):+.1%}" for name, of in zip(COLUMNS, shares.T)]
    return f"Of the {len(shares)} pairs that have all three, {'; '.join(parts)}."
