"""The claims, one record each: what is needed, what the ledgers have of it, and the rule that decides."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch

import critgrad
from critgrad import theory
from critgrad.lab.stats import Interval, paired_difference

from ..protocol import paper_values
from ..protocol.records import Outcome
from . import rules
from .findings import Findings
from .goal import six_of_nine
from .nine_tasks import best_of_eight, judged, pairs, up_to
from .rules import HOLDS, NOT_SEEN, NOT_TESTED, Ruling
from .text import interval, short


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


def _sooner(findings: Findings) -> tuple[str, Ruling]:
    tuned = [pair.mine.speedup for pair in pairs(judged(findings))]
    fair = [speedup["epochs"] for speedup in tuned if "epochs" in speedup]
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


def _insensitive(
    axis: str, high: tuple[float, ...], limit: float | None = None
) -> Callable[[Findings], tuple[str, Ruling]]:
    def judge(findings: Findings) -> tuple[str, Ruling]:
        studies = findings.analysis("sensitivity")
        return _ran("sensitivity", studies), rules.no_help(studies, axis, high, {"topC": 5, "decay": 0.7}, limit)

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
    return ran, rules.grows_linearly(studies).saying(cells)


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
    Claim("1", "best of all eight in 6 of 9 tasks", "", best_of_eight),
    Claim("2", "improvements up to 23 %", "", up_to),
    Claim("3", "faster in every pair", "fair", _sooner),
    Claim("4", "sum suits SGD and SGDM, mean suits Adam and RMSprop", "`critgrad ablate`", _paper_aggregation),
    Claim("5", "decay near 1 does not help", "`critgrad analyze sensitivity`", _insensitive("decay", (0.99, 1.0))),
    Claim("6", "topC above 20 does not help", "`critgrad analyze sensitivity`", _insensitive("topC", (50, 100), 20)),
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
