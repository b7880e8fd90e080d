"""What was run, on which machine; what of the paper was not; what was run once, and what was withdrawn."""

from __future__ import annotations

import json
from collections.abc import Sequence
from operator import itemgetter
from pathlib import Path

from critgrad.lab.ledger import Row

from ..protocol import registered
from ..protocol.paper_values import name_of
from ..search import find, searches, tasks_of
from .findings import Findings
from .searches import found_searches, withdrawn_searches
from .text import fixed, page, short, table, values

FAIR = "fair"
# What the paper shows, the purpose under which a ledger keeps it, and the tasks that it shows it on.
SHOWN = json.loads((Path(__file__).parents[1] / "values" / "shown.json").read_text(encoding="utf-8"))


def runs_page(findings: Findings) -> str:
    """All of it."""
    missing, waiting = _not_run(findings)
    once = {"once": _once(findings), "machine": machine(findings.once)}
    return page("runs", ran=_ran(findings), missing=missing, waiting=waiting, **once, withdrawn=_withdrawn(findings))


def machine(rows: Sequence[Row]) -> str:
    """Where rows come from."""
    origins = [row.provenance for row in rows]
    names = {f"{of.get('accelerator') or of.get('cpu')}, torch {of.get('torch')}" for of in origins}
    return "; ".join(sorted(names))


def _origin(rows: Sequence[Row]) -> list[str]:
    data = ", ".join(sorted({str(row.summary.get("data_state")) for row in rows}))
    return [data, ", ".join(sorted({row.trial.engine for row in rows})), machine(rows)]


def _tracks(findings: Findings) -> dict[tuple[str, str], list[Row]]:
    """By task and purpose, the runs that belong to no registration."""
    out: dict[tuple[str, str], list[Row]] = {}
    for row in findings.books.done:
        if row.trial.registration is None:
            for role in dict.fromkeys(role.purpose if role.track == "analysis" else role.track for role in row.roles):
                out.setdefault((row.trial.task, role.removeprefix("analysis:")), []).append(row)
    return out


def _ran(findings: Findings) -> str:
    rows, books = [], findings.books
    for outcome in findings.outcomes:
        plan = outcome.registration
        mine = books.rows(registration=plan.hash)
        seeds = f"{len(plan.tuning_seeds)} tuning, {len(plan.report_seeds)} report"
        state = outcome.standing.text
        if not outcome.complete:
            state += "; controls missing" if outcome.decided else "; not finished"
        rows.append([outcome.name, FAIR, *_origin(mine), f"{len(mine):,}", seeds, state])
    for track, made, count in found_searches(findings):
        mine = books.rows(registration=track.search.hash)
        seeds = f"{len(track.search.tuning_seeds)} tuning"
        rows.append([made.task, f"search `{made.name}`", *_origin(mine), f"{count:,}", seeds, made.standing.text])
    tracks = _tracks(findings)
    for name in sorted({name for _, name in tracks}):
        of_task = {task: found for (task, other), found in tracks.items() if other == name}
        of_name = [row for found in of_task.values() for row in found]
        label = next(iter(of_task)) if len(of_task) == 1 else f"{len(of_task)} tasks"
        counts = sorted({len({row.trial.seed for row in found}) for found in of_task.values()})
        seeds = " to ".join(map(str, dict.fromkeys((counts[0], counts[-1]))))
        rows.append([label, name, *_origin(of_name), f"{len(of_name):,}", seeds, "-"])
    head = ("task", "track", "data", "engine", "machine", "runs", "seeds", "registered")
    names = ", ".join(f"`{name}`" for name in books.names)
    text = f"{len(books.done):,} runs in {names}; {len(books.failed)} failed. `{FAIR}`: tuned alike.\n\n"
    return text + table(head, rows, ("runs",))


def _not_run(findings: Findings) -> tuple[str, str]:
    """For each thing that the paper shows the tasks; the announcements without a run."""
    there: dict[str, dict[str, set[str]]] = {}
    decided = [(outcome.task, FAIR) for outcome in findings.claimable]
    for task, purpose in (*decided, *_tracks(findings)):
        there.setdefault(purpose, {}).setdefault(name_of(task), set()).add(task)
    begun = {(name_of(outcome.task), FAIR) for outcome in findings.outcomes if not outcome.decided}
    text = ""
    for label, purpose, tasks in map(itemgetter("what", "purpose", "tasks"), SHOWN):
        found = there.get(purpose, {})
        run = [", ".join(sorted(found[task])) for task in tasks if task in found]
        left = [task for task in tasks if task not in found]
        missing = [f"{task} (not finished)" if (task, purpose) in begun else task for task in left]
        text += f"- **{label}** (`{purpose}`). Run: {', '.join(run) or 'nothing'}."
        text += f" Not run: {', '.join(missing)}.\n" if missing else " Nothing is missing.\n"
    known = {outcome.name for outcome in findings.outcomes}
    waiting = [f"`{name}`" for name in registered() if name not in known]
    hashes = {row.trial.registration for row in findings.books.done}
    for name in searches():
        waiting += [
            f"`{task}` in the search `{name}`" for task in tasks_of(name) if find(name, task).hash not in hashes
        ]
    return text, ", ".join(waiting)


def _once(findings: Findings) -> str:
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
    if not rows:
        return ""
    head = ("task", "parameters", "data", "start", "optimizer", "test", "seconds of training", "peak MiB")
    return table(head, rows, ("parameters", "seconds of training", "peak MiB"))


def _withdrawn(findings: Findings) -> str:
    text = ""
    for gone in findings.withdrawn:
        text += f"- {gone.registration.task}: {gone.runs:,} runs, registration {gone.registration.hash[:12]}, commit "
        text += f"{(gone.commit or '-')[:12]}. {gone.reason}\n"
    return text + "".join(f"- {line}\n" for line in withdrawn_searches(findings))
