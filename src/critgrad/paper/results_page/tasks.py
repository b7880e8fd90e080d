"""A page for each task: its announced comparisons, every arm, what the differences are made of, and the paper's settings."""

from __future__ import annotations

from collections.abc import Sequence

from critgrad.lab.report.costs import reached_text
from critgrad.lab.tasks.rare import is_rare

from ..protocol.records import ArmResult, Outcome
from ..protocol.tuning import edges_text
from .findings import Findings
from .goal import each_text, to_each
from .judged import WORDS, Judged, all_judged, comparison_table, replaced
from .papers import best_runs, best_section, grid_section
from .text import behind, fixed, interval, short, table, values


def page_of(task: str) -> str:
    """The name of a task's page: a variant of the batch size has none of its own, a task whose signal is rare has.

    >>> page_of("ptb-lstm@b420"), page_of("digits-mlp@longtail")
    ('ptb-lstm', 'digits-mlp-longtail')
    """
    return task.replace("@", "-") if is_rare(task) else task.split("@")[0]


def task_pages(findings: Findings) -> dict[str, str]:
    """By page, its text: one for each task with a fair experiment or runs at the paper's settings."""
    judged, later = all_judged(findings), replaced(findings)
    best = {page_of(task): (task, runs) for task, runs in best_runs(findings).items()}
    grids = {page_of(run.track.task): run for run in findings.papers if run.track.name == "paper-grid"}
    of_page: dict[str, list[Outcome]] = {name: [] for name in (*best, *grids)}
    for outcome in findings.outcomes:
        of_page.setdefault(page_of(outcome.task), []).append(outcome)
    out = {}
    for name, outcomes in of_page.items():
        of_each = [(o, [found for found in judged if found.outcome.name == o.name]) for o in outcomes]
        text = f"# {name}\n{_in_short(of_each, later)}"
        for outcome, mine in of_each:
            text += _experiment(outcome, mine)
        if name in best:
            text += best_section(findings, *best[name])
        if name in grids:
            text += grid_section(grids[name])
        out[name] = text
    return out


def _in_short(of_each: Sequence[tuple[Outcome, Sequence[Judged]]], later: Sequence[Judged]) -> str:
    """Which arm has which word, by experiment, but where a ``later`` question stands in its place; nothing without one."""
    lines = ""
    for outcome, judged in of_each:
        mine = [found.row for found in judged if found not in later]
        arms = {word: [row.arm for row in mine if row.verdict == word] for word in WORDS}
        said = [f"{word}: {', '.join(dict.fromkeys(names))}" for word, names in arms.items() if names]
        lines += f"- `{outcome.name}`: {'; '.join(said)}\n" if said else ""
    return (
        f"\nIn short, each against its best rival ([what the words mean](README.md#words)):\n\n{lines}" if lines else ""
    )


def _experiment(outcome: Outcome, judged: Sequence[Judged]) -> str:
    """One fair experiment."""
    plan = outcome.registration
    rungs = f" ({plan.rungs_text})" if plan.rungs_text else ""
    text = (
        f"\n## {outcome.name}\n\n{plan.metric}, {plan.epochs} epochs, batch {plan.batch_size}{behind(plan.settings)}; "
        f"{points_text(outcome)}{rungs}, neighbouring learning rates at most {short(plan.widest_step, 2)} times apart; "
        f"{len(plan.report_seeds)} report seeds; {outcome.standing.text}."
    )
    goals = [f"{family} {short(goal, 4)}" for family, goal in outcome.targets.items() if goal is not None]
    text += f" Targets on validation: {', '.join(goals)}." if goals else ""
    text += "".join(f" Note: {warning}." for warning in outcome.warnings) + "\n"
    if judged:
        text += f"\n### {outcome.name}: announced comparisons\n\n" + comparison_table(judged, with_name=False)
        pairs = [(found.row.arm, to_each(outcome, found.family, found.role)) for found in judged if plan.question]
        each = [f"- {arm} minus {each_text(differences)}\n" for arm, differences in pairs]
        text += f"\nTo each rival; descriptive:\n\n{''.join(each)}" if each else ""
    head = ("arm", "chosen", f"test {plan.metric}", "minus base", "diverged", "epochs to target", "step ms")
    text += f"\n### {outcome.name}: all arms\n\n" + table(head, [_arm(outcome, arm) for arm in outcome.arms], head[3:])
    reasons: dict[str, list[str]] = {}
    for missing in outcome.missing:
        reasons.setdefault(missing.reason, []).append(f"{missing.family} {missing.arm}")
    return text + "".join(f"\nMissing ({reason}): {', '.join(arms)}.\n" for reason, arms in reasons.items())


def points_text(outcome: Outcome) -> str:
    """How many points each tuned arm had: more in a family whose range was widened, as all of its arms get the new ones."""
    alike: dict[tuple[int, str], list[str]] = {}
    for family, trials in outcome.trials.items():
        sides = ", ".join(outcome.widened[family])
        alike.setdefault((trials, f" (widened: {sides})" if sides else ""), []).append(family)
    if len(alike) == 1:
        ((trials, note),) = alike
        return f"{trials} points for each tuned arm{note}"
    parts = [f"{trials} with {', '.join(families)}{note}" for (trials, note), families in alike.items()]
    return f"points for each tuned arm: {' and '.join(parts)}"


def _arm(outcome: Outcome, arm: ArmResult) -> list[str]:
    difference = None if arm.arm == "base" else outcome.minus(arm.family, arm.arm)
    chosen = values(arm.hyper) + edges_text(arm.edges)
    chosen += f", {arm.epochs} epochs" if arm.epochs != outcome.registration.epochs else ""
    return [
        f"**{arm.label}**" if arm.arm == "base" else arm.label,
        chosen,
        interval(arm.test),
        "" if difference is None else interval(difference, "+"),
        f"{arm.diverged}/{len(arm.seeds)}",
        reached_text(arm.reach.get("epochs")),
        f"{fixed(arm.cost.step_ms, 3)}" if arm.cost else "",
    ]
