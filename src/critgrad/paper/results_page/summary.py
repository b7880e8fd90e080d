"""``docs/results.md``: what came out, in a few minutes; every number is computed from the ledgers."""

from __future__ import annotations

from collections.abc import Mapping

from critgrad.lab.stats import paired_difference
from critgrad.lab.stats.verdicts import MARGIN

from ..protocol.records import Outcome
from .claims import verdicts
from .figures import tuning_runs
from .findings import Findings
from .gains import gains_text
from .judged import Tests, all_judged, families
from .text import capital, interval, short
from .twice import rms, twice, without_the_largest

COMMAND = "python -m critgrad.paper.results_page results/*.db.xz --out docs"
WORDS = f"""\
- **better**, **worse**: the 95 % interval leaves 0 outside, and p < .05 after Holm's correction over the table.
- **same**: the interval lies inside ± {MARGIN:.0%} of what the base learns, from before training to its mean (a perplexity by
  its logarithm).
- **open**: everything else.
"""


def picture(name: str, alt: str, folder: str = "results/figures") -> str:
    """A figure for light and dark pages."""
    dark = f'<source media="(prefers-color-scheme: dark)" srcset="{folder}/{name}-dark.svg">'
    return f'<picture>{dark}<img src="{folder}/{name}-light.svg" alt="{alt}"></picture>\n'


def summary_page(findings: Findings, index: str) -> str:
    """The page; ``index`` is the list of all others."""
    parts = (_opening, _claims, _figures, _how, _corrections)
    return "\n".join([*[text for part in parts if (text := part(findings))], index])


def _opening(findings: Findings) -> str:
    text = f"# Results\n\n<!-- Written by: {COMMAND}. Do not edit: change the runs. -->\n\n"
    tests, factor = families(findings), rms(twice(findings))
    if "C" in tests and "F" in tests:
        adding, damping = (tests[name].counts for name in ("C", "F"))
        text += f"""\
**With every learning rate tuned alike, adding the memory (`_C`) is better than the best rival in {adding["better"]} of \
{len(tests["C"].rows)} comparisons and worse in
{adding["worse"]}; damping (`_F`) is better in {damping["better"]}, worse in {damping["worse"]}.** At the paper's settings, where \
nothing is tuned, adding does gain.

| compared with the best rival, tuned alike | comparisons | better | same | open | worse |
| --- | --: | --: | --: | --: | --: |
"""
        for name, label in LABELS.items():
            if name in tests:
                counts = tests[name].counts
                cells = [str(counts[word]) for word in ("better", "same", "open", "worse")]
                text += f"| {label} | {len(tests[name].rows)} | {' | '.join(cells)} |\n"
        kept = [f"{LABELS[name]} {_surviving(tests[name], factor)}" for name in ("C", "F")]
        text += "\nEach row is a family of tests by itself. These experiments searched once, so their intervals are narrower than a "
        text += (
            f"study's: where\na search was repeated, differences moved by {factor:.1f} times what the intervals allow "
        )
        text += f"([how](results/luck.md)). With intervals {factor:.1f} times as\nwide, these keep their word: {'; '.join(kept)}.\n\n"
    text += WORDS + "\n"
    count = sum(len(runs) for arms in tuning_runs(findings).values() for runs in arms.values())
    text += picture("learning-rates", ALT["learning-rates"])
    text += f"\nWhat {count:,} tuning runs learnt on validation data: dots are runs, lines the best per third of a decade, median over\n"
    return (
        text
        + "experiments. Adding works at lower rates and collapses at higher ones; damping lies on the base's curve.\n"
    )


LABELS: Mapping[str, str] = {
    "C": "adding (`_C`)",
    "F": "damping (`_F`)",
    "F-rival": "damping on the rival",
    "F-tensor": "the same by tensor",
    "C-rare": "adding, where the signal is rare",
    "F-rare": "damping, where the signal is rare",
    "F-rival-rare": "damping on the rival, there",
}
ALT = {
    "learning-rates": "What is learnt against the learning rate for base, _C and _F, one panel for each family",
    "differences": "All announced differences by experiment, with their intervals, in % of what the base learns",
    "gains": "Gain of each _C optimizer in the paper, at its settings here, and tuned alike",
}


def _surviving(tests: Tests, factor: float) -> str:
    parts = []
    for word in ("better", "worse"):
        rows = [found for found in tests.rows if found.row.verdict == word]
        if rows:
            parts.append(f"{sum(found.survives(factor) for found in rows)} of {len(rows)} {word}")
    return " and ".join(parts)


def _claims(findings: Findings) -> str:
    text = "## The claims\n\n(1) to (15) are the paper's. [In full](results/claims.md).\n\n"
    for found in verdicts(findings):
        text += f"- **{found.claim}** ({found.number}): *{found.verdict}*."
        text += f" {capital(found.effect)}.\n" if found.effect else "\n"
    return text


def _figures(findings: Findings) -> str:
    text = ""
    if rows := all_judged(findings):
        text += f"## All differences\n\n{picture('differences', ALT['differences'])}\n"
        text += f"All {len(rows)} comparisons that were announced before their runs: [adding](results/adding.md), "
        text += "[damping](results/damping.md).\n\n"
    if said := gains_text(findings):
        text += f"## The paper's gains\n\n{picture('gains', ALT['gains'])}\n{said} [All pairs](results/gains.md).\n"
    return text


