"""The paper's claims about its nine tasks: how often a memory is the best of all eight, and by how much it gains at most."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from critgrad.lab.tasks import task_of

from ..protocol import paper_values
from ..protocol.families import FAMILIES
from ..protocol.records import ArmResult, Outcome
from ..report.panels import PaperRun
from . import rules
from .findings import Findings
from .goal import NINE
from .papers import NOT_COMPARABLE, best_runs
from .rules import Ruling
from .text import seeds_text, short


def judged(findings: Findings) -> tuple[Outcome, ...]:
    """The fair experiments that a claim may rest on."""
    return (*findings.claimable, *findings.followed)


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


def names_of(found: Iterable[TunedPair]) -> list[str]:
    """The experiments of some pairs."""
    return list(dict.fromkeys(pair.outcome.name for pair in found))


def paper_runs(findings: Findings) -> dict[str, PaperRun]:
    """``paper-best`` on each of the nine tasks, as the paper had it where that was run; nothing that is not comparable."""
    found = best_runs(findings)
    return {task: found[task][0] for task in NINE if task in found and task not in NOT_COMPARABLE}


def _on_the_nine(fair: Mapping[str, Sequence[TunedPair]], paper: Mapping[str, PaperRun]) -> str:
    parts = [f"fair: {', '.join(name for found in fair.values() for name in names_of(found))}"] if fair else []
    runs = [f"{task} ({seeds_text(len(run.track.seeds))})" for task, run in paper.items()]
    return "; ".join([*parts, *([f"paper-best: {', '.join(runs)}"] if runs else [])])


def best_of_eight(findings: Findings) -> tuple[str, Ruling]:
    """Claim 1."""
    fair, paper = fair_pairs(judged(findings)), paper_runs(findings)
    tuned = {}
    for task, found in fair.items():
        sign = 1 if task_of(task).metric.higher_is_better else -1
        best = max((arm for pair in found for arm in (pair.mine, pair.base)), key=lambda arm: sign * arm.test.mean)
        tuned[task] = best.arm == "C"
    untuned = {}
    for task, run in paper.items():
        if len(run.found) == len(paper_values.OPTIMIZERS):
            sign = 1 if run.panel.higher_is_better else -1
            untuned[task] = max(run.found, key=lambda row: sign * row.test.mean).optimizer.endswith("_C")
    return _on_the_nine(fair, paper), rules.best_of_eight(tuned, untuned)


def gain(mine: float, base: float, higher: bool) -> float:
    """As a share of the base's value, positive where it is better."""
    return (mine - base) / abs(base) if higher else (base - mine) / abs(base)


def _gains(means: Mapping[str, float], higher: bool) -> dict[str, float]:
    """Of each ``_C`` optimizer over its base, from their means; the pair in words is the key."""
    pairs = [(name, name.removesuffix("_C")) for name in means if name.endswith("_C")]
    return {
        f"{name} {short(means[name])}, {base} {short(means[base])}": gain(means[name], means[base], higher)
        for name, base in pairs
        if means.get(base)
    }


SHARE = 0.23  # the paper's largest improvement, as its text rounds it


def _where_the_paper_saw_it() -> list[tuple[str, str]]:
    """The tasks and families of the pairs with that gain in the paper's own table."""
    out = []
    for task in NINE:
        means = {row.optimizer: row.test.value for row in paper_values.best_of(task)}
        for family in FAMILIES:
            pair = {name: value for name, value in means.items() if name in (family, f"{family}_C")}
            if any(gain >= SHARE - 0.005 for gain in _gains(pair, task_of(task).metric.higher_is_better).values()):
                out.append((task, family))
    return out


def up_to(findings: Findings) -> tuple[str, Ruling]:
    """Claim 2."""
    fair, paper = fair_pairs(judged(findings)), paper_runs(findings)
    # Other pairs of a task say nothing about the one in which the paper saw it.
    there = {(task, pair.mine.family): pair for task, found in fair.items() for pair in found if pair.base.test.mean}
    tuned: dict[str, float] = {}
    for task in dict.fromkeys(task for task, _ in there):
        best = max((pair for (of, _), pair in there.items() if of == task), key=lambda pair: pair.gain)
        mine, base = (f"{arm.label} {short(arm.test.mean, 4)}" for arm in (best.mine, best.base))
        tuned[f"{best.outcome.name} ({mine}, {base})"] = best.gain
    untuned = {}
    for task, run in paper.items():
        if gains := _gains({row.optimizer: row.test.mean for row in run.found}, run.panel.higher_is_better):
            pair = max(gains, key=lambda name: gains[name])
            untuned[f"{task} ({pair})"] = gains[pair]  # a base that has failed, for one, should be seen as that
    seen = _where_the_paper_saw_it()
    ruling = rules.up_to(tuned, untuned, run=set(there), needed=seen, share=SHARE)
    said = [
        f"{family}_C on {task} {f'{there[task, family].gain:+.1%}' if (task, family) in there else 'not run'}"
        for task, family in seen
    ]
    return _on_the_nine(fair, paper), Ruling(
        *ruling[:2], f"Where the paper's table has it, tuned alike: {', '.join(said)}."
    )
