"""What stands on the page, in which order: sections of tables and figures, each only where the ledger has data for it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean, median_high
from typing import Any

from critgrad.lab.ledger import Row
from critgrad.lab.ledger.source import alike, metric_of
from critgrad.lab.report import provenance
from critgrad.lab.report.figure import Figure, slug
from critgrad.lab.report.outcome_figures import (
    acceleration_figures,
    best_after_figures,
    curve_figures,
    improvement_figures,
    memory_figures,
)
from critgrad.lab.report.panels import Panel, PanelArm
from critgrad.lab.report.parts import Page, PageBlock, Section, capped
from critgrad.lab.report.table import Cell, Table, interval, interval_record, number, table_of, word
from critgrad.lab.words import counted, listed

from ..analyses import ANALYSES, Analysis
from ..protocol import Outcome, tables
from ..protocol.announced import AnnouncedSource
from .analysis_figures import DRAW, decomposition_figures
from .opening import opening, terms_of
from .panels import Compared, compare_panel, compared, fair_panel, other_panels, paper_runs
from .verdict_tables import (
    columns,
    compare_table,
    decomposition_table,
    fair_tables,
    paper_table,
    registration_table,
    suite_primaries,
    suite_table,
    tally,
)


def build(source: AnnouncedSource) -> Page:
    """The report of a ledger."""
    found, papers = compared(source), paper_runs(source)
    outcomes = [tables(source, registration) for registration in source.registrations[0]]
    others, tried = other_panels(source)
    fair = [(outcome, fair_panel(source, outcome)) for outcome in outcomes]
    panels = [panel for _, panel in fair if panel] + [compare_panel(c) for c in found] + [run.panel for run in papers]
    every = [*panels, *others]
    analysed, kept = _analyses(source)
    together = suite_table(outcomes)
    blocks = {
        "answer": [opening(outcomes, found, every, len(source.done))] if every else [],
        "verdicts": [
            *([PageBlock("All tasks", "", (), (together,))] if together is not None else []),
            *map(_fair_block, outcomes),
            *map(_compare_block, found),
        ],
        "runs": [_runs_block(panel, tried[panel.title]) for panel in others],
        "paper": [PageBlock(run.panel.title, run.track.label, (), (paper_table(run),)) for run in papers],
        "curves": _figures(every, curve_figures),
        "acceleration": _side_by_side(_figures(panels, acceleration_figures)),
        "improvement": _side_by_side(_figures(panels, improvement_figures)),
        "trials": _figures(panels, best_after_figures),
        "decompose": [_decomposition(outcome, panel) for outcome, panel in fair if outcome.decompositions and panel],
        "memory": _figures(others, memory_figures),
        "cost": _tables(provenance.cost_table(every)),
        "provenance": _tables(
            provenance.data_table(source),
            registration_table(outcomes, source.registrations[1]),
            provenance.run_table(source),
            provenance.failure_table(source),
            provenance.machine_table(source),
            provenance.command_table(source),
        ),
        **analysed,
    }
    sections = [Section(**about, blocks=blocks[about["id"]]) for about in _SECTIONS if blocks.get(about["id"])]
    return capped(Page(sections, _facts(source, outcomes), _banners(source, outcomes), kept))


# In the order of the page.
_SECTIONS = json.loads((Path(__file__).parent / "sections.json").read_text(encoding="utf-8"))


def _fair_block(outcome: Outcome) -> PageBlock:
    plan = outcome.registration
    words = [f"{outcome.standing.text[:1].upper()}{outcome.standing.text[1:]}"] if outcome.standing.registered else []
    words.append(
        f"{outcome.runs} runs; {plan.trials} trials for each tuned arm on {len(plan.tuning_seeds)} tuning seeds"
        f"{f' ({plan.rungs_text})' if plan.rungs_text else ''}"
    )
    words.append(f"reported on {len(plan.report_seeds)} fresh seeds")
    if outcome.primary:
        words.append(f"primaries: {tally(outcome.primary)}")
    widened = [family for family, ends in outcome.widened.items() if ends]
    if widened:
        words.append(f"learning-rate range widened for {', '.join(widened)}")
    return PageBlock(
        f"{outcome.name}, fair track",
        "; ".join(words) + ".",
        outcome.warnings,
        tuple(fair_tables(outcome)),
        terms=terms_of([(arm.arm, arm.label) for arm in outcome.arms]),
    )


def _compare_block(found: Compared) -> PageBlock:
    metric, _, _ = metric_of([row for line in found.lines for row in line.rows], found.defaults.task)
    counts = set(found.seeds.values())
    each = ", ".join(f"{count} seeds ({family})" for family, count in found.seeds.items())
    seeds = f"{counts.pop()} seeds" if len(counts) == 1 else each
    rows = [line.comparison for line in found.lines if line.comparison]
    intro = f"Each arm against its family's base on {seeds}; hyper-parameters fixed beforehand, nothing tuned here. "
    intro += f"Against the base: {tally(rows)}."
    warnings = tuple(f"{label}: not run on every seed, left out" for label in found.left_out)
    warnings += _not_whole(row for line in found.lines for row in line.rows)
    terms = terms_of([(line.arm, line.label) for line in found.lines])
    return PageBlock(f"{found.defaults.task}, compare", intro, warnings, (compare_table(found, metric),), terms=terms)


def _runs_block(panel: Panel, tried: int) -> PageBlock:
    cells = {
        "optimizer": lambda arm: word(arm.optimizer),
        "hyper-parameters": lambda arm: word(listed(dict(arm.hyper))),
        "seed numbers": lambda arm: Cell(
            provenance.ranges(sorted({row.trial.seed for row in arm.rows})), len(arm.rows)
        ),
        "test": lambda arm: interval(arm.test),
        "best epoch": lambda arm: number(_of_runs(arm, "best_epoch", median_high)),
        "training loss": lambda arm: number(_of_runs(arm, "final_train_loss", fmean)),
        "diverged": lambda arm: Cell(f"{arm.diverged}/{len(arm.rows)}", arm.diverged / len(arm.rows)),
        "step (ms)": lambda arm: number(arm.cost.step_ms, 3),
        "training (s)": lambda arm: number(_of_runs(arm, "train_seconds", fmean), 3),
    }
    records = [
        {"optimizer": arm.optimizer, "hyper": dict(arm.hyper), "test": interval_record(arm.test)}
        | {"diverged": arm.diverged, "step_ms": arm.cost.step_ms if arm.cost else None}
        | {"runs": [row.key for row in arm.rows[:50]]}
        for arm in panel.arms
    ]
    warnings = _not_whole(row for arm in panel.arms for row in arm.rows)
    intro = f"{counted(tried, 'setting')}. " + " ".join(panel.notes)
    heads = columns("runs", cells, panel.metric)
    table = table_of(slug("table-runs", panel.title), heads, panel.arms, records)
    return PageBlock(panel.title, intro, warnings, (table,))


def _not_whole(rows: Iterable[Row]) -> tuple[str, ...]:
    states = {str(row.summary.get("data_state")) for row in rows} - {"whole"}
    return tuple(f"the data is {state}" for state in sorted(states))


def _of_runs(arm: PanelArm, name: str, reduced: Callable[[list[float]], float]) -> float | None:
    """A number of some runs as one."""
    known = [row.summary[name] for row in arm.rows if row.summary.get(name) is not None]
    return reduced(known) if known else None


def _figures(panels: Sequence[Panel], draw: Callable[[Panel], list[Figure]]) -> list[PageBlock]:
    found = [(panel, draw(panel)) for panel in panels]
    return [PageBlock(panel.title, "", (), (), tuple(figures)) for panel, figures in found if figures]


def _side_by_side(blocks: list[PageBlock]) -> list[PageBlock]:
    """As one block where they are few and have few bars each; their own titles say which is which."""
    if not 1 < len(blocks) <= 6:
        return blocks
    return [PageBlock("", "", (), (), tuple(figure for block in blocks for figure in block.figures))]


def _tables(*found: Table | None) -> list[PageBlock]:
    there = tuple(table for table in found if table is not None and table.cells)
    return [PageBlock("", "", (), there)] if there else []


def _decomposition(outcome: Outcome, panel: Panel) -> PageBlock:
    name = slug("table-decompose", outcome.task, outcome.registration.hash[:8])
    table = decomposition_table(name, outcome.decompositions)
    figures = decomposition_figures(panel.title, panel.measured, outcome.decompositions)
    return PageBlock(panel.title, "", (), (table,), tuple(figures))


# -- analyses ----------------------------------------------------------------------------------------------------------


def _analyses(source: AnnouncedSource) -> tuple[dict[str, list[PageBlock]], dict[str, list[dict[str, Any]]]]:
    blocks: dict[str, list[PageBlock]] = {}
    kept: dict[str, list[dict[str, Any]]] = {}
    for name, analysis in ANALYSES.items():
        mine = blocks[name] = []
        for stored in source.analyses:
            if stored.name == name:
                _draw(mine, kept, name, stored.task, stored.task, stored.data)
        for task in source.tasks:
            rows = source.rows(task=task, purpose=analysis.purpose)
            for label, members in _analysis_groups(analysis, rows):
                where = f"{task}{label}"
                try:
                    data = analysis.collect(task, members)
                except (ArithmeticError, LookupError, TypeError, ValueError) as error:
                    message = f"{name} on {where} could not be drawn from {len(members)} runs: {error}"
                    mine.append(PageBlock(where, "", (message,)))
                    continue
                _draw(mine, kept, name, task, where, data, _not_whole(members))
    return blocks, kept


def _analysis_groups(analysis: Analysis, rows: Sequence[Row]) -> list[tuple[str, list[Row]]]:
    """Rows that may stand in one figure, with words for what sets them apart from the others."""
    groups: list[tuple[dict[str, Any], list[Row]]] = []
    for settings, members in alike(rows, analysis.varied):
        if not analysis.of_one_optimizer:
            groups.append((settings, members))
            continue
        apart: dict[str, list[Row]] = {}
        for row in members:
            hyper = {key: value for key, value in row.trial.hyper.items() if key not in ("topC", "decay")}
            apart.setdefault(f"{row.trial.optimizer} {listed(hyper)}", []).append(row)
        groups += [({"": text, **settings}, of) for text, of in apart.items()]
    if len(groups) < 2:
        return [("", members) for _, members in groups]
    return [(f" ({', '.join(f'{k}={v}'.lstrip('=') for k, v in words.items())})", of) for words, of in groups]


def _draw(
    blocks: list[PageBlock],
    kept: dict[str, list[dict[str, Any]]],
    name: str,
    task: str,
    where: str,
    data: Mapping[str, Any],
    warnings: tuple[str, ...] = (),
) -> None:
    drawn = DRAW[name](data, where)
    kept.setdefault(name, []).append({"task": task, "where": where, "data": dict(data)})
    if drawn.figures or drawn.tables:
        blocks.append(PageBlock(where, "", warnings, drawn.tables, drawn.figures))


# -- what opens the page -------------------------------------------------------------------------------------------------


def _facts(source: AnnouncedSource, outcomes: Sequence[Outcome]) -> list[tuple[str, str]]:
    diverged = sum(bool(row.summary.get("diverged")) for row in source.done)
    tasks = ("task", source.tasks[0]) if len(source.tasks) == 1 else ("tasks", str(len(source.tasks)))
    seeds = len({row.trial.seed for row in source.done})
    facts = [tasks, ("runs", f"{len(source.done):,}"), ("seeds", str(seeds))]
    facts += [("diverged", f"{diverged:,}"), ("failed", f"{len(source.failed):,}")]
    if outcomes:
        alone = [row for outcome in outcomes for row in outcome.primary]
        primaries = suite_primaries(outcomes) or alone  # as the first table counts them
        facts.append(("primary comparisons", tally(primaries) if primaries else "none yet"))
    return facts


def _banners(source: AnnouncedSource, outcomes: Sequence[Outcome]) -> list[str]:
    """What must be seen before any number."""
    out = [] if source.done or source.analyses else ["The ledger has no finished runs yet"]
    states = provenance.data_states(source)
    for state, word_for in (("synthetic", "SYNTHETIC data"), ("part", "PART of the data"), ("unknown", "UNKNOWN data")):
        tasks = [task for task, counts in states.items() if counts[state]]
        if tasks:
            out.append(f"{word_for}: {', '.join(tasks)}")
    for outcome in outcomes:
        if not outcome.standing.registered:
            out.append(f"{outcome.name}: {outcome.standing.text}; no claim may rest on its rows")
    for value, count in source.registrations[1].items():
        out.append(
            f"{count} runs carry a registration ({value[:12]}) whose plan is not in the ledger: left out of the verdicts"
        )
    if source.failed:
        out.append(f"{counted(len(source.failed), 'run')} failed: see Provenance")
    return out
