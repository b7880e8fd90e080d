"""The claims, one record each: what is needed, what the ledgers have of it, and the rule that decides."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch

import critgrad
from critgrad import theory

from ..optimizers import FAMILIES
from ..protocol import paper_values
from ..protocol.records import ArmResult, Outcome
from ..report.panels import PaperRun
from ..statistics import Interval, paired_difference
from ..tasks import task_of
from . import rules
from .findings import Findings
from .goal import NINE, six_of_nine
from .papers import NOT_COMPARABLE, best_runs
from .rules import HOLDS, NOT_SEEN, NOT_TESTED, Ruling
from .text import interval, seeds_text, short


@dataclass(frozen=True)
class Claim:
    """A claim and how it is judged. ``needs`` is what to run where the ledgers do not have it."""

    number: str
    text: str
    needs: str
    judge: Callable[[Findings], tuple[str, Ruling]]  # what was run, and what that says


@dataclass(frozen=True)
class Verdict:
    """A line of the table."""

    number: str
    claim: str
    ran: str
    effect: str
    verdict: str


def verdicts(findings: Findings) -> list[Verdict]:
    """One line for each claim."""
    out = []
    for claim in CLAIMS:
        ran, ruling = claim.judge(findings)
        missing = f"missing: {claim.needs}" if ruling.verdict == NOT_TESTED and claim.needs else ""
        effect = "; ".join(part for part in (ruling.effect, missing) if part)
        out.append(Verdict(claim.number, claim.text, ran or "nothing yet", effect, ruling.verdict))
    return out


# -- what the fair experiments say -------------------------------------------------------------------------------------


def _fair_tasks(findings: Findings, arm: str = "base") -> str:
    names = [outcome.task for outcome in findings.claimable if arm in outcome.registration.arms]
    return f"fair: {', '.join(names)}" if names else ""


def _memory(role: str) -> Callable[[Findings], tuple[str, Ruling]]:
    def judge(findings: Findings) -> tuple[str, Ruling]:
        verdict, effect = rules.memory_wins(findings.primaries_of(role))
        gains = []
        for row in findings.suite_rows:
            if row.arm == role and row.difference is not None:
                d = row.difference
                gains.append(
                    f"{row.label} {interval(Interval(100 * d.value, 100 * d.low, 100 * d.high, d.tasks), '+')}"
                )
        if gains:
            effect += "; to the tuned base, in % of what the base learns (interquartile mean): " + ", ".join(gains)
        return _fair_tasks(findings, role), Ruling(verdict, effect)

    return judge


def _winners(findings: Findings) -> tuple[str, Ruling]:
    there = [o for o in (*findings.claimable, *findings.followed) if {"F-rival", "F-tensor"} & set(o.registration.arms)]
    tasks = ", ".join(outcome.name for outcome in there)
    return f"fair: {tasks}" if tasks else "", rules.memory_wins(findings.of_winners)


def _where_rare(findings: Findings) -> tuple[str, Ruling]:
    rows = [row for outcome in findings.apart for row in outcome.primary if row.family.endswith("_F")]
    tasks = [outcome.task for outcome in findings.apart]
    return f"fair: {', '.join(tasks)}" if tasks else "", rules.memory_wins(rows)


def _pairs(findings: Findings) -> list[tuple[str, ArmResult, ArmResult, bool]]:
    """Task, ``_C`` and base of every family of the fair experiments, and the metric's direction."""
    out = []
    for outcome in (*findings.claimable, *findings.followed):
        for family in outcome.registration.families:
            mine, base = outcome.arm(family, "C"), outcome.arm(family, "base")
            if mine is not None and base is not None:
                out.append((outcome.task, mine, base, outcome.registration.higher_is_better))
    return out


def _fair_pairs(findings: Findings) -> dict[str, tuple[str, list[tuple[ArmResult, ArmResult]], bool]]:
    """On each of the nine tasks: the experiment, its pairs of ``_C`` and base, the direction.

    A variant (``@b420``) stands for its task; of several experiments the one with most pairs does.
    """
    by_name: dict[str, dict[str, tuple[str, list[tuple[ArmResult, ArmResult]], bool]]] = {}
    for name, mine, base, higher in _pairs(findings):
        task = paper_values.name_of(name)
        if task in NINE:
            by_name.setdefault(task, {}).setdefault(name, (name, [], higher))[1].append((mine, base))
    return {task: max(of.values(), key=lambda entry: len(entry[1])) for task, of in by_name.items()}


def _paper_runs(findings: Findings) -> dict[str, PaperRun]:
    """``paper-best`` on each of the nine tasks, as the paper had it where that was run; nothing that is not comparable."""
    found = best_runs(findings)
    return {task: found[task][0] for task in NINE if task in found and task not in NOT_COMPARABLE}


