"""Where the numbers come from: data, registrations, machines, commands, seeds, failures. And what everything costs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from ..ledger import Row
from ..ledger.source import Source
from ..words import listed
from .panels import Panel
from .table import Cell, Table, number, prose, table_of, word

_LOUD = {"synthetic": "badge loss", "part": "badge warn", "whole": "badge plain"}


def run_table(source: Source) -> Table:
    """Runs by task, track and purpose."""
    groups: dict[tuple[str, str, str], list[Row]] = {}
    for row in [*source.done, *source.failed]:
        roles = {(role.track, role.purpose) for role in row.roles} or {("", "")}
        for track, purpose in roles:
            groups.setdefault((row.trial.task, track, purpose), []).append(row)
    facts: list[dict[str, Any]] = []
    for (task, track, purpose), rows in groups.items():
        done = [row for row in rows if row.status == "done"]
        facts.append(
            {"task": task, "track": track, "purpose": purpose, "runs": len(done), "failed": len(rows) - len(done)}
            | {"diverged": sum(bool(row.summary.get("diverged")) for row in done)}
            | {"seeds": sorted({row.trial.seed for row in rows})}
            | {"settings": len({str((r.trial.optimizer, dict(r.trial.hyper), dict(r.trial.settings))) for r in rows})}
            | {"engines": ", ".join(sorted({row.trial.engine for row in rows}))}
        )
    columns = (
        ("task", lambda row: word(row["task"])),
        ("track", lambda row: word(row["track"])),
        ("purpose", lambda row: word(row["purpose"])),
        ("runs", "a run may serve several purposes", lambda row: number(row["runs"], 9)),
        ("failed", "stopped by an error; not the same as diverged", lambda row: _failed(row["failed"])),
        ("diverged", lambda row: number(row["diverged"])),
        ("settings", "hyper-parameters and task settings", lambda row: number(row["settings"])),
        ("seed numbers", lambda row: Cell(ranges(row["seeds"]), len(row["seeds"]))),
        ("engine", "bank: many small models at once; never timed", lambda row: word(row["engines"])),
    )
    records = [{**_without(row, "settings", "engines"), "seeds": row["seeds"][:200]} for row in facts]
    return table_of("table-runs", columns, facts, records, "Runs")


def _failed(count: int) -> Cell:
    return Cell(str(count), count, "badge loss" if count else "")


def _without(facts: Mapping[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in facts.items() if name not in names}


def ranges(values: Sequence[int]) -> str:
    """Whole numbers in short.

    >>> ranges([0, 1, 2, 3, 7, 9, 10])
    '0 to 3, 7, 9, 10'
    """
    parts: list[list[int]] = []
    for value in values:
        if parts and value == parts[-1][-1] + 1:
            parts[-1].append(value)
        else:
            parts.append([value])
    words = [f"{p[0]} to {p[-1]}" if len(p) > 2 else ", ".join(map(str, p)) for p in parts]
    return ", ".join(words[:8]) + (f", ... ({len(values)} in all)" if len(words) > 8 else "")


def data_states(source: Source) -> dict[str, Counter[str]]:
    """Runs by task and state of the data."""
    out: dict[str, Counter[str]] = {}
    for row in source.done:
        out.setdefault(row.trial.task, Counter())[str(row.summary.get("data_state", "unknown"))] += 1
    return out


def data_table(source: Source) -> Table:
    """The data behind each task's runs."""
    groups: Counter[tuple[str, str, str, str]] = Counter()
    for row in source.done:
        s = row.summary
        weights = ", ".join(f"{n}: {s[n]}" for n in ("weights", "vectors") if s.get(n) not in (None, "random"))
        groups[row.trial.task, str(s.get("data_state", "unknown")), str(s.get("data_sha256", "")), weights] += 1
    facts = [
        {"task": task, "state": state, "sha256": sha, "runs": count, "weights": weights}
        for (task, state, sha, weights), count in groups.items()
    ]
    columns = (
        ("task", lambda row: word(row["task"])),
        ("data", "whole, a part of it, or synthetic", lambda row: _state(row["state"])),
        ("runs", lambda row: number(row["runs"], 9)),
        ("sha256", "of the data", lambda row: Cell(row["sha256"][:16], title=row["sha256"], css="code")),
        ("weights", lambda row: word(row["weights"] or "random")),
    )
    return table_of("table-data", columns, facts, [_without(row, "weights") for row in facts], "Data")