def _how(findings: Findings) -> str:
    books = findings.books
    return f"""\
## How it was done

{len(books.done):,} runs. An experiment was announced in a commit before its runs. Every arm got the same number of points, drawn
by the same sequence; validation on tuning seeds chose; the choice was trained anew on fresh seeds, paired over all arms; test
values were compared with the rival that was best on the tuning seeds. A diverged run counts as the worst value. p is of the exact
sign-flip test. [The protocol](protocol.md) says the rest. All pages and figures are written from the ledgers in `results/`, and
CI compares:

```sh
{COMMAND}
```
"""


# -- what to keep in mind ----------------------------------------------------------------------------------------------


def _outcome(findings: Findings, name: str) -> Outcome | None:
    return next((outcome for outcome in findings.outcomes if outcome.name == name), None)


def _minus(outcome: Outcome, family: str, arm: str, other: str) -> str:
    mine, base = outcome.arm(family, arm), outcome.arm(family, other)
    assert mine is not None, (outcome.name, family, arm)
    assert base is not None, (outcome.name, family, other)
    higher = outcome.registration.higher_is_better
    return interval(paired_difference(mine.values, base.values, higher_is_better=higher), "+")


def _corrections(findings: Findings) -> str:
    """What a reader of single numbers must know; each only where its experiment is there."""
    lines = []
    if rows := twice(findings):
        largest, rest = without_the_largest(rows)
        lines.append(
            f"**Intervals cover seeds, not the luck of the search.** Over {len(rows)} differences that were searched twice with "
            f"other points, the rms z is {rms(rows):.1f} ({rest:.1f} without {largest.arm} of `{largest.name}`)."
        )
    if wiki := _outcome(findings, "wikitext2-lstm@b420"):
        lines.append(_few_points(findings, wiki))
    lines.append(
        "**Equal trials are unequal tuning.** A base has one or two dimensions to search, a memory up to four, in as many points."
    )
    if tail := _outcome(findings, "mnist-mlp@longtail"):
        lines.append(
            f"`RMSprop_F` with momentum is better on `mnist-mlp@longtail` only against plain RMSprop "
            f"({_minus(tail, 'RMSprop', 'F-rival', 'base')}); against its own base, with momentum, it is "
            f"{_minus(tail, 'RMSprop', 'F-rival', 'rival')}."
        )
    cifar, phases = _outcome(findings, "cifar10-convnet"), _outcome(findings, "digits-mlp@continual")
    if cifar and phases:
        over = [_minus(outcome, "RMSprop", "F", "base") for outcome in (cifar, phases)]
        lines.append(
            f"`RMSprop_F` is above plain RMSprop on CIFAR-10 ({over[0]}) and on digits in phases ({over[1]}). RMSprop with momentum "
            f".9 does as well as `RMSprop_F`, or better, on {_momentum_does(findings)} tasks, these two not among them."
        )
    if asked := _outcome(findings, "cifar10-convnet+rival"):
        lines.append(_sooner(asked))
    return "## What to keep in mind\n\n" + "".join(f"- {line}\n" for line in lines)


def _momentum_does(findings: Findings) -> str:
    """On how many tasks plain momentum is not clearly below damping, with RMSprop: ``7 of 11``."""
    known = [found for o in findings.outcomes for found in o.descriptive if found.family == "RMSprop"]
    mine = [found for found in known if (found.arm, found.rival) == ("RMSprop_F", "RMSprop momentum .9")]
    return f"{sum(found.low <= 0 for found in mine)} of {len(mine)}"


def _few_points(findings: Findings, wiki: Outcome) -> str:
    low, high = 0.7, 2.5
    tried = {
        (row.trial.hyper["lr"], row.trial.hyper["topC"])
        for row in findings.books.rows(registration=wiki.registration.hash)
        for role in row.roles
        if (role.family, role.arm, role.purpose) == ("SGDM", "C", "tune")
    }
    near = sorted(topC for lr, topC in tried if low <= lr <= high)
    (found,) = [found for found in all_judged(findings) if (found.outcome, found.row.family) == (wiki, "SGDM_C")]
    return (
        f"WikiText-2's `SGDM_C` ({found.text}) rests on {len(tried)} points; between lr {low:g} and {high:g} only `topC` "
        f"{' and '.join(map(str, near))} were tried. It is no headline."
    )


def _sooner(asked: Outcome) -> str:
    medians = {
        arm.arm: arm.reach["epochs"].median for arm in asked.arms if arm.family == "Adam" and "epochs" in arm.reach
    }
    rivals = [time for name in ("base", "rival", "momentum") if (time := medians.get(name)) is not None]
    return (
        f'A lead: on CIFAR-10 `NAdam_F(scope="tensor")` reaches 99 % of the base\'s level in {short(medians.get("F-tensor"))} '
        f"epochs, the fastest rival in {short(min(rivals, default=None))}. In epochs only, and on the task whose search found it."
    )
