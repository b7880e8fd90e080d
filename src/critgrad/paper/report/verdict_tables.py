"""The tables that come first: what is better, on what evidence, and what must be known before one believes it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from critgrad.lab.ledger.reach import Reach
from critgrad.lab.report.figure import slug
from critgrad.lab.report.provenance import ranges
from critgrad.lab.report.table import (
    COMPARISON,
    Cell,
    Table,
    comparison_cells,
    comparison_record,
    interval,
    interval_record,
    notes_of,
    number,
    prose,
    table_of,
    verdict,
    word,
)
from critgrad.lab.stats import Comparison, Interval, Speedup
from critgrad.lab.words import listed

from ..protocol import ARMS, Outcome, suite
from ..protocol.paper_values import Performance
from ..protocol.records import ArmResult
from .panels import Compared, PaperRun

_TEST = "at the epoch of the best validation value; ± 95 % t-interval"


def compare_table(found: Compared, metric: str) -> Table:
    """The lines of ``critgrad compare``."""
    chosen = {(arm.family, arm.arm): arm for arm in found.defaults.arms}
    both = "_C adds its memory, _F damps with it; step of: the base with the memory's step size"
    words = "the interval leaves 0 outside; descriptive, not corrected for the number of comparisons"
    columns = (
        ("optimizer", both, lambda v: word(v.label, ARMS[v.arm].summary if v.arm in ARMS else "")),
        (f"test {metric}", _TEST, lambda v: interval(v.test)),
        ("minus base", "mean paired difference; positive is better", lambda v: _difference(v.comparison)),
        ("verdict", words, lambda v: verdict(v.comparison)),
        ("P(better)", "share of the seeds on which it is better than the base", lambda v: _share(v.comparison)),
        ("diverged", "runs; they count as the worst value", lambda v: _part(v.diverged, v.test.n)),
        (
            "epochs to target",
            "median; target: 99 % of the way from the start to the base's best",
            lambda v: _reached(v.reach, of=v.test.n),
        ),
        ("sooner", "how many times sooner than the base", lambda v: _sooner(v.speedup)),
        ("step", "time of optimizer.step to the base's, in these runs", lambda v: number(v.cost.to_base, 3, "×")),
        (
            "trials",
            "points that the sweep tried for this arm; 0: derived",
            lambda v: number(chosen[v.family, v.arm].trials),
        ),
        (
            "edges",
            "values at an end of what was tried: a better one may lie beyond",
            lambda v: word(_edges(chosen[v.family, v.arm].edges)),
        ),
        ("hyper-parameters", "chosen by a fair sweep on other seeds", lambda v: prose(listed(dict(v.hyper)))),
    )
    records = [
        {
            **{name: getattr(line, name) for name in ("family", "arm", "label", "optimizer", "diverged")},
            "hyper": dict(line.hyper),
            "test": interval_record(line.test),
            "comparison": comparison_record(line.comparison, line.comparison.note) if line.comparison else None,
            "epochs_to_target": line.reach.median if line.reach else None,
            "sooner": line.speedup.text if line.speedup else None,
            "step_ratio": line.cost.to_base if line.cost else None,
            "runs": [row.key for row in line.rows],
        }
        for line in found.lines
    ]
    name = slug("table-compare", found.defaults.task, *found.defaults.settings.values())
    return table_of(name, columns, found.lines, records)


def _difference(row: Comparison | None) -> Cell:
    return interval(Interval(row.difference, row.low, row.high, row.n), signed=True) if row else word("")


def _share(row: Comparison | None) -> Cell:
    return number(row.poi, 2) if row else word("")


def _part(count: int, whole: int) -> Cell:
    return Cell(f"{count}/{whole}", count / whole)


def _sooner(found: Speedup | None) -> Cell:
    return Cell(found.text, found.ratio_low) if found else word("")


def _reached(found: Reach | None, of: int = 0) -> Cell:
    """Epochs to target; with ``of`` runs in all, how many never came there."""
    if found is None or found.median is None:
        return word("-" if found is None else "not reached")
    missed = len(found.times) - found.reached
    return Cell(f"{found.median:g}" + (f" ({missed} of {of} never)" if missed and of else ""), found.median)


def _edges(edges: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {end}" for name, end in edges.items())


def comparison_table(identity: str, rows: Sequence[Comparison], title: str = "", folded: bool = False) -> Table:
    """Comparisons with everything that their verdicts rest on."""
    notes = notes_of(rows)
    return Table(
        identity,
        COMPARISON,
        [comparison_cells(row, note) for row, note in zip(rows, notes)],
        [comparison_record(row, note) for row, note in zip(rows, notes)],
        title,
        folded,
    )


def tally(rows: Sequence[Comparison]) -> str:
    """``1 better, 0 worse, 2 same, 1 open``, and how many have too few seeds for a verdict."""
    counts = Counter("same" if row.shown == "identical" else row.shown for row in rows)
    told = [f"{counts[word]} {word}" for word in ("better", "worse", "same", "open")]
    few = counts["one seed"] + counts["not tested"]
    if few == len(rows) > 0:
        return "too few seeds for a test"
    return ", ".join([*told, *([f"{few} with too few seeds for a test"] if few else [])])


def fair_tables(outcome: Outcome) -> list[Table]:
    """Primaries, arms, then all other pairs."""
    name = slug(outcome.task, outcome.registration.hash[:8])
    tables = []
    if outcome.primary:
        tables.append(
            comparison_table(
                f"table-primary-{name}", outcome.primary, "Primary comparisons, corrected within this task"
            )
        )
    if outcome.arms:
        tables.append(arm_table(outcome, name))
    if outcome.descriptive:
        title = "All other pairs: descriptive, no claim may rest on them"
        tables.append(comparison_table(f"table-descriptive-{name}", outcome.descriptive, title, folded=True))
    if outcome.missing:
        heads = (("family", ""), ("arm", ""), ("why", ""))
        cells = [[word(m.family), word(m.arm), prose(m.reason)] for m in outcome.missing]
        records = [{"family": m.family, "arm": m.arm, "reason": m.reason} for m in outcome.missing]
        tables.append(Table(f"table-missing-{name}", heads, cells, records, "Arms without numbers", folded=True))
    return tables


def arm_table(outcome: Outcome, name: str = "") -> Table:
    """The arms of a fair experiment."""
    edge = "values at an end of the search space: a better one may lie beyond"
    columns = (
        ("arm", lambda v: word(v.label, ARMS[v.arm].summary)),
        ("family", lambda v: word(v.family)),
        (f"test {outcome.registration.metric}", _TEST, lambda v: interval(v.test)),
        ("diverged", "of the reported runs; they count as the worst value", lambda v: _part(v.diverged, len(v.seeds))),
        ("training loss", "of the last epoch", lambda v: interval(v.train_loss)),
        ("epochs to target", "median over seeds", lambda v: _reached(v.reach.get("epochs"))),
        ("sooner", "how many times sooner than the base, in epochs", lambda v: _sooner(v.speedup.get("epochs"))),
        (
            "trials",
            "points tried; 0: derived from a memory's point, no tuning of its own",
            lambda v: number(v.trials),
        ),
        ("tuning runs", lambda v: number(v.tuning_runs)),
        ("edges", edge, lambda v: prose(_edges(v.edges))),
        ("hyper-parameters", "chosen on the tuning seeds", lambda v: prose(listed(dict(v.hyper)))),
        ("notes", lambda v: prose(_arm_notes(v, outcome.registration.epochs))),
    )
    plain = ("family", "arm", "label", "optimizer", "divergence_rate", "trials", "tuning_runs")
    records = [
        {
            **{name: getattr(arm, name) for name in plain},
            **{name: dict(getattr(arm, name)) for name in ("hyper", "edges")},
            **{name: interval_record(getattr(arm, name)) for name in ("test", "train_loss")},
            "values": list(arm.values),
            "epochs_to_target": arm.reach["epochs"].median if "epochs" in arm.reach else None,
            "sooner": arm.speedup["epochs"].text if "epochs" in arm.speedup else None,
            "runs": list(arm.keys),
        }
        for arm in outcome.arms
    ]
    return table_of(f"table-arms-{name}", columns, outcome.arms, records, "Arms on the reported seeds")


def _arm_notes(arm: ArmResult, epochs: int) -> str:
    tied = f"{arm.tied} points tie" if arm.tied > 1 else ""
    longer = f"{arm.epochs} epochs" if arm.epochs != epochs else ""
    return "; ".join(filter(None, (arm.note, tied, longer)))


def suite_primaries(outcomes: Sequence[Outcome]) -> list[Comparison] | None:
    """The primaries of several tasks, corrected together; nothing where there is one task, or two plans of the same.

    What was asked of a task later was asked because of what had been found, and is judged by itself.
    """
    there = [outcome for outcome in outcomes if outcome.primary and not outcome.registration.question]
    tasks = [outcome.task for outcome in there]
    return None if len(set(tasks)) < 2 or len(set(tasks)) < len(tasks) else suite(there)


def suite_table(outcomes: Sequence[Outcome]) -> Table | None:
    """The table of ``suite_primaries``. A comparison that was asked again says so, and what came out."""
    rows = suite_primaries(outcomes)
    if rows is None:
        return None
    again = {
        (outcome.task, later.family): f"asked again in {outcome.name}: {later.verdict}"
        for outcome in outcomes
        if outcome.registration.question
        for later in outcome.primary
    }
    notes = [
        ", ".join(part for part in (note, again.get((row.task, row.family))) if part)
        for row, note in zip(rows, notes_of(rows))
    ]
    return Table(
        "table-suite",
        (("task", ""), *COMPARISON),
        [[word(row.task), *comparison_cells(row, note)] for row, note in zip(rows, notes)],
        [comparison_record(row, note) for row, note in zip(rows, notes)],
        "Primary comparisons of all tasks, corrected together",
    )


def paper_table(run: PaperRun) -> Table:
    """A paper track beside the paper's own numbers."""
    against = {arm.optimizer: arm.comparison for arm in run.panel.arms}
    columns = (
        ("optimizer", lambda v: word(v.optimizer)),
        (
            "settings tried",
            "a _C optimizer chooses among nine times as many in the grid",
            lambda v: number(v.settings_tried),
        ),
        ("valid", "mean over the seeds", lambda v: number(v.valid)),
        (f"test {run.panel.metric}", "± 95 % t-interval, on the seeds that selected", lambda v: interval(v.test)),
        ("std", "over the seeds", lambda v: number(v.test_std, 3)),
        ("the paper's", "as printed; the paper does not say what its ± is", lambda v: _printed(v.paper)),
        ("minus base", "paired difference; positive is better", lambda v: _difference(against[v.optimizer])),
        ("verdict", "the interval leaves 0 outside; descriptive", lambda v: verdict(against[v.optimizer])),
        ("diverged", lambda v: _part(v.diverged, v.seeds)),
        ("edges", "values at an end of the paper's grid", lambda v: prose(", ".join(v.edges))),
        (
            "hyper-parameters",
            "of the setting with the best mean validation value",
            lambda v: prose(listed(dict(v.hyper))),
        ),
    )
    records = [
        {
            **{name: getattr(row, name) for name in ("optimizer", "settings_tried", "seeds", "valid", "diverged")},
            "hyper": dict(row.hyper),
            "test": interval_record(row.test),
            "paper": {"value": row.paper.value, "spread": row.paper.spread} if row.paper else None,
            "comparison": comparison_record(c, c.note) if (c := against[row.optimizer]) else None,
        }
        for row in run.found
    ]
    identity = slug("table", run.track.name, run.track.task, *run.track.task_settings.values())
    return table_of(identity, columns, run.found, records)