def _state(state: str) -> Cell:
    return Cell(state if state == "whole" else state.upper(), css=_LOUD.get(state, "badge warn"))


def machine_table(source: Source) -> Table:
    """Versions and hardware."""
    names = ("critgrad", "python", "torch", "numpy", "platform", "cpu", "accelerator", "device", "threads")
    groups: Counter[tuple[str, ...]] = Counter()
    for row in source.done:
        values = (row.provenance.get(name) for name in names)
        groups[tuple("-" if value is None else str(value) for value in values)] += 1
    heads = (("runs", ""), *((name, "") for name in names))
    cells = [[number(count, 9), *map(word, values)] for values, count in groups.most_common()]
    records = [{"runs": count, **dict(zip(names, values))} for values, count in groups.most_common()]
    return Table("table-machines", heads, cells, records, "Versions and hardware")


def command_table(source: Source) -> Table:
    """The commands that the runs came from."""
    groups: Counter[str] = Counter()
    for row in source.done:
        command = row.provenance.get("command")
        groups[" ".join(_file_name(part) for part in command) if command else "unknown"] += 1
    heads = (("runs", ""), ("command", "as the working process saw it"))
    cells = [[number(count, 9), Cell(text, css="code")] for text, count in groups.most_common()]
    records = [{"runs": count, "command": text} for text, count in groups.most_common(50)]
    return Table("table-commands", heads, cells, records, "Commands", folded=len(groups) > 5)


def _file_name(part: Any) -> str:
    """Paths without the folders of somebody's machine."""
    text = str(part)
    return text.rsplit("/", 1)[-1] if text.startswith("/") else text


def failure_table(source: Source) -> Table | None:
    """Runs that an error stopped, by error."""
    if not source.failed:
        return None
    groups: dict[tuple[str, str, str], list[Row]] = {}
    for row in source.failed:
        lines = (row.error or "unknown").strip().splitlines()
        groups.setdefault((row.trial.task, row.trial.optimizer, lines[-1] if lines else "unknown"), []).append(row)
    facts = [
        {"task": task, "optimizer": optimizer, "error": error[:300], "runs": len(rows), "first": rows[0].trial}
        for (task, optimizer, error), rows in groups.items()
    ]
    columns = (
        ("task", lambda row: word(row["task"])),
        ("optimizer", lambda row: word(row["optimizer"])),
        ("runs", lambda row: number(row["runs"])),
        ("error", lambda row: prose(row["error"])),
        ("for example", lambda row: prose(f"{listed(row['first'].hyper)}, seed {row['first'].seed}")),
    )
    return table_of("table-failures", columns, facts, [_without(row, "first") for row in facts], "Failed runs")


def cost_table(panels: Sequence[Panel]) -> Table | None:
    """Time of a step and memory, of every arm that was timed."""
    columns = (
        ("task", lambda row: word(row[0].task)),
        ("track", lambda row: word(row[0].track)),
        ("arm", lambda row: word(row[1].label)),
        ("step (ms)", "median time of optimizer.step over the timed steps", lambda row: number(row[2].step_ms, 3)),
        ("quartiles (ms)", lambda row: word(" to ".join(f"{q:.3g}" for q in row[2].step_range or ()) or "-")),
        ("to base", "of the family, in the same runs", lambda row: number(row[2].to_base, 3, "×")),
        ("epoch (s)", "training only", lambda row: number(row[2].epoch_seconds, 3)),
        ("peak memory (MB)", "of the accelerator; a dash on a CPU", lambda row: _megabytes(row[2].peak_bytes)),
        ("parameters", lambda row: _size(row[1].rows)),
    )
    timed = [(panel, arm, arm.cost) for panel in panels for arm in panel.arms if arm.cost is not None]
    timed = [row for row in timed if row[2].step_ms is not None or row[2].peak_bytes is not None]
    records = [
        {"task": panel.task, "track": panel.track, "arm": arm.label, "step_ms": cost.step_ms}
        | {"to_base": cost.to_base, "epoch_seconds": cost.epoch_seconds, "peak_bytes": cost.peak_bytes}
        for panel, arm, cost in timed
    ]
    return table_of("table-cost", columns, timed, records) if timed else None


def _megabytes(count: int | None) -> Cell:
    return number(count / 1e6 if count else None)


def _size(rows: Sequence[Row]) -> Cell:
    size = next((row.summary.get("parameters") for row in rows), None)
    return Cell(f"{size:,}" if size else "-", size)
