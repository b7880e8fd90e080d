"""The tables that come first: what is better, on what evidence, and what must be known before one believes it."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from itertools import zip_longest
from pathlib import Path
from typing import Any

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
from critgrad.lab.stats import Comparison, Speedup
from critgrad.lab.words import listed

from ..protocol import ARMS, Outcome, suite
from ..protocol.records import ArmResult, Decomposition, Term
from .panels import Compared, PaperRun

_HINTS = json.loads((Path(__file__).parent / "hints.json").read_text(encoding="utf-8"))


def columns(name: str, cells: Mapping[str, Callable[[Any], Cell]], metric: str = "") -> list[tuple[str, str, Any]]:
    """The columns of a table with what ``hints.json`` says of each; ``test`` has the metric in its heading."""
    hints = _HINTS[name]
    return [(f"test {metric}" if head == "test" else head, hints.get(head, ""), cell) for head, cell in cells.items()]


def _record(row: Any, plain: Sequence[str], mappings: Sequence[str], intervals: Sequence[str]) -> dict[str, Any]:
    """Attributes of a row as plain values, by their names."""
    record = {name: getattr(row, name) for name in plain}
    record |= {name: dict(getattr(row, name)) for name in mappings}
    return record | {name: interval_record(getattr(row, name)) for name in intervals}


def _comparison_record(row: Comparison | None) -> dict[str, Any] | None:
    return comparison_record(row, row.note) if row else None


def compare_table(found: Compared, metric: str) -> Table:
    """The lines of ``critgrad compare``."""
    chosen = {(arm.family, arm.arm): arm for arm in found.defaults.arms}
    cells = {
        "optimizer": lambda v: word(v.label, ARMS[v.arm].summary if v.arm in ARMS else ""),
        "test": lambda v: interval(v.test),
        "minus base": lambda v: _difference(v.comparison),
        "verdict": lambda v: verdict(v.comparison),
        "P(better)": lambda v: number(v.comparison.poi, 2) if v.comparison else word(""),
        "diverged": lambda v: _part(v.diverged, v.test.n),
        "epochs to target": lambda v: _reached(v.reach, of=v.test.n),
        "sooner": lambda v: _sooner(v.speedup),
        "step": lambda v: number(v.cost.to_base, 3, "×"),
        "trials": lambda v: number(chosen[v.family, v.arm].trials),
        "edges": lambda v: word(_edges(chosen[v.family, v.arm].edges)),
        "hyper-parameters": lambda v: prose(listed(dict(v.hyper))),
    }
    records = [
        {
            **_record(line, ("family", "arm", "label", "optimizer", "diverged"), ("hyper",), ("test",)),
            "comparison": _comparison_record(line.comparison),
            "epochs_to_target": line.reach.median if line.reach else None,
            "sooner": line.speedup.text if line.speedup else None,
            "step_ratio": line.cost.to_base if line.cost else None,
            "runs": [row.key for row in line.rows],
        }
        for line in found.lines
    ]
    name = slug("table-compare", found.defaults.task, *found.defaults.settings.values())
    return table_of(name, columns("compare", cells, metric), found.lines, records)


def _difference(row: Comparison | None) -> Cell:
    return interval(row.interval, signed=True) if row else word("")


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


def comparison_table(
    identity: str, rows: Sequence[Comparison], title: str = "", folded: bool = False, more: Sequence[str | None] = ()
) -> Table:
    """Comparisons with everything that their verdicts rest on; ``more`` is to be noted, too, row by row."""
    notes = [", ".join(filter(None, both)) for both in zip_longest(notes_of(rows), more)]
    pairs = list(zip(rows, notes))
    cells = [comparison_cells(*pair) for pair in pairs]
    return Table(identity, COMPARISON, cells, [comparison_record(*pair) for pair in pairs], title, folded)


def decomposition_table(identity: str, parts: Sequence[Decomposition]) -> Table:
    """What a memory's difference to its base is made of."""
    rows = [
        (f"{part.family}_{part.arm}", term)
        for part in parts
        for term in (*part.terms, Term("total", part.arm, "base", part.total))
    ]
    cells: dict[str, Callable[[Any], Cell]] = {
        "arm": lambda v: word(v[0]),
        "effect": lambda v: word(v[1].effect),
        "from": lambda v: word(f"{v[1].minuend} − {v[1].subtrahend}"),
        "difference": lambda v: interval(v[1].difference, signed=True),
    }
    records = [{"arm": arm, **_record(term, ("effect",), (), ("difference",))} for arm, term in rows]
    return table_of(identity, columns("decompose", cells), rows, records, "Effects", folded=True)


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
        title = "Primary comparisons, corrected within this task"
        tables.append(comparison_table(f"table-primary-{name}", outcome.primary, title))
    if outcome.arms:
        tables.append(arm_table(outcome, name))
    if outcome.descriptive:
        title = "All other pairs: descriptive, no claim may rest on them"
        tables.append(comparison_table(f"table-descriptive-{name}", outcome.descriptive, title, folded=True))
    if outcome.missing:
        heads = (("family", ""), ("arm", ""), ("why", ""))
        cells = [[word(m.family), word(m.arm), prose(m.reason)] for m in outcome.missing]
        records = [asdict(m) for m in outcome.missing]
        tables.append(Table(f"table-missing-{name}", heads, cells, records, "Arms without numbers", folded=True))
    return tables


