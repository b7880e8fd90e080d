"""The values of ``summary.md``, which is ``docs/results.md``: every number in it is computed here, from the ledgers."""

from __future__ import annotations

from ..protocol.records import Outcome
from .claims import verdicts
from .figures import tuning_runs
from .findings import Findings
from .judged import WORDS, Tests, all_judged, families
from .nine_tasks import gains_text
from .text import capital, filled, interval, labels, prose, short, table
from .twice import rms, twice, without_the_largest

COMMAND = "python -m critgrad.paper.results_page results/*.db.xz --out docs"
NOTE = f"<!-- Written by: {COMMAND}. Do not edit: change the runs. -->"


def summary_page(findings: Findings, index: str) -> str:
    """The page; ``index`` is the list of all others."""
    values = {"note": NOTE, "words": prose("words"), "command": COMMAND, "index": index}
    values |= _counted(findings) | _kept_in_mind(findings)
    claims = [(found, f" {capital(found.effect)}." if found.effect else "") for found in verdicts(findings)]
    theirs = [(v, said) for v, said in claims if int(v.number) <= 15]
    values["claims"] = "\n".join(f"- **{v.claim}** ({v.number}): *{v.verdict}*.{said}" for v, said in theirs)
    (goal,) = [v for v, _ in claims if v.number == "19"]
    values |= {"goal.verdict": goal.verdict, "goal.effect": goal.effect}
    return filled(prose("summary"), values)


def picture(name: str) -> str:
    """A figure for light and dark pages."""
    dark = f'<source media="(prefers-color-scheme: dark)" srcset="results/figures/{name}-dark.svg">'
    return f'<picture>{dark}<img src="results/figures/{name}-light.svg" alt="{labels("figures")[name]}"></picture>'


def _counted(findings: Findings) -> dict[str, str]:
    """What stands in the first table and beside the figures."""
    tests, luck = families(findings), rms(twice(findings))
    out = {"runs": f"{len(findings.books.done):,}"}
    for name in ("C", "F"):
        if name in tests:
            out |= {f"{name}.{word}": str(tests[name].counts[word]) for word in WORDS}
            out |= {f"{name}.all": str(len(tests[name].rows)), f"{name}.kept": _kept(tests[name], luck)}
    rows = [
        [label, str(len(tests[name].rows)), *[str(tests[name].counts[word]) for word in WORDS]]
        for name, label in labels("rows").items()
        if name in tests
    ]
    if rows:
        head = ("compared with the best rival, tuned alike", "comparisons", *WORDS)
        out["counts"] = table(head, rows, head[1:])
        out |= {"announced": str(len(all_judged(findings))), "differences": picture("differences")}
    if tuned := sum(len(runs) for arms in tuning_runs(findings).values() for runs in arms.values()):
        out |= {"tuning_runs": f"{tuned:,}", "learning-rates": picture("learning-rates")}
    if said := gains_text(findings):
        out |= {"gains_text": said, "gains": picture("gains")}
    return out


def _kept(tests: Tests, factor: float) -> str:
    """Of those with a word, how many keep it when intervals are so many times as wide."""
    parts = []
    for word in ("better", "worse"):
        rows = [found for found in tests.rows if found.row.verdict == word]
        parts += [f"{sum(found.survives(factor) for found in rows)} of {len(rows)} {word}"] if rows else []
    return " and ".join(parts)


def _minus(outcome: Outcome, family: str, arm: str, other: str) -> str:
    found = outcome.minus(family, arm, other)
    assert found is not None, (outcome.name, family, arm, other)
    return interval(found, "+")


def _kept_in_mind(findings: Findings) -> dict[str, str]:
    """What a reader of single numbers must know; each only where its experiment is there."""
    known = {outcome.name: outcome for outcome in findings.outcomes}
    out: dict[str, str] = {}
    if rows := twice(findings):
        largest, rest = without_the_largest(rows)
        out |= {"factor": f"{rms(rows):.1f}", "luck.differences": str(len(rows)), "luck.rest": f"{rest:.1f}"}
        out["luck.largest"] = f"{largest.arm} of `{largest.name}`"
    if wiki := known.get("wikitext2-lstm@b420"):
        out |= _few_points(findings, wiki)
    if tail := known.get("mnist-mlp@longtail"):
        out["tail.plain"], out["tail.own"] = (_minus(tail, "RMSprop", "F-rival", other) for other in ("base", "rival"))
    for name, key in (("cifar10-convnet", "rmsprop.cifar"), ("digits-mlp@continual", "rmsprop.phases")):
        if name in known:
            out[key] = _minus(known[name], "RMSprop", "F", "base")
    beside = [row for o in findings.outcomes for row in o.descriptive if row.family == "RMSprop"]
    beside = [row for row in beside if (row.arm, row.rival) == ("RMSprop_F", "RMSprop momentum .9")]
    out["rmsprop.momentum"] = f"{sum(row.low <= 0 for row in beside)} of {len(beside)}"
    if asked := known.get("cifar10-convnet+rival"):
        times = {
            arm.arm: arm.reach["epochs"].median for arm in asked.arms if arm.family == "Adam" and "epochs" in arm.reach
        }
        rivals = [time for name in ("base", "rival", "momentum") if (time := times.get(name)) is not None]
        out |= {"sooner.mine": short(times.get("F-tensor")), "sooner.rival": short(min(rivals, default=None))}
    return out


def _few_points(findings: Findings, wiki: Outcome) -> dict[str, str]:
    tried = {
        (row.trial.hyper["lr"], row.trial.hyper["topC"])
        for row in findings.books.rows(registration=wiki.registration.hash)
        for role in row.roles
        if (role.family, role.arm, role.purpose) == ("SGDM", "C", "tune")
    }
    near = sorted(topC for lr, topC in tried if 0.7 <= lr <= 2.5)
    found = [found for found in all_judged(findings) if (found.outcome.name, found.row.family) == (wiki.name, "SGDM_C")]
    out = {"wiki.points": str(len(tried)), "wiki.near": " and ".join(map(str, near))}
    return out | {"wiki.difference": found[0].text} if found else {}
