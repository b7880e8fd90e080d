"""The searches among variants: every one that was tried, losers too, with the number tried beside the winner."""

from __future__ import annotations

import json
from collections.abc import Sequence

from critgrad.lab.run.spec import content_hash
from critgrad.lab.tasks import task_of

from ..search import Confirmed, SearchTrack, Standings, find, searches, standings, tasks_of
from .findings import Findings
from .text import behind, interval, short, table, values

COLUMNS = 4  # of differences in a table, the first ones of the file


def found_searches(findings: Findings) -> list[tuple[SearchTrack, Standings, int]]:
    """The searches of which the ledgers have runs, and how many."""
    out = []
    for name in searches():
        for task in tasks_of(name):
            track = SearchTrack(find(name, task))
            runs = len(findings.books.rows(registration=track.search.hash))
            if runs:
                out.append((track, standings(track, findings.books), runs))
    return out


def withdrawn_searches(findings: Findings) -> list[str]:
    """A line for each search whose file was changed after runs of it."""
    current = {track.search.hash for track, _, _ in found_searches(findings)}
    out = []
    for name, text in sorted(findings.books.documents.items()):
        document = json.loads(text) if text and name.startswith("registration:") else {}
        plan = document.get("registration", {})
        if "confirm" not in plan or content_hash(plan) in current:  # a fair experiment, or one that stands
            continue
        runs = len(findings.books.rows(registration=content_hash(plan)))
        (task,) = plan["tasks"]
        why = find(plan["name"], task).content["notes"].get("withdrawn", "")
        commit = f"commit {document['commit'][:12]}" if document["commit"] else "no commit"
        out.append(f"{task}, {plan['name']}: {runs:,} runs of {commit}. {why}")
    return out


def _on_fresh_seeds(confirmed: Sequence[Confirmed], against: Sequence[str]) -> str:
    """The arms that were run once more, and those that were to be; nothing where none was."""
    if not confirmed:
        return ""
    held = [name for name in against if any(name in row.minus for row in confirmed)][:COLUMNS]
    rows = [
        [
            row.family,
            row.arm,
            str(row.seeds) if row.done == row.seeds else f"{row.done} of {row.seeds}",
            "-" if row.test is None else interval(row.test),
            *[interval(row.minus[name], "+") if name in row.minus else "" for name in held],
        ]
        for row in confirmed
    ]
    head = ("family", "arm", "seeds", "test", *[f"minus {name}" for name in held])
    return "\n## On fresh seeds\n\nAt the points that were chosen:\n\n" + table(head, rows, head[2:])


def search_pages(findings: Findings) -> dict[str, str]:
    """By page: a search on a task, with a table for each family."""
    out = {}
    for track, made, runs in found_searches(findings):
        search = track.search
        text = f"""\
# Search {search.name} on {search.task}

In short: a screen of variants with few runs each. The best of many is flattered by the choice, so nothing is claimed here;
a winner is run once more on fresh seeds, at the end. What each option means: [Research](../research.md).
{task_of(search.task).metric.name}, {search.epochs} epochs, batch {search.batch_size}{behind(search.settings)}; {runs:,} runs;
{made.standing.text}. Validation values on {len(search.tuning_seeds)} tuning seeds; in brackets: on how many it was better.
"""
        for family in dict.fromkeys(line.family for line in made.lines):
            mine = sorted(
                (line for line in made.lines if line.family == family),
                key=lambda line: (line.rank is None, line.rank, line.arm),
            )
            rows = [
                [
                    "-" if line.rank is None else str(line.rank),
                    line.arm if line.is_variant else f"**{line.arm}**",
                    line.optimizer,
                    short(line.valid, 4),
                    *[
                        f"{line.minus[name]:+.3f} ({line.better[name]}/{line.seeds})" if name in line.minus else ""
                        for name in ("base", "rival")
                    ],
                    values(line.point) + "".join(f" ({name} at the {end} edge)" for name, end in line.edges.items()),
                ]
                for line in mine
            ]
            head = ("rank", "arm", "optimizer", "valid", "minus base", "minus rival", "best point")
            text += f"\n## {family}\n\n{made.verdict(family)}.\n\n" + table(head, rows, head[:1] + head[3:6])
        text += _on_fresh_seeds(made.confirmed, search.against)
        whys = {line.arm: line.why for line in made.lines}
        text += "\n## The arms\n\n" + "".join(f"- **{arm}**: {why}\n" for arm, why in sorted(whys.items()))
        gone = [
            f"- {line}\n" for line in withdrawn_searches(findings) if line.startswith(f"{search.task}, {search.name}:")
        ]
        text += f"\n## Withdrawn\n\nPublished without a table:\n\n{''.join(gone)}" if gone else ""
        out[f"search-{search.name}-{search.task.replace('@', '-')}"] = text
    return out
