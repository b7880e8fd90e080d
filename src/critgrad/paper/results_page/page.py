"""The page itself: sections of Markdown, each a function of the findings."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from critgrad.lab.ledger import Row
from critgrad.lab.report.costs import reached_text
from critgrad.lab.stats import Comparison, Interval, paired_difference

from ..protocol.records import ArmResult, Outcome
from .claims import verdicts
from .coverage import coverage_section
from .findings import Findings
from .gains import gains_section
from .goal import each_text, goal_section, to_each
from .papers import papers_section
from .searches import found_searches, searches_section
from .studies import studies_section
from .text import behind, fixed, interval, probability, short, table, values

HEAD = """\
# Results

<!-- Written by: python -m critgrad.lab.results_page results/*.db.xz --out docs/results.md. Do not edit: change the runs. -->

Every number here was computed from the ledgers in `results/` ({ledgers}; {runs:,} runs) by

```sh
python -m critgrad.lab.results_page results/*.db.xz --out docs/results.md
```

How runs are made, chosen and compared: [The protocol](protocol.md). ± is a 95 % t-interval over fresh seeds; differences
are paired by seed and positive where the first is better, whatever the metric. A *primary* comparison was announced
before its runs; it is a win (or loss) if its interval leaves 0 outside and its exact sign-flip p, corrected by Holm over
all primaries of that kind in this suite, is below 0.05. (The correction over its own task's primaries stands beside it;
p is never below 0.002 with 10 seeds, and over so many comparisons that passes only where most others pass, too.)
Everything else is descriptive. Curves in the published ledgers
are rounded to about five digits; what is computed here from summaries, choices and targets is exact.
"""


def render(findings: Findings) -> str:
    """The page."""
    head = HEAD.format(ledgers=", ".join(f"`{name}`" for name in findings.books.names), runs=len(findings.books.done))
    parts = (
        _verdicts,
        gains_section,
        _what,
        coverage_section,
        _suite,
        _apart,
        _followed,
        goal_section,
        _arms,
        _decompositions,
        papers_section,
        studies_section,
        _noise,
        searches_section,
        _once,
        _withdrawn,
    )
    text = "\n".join([head, *[text for part in parts if (text := part(findings))]])
    return re.sub(r"\n{3,}", "\n\n", text)


def _verdicts(findings: Findings) -> str:
    rows = [[v.number, v.claim, v.ran, v.effect, f"**{v.verdict}**"] for v in verdicts(findings)]
    text = "(1) to (15) are the paper's claims. The rules stand in `critgrad.lab.results_page.rules`; a claim about every\n"
    text += "pair is judged on those that have been run, and one that needs runs which are not there is not judged.\n"
    return f"## Verdicts\n\n{text}\n" + table(("", "claim", "what was run", "effect", "verdict"), rows)


# -- what was run ------------------------------------------------------------------------------------------------------


def _machine(rows: Sequence[Row]) -> str:
    names = dict.fromkeys(
        f"{row.provenance.get('accelerator') or row.provenance.get('cpu')}, torch {row.provenance.get('torch')}"
        for row in rows
    )
    return "; ".join(sorted(names))


def _joined(found: Sequence[str]) -> str:
    return ", ".join(sorted(set(found)))


def _what(findings: Findings) -> str:
    rows = []
    books = findings.books
    for outcome in findings.outcomes:
        plan = outcome.registration
        mine = books.rows(registration=plan.hash)
        seeds = f"{len(plan.tuning_seeds)} tuning, {len(plan.report_seeds)} report"
        state = outcome.standing.text
        if not outcome.complete:
            state += "; controls missing" if outcome.decided else "; not finished"
        rows.append([outcome.name, "fair", *_origin(mine), f"{len(mine):,}", seeds, state])
    for track, made, count in found_searches(findings):
        mine = books.rows(registration=track.search.hash)
        seeds = f"{len(track.search.tuning_seeds)} tuning"
        rows.append([made.task, f"search `{made.name}`", *_origin(mine), f"{count:,}", seeds, made.standing.text])
    tracks: dict[tuple[str, str], list[Row]] = {}
    for row in books.done:
        if row.trial.registration is None:
            for role in dict.fromkeys(role.purpose if role.track == "analysis" else role.track for role in row.roles):
                tracks.setdefault((row.trial.task, role.removeprefix("analysis:")), []).append(row)
    several = {name: [task for task, other in tracks if other == name] for _, name in tracks}
    for name, tasks in sorted(several.items()):
        of_name = [row for task in tasks for row in tracks[task, name]]
        label = tasks[0] if len(tasks) == 1 else f"{len(tasks)} tasks"
        counts = [len({row.trial.seed for row in tracks[task, name]}) for task in tasks]
        seeds = str(counts[0]) if len(set(counts)) == 1 else f"{min(counts)} to {max(counts)}"
        rows.append([label, name, *_origin(of_name), f"{len(of_name):,}", seeds, "-"])
    head = ("task", "track", "data", "engine", "machine", "runs", "seeds", "registered")
    text = "\n## What was run\n\n" + table(head, rows, ("runs",))
    failed = len(books.failed)
    text += f"\nFailed runs: {failed}.\n"
    notes = [f"- {o.name}: {warning}" for o in findings.outcomes for warning in o.warnings]
    return text + ("\n" + "\n".join(notes) + "\n" if notes else "")


def _origin(rows: Sequence[Row]) -> list[str]:
    data = _joined([str(row.summary.get("data_state")) for row in rows])
    return [data, _joined([row.trial.engine for row in rows]), _machine(rows)]


# -- the suite ---------------------------------------------------------------------------------------------------------


def _difference(row: Comparison) -> str:
    return interval(Interval(row.difference, row.low, row.high, row.n), "+")


def _compared(row: Comparison) -> list[str]:
    return [row.task, row.arm, row.rival, str(row.n), _difference(row), probability(row.p)]


def _judged(row: Comparison) -> list[str]:
    verdict = "identical" if row.identical else row.verdict + (", not testable" if not row.testable else "")
    return [f"{row.poi:.2f}", verdict]


def _suite(findings: Findings) -> str:
    if not findings.claimable:
        return ""
    text = "\n## The suite\n"
    names = {
        "F": "Damping with the memory (`_F`)",
        "F-rival": "Damping on the rival (`NAdam_F`, `Nesterov_F`)",
        "F-tensor": 'Damping on the rival, each tensor by itself (`scope="tensor"`)',
        "C": "Adding the memory (`_C`)",
    }
    alone = {(row.task, row.arm): row.p_holm for outcome in findings.claimable for row in outcome.primary}
    for role, name in names.items():
        rows = findings.primaries_of(role)
        if not rows:
            continue
        lines = [
            [*_compared(row), probability(alone[row.task, row.arm]), probability(row.p_holm), *_judged(row)]
            for row in rows
        ]
        head = (
            "task",
            "arm",
            "best rival on the tuning seeds",
            "seeds",
            "difference",
            "p",
            "Holm, its task",
            "Holm, suite",
            "P(better)",
            "verdict",
        )
        text += f"\n### {name}: primary comparisons\n\n"
        text += table(head, lines, ("seeds", "difference", "p", "Holm, its task", "Holm, suite", "P(better)"))
        text += _asked_again(findings, rows)
    arms = []
    for arm in findings.suite_rows:
        if arm.difference is not None:
            d = arm.difference
            found = Interval(100 * d.value, 100 * d.low, 100 * d.high, d.tasks)
            arms.append([arm.family, arm.label, str(len(arm.tasks)), interval(found, "+")])
    text += "\n### All arms over the suite\n\nDifference to the tuned base in % of the way from the value before training to "
    text += "the base's mean:\ninterquartile mean "
    text += "over tasks and seeds, stratified bootstrap. Descriptive.\n\n"
    return text + table(("family", "arm", "tasks", "difference (%)"), arms, ("tasks", "difference (%)"))


def _apart(findings: Findings) -> str:
    if not findings.apart:
        return ""
    return """
## Where the signal is rare

Classes with few examples (`@longtail`), phases that are forgotten (`@continual`): tasks that were chosen because a screen
([below](#search-among-variants-of-damping)) gave something there. Each is judged by itself, Holm over the primaries of one
memory; they are no part of the suite.

""" + _each_by_itself(findings.apart)


def _followed(findings: Findings) -> str:
    if not findings.followed:
        return ""
    over_all = {(row.task, row.family): row.p_holm for row in findings.of_winners}

    def more(outcome: Outcome, row: Comparison) -> list[str]:
        family, _, role = row.family.partition("_")
        ours = outcome.arm(family, role)
        assert ours is not None, row
        return [probability(over_all.get((row.task, row.family))), each_text(to_each(outcome, ours, role))]

    return """
## Asked again

What the search ([below](#search-among-variants-of-damping)) chose on CIFAR-10, damping on NAdam and on Nesterov's momentum, was
announced for tasks that had been reported without it, with all rivals tuned anew and on other seeds (`+rival`). Penn Treebank
was asked three times more: with learning rates close together (`+finer`), where a first experiment had it win; whether what
had won there wins at batch 20, too (`+check`); and what adding the memory gives at batch 20, where the paper's table fits
(`+paper`). Each is judged by itself, Holm over the primaries of one arm; they are no part of the suite. "Holm, all" is over all
comparisons of damping on a rival, those of the suite included; the last column is descriptive.

""" + _each_by_itself(findings.followed, ("Holm, all", "to each rival"), more)


def _asked_again(findings: Findings, rows: Sequence[Comparison]) -> str:
    """Beside what a first experiment gave: what came out when the same was asked once more."""
    text = ""
    for outcome in findings.followed:
        for again in outcome.primary:
            if any((row.task, row.family) == (again.task, again.family) for row in rows):
                difference = interval(Interval(again.difference, again.low, again.high, again.n), "+")
                text += f"\n`{outcome.name}` [asked again](#asked-again) about {again.arm}: {difference}, {again.verdict}.\n"
    return text


def _each_by_itself(
    outcomes: Sequence[Outcome],
    heads: tuple[str, ...] = (),
    more: Callable[[Outcome, Comparison], list[str]] = lambda outcome, row: [],
) -> str:
    """The primaries of experiments that are judged one by one; ``heads`` and ``more`` are for columns behind the verdict."""
    rows = [
        [outcome.name, *_compared(row)[1:], probability(row.p_holm), *_judged(row), *more(outcome, row)]
        for outcome in outcomes
        for row in sorted(outcome.primary, key=lambda row: row.family.rpartition("_")[2] == "C")
    ]
    head = ("task", "arm", "best rival on the tuning seeds", "seeds", "difference", "p", "Holm", "P(better)", "verdict")
    return table((*head, *heads), rows, (*head[3:8], "Holm, all"))


# -- task by task ------------------------------------------------------------------------------------------------------


def _arms(findings: Findings) -> str:
    text = ""
    for outcome in findings.outcomes:
        plan = outcome.registration
        text += f"\n## {outcome.name}\n\n"
        text += f"{plan.metric}, {plan.epochs} epochs, batch {plan.batch_size}{behind(plan.settings)}; "
        rungs = f" ({plan.rungs_text})" if plan.rungs_text else ""
        text += f"{_points(outcome)}{rungs}, neighbouring learning rates at most "
        text += (
            f"{short(plan.widest_step, 2)} times apart; {len(plan.report_seeds)} report seeds; {outcome.standing.text}."
        )
        goals = [f"{family} {short(goal, 4)}" for family, goal in outcome.targets.items() if goal is not None]
        text += f" Targets on validation: {', '.join(goals)}.\n" if goals else "\n"
        rows = [_arm(outcome, arm) for arm in outcome.arms]
        head = ("arm", "chosen", f"test {plan.metric}", "minus base", "diverged", "epochs to target", "step ms")
        text += "\n" + table(head, rows, ("minus base", "diverged", "epochs to target", "step ms"))
        reasons: dict[str, list[str]] = {}
        for missing in outcome.missing:
            reasons.setdefault(missing.reason, []).append(f"{missing.family} {missing.arm}")
        for reason, arms in reasons.items():
            text += f"\nMissing ({reason}): {', '.join(arms)}.\n"
    return text


def _points(outcome: Outcome) -> str:
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
    base = outcome.arm(arm.family, "base")
    difference = ""
    if base is not None and arm.arm != "base":
        higher = outcome.registration.higher_is_better
        difference = interval(paired_difference(arm.values, base.values, higher_is_better=higher), "+")
    chosen = values(arm.hyper) + "".join(f" ({name} at the {end} edge)" for name, end in arm.edges.items())
    chosen += f", {arm.epochs} epochs" if arm.epochs != outcome.registration.epochs else ""
    return [
        f"**{arm.label}**" if arm.arm == "base" else arm.label,
        chosen,
        interval(arm.test),
        difference,
        f"{arm.diverged}/{len(arm.seeds)}",
        reached_text(arm.reach.get("epochs")),
        f"{fixed(arm.cost.step_ms, 3)}" if arm.cost else "",
    ]


def _decompositions(findings: Findings) -> str:
    parts = [(outcome, part) for outcome in findings.outcomes for part in outcome.decompositions]
    if not parts:
        return ""
    text = "\n## What the differences are made of\n\n"
    text += "The memory minus its tuned base as a sum of effects: each column is one arm minus a simpler one. Descriptive.\n"
    for arm in ("C", "F"):
        mine = [(outcome, part) for outcome, part in parts if part.arm == arm]
        if mine:
            effects = [term.effect for term in mine[0][1].terms]
            rows = [
                [o.task, f"{p.family}_{arm}", *[interval(t.difference, "+") for t in p.terms], interval(p.total, "+")]
                for o, p in mine
            ]
            text += "\n" + table(("task", "arm", *effects, "in all"), rows, (*effects, "in all"))
    return text


# -- the rest ----------------------------------------------------------------------------------------------------------


def _noise(findings: Findings) -> str:
    text = ""
    for data in findings.analysis("noise"):
        flips = sorted({point["flip_y"] for line in data["lines"] for point in line["points"]})
        rows = []
        for line in data["lines"]:
            points = {point["flip_y"]: point for point in line["points"]}
            rows.append([line["optimizer"], *[_percent(points.get(flip)) for flip in flips]])
        runs = sorted({point["runs"] for line in data["lines"] for point in line["points"]})
        text += f"\n## Label noise\n\n{data['task']}: test accuracy with a share of the labels flipped; lr 1e-3 for all, as in "
        text += f"the paper;\n{' or '.join(map(str, runs))} seeds, half width of the interval in brackets.\n\n"
        text += table(("optimizer", *[f"{flip:g}" for flip in flips]), rows, tuple(f"{flip:g}" for flip in flips))
    return text


def _percent(point: Mapping[str, Any] | None) -> str:
    if point is None:
        return "-"
    return f"{fixed(point['test'], 0)} ({fixed((point['high'] - point['low']) / 2, 0)})"


def _once(findings: Findings) -> str:
    if not findings.once:
        return ""
    rows = []
    for row in findings.once:
        summary = row.summary
        notes = [f"{name}: {summary[name]}" for name in ("weights", "vectors") if summary.get(name)]
        rows.append(
            [
                row.trial.task + (" *" if findings.outdated(row) else ""),
                f"{summary['parameters']:,}",
                str(summary["data_state"]),
                ", ".join(notes),
                f"{row.trial.optimizer} {values(row.trial.hyper)}",
                f"{summary['metric']} {short(summary['test'])}" + (" (diverged)" if summary["diverged"] else ""),
                fixed(summary["train_seconds"], 1),
                "-" if not summary.get("peak_bytes") else f"{summary['peak_bytes'] / 2**20:,.0f}",
            ]
        )
    text = "\n## Every task once\n\nOne epoch with one seed at full size of model and data, to show that each task runs; no\n"
    text += f"comparison. {_machine(findings.once)}.\n\n"
    head = ("task", "parameters", "data", "start", "optimizer", "test", "seconds of training", "peak MiB")
    text += table(head, rows, ("parameters", "seconds of training", "peak MiB"))
    if any(map(findings.outdated, findings.once)):
        text += "\n\\* before the change that [Withdrawn](#withdrawn) tells about.\n"
    return text


def _withdrawn(findings: Findings) -> str:
    if not findings.withdrawn:
        return ""
    rows = [
        [w.registration.task, f"{w.runs:,}", w.registration.hash[:12], (w.commit or "-")[:12], w.reason]
        for w in findings.withdrawn
    ]
    text = "\n## Withdrawn\n\nExperiments whose announcement was replaced by another. Their runs are published, and nothing "
    text += "rests on them.\n\n"
    return text + table(("task", "runs", "registration", "commit", "what the new announcement says"), rows, ("runs",))
