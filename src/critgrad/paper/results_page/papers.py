"""The paper's tracks on the page: its settings run here, beside its own table, the number of seeds always said."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from critgrad.lab.tasks import task_of
from critgrad.lab.words import counted

from ..protocol import paper_values
from ..protocol.tracks import Found
from ..report.panels import PaperRun
from .findings import Findings
from .text import behind, capital, interval, labels, table, values

# Tasks whose numbers measure something else than the paper's: shown beside them, never held against them.
NOT_COMPARABLE = labels("not comparable")


def where(run: PaperRun) -> str:
    """The task with what was set for it: ``ptb-lstm@b420, tf32 True``."""
    parts = [run.track.task, values(run.track.task_settings)]
    parts += [] if run.track.engine == "single" else [f"{run.track.engine} engine"]
    return ", ".join(part for part in parts if part)


def best_runs(findings: Findings) -> dict[str, list[PaperRun]]:
    """The ``paper-best`` runs by task: its own defaults, then variants, other settings and its twin, side by side."""
    out: dict[str, list[PaperRun]] = {}
    for run in findings.papers:
        if run.track.name == "paper-best":
            out.setdefault(paper_values.name_of(run.track.task), []).append(run)
    for name, runs in out.items():
        runs.sort(key=lambda run: (run.track.task != name, len(run.track.task_settings), where(run)))
    order = list(dict.fromkeys(row.task for row in paper_values.BEST))
    return {task: out[task] for task in sorted(out, key=order.index)}


# -- paper-best --------------------------------------------------------------------------------------------------------


def best_section(findings: Findings, task: str, runs: Sequence[PaperRun]) -> str:
    found = [{row.optimizer: row for row in run.found} for run in runs]
    metric = runs[0].panel.metric
    heads = [f"{where(run)} ({counted(len(run.track.seeds), 'seed')})" for run in runs]
    reason = NOT_COMPARABLE.get(task)
    rows = []
    for best in paper_values.best_of(task):
        cells = [_cell(of_run.get(best.optimizer)) for of_run in found]
        rows.append([best.optimizer, values(best.hyper), *cells, best.test.text])
    theirs = "the paper's (not comparable)" if reason else "the paper's"
    text = (
        f"\n## {task}, paper-best\n\nThe paper's best settings, not tuned here: test {metric}, beside its table only.\n"
    )
    text += "".join(f"{line}\n" for line in _origin(findings, task, runs))
    text += "\n" + table(("optimizer", "settings of the paper", *heads, theirs), rows, heads)
    if reason:
        text += f"\nNot comparable with the paper's column: {reason}.\n"
    elif fit := _fit(runs):
        text += f"\n{fit}\n"
    lacking = [[name for name in paper_values.OPTIMIZERS if name not in of_run] for of_run in found]
    missing = [f"{where(run)}: {', '.join(names)}" for run, names in zip(runs, lacking) if names]
    return text + (f"\nMissing: {'; '.join(missing)}.\n" if missing else "")


def _cell(row: Found | None) -> str:
    if row is None:
        return "missing"
    return interval(row.test) + (f" ({row.diverged}/{row.seeds} diverged)" if row.diverged else "")


def _origin(findings: Findings, task: str, runs: Sequence[PaperRun]) -> list[str]:
    """What the runs were made with that the paper's were not."""
    rows = [row for run in runs for arm in run.panel.arms for row in arm.rows]
    said: list[str] = []
    for name, label in (("data_state", "data"), ("weights", "weights"), ("vectors", "word vectors")):
        known = sorted({str(row.summary[name]) for row in rows if row.summary.get(name)})
        said += [f"{label}: {' or '.join(known)}"] if known else []
    lines = [f"{'; '.join(said)}.".capitalize()] if said else []
    differs = task_of(task).differs
    return [*lines, f"Where the setting is not the paper's: {differs}."] if differs else lines


def distance(run: PaperRun) -> float | None:
    """Mean of ``|ln(ours / paper's)|`` over the optimizers that were run: 0 for the same table."""
    logs = [
        abs(math.log(row.test.mean / known.value))
        for row in run.found
        if (known := _known(run, row)) is not None and row.test.mean > 0
    ]
    return float(np.mean(logs)) if logs else None


def _known(run: PaperRun, row: Found) -> paper_values.Performance | None:
    return paper_values.performance(paper_values.name_of(run.track.task), row.optimizer)


def _order(run: PaperRun) -> float | None:
    """Rank correlation (Kendall) of our values with the paper's, over the optimizers that were run."""
    pairs = [(row.test.mean, known.value) for row in run.found if (known := _known(run, row)) is not None]
    signs = [np.sign(a[0] - b[0]) * np.sign(a[1] - b[1]) for index, a in enumerate(pairs) for b in pairs[index + 1 :]]
    return float(np.mean(signs)) if len(pairs) > 2 else None  # two are in order or they are not


def _fit(runs: Sequence[PaperRun]) -> str:
    """How near each setting comes to the paper's table, and which comes nearest."""
    known = [(run, d) for run in runs if (d := distance(run)) is not None]
    ranks = ["" if (order := _order(run)) is None else f", rank correlation {order:+.2f}" for run, _ in known]
    parts = [f"{where(run)} {math.expm1(d):.0%}{rank}" for (run, d), rank in zip(known, ranks)]
    text = f"Mean distance to the paper's values: {'; '.join(parts)}." if parts else ""
    if len(known) > 1:
        text += f" Nearest: {where(min(known, key=lambda pair: pair[1])[0])}."
    return text


# -- paper-grid --------------------------------------------------------------------------------------------------------


def grid_section(run: PaperRun) -> str:
    rows: list[list[Any]] = [
        [
            row.optimizer,
            values(row.hyper) + (f" ({', '.join(row.edges)})" if row.edges else ""),
            str(row.settings_tried),
            interval(row.test),
            row.paper.text if row.paper else "-",
            f"{row.diverged}/{row.seeds}",
        ]
        for row in run.found
    ]
    text = f"\n## {run.track.task}{behind(run.track.task_settings)}, {run.track.name}\n\n"
    text += f"{capital(run.track.label)} ({counted(len(run.track.seeds), 'seed')}): beside the paper's table only. "
    text += "In brackets: ends of the grid.\n\n"
    head = ("optimizer", "chosen", "settings tried", f"test {run.panel.metric}", "the paper's", "diverged")
    return text + table(head, rows, ("settings tried", "diverged"))
