"""The tables that come first: who won, on what evidence, and what must be known before one believes it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

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
    verdict,
    word,
)
from critgrad.lab.stats import Comparison, Interval
from critgrad.lab.words import listed

from ..protocol import ARMS, Outcome, suite
from .panels import Compared, PaperRun

_TEST = "at the epoch of the best validation value; ± 95 % t-interval"


def compare_table(found: Compared, metric: str) -> Table:
    """The lines of ``critgrad compare``."""
    heads = (
        ("optimizer", "_C adds its memory, _F damps with it; step of: the base with the memory's step size"),
        (f"test {metric}", _TEST),
        ("minus base", "mean paired difference; positive is better"),
        ("verdict", "the interval leaves 0 outside; descriptive, not corrected for the number of comparisons"),
        ("P(better)", "share of the seeds on which it is better than the base"),
        ("diverged", "runs; they count as the worst value"),
        ("epochs to target", "median; target: 99 % of the way from the start to the base's best"),
        ("sooner", "how many times sooner than the base"),
        ("step", "time of optimizer.step to the base's, in these runs"),
        ("trials", "points that the sweep tried for this arm; 0: derived"),
        ("edges", "values at an end of what was tried: a better one may lie beyond"),
        ("hyper-parameters", "chosen by a fair sweep on other seeds"),
    )
    cells: list[list[Cell]] = []
    records: list[dict[str, Any]] = []
    for line in found.lines:
        arm = found.defaults.arm(line.family, line.arm)
        c = line.comparison
        reached = line.reach.median if line.reach else None
        missed = len(line.reach.times) - line.reach.reached if line.reach else 0
        epochs = "-" if line.reach is None else "not reached" if reached is None else f"{reached:g}"
        n = line.test.n
        cells.append(
            [
                word(line.label, ARMS[line.arm].summary if line.arm in ARMS else ""),
                interval(line.test),
                interval(_interval_of(c), signed=True) if c else word(""),
                verdict(c),
                number(c.poi, 2) if c else word(""),
                Cell(f"{line.diverged}/{n}", line.diverged / n),
                Cell(epochs + (f" ({missed} of {n} never)" if missed and reached is not None else ""), reached),
                Cell(line.speedup.text, line.speedup.ratio_low) if line.speedup else word(""),
                number(line.step_ratio, 3, "×"),
                number(arm.trials if arm else None),
                word(_edges(arm.edges) if arm else ""),
                prose(listed(line.hyper)),
            ]
        )
        records.append(
            {
                "family": line.family,
                "arm": line.arm,
                "label": line.label,
                "optimizer": line.optimizer,
                "hyper": dict(line.hyper),
                "test": interval_record(line.test),
                "diverged": line.diverged,
                "comparison": comparison_record(c, c.note) if c else None,
                "epochs_to_target": reached,
                "sooner": line.speedup.text if line.speedup else None,
                "step_ratio": line.step_ratio,
                "runs": [row.key for row in line.rows],
            }
        )
    return Table(slug("table-compare", found.defaults.task, *found.defaults.settings.values()), heads, cells, records)


def _interval_of(row: Comparison) -> Interval:
    return Interval(row.difference, row.low, row.high, row.n)


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
    """``1 win, 3 ties, 0 losses``, and how many have too few seeds for a verdict."""
    counts = Counter("tie" if row.shown == "identical" else row.shown for row in rows)
    words = {"win": ("win", "wins"), "tie": ("tie", "ties"), "loss": ("loss", "losses")}
    told = [f"{counts[name]} {one if counts[name] == 1 else many}" for name, (one, many) in words.items()]
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
        tables.append(_arm_table(outcome, name))
    if outcome.descriptive:
        title = "All other pairs: descriptive, no claim may rest on them"
        tables.append(comparison_table(f"table-descriptive-{name}", outcome.descriptive, title, folded=True))
    if outcome.missing:
        heads = (("family", ""), ("arm", ""), ("why", ""))
        cells = [[word(m.family), word(m.arm), prose(m.reason)] for m in outcome.missing]
        records = [{"family": m.family, "arm": m.arm, "reason": m.reason} for m in outcome.missing]
        tables.append(Table(f"table-missing-{name}", heads, cells, records, "Arms without numbers", folded=True))
    return tables


def _arm_table(outcome: Outcome, name: str) -> Table:
    heads = (
        ("arm", ""),
        ("family", ""),
        (f"test {outcome.registration.metric}", _TEST),
        ("diverged", "of the reported runs; they count as the worst value"),
        ("training loss", "of the last epoch"),
        ("epochs to target", "median over seeds"),
        ("sooner", "how many times sooner than the base, in epochs"),
        ("trials", "points tried; 0: derived from a memory's point, no tuning of its own"),
        ("tuning runs", ""),
        ("edges", "values at an end of the search space: a better one may lie beyond"),
        ("hyper-parameters", "chosen on the tuning seeds"),
        ("notes", ""),
    )
    cells, records = [], []
    for arm in outcome.arms:
        reached = arm.reach.get("epochs")
        median = reached.median if reached else None
        sooner = arm.speedup.get("epochs")
        notes = [arm.note] if arm.note else []
        notes += [f"{arm.tied} points tie"] if arm.tied > 1 else []
        notes += [f"{arm.epochs} epochs"] if arm.epochs != outcome.registration.epochs else []
        cells.append(
            [
                word(arm.label, ARMS[arm.arm].summary),
                word(arm.family),
                interval(arm.test),
                Cell(f"{arm.diverged}/{len(arm.seeds)}", arm.divergence_rate),
                interval(arm.train_loss),
                Cell("-" if reached is None else "not reached" if median is None else f"{median:g}", median),
                Cell(sooner.text, sooner.ratio_low) if sooner else word(""),
                number(arm.trials),
                number(arm.tuning_runs),
                prose(_edges(arm.edges)),
                prose(listed(dict(arm.hyper))),
                prose("; ".join(notes)),
            ]
        )
        records.append(
            {
                "family": arm.family,
                "arm": arm.arm,
                "label": arm.label,
                "optimizer": arm.optimizer,
                "hyper": dict(arm.hyper),
                "test": interval_record(arm.test),
                "values": list(arm.values),
                "divergence_rate": arm.divergence_rate,
                "train_loss": interval_record(arm.train_loss),
                "epochs_to_target": median,
                "sooner": sooner.text if sooner else None,
                "trials": arm.trials,
                "tuning_runs": arm.tuning_runs,
                "edges": dict(arm.edges),
                "runs": list(arm.keys),
            }
        )
    return Table(f"table-arms-{name}", heads, cells, records, "Arms on the reported seeds")


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
    metric = run.panel.metric
    heads = (
        ("optimizer", ""),
        ("settings tried", "a _C optimizer chooses among nine times as many in the grid"),
        ("valid", "mean over the seeds"),
        (f"test {metric}", "mean ± 95 % t-interval, on the seeds that selected"),
        ("std", "over the seeds"),
        ("the paper's", "as printed; the paper does not say what its ± is"),
        ("minus base", "paired difference; positive is better"),
        ("verdict", "the interval leaves 0 outside; descriptive"),
        ("diverged", ""),
        ("edges", "values at an end of the paper's grid"),
        ("hyper-parameters", "of the setting with the best mean validation value"),
    )
    arms = {arm.optimizer: arm for arm in run.panel.arms}
    cells, records = [], []
    for row in run.found:
        paper = f"{row.paper.value:g} ± {row.paper.spread:g}" if row.paper else "-"
        c = arms[row.optimizer].comparison
        cells.append(
            [
                word(row.optimizer),
                number(row.settings_tried),
                number(row.valid),
                interval(row.test),
                number(row.test_std, 3),
                Cell(paper, row.paper.value if row.paper else None),
                interval(_interval_of(c), signed=True) if c else word(""),
                verdict(c),
                Cell(f"{row.diverged}/{row.seeds}", row.diverged / row.seeds),
                prose(", ".join(row.edges)),
                prose(listed(dict(row.hyper))),
            ]
        )
        records.append(
            {
                "optimizer": row.optimizer,
                "hyper": dict(row.hyper),
                "settings_tried": row.settings_tried,
                "seeds": row.seeds,
                "valid": row.valid,
                "test": interval_record(row.test),
                "paper": {"value": row.paper.value, "spread": row.paper.spread} if row.paper else None,
                "comparison": comparison_record(c, c.note) if c else None,
                "diverged": row.diverged,
            }
        )
    identity = slug("table", run.track.name, run.track.task, *run.track.task_settings.values())
    return Table(identity, heads, cells, records)


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
