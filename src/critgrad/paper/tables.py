"""Results as tables for the terminal."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from critgrad.lab.report.panels import PanelArm
from critgrad.lab.report.table import Table
from critgrad.lab.screen.console import coloured, say, show, table, width
from critgrad.lab.stats import Comparison
from critgrad.lab.words import interval_text, listed

from .protocol.records import Outcome
from .protocol.tracks import Found
from .report.analysis_figures import DRAW
from .report.verdict_tables import arm_table, comparison_table
from .search import Standings
from .search.track import ArmState

COLOURS = {"better": "green", "worse": "red"}
WIDE = 100  # columns; a narrower terminal gets the verdict table without what can be read elsewhere


def print_compare(lines: Sequence[PanelArm], metric: str) -> None:
    """The verdict table of ``critgrad compare``, one block per family."""
    columns: dict[str, Callable[[PanelArm], str]] = {
        "optimizer": lambda v: v.label + (f"\n  {v.diverged} diverged" if v.diverged else ""),
        "lr": lambda v: show(float(str(v.hyper["lr"])), 3),
        f"test {metric}": lambda v: interval_text(v.test),
        "minus base": lambda v: interval_text(v.comparison.interval, "+") if v.comparison else "",
        "verdict": lambda v: coloured(v.comparison.shown, COLOURS.get(v.comparison.shown, "")) if v.comparison else "",
        "P(better)": lambda v: f"{v.comparison.poi:.2f}" if v.comparison else "",
        "to target": lambda v: (show(v.reach.median, 3) if v.reach.median else "not reached") if v.reach else "",
        "sooner": lambda v: v.speedup.text if v.speedup else "",
        "step": lambda v: f"{v.cost.to_base:.2f}x" if v.cost and v.cost.to_base else "",
    }
    if width() < WIDE:
        del columns["lr"], columns["P(better)"]
    right = tuple(head for head in columns if head not in ("optimizer", "verdict"))
    made = table(None, *columns, right=right, whole=("optimizer",))
    for line in lines:
        if line.arm == "base" and made.rows:
            made.add_row()
        made.add_row(*(cell(line) for cell in columns.values()))
    made.put()


def put(found: Table, *heads: str, title: str | None = None) -> None:
    """A table of the page on the terminal: all its columns, or those that are named."""
    names = [name for name, _ in found.heads]
    shown = [names.index(head) for head in heads] if heads else range(len(names))
    right = tuple(names[i] for i in shown if found.is_of_numbers(i))
    made = table(found.title if title is None else title, *(names[i] for i in shown), right=right)
    for row in found.cells:
        made.add_row(*(coloured(row[i].text, COLOURS.get(row[i].css.removeprefix("badge "), "")) for i in shown))
    made.put()


def print_outcome(outcome: Outcome, families: Sequence[str] | None = None) -> None:
    """The tables of a fair sweep: arms, then the primary comparisons. ``families``: what was asked for; else all."""
    for warning in outcome.warnings:
        # Runs are counted over all families: beside "0 to do" of those asked for, that must be said.
        warning += " (all families)" if families and warning == outcome.to_go else ""
        say(warning, "yellow")
    if outcome.arms:
        test = f"test {outcome.registration.metric}"
        shown = ("arm", "hyper-parameters", "edges", test, "diverged", "epochs to target")
        put(arm_table(outcome), *shown, title=f"{outcome.name}: {outcome.runs} runs")
    print_comparisons("Primary comparisons", outcome.primary)
    reasons: dict[tuple[str, str], list[str]] = {}
    for missing in outcome.missing:
        if not families or missing.family in families:
            reasons.setdefault((missing.family, missing.reason), []).append(missing.arm)
    for (family, reason), arms in reasons.items():
        say(f"missing: {family}: {reason}: {', '.join(arms)}")


def print_comparisons(title: str, rows: Sequence[Comparison]) -> None:
    """Comparisons with everything that their verdict rests on."""
    if rows:
        heads = ("arm", "against", "seeds", "difference", "p", "p (Holm)", "verdict", "notes")
        put(comparison_table("", rows), *heads, title=f"\n{title}")


def print_paper(found: Sequence[Found], label: str) -> None:
    """A paper track beside the paper's own numbers."""
    say(f"{label}: for comparison with the paper's tables only", "yellow")
    numbers = ("of", "valid", "test", "std")
    made = table(None, "optimizer", "chosen", *numbers, "the paper's", right=numbers)
    for row in found:
        values = show(row.valid), show(row.test.mean), show(row.test_std, 2), row.paper.text if row.paper else "-"
        made.add_row(row.optimizer, listed(row.hyper), str(row.settings_tried), *values)
    made.put()


def print_standings(found: Standings, chosen: Sequence[str] | None) -> None:
    """A search: every variant, then what was confirmed."""
    say(f"{found.name} on {found.task}: {found.standing.text}")
    columns: dict[str, Callable[[ArmState], str]] = {
        "rank": lambda line: "-" if line.rank is None else str(line.rank),
        "arm": lambda line: line.name,
        "optimizer": lambda line: line.optimizer,
        "valid": lambda line: show(line.valid),
        "loss": lambda line: show(line.loss),
        "minus base": lambda line: line.against[0],
        "minus rival": lambda line: line.against[1],
        "best point": lambda line: listed(dict(line.point)) + line.edges_text,
        "runs": lambda line: f"{line.runs}" + (f" (+{len(line.pending)} next)" if line.pending else ""),
        "diverged": lambda line: str(line.diverged) if line.diverged else "",
        "what": lambda line: line.arm.why,
    }
    numbers = tuple(head for head in columns if head not in ("arm", "optimizer", "best point", "what"))
    families = chosen or tuple(dict.fromkeys(line.family for line in found.lines))
    for family in families:
        mine = [line for line in found.lines if line.family == family]
        mine.sort(key=lambda line: (line.rank is None, line.rank or 0))
        made = table(family, *columns, right=numbers)
        for line in mine:
            made.add_row(*(cell(line) for cell in columns.values()))
        made.put()
    for family in families:
        say(found.verdict(family))
    for arm in found.confirmed:
        if arm.family in families:
            say(arm.text)


def print_analysis(name: str, data: dict[str, Any]) -> None:
    """The numbers behind an analysis's figures."""
    for found in DRAW[name](data, data["task"]).tables:
        put(found)
    for line in data.get("lost", ()):
        say(f"{line['optimizer']}: all {line['runs']} runs diverged")
