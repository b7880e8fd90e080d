"""The announced comparisons, one table for each family of tests; every arm over the suite; what differences are made of."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from critgrad.lab.stats import Interval

from .findings import Findings
from .judged import KINDS, Judged, families, replaced
from .text import interval, probability, table

RULE = """\
Differences are paired by seed, on seeds that nothing was chosen on, and positive where the arm is better than the rival that
was best on the tuning seeds. ± is a 95 % t-interval over seeds, [narrower](luck.md) than one that covers the search, too; p is
of the exact sign-flip test, Holm's is over the rows of one table; P(better) is the share of seeds on which it is better.
[What the words mean](README.md#words).
"""
ABOUT = {
    "C": "One family of tests: adding the memory on the suite's tasks.",
    "C-rare": "Classes with few examples (`longtail`), phases that are forgotten (`continual`): tasks that were chosen because "
    "a search gave something there, and no part of the suite.",
    "F": "One family of tests: damping with the memory on the suite's tasks.",
    "F-rare": "As on [the page on adding](adding.md).",
    "F-rival": "`NAdam_F` and `Nesterov_F`: a search on CIFAR-10 chose them, then they were announced for other tasks, all "
    "rivals tuned anew. Where the same was asked of a task again (`+`), that stands in the first one's place.",
    "F-tensor": 'The same with `scope="tensor"`.',
    "F-rival-rare": "Announced together with the others on these tasks. SGD and SGD with momentum share one `Nesterov_F`: it "
    "stands twice, against the best of each one's rivals.",
}


def comparison_table(rows: Sequence[Judged], with_name: bool = True) -> str:
    """With everything that a word rests on."""
    head = ("task", "arm", "word", "difference", "best rival on the tuning seeds", "seeds", "p", "Holm", "P(better)")
    cells = [
        [
            found.outcome.name,
            found.row.arm,
            ("identical" if found.row.identical else found.row.verdict)
            + ("" if found.row.testable else ", not testable"),
            found.text,
            found.row.rival,
            str(found.row.n),
            *[probability(p) for p in (found.row.p, found.row.p_holm)],
            f"{found.row.poi:.2f}",
        ]
        for found in rows
    ]
    first = 0 if with_name else 1
    return table(head[first:], [row[first:] for row in cells], (head[3], *head[5:]))


def comparisons_page(title: str, kinds: Sequence[str], findings: Findings) -> str:
    """All families of tests of some kinds; nothing where there are none."""
    mine = {name: tests for name, tests in families(findings).items() if tests.kind in kinds}
    text = "\nIn short:\n\n" + "".join(f"- {tests.kind}, {tests.where}, {tests.text}\n" for tests in mine.values())
    for name, tests in mine.items():
        head = f"{tests.kind.capitalize()}: {tests.where}"
        about = ABOUT.get(name, "One family of tests, as it was announced.")
        text += f"\n## {head}\n\n{about} {tests.text.capitalize()}.\n\n{comparison_table(tests.rows)}"
    for found in replaced(findings):
        if found.kind in kinds:
            first = f"{found.outcome.name}, {found.row.arm} {found.text} (p {probability(found.row.p)})"
            text += f"\nBefore it was asked again: {first}.\n"
    return f"# {title}\n\n{RULE}{text}" if mine else ""


def arms_page(findings: Findings) -> str:
    """One number for each arm over the suite; nothing without a suite."""
    rows = [
        [
            row.family,
            row.label,
            str(len(row.tasks)),
            interval(Interval(100 * d.value, 100 * d.low, 100 * d.high, d.tasks), "+"),
        ]
        for row in findings.suite_rows
        if (d := row.difference) is not None
    ]
    if not rows:
        return ""
    text = "# All arms over the suite\n\nDifference to the tuned base in % of the way from the value before training to the "
    text += "base's mean:\ninterquartile mean over tasks and seeds, stratified bootstrap. Descriptive.\n\n"
    return text + table(("family", "arm", "tasks", "difference (%)"), rows, ("tasks", "difference (%)"))


def made_of_page(findings: Findings) -> str:
    """The decompositions; nothing where the controls were not run."""
    parts = [(outcome, part) for outcome in findings.outcomes for part in outcome.decompositions]
    text = ""
    for arm in ("C", "F"):
        if mine := [(outcome, part) for outcome, part in parts if part.arm == arm]:
            effects = [term.effect for term in mine[0][1].terms]
            rows = [
                [o.name, f"{p.family}_{arm}", *[interval(t.difference, "+") for t in p.terms], interval(p.total, "+")]
                for o, p in mine
            ]
            largest = Counter(max(part.terms, key=lambda term: abs(term.difference.mean)).effect for _, part in mine)
            counts = ", ".join(f"{effect} in {count}" for effect, count in largest.most_common())
            kind = KINDS["adding" if arm == "C" else "damping"]
            text += f"\nIn short, {kind}: of {len(mine)} differences the largest part is {counts}.\n\n"
            text += table(("task", "arm", *effects, "in all"), rows, (*effects, "in all"))
    head = "# What the differences are made of\n\nThe memory minus its tuned base as a sum of effects: each column is one arm "
    head += "minus a simpler one. Descriptive.\n"
    return head + text if text else ""
