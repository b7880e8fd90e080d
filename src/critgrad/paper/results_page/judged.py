"""Which announced comparisons are corrected together: one family of tests for each table, and each comparison in one family.

The suite's and the rare tasks' comparisons of one memory are a family each, those of damping on the rival with what was asked
later of it, too; a later question about adding is a family by itself.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from critgrad.lab.stats import Comparison, Interval, judge

from ..protocol.outcome import suite_table
from ..protocol.records import Outcome
from .findings import Findings
from .text import interval, labels, page, probability, table

KINDS = {"adding": "adding the memory (_C)", "damping": "damping (_F)", "on the rival": "damping on the rival"}
_KIND_OF = {"C": "adding", "F": "damping", "F-rival": "on the rival", "F-tensor": "on the rival"}
WORDS = ("better", "same", "open", "worse")


@dataclass(frozen=True)
class Judged:
    """A comparison with the experiment that it belongs to."""

    outcome: Outcome
    row: Comparison

    @property
    def family(self) -> str:
        """The base's."""
        return self.row.family.rpartition("_")[0]

    @property
    def role(self) -> str:
        """``C``, ``F``, ``F-rival`` or ``F-tensor``."""
        return self.row.family.rpartition("_")[2]

    @property
    def kind(self) -> str:
        """Of ``KINDS``."""
        return _KIND_OF[self.role]

    @property
    def text(self) -> str:
        """``+0.4 ± 1.2``."""
        return interval(self.row.interval, "+")

    def survives(self, factor: float) -> bool:
        """Whether the interval leaves 0 outside when it is so many times as wide."""
        return abs(self.row.difference) > factor * self.row.interval.half_width

    def share(self, value: float) -> float:
        """A difference in % of what the base learns."""
        base = self.outcome.arm(self.family, "base")
        initial = self.outcome.initial
        assert base is not None, self.row
        assert initial is not None, self.row
        if self.outcome.registration.metric == "perplexity":
            return 100 * value / base.test.mean / math.log(initial / base.test.mean)
        return 100 * value / abs(base.test.mean - initial)


@dataclass(frozen=True)
class Tests:
    """A family of tests: Holm's correction runs over all of it."""

    kind: str
    where: str
    rows: tuple[Judged, ...]

    @property
    def counts(self) -> Counter[str]:
        """How many have each of the four words."""
        return Counter(found.row.verdict for found in self.rows)

    @property
    def text(self) -> str:
        """``of 38: 0 better, 7 same, 9 open, 22 worse``."""
        return f"of {len(self.rows)}: " + ", ".join(f"{self.counts[word]} {word}" for word in WORDS)


def _together(kind: str, where: str, outcomes: Sequence[Outcome], role: str, leave: Sequence[Outcome] = ()) -> Tests:
    """The primaries of one role under one correction; ``leave`` are experiments whose answer another one replaces."""
    asked = {(pair.task, pair.family) for outcome in outcomes if outcome not in leave for pair in outcome.pairs}
    pairs = [
        (outcome, pair)
        for outcome in outcomes
        for pair in outcome.pairs
        if pair.family.rpartition("_")[2] == role and not (outcome in leave and (pair.task, pair.family) in asked)
    ]
    rows = judge([pair for _, pair in pairs])
    return Tests(kind, where, tuple(Judged(outcome, row) for (outcome, _), row in zip(pairs, rows)))


@cache
def families(findings: Findings) -> dict[str, Tests]:
    """By a short name, all of them that have a comparison."""
    suite, rare, later = findings.claimable, findings.apart, findings.followed
    found = {
        "C": _together("adding", "the suite's tasks", suite, "C"),
        "C-rare": _together("adding", "tasks whose signal is rare", rare, "C"),
        **{f"C-{o.name}": _together("adding", f"asked later: {o.name}", [o], "C") for o in later},
        "F": _together("damping", "the suite's tasks", suite, "F"),
        "F-rare": _together("damping", "tasks whose signal is rare", rare, "F"),
        "F-rival": _together("on the rival", "all tasks but the rare ones", [*later, *suite], "F-rival", suite),
        "F-tensor": _together("on the rival", "the same, each tensor by itself", [*later, *suite], "F-tensor", suite),
        "F-rival-rare": _together("on the rival", "tasks whose signal is rare", rare, "F-rival"),
    }
    return {name: tests for name, tests in found.items() if tests.rows}


def replaced(findings: Findings) -> list[Judged]:
    """First answers in whose place a later question stands: in no family, by their own experiment's correction."""
    there = {(found.outcome.name, found.row.family) for tests in families(findings).values() for found in tests.rows}
    known = [*findings.claimable, *findings.apart, *findings.followed]
    return [Judged(o, row) for o in known for row in o.primary if (o.name, row.family) not in there]


def all_judged(findings: Findings) -> list[Judged]:
    """Every announced comparison once, by experiment, adding first."""
    rows = [found for tests in families(findings).values() for found in tests.rows] + replaced(findings)
    order = [outcome.name for outcome in findings.outcomes]
    kinds = list(KINDS)
    return sorted(rows, key=lambda found: (order.index(found.outcome.name), kinds.index(found.kind), found.row.family))


# -- as pages ----------------------------------------------------------------------------------------------------------


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
    short, text = "\n".join(f"- {tests.kind}, {tests.where}, {tests.text}" for tests in mine.values()), ""
    for name, tests in mine.items():
        head = f"{tests.kind.capitalize()}: {tests.where}"
        about = labels("families").get(name, "One family of tests, as it was announced.")
        text += f"\n## {head}\n\n{about} {tests.text.capitalize()}.\n\n{comparison_table(tests.rows)}"
    for found in replaced(findings):
        if found.kind in kinds:
            said = f"{found.outcome.name}, {found.row.arm} {found.text} against {found.row.rival}"
            first = f"{said} (p {probability(found.row.p)})"
            text += f"\nBefore it was asked again: {first}.\n"
    return page("comparisons", title=title, short=short, families=text) if mine else ""


def arms_page(findings: Findings) -> str:
    """One number for each arm over the suite; nothing without a suite."""
    found = [(row, d) for row in suite_table(findings.claimable) if (d := row.difference) is not None]
    in_percent = [Interval(100 * d.value, 100 * d.low, 100 * d.high, d.tasks) for _, d in found]
    rows = [[r.family, r.label, str(len(r.tasks)), interval(d, "+")] for (r, _), d in zip(found, in_percent)]
    if not rows:
        return ""
    head = ("family", "arm", "tasks", "difference (%)")
    return page("arms", table=table(head, rows, head[2:]))


def made_of_page(findings: Findings) -> str:
    """The decompositions; nothing where the controls were not run."""
    parts = [(outcome, part) for outcome in findings.outcomes for part in outcome.decompositions]
    said, text = [], ""
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
            said.append(f"{kind}, of {len(mine)} differences the largest part is {counts}")
            text += f"\n**{kind[0].upper()}{kind[1:]}**\n\n"
            text += table(("task", "arm", *effects, "in all"), rows, (*effects, "in all"))
    return page("made-of", short=f"In short: {'; '.join(said)}.", tables=text) if text else ""
