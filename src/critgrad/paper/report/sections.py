"""What stands on the page, in which order: sections of tables and figures, each only where the ledger has data for it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import fmean, median_high
from typing import Any

from critgrad.lab.ledger import Row
from critgrad.lab.ledger.source import alike, metric_of
from critgrad.lab.report import provenance
from critgrad.lab.report.figure import Figure, slug
from critgrad.lab.report.limit import capped
from critgrad.lab.report.outcome_figures import (
    acceleration_figures,
    best_after_figures,
    curve_figures,
    improvement_figures,
    memory_figures,
)
from critgrad.lab.report.panels import Panel, PanelArm
from critgrad.lab.report.parts import Page, PageBlock, Section
from critgrad.lab.report.table import Cell, Table, interval, interval_record, number, table_of, word
from critgrad.lab.words import listed

from ..analyses import ANALYSES, Analysis
from ..protocol import Outcome
from ..protocol.announced import AnnouncedSource
from .analysis_figures import DRAW, decomposition_figures
from .opening import opening, terms_of
from .panels import compare_panel, compared, fair_outcomes, fair_panel, other_panels, paper_runs
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
    found, outcomes, papers = compared(source), fair_outcomes(source), paper_runs(source)
    others, tried = other_panels(source)
    fair = [(outcome, fair_panel(source, outcome)) for outcome in outcomes]
    panels = [panel for _, panel in fair if panel] + [compare_panel(c) for c in found] + [run.panel for run in papers]
    every = [*panels, *others]
    drawn, kept = _analyses(source)

    first = opening(outcomes, found, every, len(source.done)) if every else Section("answer", "In short")
    verdicts = Section("verdicts", "Verdicts", _READING)
    for outcome in outcomes:
        verdicts.blocks.append(_fair_block(outcome))
    together = suite_table(outcomes)
    if together is not None:
        verdicts.blocks.insert(0, PageBlock("All tasks", "", (), (together,)))
    for c in found:
        metric, _, _ = metric_of([row for line in c.lines for row in line.rows], c.defaults.task)
        verdicts.blocks.append(_compare_block(c, compare_table(c, metric)))
    runs = Section("runs", "Runs", "Runs outside the tracks. Nothing here was tuned alike: no verdicts.")
    runs.blocks += [_runs_block(panel, tried[panel.title]) for panel in others]
    paper = Section(
        "paper",
        "Beside the paper",
        "The paper's settings and its selection rule: the same seeds select and report. For comparison with the paper's "
        "tables only; claims rest on the fair track.",
    )
    paper.blocks += [PageBlock(run.panel.title, run.track.label, (), (paper_table(run),)) for run in papers]

    sections = [
        first,
        verdicts,
        runs,
        paper,
        _figure_section("curves", "Learning curves", "", every, curve_figures),
        _figure_section("acceleration", "Acceleration", _TARGET, panels, acceleration_figures, flat=True),
        _figure_section("improvement", "Test improvements", "", panels, improvement_figures, flat=True),
        _figure_section(
            "trials", "Best after k trials", "What tuning for longer would have bought.", panels, best_after_figures
        ),
        *(drawn[name] for name in ("sensitivity", "staleness", "gt-vs-gc", "ablation") if name in drawn),
        _decompositions(fair),
        *(drawn[name] for name in ("damping", "noise", "convex", "runtime", "spectrum") if name in drawn),
        _figure_section("memory", "Inside the memory", "What the memory of a single run held.", others, memory_figures),
        _costs(every),
        _provenance(source, outcomes),
    ]
    report = Page([s for s in sections if s.blocks], _facts(source, outcomes), _banners(source, outcomes), kept)
    return capped(report)


_READING = (
    "Differences are paired: same start, same batches. Positive is better, whatever the metric's direction; ± is a 95 % "
    "t-interval over seeds. Only primary comparisons of a registered plan may carry a claim; all others are descriptive, "
    "and between equals one in twenty of those leaves 0 outside by chance."
)
_TARGET = (
    "How many times sooner than its base an arm reaches the target: 99 % of the way from the value before training to "
    "the base's best validation value."
)


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


def _compare_block(found: Any, table: Table) -> PageBlock:
    seeds = ", ".join(f"{count} seeds ({family})" for family, count in found.seeds.items())
    if len(set(found.seeds.values())) == 1:
        seeds = f"{next(iter(found.seeds.values()))} seeds"
    rows = [line.comparison for line in found.lines if line.comparison]
    intro = f"Each arm against its family's base on {seeds}; hyper-parameters fixed beforehand, nothing tuned here. "
    intro += f"Against the base: {tally(rows)}."
    warnings = tuple(f"{label}: not run on every seed, left out" for label in found.left_out)
    warnings += _not_whole(row for line in found.lines for row in line.rows)
    terms = terms_of([(line.arm, line.label) for line in found.lines])
    return PageBlock(f"{found.defaults.task}, compare", intro, warnings, (table,), terms=terms)


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
    intro = f"{_count(tried, 'setting')}. " + " ".join(panel.notes)
    heads = columns("runs", cells, panel.metric)
    return PageBlock(
        panel.title, intro, warnings, (table_of(slug("table-runs", panel.title), heads, panel.arms, records),)
    )


def _not_whole(rows: Iterable[Row]) -> tuple[str, ...]:
    states = {str(row.summary.get("data_state")) for row in rows} - {"whole"}
    return tuple(f"the data is {state}" for state in sorted(states))


def _of_runs(arm: PanelArm, name: str, reduced: Callable[[list[float]], float]) -> float | None:
    """A number of some runs as one."""
    known = [row.summary[name] for row in arm.rows if row.summary.get(name) is not None]
    return reduced(known) if known else None


def _figure_section(
    identity: str,
    title: str,
    intro: str,
    panels: Sequence[Panel],
    draw: Callable[[Panel], list[Figure]],
    flat: bool = False,
) -> Section:
    found = [(panel, draw(panel)) for panel in panels]
    blocks = [PageBlock(panel.title, "", (), (), tuple(figures)) for panel, figures in found if figures]
    if flat and 1 < len(blocks) <= 6:
        # Few bars each: side by side; their own titles say which is which.
        blocks = [PageBlock("", "", (), (), tuple(figure for block in blocks for figure in block.figures))]
    return Section(identity, title, intro, blocks)


def _decompositions(fair: Sequence[tuple[Outcome, Panel | None]]) -> Section:
    section = Section(
        "decompose",
        "Decomposition",
        "A memory's difference to its tuned base as a sum of effects, each measured by a control that has one of them less.",
    )
    for outcome, panel in fair:
        if not outcome.decompositions or panel is None:
            continue
        name = slug("table-decompose", outcome.task, outcome.registration.hash[:8])
        table = decomposition_table(name, outcome.decompositions)
        figures = decomposition_figures(panel.title, panel.metric, panel.unit, outcome.decompositions)
        section.blocks.append(PageBlock(panel.title, "", (), (table,), tuple(figures)))
    return section


# -- analyses ----------------------------------------------------------------------------------------------------------


def _analyses(source: AnnouncedSource) -> tuple[dict[str, Section], dict[str, list[dict[str, Any]]]]:
    sections: dict[str, Section] = {}
    kept: dict[str, list[dict[str, Any]]] = {}
    for name, analysis in ANALYSES.items():
        section = Section(name, analysis.title, analysis.intro)
        for stored in source.analyses:
            if stored.name == name:
                _draw(section, kept, name, stored.task, stored.task, stored.data)
        for task in source.tasks:
            rows = source.rows(task=task, purpose=analysis.purpose)
            for label, members in _analysis_groups(analysis, rows):
                where = f"{task}{label}"
                try:
                    data = analysis.collect(task, members)
                except (ArithmeticError, LookupError, TypeError, ValueError) as error:
                    message = f"{name} on {where} could not be drawn from {len(members)} runs: {error}"
                    section.blocks.append(PageBlock(where, "", (message,)))
                    continue
                _draw(section, kept, name, task, where, data, _not_whole(members))
        if section.blocks:
            sections[name] = section
    return sections, kept


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
    section: Section,
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
        section.blocks.append(PageBlock(where, "", warnings, drawn.tables, drawn.figures))


# -- costs, provenance -------------------------------------------------------------------------------------------------


def _costs(panels: Sequence[Panel]) -> Section:
    table = provenance.cost_table(panels)
    intro = "Times come from single runs of the fair track's timing and of the other tracks; bank runs carry none."
    return Section("cost", "Cost", intro, [PageBlock("", "", (), (table,))] if table else [])


def _provenance(source: AnnouncedSource, outcomes: Sequence[Outcome]) -> Section:
    lost = source.registrations[1]
    found = [
        provenance.data_table(source),
        registration_table(outcomes, lost),
        provenance.run_table(source),
        provenance.failure_table(source),
        provenance.machine_table(source),
        provenance.command_table(source),
    ]
    tables = tuple(table for table in found if table is not None and table.cells)
    return Section("provenance", "Provenance", "", [PageBlock("", "", (), tables)] if tables else [])


def _facts(source: AnnouncedSource, outcomes: Sequence[Outcome]) -> list[tuple[str, str]]:
    diverged = sum(bool(row.summary.get("diverged")) for row in source.done)
    tasks = ("task", source.tasks[0]) if len(source.tasks) == 1 else ("tasks", str(len(source.tasks)))
    facts = [tasks, ("runs", f"{len(source.done):,}")]
    facts += [("seeds", str(len({row.trial.seed for row in source.done})))]
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
        out.append(f"{_count(len(source.failed), 'run')} failed: see Provenance")
    return out


def _count(number: int, word_for: str) -> str:
    return f"{number:,} {word_for}{'' if number == 1 else 's'}"