def _cells(fair: Mapping[str, Any], paper: Mapping[str, PaperRun], found: Findings) -> str:
    """What of the nine tasks there is not, on both tracks, in words."""
    parts = []
    if lacking := [task for task in NINE if task not in fair]:
        parts.append(f"fair: {', '.join(lacking)}")
    if some := [f"{name} ({_without(pairs)})" for name, pairs, _ in fair.values() if _without(pairs)]:
        parts.append(f"pairs of the fair experiments: {', '.join(some)}")
    short_of = {task: len(paper_values.OPTIMIZERS) - len(run.found) for task, run in paper.items()}
    lacking = [task for task in NINE if task not in paper and task not in NOT_COMPARABLE]
    lacking += [
        f"{task} ({count} of {len(paper_values.OPTIMIZERS)} optimizers)" for task, count in short_of.items() if count
    ]
    parts += [f"paper-best: {', '.join(lacking)}"] if lacking else []
    text = f"missing: {'; '.join(parts)}" if parts else ""
    apart = [task for task in NOT_COMPARABLE if task in best_runs(found)]
    return "; ".join(part for part in (text, f"not comparable, left out: {', '.join(apart)}" if apart else "") if part)


def _without(pairs: Sequence[tuple[ArmResult, ArmResult]]) -> str:
    """The families that an experiment does not have."""
    return ", ".join(family for family in FAMILIES if family not in {mine.family for mine, _ in pairs})


def _on_the_nine(fair: Mapping[str, tuple[str, Any, bool]], paper: Mapping[str, PaperRun]) -> str:
    parts = [f"fair: {', '.join(name for name, _, _ in fair.values())}"] if fair else []
    runs = [f"{task} ({seeds_text(len(run.track.seeds))})" for task, run in paper.items()]
    return "; ".join([*parts, *([f"paper-best: {', '.join(runs)}"] if runs else [])])


def _with_cells(ruling: Ruling, cells: str) -> Ruling:
    return Ruling(ruling.verdict, "; ".join(part for part in (ruling.effect, cells) if part))


def _best_of_eight(findings: Findings) -> tuple[str, Ruling]:
    fair, paper = _fair_pairs(findings), _paper_runs(findings)
    tuned = {}
    for task, (_, pairs, higher) in fair.items():
        best = max((arm for pair in pairs for arm in pair), key=lambda arm: arm.test.mean if higher else -arm.test.mean)
        tuned[task] = best.arm == "C"
    untuned = {}
    for task, run in paper.items():
        if len(run.found) == len(paper_values.OPTIMIZERS):
            sign = 1 if run.panel.higher_is_better else -1
            untuned[task] = max(run.found, key=lambda row: sign * row.test.mean).optimizer.endswith("_C")
    ruling = rules.best_of_eight(tuned, untuned)
    return _on_the_nine(fair, paper), _with_cells(ruling, _cells(fair, paper, findings))


def _gain(mine: float, base: float, higher: bool) -> float:
    return (mine - base) / abs(base) if higher else (base - mine) / abs(base)


