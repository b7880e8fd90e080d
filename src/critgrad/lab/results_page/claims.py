"""The claims, one record each: what is needed, what the ledgers have of it, and the rule that decides."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

import critgrad
from critgrad import theory

from ..protocol import paper_values
from ..protocol.records import ArmResult
from ..statistics import Interval
from . import rules
from .findings import Findings
from .rules import HOLDS, NOT_SEEN, NOT_TESTED, Ruling
from .text import interval, short

NINE = tuple(dict.fromkeys(row.task for row in paper_values.BEST))


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


def _fair_tasks(findings: Findings) -> str:
    names = [outcome.task for outcome in findings.claimable]
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
        return _fair_tasks(findings), Ruling(verdict, effect)

    return judge


def _pairs(findings: Findings) -> list[tuple[str, ArmResult, ArmResult, bool]]:
    """Task, ``_C`` and base of every family of the fair experiments, and the metric's direction."""
    out = []
    for outcome in findings.claimable:
        for family in outcome.registration.families:
            mine, base = outcome.arm(family, "C"), outcome.arm(family, "base")
            if mine is not None and base is not None:
                out.append((outcome.task, mine, base, outcome.registration.higher_is_better))
    return out


def _best_of_eight(findings: Findings) -> tuple[str, Ruling]:
    fair: dict[str, bool] = {}
    for task in NINE:
        arms = [arm for name, mine, base, _ in _pairs(findings) if name == task for arm in (mine, base)]
        if arms:
            higher = next(h for name, _, _, h in _pairs(findings) if name == task)
            best = max(arms, key=lambda arm: arm.test.mean if higher else -arm.test.mean)
            fair[task] = best.arm == "C"
    paper = {}
    for run in findings.papers:
        if run.track.name == "paper-best" and run.track.task in NINE and len(run.found) == len(paper_values.OPTIMIZERS):
            sign = 1 if run.panel.higher_is_better else -1
            paper[run.track.task] = max(run.found, key=lambda row: sign * row.test.mean).optimizer.endswith("_C")
    return _on_the_nine(fair, paper), rules.best_of_eight(fair, paper)


def _on_the_nine(fair: Mapping[str, object], paper: Mapping[str, object]) -> str:
    parts = [f"{name}: {', '.join(found)}" for name, found in (("fair", fair), ("paper-best", paper)) if found]
    return "; ".join(parts)


def _gain(mine: float, base: float, higher: bool) -> float:
    return (mine - base) / abs(base) if higher else (base - mine) / abs(base)


def _up_to(findings: Findings) -> tuple[str, Ruling]:
    fair: dict[str, float] = {}
    for task, mine, base, higher in _pairs(findings):
        if task in NINE and base.test.mean:
            fair[task] = max(fair.get(task, -np.inf), _gain(mine.test.mean, base.test.mean, higher))
    paper: dict[str, float] = {}
    for run in findings.papers:
        if run.track.name == "paper-best" and run.track.task in NINE:
            means = {row.optimizer: row.test.mean for row in run.found}
            gains = [
                _gain(value, means[name.removesuffix("_C")], run.panel.higher_is_better)
                for name, value in means.items()
                if name.endswith("_C") and means.get(name.removesuffix("_C"))
            ]
            if gains:
                paper[run.track.task] = max(gains)
    return _on_the_nine(fair, paper), rules.up_to(fair, paper)


def _sooner(findings: Findings) -> tuple[str, Ruling]:
    fair = [mine.speedup["epochs"] for _, mine, _, _ in _pairs(findings) if "epochs" in mine.speedup]
    best = [run for run in findings.papers if run.track.name == "paper-best"]
    paper = [arm.speedup for run in best for arm in run.panel.arms if arm.arm == "C" and arm.speedup is not None]
    names = [_fair_tasks(findings), f"paper-best: {', '.join(run.track.task for run in best)}" if best else ""]
    return "; ".join(name for name in names if name), rules.sooner(fair, paper)


def _selection_terms(findings: Findings) -> list[tuple[Interval, bool]]:
    """The effect of selection by norm on ``_C``, and whether that pair beats its base."""
    return [
        (term.difference, part.total.low > 0)
        for outcome in findings.claimable
        for part in outcome.decompositions
        if part.arm == "C"
        for term in part.terms
        if term.effect == "selection by norm"
    ]


def _explained(findings: Findings) -> tuple[str, Ruling]:
    terms = _selection_terms(findings)
    ruling = rules.selection_explains([term for term, won in terms if won]) if terms else Ruling(NOT_TESTED, "")
    return _fair_tasks(findings) if terms else "", ruling


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
    terms = [term for term, _ in _selection_terms(findings)]
    if terms:
        apart = sum(term.excludes_zero for term in terms)
        lead = f"in the fair experiments _C minus its yoked twin (no selection by norm) leaves 0 outside in {apart} of "
        lead += str(len(terms))
        ruling = Ruling(ruling.verdict, "; ".join(part for part in (ruling.effect, lead) if part))
    ran = "; ".join(part for part in (_ran("ablation", studies), _fair_tasks(findings) if terms else "") if part)
    return ran, ruling


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
    return "see [Performance](performance.md) for benchmarks", Ruling(NOT_TESTED, "")


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
    Claim("1", "best of all eight in 6 of 9 tasks", f"paper-best and fair on {', '.join(NINE)}", _best_of_eight),
    Claim("2", "improvements up to 23 %", "paper-best and fair on the nine tasks", _up_to),
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
    Claim("F", "damping (`_F`) beats an equally tuned base", "fair", _memory("F")),
)
