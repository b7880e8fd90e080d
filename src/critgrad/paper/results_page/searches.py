"""The searches among variants: every one that was tried, losers too, with the number tried beside the winner."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache

from critgrad.lab.run.spec import content_hash
from critgrad.lab.tasks import task_of

from ..search import Confirmed, SearchTrack, Standings, find, searches, standings, tasks_of
from .findings import Findings
from .text import behind, interval, page, short, table, values

COLUMNS = 4  # of differences in a table, the first ones of the file


@cache
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
    return table(head, rows, head[2:])


def search_pages(findings: Findings) -> dict[str, str]:
    """By page: a search on a task, with a table for each family."""
    out, withdrawn = {}, withdrawn_searches(findings)
    for track, made, runs in found_searches(findings):
        search, text = track.search, ""
        for family in dict.fromkeys(line.family for line in made.lines):
            mine = [line for line in made.lines if line.family == family]
            mine.sort(key=lambda line: (line.rank is None, line.rank, line.name))
            rows = [
                [
                    "-" if line.rank is None else str(line.rank),
                    line.name if line.is_variant else f"**{line.name}**",
                    line.optimizer,
                    short(line.valid, 4),
                    *line.against,
                    values(line.point) + line.edges_text,
                ]
                for line in mine
            ]
            head = ("rank", "arm", "optimizer", "valid", "minus base", "minus rival", "best point")
            text += f"\n## {family}\n\n{made.verdict(family)}.\n\n" + table(head, rows, head[:1] + head[3:6])
        whys = {line.name: line.arm.why for line in made.lines}
        gone = [f"- {line}\n" for line in withdrawn if line.startswith(f"{search.task}, {search.name}:")]
        out[f"search-{search.name}-{search.task.replace('@', '-')}"] = page(
            "search",
            **{name: getattr(search, name) for name in ("name", "task", "epochs")},
            metric=task_of(search.task).metric.name,
            batch=f"{search.batch_size}{behind(search.settings)}",
            runs=f"{runs:,}",
            standing=made.standing.text,
            seeds=len(search.tuning_seeds),
            families=text,
            confirmed=_on_fresh_seeds(made.confirmed, search.against),
            arms="".join(f"- **{arm}**: {why}\n" for arm, why in sorted(whys.items())),
            withdrawn="".join(gone),
        )
    return out