def _gains(means: Mapping[str, float], higher: bool) -> dict[str, float]:
    """Of each ``_C`` optimizer over its base, from their means; the pair in words is the key."""
    pairs = [(name, name.removesuffix("_C")) for name in means if name.endswith("_C")]
    return {
        f"{name} {short(means[name])}, {base} {short(means[base])}": _gain(means[name], means[base], higher)
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


def _up_to(findings: Findings) -> tuple[str, Ruling]:
    fair, paper = _fair_pairs(findings), _paper_runs(findings)
    tuned = {
        task: max(_gain(mine.test.mean, base.test.mean, higher) for mine, base in pairs if base.test.mean)
        for task, (_, pairs, higher) in fair.items()
        if any(base.test.mean for _, base in pairs)
    }
    untuned = {}
    for task, run in paper.items():
        if gains := _gains({row.optimizer: row.test.mean for row in run.found}, run.panel.higher_is_better):
            pair = max(gains, key=lambda name: gains[name])
            untuned[f"{task} ({pair})"] = gains[pair]  # a base that has failed, for one, should be seen as that
    # Other pairs of a task say nothing about the one in which the paper saw it.
    there = {(task, mine.family) for task, (_, pairs, _) in fair.items() for mine, _ in pairs}
    needed = [
        task if (task, family) in there else f"{family}_C on {task}" for task, family in _where_the_paper_saw_it()
    ]
    ruling = rules.up_to(tuned, untuned, needed, SHARE)
    cells = "missing as in (1)" if _cells(fair, paper, findings) else ""
    return _on_the_nine(fair, paper), _with_cells(ruling, cells)


def _sooner(findings: Findings) -> tuple[str, Ruling]:
    fair = [mine.speedup["epochs"] for _, mine, _, _ in _pairs(findings) if "epochs" in mine.speedup]
    best = [run for run in findings.papers if run.track.name == "paper-best"]
    paper = [arm.speedup for run in best for arm in run.panel.arms if arm.arm == "C" and arm.speedup is not None]
    names = [_fair_tasks(findings), f"paper-best: {', '.join(run.track.task for run in best)}" if best else ""]
    return "; ".join(name for name in names if name), rules.sooner(fair, paper)


class _Selection(NamedTuple):
    """What selection by norm does for a pair of ``_C`` and its tuned base."""

    task: str
    gains: bool  # whether ``_C`` beats its base
    effect: Interval | None  # ``_C`` minus its yoked twin; ``None`` where there is no such control


def _selections(findings: Findings) -> list[_Selection]:
    """Every pair of the fair experiments, with the control or without."""
    out = []
    for outcome in (*findings.claimable, *findings.followed):
        for family in outcome.registration.families:
            gain, effect = (_minus(outcome, family, "C", other) for other in ("base", "C-yoked"))
            if gain is not None:
                out.append(_Selection(outcome.task, gain.low > 0, effect))
    return out


def _minus(outcome: Outcome, family: str, minuend: str, subtrahend: str) -> Interval | None:
    """One arm minus another, where both were run."""
    one, other = outcome.arm(family, minuend), outcome.arm(family, subtrahend)
    if one is None or other is None:
        return None
    return paired_difference(one.values, other.values, higher_is_better=outcome.registration.higher_is_better)


def _with_twins(pairs: Sequence[_Selection]) -> str:
    tasks = dict.fromkeys(pair.task for pair in pairs if pair.effect is not None)
    return f"fair, with the yoked twin: {', '.join(tasks)}" if tasks else ""


def _explained(findings: Findings) -> tuple[str, Ruling]:
    pairs = _selections(findings)
    ran = _with_twins(pairs)
    return ran, rules.selection_explains([p.effect for p in pairs if p.gains]) if ran else Ruling(NOT_TESTED, "")


# -- what the analyses say ---------------------------------------------------------------------------------------------


def _ran(name: str, studies: Sequence[Mapping[str, Any]]) -> str:
    return f"{name}: {', '.join(study['task'] for study in studies)}" if studies else ""


def _paper_aggregation(findings: Findings) -> tuple[str, Ruling]:
    studies = findings.analysis("ablation")
    other = {**dict.fromkeys(("SGD_C", "SGDM_C"), ("mean",)), **dict.fromkeys(("RMSprop_C", "Adam_C"), ("sum",))}
    return _ran("ablation", studies), rules.variants_worse(studies, other)


def _not_an_average(findings: Findings) -> tuple[str, Ruling]:
    studies = findings.analysis("ablation")
    names = ("SGD_C", "SGDM_C", "RMSprop_C", "Adam_C")
    return _ran("ablation", studies), rules.variants_worse(studies, dict.fromkeys(names, ("min", "median", "max")))


def _rules_alike(findings: Findings) -> tuple[str, Ruling]:
    studies = findings.analysis("ablation")
    ruling = rules.variants_alike(studies, ("selection", "replacement"))
    pairs = _selections(findings)
    terms = [pair.effect for pair in pairs if pair.effect is not None]
    if terms:
        apart = sum(term.excludes_zero for term in terms)
        lead = f"in the fair experiments _C minus its yoked twin (no selection by norm) leaves 0 outside in {apart} of "
        lead += f"{len(terms)} pairs ({len(pairs) - len(terms)} more have no such twin)"
        ruling = Ruling(ruling.verdict, "; ".join(part for part in (ruling.effect, lead) if part))
    return "; ".join(part for part in (_ran("ablation", studies), _with_twins(pairs)) if part), ruling


def _insensitive(axis: str, high: tuple[float, ...]) -> Callable[[Findings], tuple[str, Ruling]]:
    def judge(findings: Findings) -> tuple[str, Ruling]:
        studies = findings.analysis("sensitivity")
        return _ran("sensitivity", studies), rules.no_help(studies, axis, high, {"topC": 5, "decay": 0.7})

    return judge


def _stale(findings: Findings) -> tuple[str, Ruling]:
    groups = [group for group in findings.looked_into if all("ages" in row.curves for row in group)]
    tasks = list(dict.fromkeys(group[0].trial.task for group in groups))
    ages = [[np.asarray(row.curves["ages"]) for row in group] for group in groups]
    ran = f"memories looked into: {', '.join(tasks)}" if tasks else ""
    return ran, rules.ages_bounded(ages, [int(group[0].summary["steps"]) for group in groups])


def _noise(findings: Findings) -> tuple[str, Ruling]:
    studies = findings.analysis("noise")
    if not studies:
        return "", Ruling(NOT_TESTED, "")
    verdict, effect = rules.no_harm(studies[0])
    return "noise-logreg, lr 1e-3 for all, as in the paper", Ruling(
        verdict, f"accuracy minus the base's, mean over 0 to 100 % flipped labels: {effect}"
    )


def _convex(findings: Findings) -> tuple[str, Ruling]:
    studies = findings.analysis("convex")
    return _ran("convex", studies), rules.converges(studies)


# -- what needs no run -------------------------------------------------------------------------------------------------


def _theorem(findings: Findings) -> tuple[str, Ruling]:
    rate = theory.theorem1_rate(0.001, mu=0.1, L=1.0, K=5)
    effect = (
        f"its hypothesis asks for a largest singular value below 1, which is {short(rate)} for 5 gradients at lr 0.001 "
    )
    effect += "and never below 1; a bound for any memory of bounded staleness holds instead"
    return "`critgrad.theory`, see [Theory](theory.md)", Ruling(HOLDS if rate < 1 else NOT_SEEN, effect)


def _runtime(findings: Findings) -> tuple[str, Ruling]:
    studies = findings.analysis("runtime")
    ran = _ran("runtime", studies) or "see [Performance](performance.md) for benchmarks"
    lacking = [task for task in paper_values.RUN_TIMES if task not in {study["task"] for study in studies}]
    cells = f"missing: {', '.join(lacking)}" if studies and lacking else ""
    return ran, _with_cells(rules.grows_linearly(studies), cells)


STEPS = 200


def _window(findings: Findings) -> tuple[str, Ruling]:
    ends = []
    for options in ({"decay": 0.0}, {"policy": "FIFO"}):
        generator = torch.Generator().manual_seed(0)
        weight = torch.nn.Parameter(torch.zeros(16))
        optimizer = critgrad.SGD_C([weight], lr=0.01, topC=5, **options)
        for _ in range(STEPS):
            weight.grad = weight.detach() + torch.randn(16, generator=generator)
            optimizer.step()
        ends.append(weight.detach().clone())
    same = bool(torch.equal(*ends))
    effect = f"weights after {STEPS} noisy steps are {'equal bit for bit' if same else 'different'}"
    return "SGD_C with decay 0 beside the policy FIFO", Ruling(HOLDS if same else NOT_SEEN, effect)


CLAIMS = (
    Claim("1", "best of all eight in 6 of 9 tasks", "", _best_of_eight),
    Claim("2", "improvements up to 23 %", "", _up_to),
    Claim("3", "faster in every pair", "fair", _sooner),
    Claim("4", "sum suits SGD and SGDM, mean suits Adam and RMSprop", "`critgrad ablate`", _paper_aggregation),
    Claim("5", "decay near 1 does not help", "`critgrad analyze sensitivity`", _insensitive("decay", (0.99, 1.0))),
    Claim("6", "topC above 20 does not help", "`critgrad analyze sensitivity`", _insensitive("topC", (50, 100))),
    Claim("7", "staleness is bounded", "`critgrad analyze staleness`", _stale),
    Claim("8", "selection and replacement rules hardly matter", "`critgrad ablate`", _rules_alike),
    Claim("9", "min, median and max are worse than an average", "`critgrad ablate`", _not_an_average),
    Claim("10", "label noise does no harm", "`critgrad analyze noise`", _noise),
    Claim("11", "it converges on convex tasks", "`critgrad analyze convex`", _convex),
    Claim("12", "Theorem 1", "", _theorem),
    Claim("13", "time grows linearly in topC", "`critgrad analyze runtime`", _runtime),
    Claim("14", "large stored gradients explain the gains", "fair", _explained),
    Claim("15", "decay 0 is a moving window", "", _window),
    Claim("C", "adding the memory (`_C`) beats the best equally tuned rival", "fair", _memory("C")),
    Claim("F", "damping (`_F`) beats the best equally tuned rival", "fair", _memory("F")),
    Claim(
        "R",
        "damping on the rival (`NAdam_F`, `Nesterov_F`), as a search chose it, beats the best equally tuned rival",
        "fair",
        _winners,
    ),
    Claim(
        "G",
        "one damping optimizer wins 6 of the 9 tasks with Adam and one with SGD, at equal wall-clock, too",
        "the open tasks of [the table](#the-goal-six-of-nine-tasks)",
        six_of_nine,
    ),
    Claim("S", "damping (`_F`) beats the best equally tuned rival where the signal is rare", "fair", _where_rare),
)
