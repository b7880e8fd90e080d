"""The claims, one record each: what is needed, what the ledgers have of it, and the rule that decides."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch

import critgrad
from critgrad import theory
from critgrad.lab.stats import Interval

from . import rules
from .findings import Findings
from .goal import six_of_nine
from .judged import families
from .nine_tasks import best_of_eight, pairs, up_to
from .rules import HOLDS, NOT_SEEN, NOT_TESTED, Ruling
from .text import capital, page, short


@dataclass(frozen=True)
class PaperClaim:
    """A claim, and how it is judged: what was run for it, and what that says."""

    number: str
    text: str
    judge: Callable[[Findings], tuple[str, Ruling]]


@dataclass(frozen=True)
class Verdict:
    """A claim with what came out."""

    number: str
    claim: str
    ran: str
    effect: str
    more: str
    verdict: str


def verdicts(findings: Findings) -> list[Verdict]:
    """One for each claim."""
    judged = [(claim, *claim.judge(findings)) for claim in CLAIMS]
    return [Verdict(c.number, c.text, ran or "nothing yet", r.effect, r.more, r.verdict) for c, ran, r in judged]


def claims_page(findings: Findings) -> str:
    """Each claim with what was run for it."""
    text = ""
    for found in verdicts(findings):
        said = f" {capital(found.effect)}." if found.effect else ""
        more = f" {found.more}" if found.more else ""
        text += f"\n## {found.number}: {found.claim}\n\n**{found.verdict.capitalize()}.**{said}{more}\n\nRun: {found.ran}.\n"
    return page("claims", claims=text)


# -- what the fair experiments say -------------------------------------------------------------------------------------


def _tests(findings: Findings, names: Sequence[str]) -> tuple[str, Ruling]:
    """What some families of tests say, each counted by itself; no sums over different ones."""
    mine = [families(findings)[name] for name in names if name in families(findings)]
    rows = [found.row for tests in mine for found in tests.rows]
    tasks = dict.fromkeys(found.outcome.name for tests in mine for found in tests.rows)
    effect = "; ".join(f"{tests.where}, {tests.text}" if len(mine) > 1 else tests.text for tests in mine)
    return f"tuned alike: {', '.join(tasks)}" if tasks else "", Ruling(rules.memory_wins(rows), effect)


def _sooner(findings: Findings) -> tuple[str, Ruling]:
    tuned = [pair.mine.speedup for pair in pairs(findings.judged)]
    fair = [speedup["epochs"] for speedup in tuned if "epochs" in speedup]
    best = [run for run in findings.papers if run.track.name == "paper-best"]
    paper = [arm.speedup for run in best for arm in run.panel.arms if arm.arm == "C" and arm.speedup is not None]
    tasks = {"tuned alike": [outcome.task for outcome in findings.claimable]}
    tasks["at the paper's settings"] = [run.track.task for run in best]
    return "; ".join(f"{how}: {', '.join(of)}" for how, of in tasks.items() if of), rules.sooner(fair, paper)


class _Selection(NamedTuple):
    """What selection by norm does for a pair of ``_C`` and its tuned base."""

    task: str
    gains: bool  # whether ``_C`` beats its base
    effect: Interval | None  # ``_C`` minus its yoked twin; ``None`` where there is no such control


def _selections(findings: Findings) -> list[_Selection]:
    """Every pair of the fair experiments, with the control or without."""
    out = []
    for outcome in findings.judged:
        for family in outcome.registration.families:
            gain, effect = (outcome.minus(family, "C", other) for other in ("base", "C-yoked"))
            if gain is not None:
                out.append(_Selection(outcome.task, gain.low > 0, effect))
    return out


def _with_twins(pairs: Sequence[_Selection]) -> str:
    tasks = dict.fromkeys(pair.task for pair in pairs if pair.effect is not None)
    return f"tuned alike, with a twin that does not select: {', '.join(tasks)}" if tasks else ""


def _explained(findings: Findings) -> tuple[str, Ruling]:
    pairs = _selections(findings)
    ran = _with_twins(pairs)
    return ran, rules.selection_explains([p.effect for p in pairs if p.gains]) if ran else Ruling(NOT_TESTED, "")


# -- what the analyses say ---------------------------------------------------------------------------------------------


def _ran(name: str, studies: Sequence[Mapping[str, Any]]) -> str:
    return f"{name}: {', '.join(study['task'] for study in studies)}" if studies else ""


def _of(findings: Findings, name: str, rule: Callable[..., Ruling], **options: Any) -> tuple[str, Ruling]:
    """What a rule says of an analysis."""
    studies = findings.analysis(name)
    return _ran(name, studies), rule(studies, **options)


SUMMED, AVERAGED = ("SGD_C", "SGDM_C"), ("RMSprop_C", "Adam_C")
OTHER = {**dict.fromkeys(SUMMED, ("mean",)), **dict.fromkeys(AVERAGED, ("sum",))}
NO_AVERAGE = dict.fromkeys((*SUMMED, *AVERAGED), ("min", "median", "max"))


def _rules_alike(findings: Findings) -> tuple[str, Ruling]:
    studies = findings.analysis("ablation")
    ruling = rules.variants_alike(studies, ("selection", "replacement"))
    pairs = _selections(findings)
    terms = [pair.effect for pair in pairs if pair.effect is not None]
    if terms:
        apart = sum(term.excludes_zero for term in terms)
        lead = f"tuned alike, selection by norm makes a difference in {apart} of {len(terms)} pairs"
        more = f"{len(pairs) - len(terms)} more pairs have no twin that does not select."
        ruling = Ruling(ruling.verdict, "; ".join(part for part in (ruling.effect, lead) if part), more)
    return "; ".join(part for part in (_ran("ablation", studies), _with_twins(pairs)) if part), ruling


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
    ran = "noise-logreg, lr 1e-3 for all, as in the paper; mean over 0 to 100 % flipped labels"
    return ran, rules.no_harm(studies[0])


# -- what needs no run -------------------------------------------------------------------------------------------------


def _theorem(findings: Findings) -> tuple[str, Ruling]:
    rate = theory.theorem1_rate(0.001, mu=0.1, L=1.0, K=5)
    effect = f"its hypothesis asks for a singular value below 1; it is {short(rate)} for 5 gradients, and never below 1"
    more = "A bound for any memory of bounded staleness holds instead."
    return "nothing, see [Theory](../theory.md)", Ruling(HOLDS if rate < 1 else NOT_SEEN, effect, more)


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


_ABLATION = partial(_of, name="ablation", rule=rules.variants_worse)
_SENSITIVITY = partial(_of, name="sensitivity", rule=rules.no_help, reference={"topC": 5, "decay": 0.7})

CLAIMS = (
    PaperClaim("1", "best of all eight on 6 of 9 tasks", best_of_eight),
    PaperClaim("2", "improvements up to 23 %", up_to),
    PaperClaim("3", "faster in every pair", _sooner),
    PaperClaim("4", "sum suits SGD, mean suits Adam and RMSprop", partial(_ABLATION, variants=OTHER)),
    PaperClaim("5", "decay near 1 does not help", partial(_SENSITIVITY, axis="decay", high=(0.99, 1.0))),
    PaperClaim("6", "topC above 20 does not help", partial(_SENSITIVITY, axis="topC", high=(50, 100), limit=20)),
    PaperClaim("7", "staleness is bounded", _stale),
    PaperClaim("8", "selection and replacement rules hardly matter", _rules_alike),
    PaperClaim("9", "min, median and max are worse than an average", partial(_ABLATION, variants=NO_AVERAGE)),
    PaperClaim("10", "label noise does no harm", _noise),
    PaperClaim("11", "it converges on convex tasks", partial(_of, name="convex", rule=rules.converges)),
    PaperClaim("12", "Theorem 1", _theorem),
    PaperClaim("13", "time grows linearly in topC", partial(_of, name="runtime", rule=rules.grows_linearly)),
    PaperClaim("14", "large stored gradients explain the gains", _explained),
    PaperClaim("15", "decay 0 is a moving window", _window),
    PaperClaim("16", "adding the memory (`_C`) beats the best equally tuned rival", partial(_tests, names=("C",))),
    PaperClaim("17", "damping (`_F`) beats the best equally tuned rival", partial(_tests, names=("F",))),
    PaperClaim(
        "18",
        "damping on the rival (`NAdam_F`, `Nesterov_F`) beats it",
        partial(_tests, names=("F-rival", "F-tensor")),
    ),
    PaperClaim("19", "one damping optimizer is better on 6 of 9 tasks, with Adam and with SGD", six_of_nine),
    PaperClaim(
        "20", "damping (`_F`) beats the best rival where the signal is rare", partial(_tests, names=("F-rare",))
    ),
)