def arm_table(outcome: Outcome, name: str = "") -> Table:
    """The arms of a fair experiment."""
    cells = {
        "arm": lambda v: word(v.label, ARMS[v.arm].summary),
        "family": lambda v: word(v.family),
        "test": lambda v: interval(v.test),
        "diverged": lambda v: _part(v.diverged, len(v.seeds)),
        "training loss": lambda v: interval(v.train_loss),
        "epochs to target": lambda v: _reached(v.reach.get("epochs")),
        "sooner": lambda v: _sooner(v.speedup.get("epochs")),
        "trials": lambda v: number(v.trials),
        "tuning runs": lambda v: number(v.tuning_runs),
        "edges": lambda v: prose(_edges(v.edges)),
        "hyper-parameters": lambda v: prose(listed(dict(v.hyper))),
        "notes": lambda v: prose(_arm_notes(v, outcome.registration.epochs)),
    }
    plain = ("family", "arm", "label", "optimizer", "divergence_rate", "trials", "tuning_runs")
    records = [
        {
            **_record(arm, plain, ("hyper", "edges"), ("test", "train_loss")),
            "values": list(arm.values),
            "epochs_to_target": arm.reach["epochs"].median if "epochs" in arm.reach else None,
            "sooner": arm.speedup["epochs"].text if "epochs" in arm.speedup else None,
            "runs": list(arm.keys),
        }
        for arm in outcome.arms
    ]
    heads = columns("arms", cells, outcome.registration.metric)
    return table_of(f"table-arms-{name}", heads, outcome.arms, records, "Arms on the reported seeds")


def _arm_notes(arm: ArmResult, epochs: int) -> str:
    tied = f"{arm.tied} points share the best value" if arm.tied > 1 else ""
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
    title = "Primary comparisons of all tasks, corrected together"
    made = comparison_table("table-suite", rows, title, more=[again.get((row.task, row.family)) for row in rows])
    cells = [[word(row.task), *of_row] for row, of_row in zip(rows, made.cells)]
    return replace(made, heads=(("task", ""), *COMPARISON), cells=cells)


def paper_table(run: PaperRun) -> Table:
    """A paper track beside the paper's own numbers."""
    against = {arm.optimizer: arm.comparison for arm in run.panel.arms}
    cells = {
        "optimizer": lambda v: word(v.optimizer),
        "settings tried": lambda v: number(v.settings_tried),
        "valid": lambda v: number(v.valid),
        "test": lambda v: interval(v.test),
        "std": lambda v: number(v.test_std, 3),
        "the paper's": lambda v: Cell(v.paper.text, v.paper.value) if v.paper else word("-"),
        "minus base": lambda v: _difference(against[v.optimizer]),
        "verdict": lambda v: verdict(against[v.optimizer]),
        "diverged": lambda v: _part(v.diverged, v.seeds),
        "edges": lambda v: prose(", ".join(v.edges)),
        "hyper-parameters": lambda v: prose(listed(dict(v.hyper))),
    }
    records = [
        {
            **_record(row, ("optimizer", "settings_tried", "seeds", "valid", "diverged"), ("hyper",), ("test",)),
            "paper": {"value": row.paper.value, "spread": row.paper.spread} if row.paper else None,
            "comparison": _comparison_record(against[row.optimizer]),
        }
        for row in run.found
    ]
    identity = slug("table", run.track.name, run.track.task, *run.track.task_settings.values())
    return table_of(identity, columns("paper", cells, run.panel.metric), run.found, records)


def registration_table(outcomes: Sequence[Outcome], lost: dict[str, int]) -> Table | None:
    """The plans that were written down before the runs, and where each stands."""
    if not outcomes and not lost:
        return None
    cells: dict[str, Callable[[Outcome], Cell]] = {
        "task": lambda o: word(o.task),
        "hash": lambda o: _hash(o.registration.hash),
        "commit": lambda o: _hash(o.standing.commit or ""),
        "standing": lambda o: word("registered") if o.standing.registered else Cell(o.standing.text, css="badge warn"),
        "trials": lambda o: number(o.registration.trials),
        "tuning seeds": lambda o: _seeds(o.registration.tuning_seeds),
        "report seeds": lambda o: _seeds(o.registration.report_seeds),
        "epochs": lambda o: number(o.registration.epochs),
        "runs": lambda o: number(o.runs, 9),
        "to go": lambda o: number(sum(o.pending.values())),
    }
    records: list[dict[str, Any]] = [
        {"task": o.task, "hash": o.registration.hash, "commit": o.standing.commit, "registered": o.standing.registered}
        | {"runs": o.runs, "pending": dict(o.pending), "plan": o.registration.to_dict()}
        for o in outcomes
    ]
    made = table_of("table-registrations", columns("registrations", cells), outcomes, records, "Registrations")
    rows, nothing = list(made.cells), word("")
    for value, count in lost.items():
        why = Cell("its plan is not in the ledger: its runs are left out", css="badge warn")
        known = {"task": word("?"), "hash": _hash(value), "standing": why, "runs": number(count)}
        rows.append([known.get(name, nothing) for name in cells])
        records.append({"hash": value, "runs": count, "registered": False})
    return replace(made, cells=rows)


def _hash(text: str) -> Cell:
    return Cell(text[:12], title=text, css="code")


def _seeds(seeds: Sequence[int]) -> Cell:
    return Cell(ranges(seeds), len(seeds))