def _printed(paper: Performance | None) -> Cell:
    return Cell(f"{paper.value:g} ± {paper.spread:g}", paper.value) if paper else word("-")


def registration_table(outcomes: Sequence[Outcome], lost: dict[str, int]) -> Table | None:
    """The plans that were written down before the runs, and where each stands."""
    if not outcomes and not lost:
        return None
    heads = (
        ("task", ""),
        ("hash", "of the file's content; part of every trial's key"),
        ("commit", "that brought it"),
        ("standing", ""),
        ("trials", "of each tuned arm"),
        ("tuning seeds", ""),
        ("report seeds", ""),
        ("epochs", ""),
        ("runs", ""),
        ("to go", ""),
    )
    cells, records = [], []
    for outcome in outcomes:
        plan, where = outcome.registration, outcome.standing
        commit = where.commit or ""
        cells.append(
            [
                word(plan.task),
                Cell(plan.hash[:12], title=plan.hash, css="code"),
                Cell(commit[:12], title=commit, css="code"),
                Cell("registered" if where.registered else where.text, css="" if where.registered else "badge warn"),
                number(plan.trials),
                Cell(ranges(plan.tuning_seeds), len(plan.tuning_seeds)),
                Cell(ranges(plan.report_seeds), len(plan.report_seeds)),
                number(plan.epochs),
                number(outcome.runs, 9),
                number(sum(outcome.pending.values())),
            ]
        )
        records.append(
            {"task": plan.task, "hash": plan.hash, "commit": where.commit, "registered": where.registered}
            | {"runs": outcome.runs, "pending": dict(outcome.pending), "plan": plan.to_dict()}
        )
    for value, count in lost.items():
        row: list[Cell] = [word("?"), Cell(value[:12], title=value, css="code"), word("")]
        row.append(Cell("its plan is not in the ledger: its runs are left out", css="badge warn"))
        cells.append([*row, *[word("")] * 4, number(count), word("")])
        records.append({"hash": value, "runs": count, "registered": False})
    return Table("table-registrations", heads, cells, records, "Registrations")
