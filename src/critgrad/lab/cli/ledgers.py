"""``critgrad status``, ``best``, ``merge``, ``export``."""

from __future__ import annotations

from pathlib import Path

import typer

from ..words import listed
from .console import console, say, show, table
from .progress import duration
from .runs import LEDGER


def status(ledger: Path = LEDGER) -> None:
    """What is done, running and failed."""
    from ..coordinator import status as read
    from ..ledger import Ledger

    with Ledger.open(ledger) as book:
        found = read(book)
    numbers = ("done", "running", "failed")
    made = table(str(ledger), "task", "track", "arm", *numbers, right=numbers)
    for row in found.lines:
        made.add_row(row.task, row.track, row.arm, str(row.done), str(row.running), str(row.failed))
    console.print(made)
    if found.progress is not None:
        console.print(
            f"now: {found.progress.done}/{found.progress.total}, {duration(found.progress.eta)} to go", highlight=False
        )
    for entry in found.running:
        t = entry.trial
        say(f"running: {t.task} {t.optimizer} seed {t.seed} ({entry.worker})")
    if found.stale:
        say(f"{len(found.stale)} trials were running when their process ended: the next sweep runs them again")
    if not found.lines:
        say("no runs yet")


def best(
    task: str | None = typer.Argument(None, help="One task; all of them by default."),
    track: str | None = typer.Option(None, help="One track: fair, paper-best, paper-grid, train, ..."),
    count: int = typer.Option(1, "-n", min=1, help="How many of each optimizer."),
    ledger: Path = LEDGER,
) -> None:
    """The best hyper-parameters of every optimizer, by mean validation over the seeds there are."""
    from ..ledger import Ledger
    from ..protocol import ranking

    with Ledger.open(ledger) as book:
        ranked = ranking(book.rows(task=task, track=track))
    if not ranked:
        return say("no finished runs" + "".join(f" of {name}" for name in (task, track) if name))
    numbers = ("seeds", "valid", "test")
    made = table(None, "task", "optimizer", "hyper-parameters", *numbers, right=numbers)
    for entries in ranked.values():
        for entry in entries[:count]:
            name = entry.task + "".join(f" {key}={value}" for key, value in entry.settings.items())
            made.add_row(
                name, entry.optimizer, listed(entry.hyper), str(entry.seeds), show(entry.valid), show(entry.test)
            )
    console.print(made)
    console.print("\nChosen and shown on the same seeds: for a comparison use the fair track.", highlight=False)


def merge(
    target: Path = typer.Argument(..., help="The ledger that gets the rows."),
    sources: list[Path] = typer.Argument(..., help="Ledgers to take them from (shards)."),
    compact: bool = typer.Option(
        False,
        "--compact",
        help="The form to publish: curves rounded to five digits, none of tuning runs; summaries exact.",
    ),
    curves: bool = typer.Option(True, "--curves/--no-curves", help="With --compact: leave out all curves."),
    task: list[str] = typer.Option([], "--task", help="The runs of this task alone; may be repeated."),
    salvage: bool = typer.Option(False, "--salvage", help="Take from a damaged file what can still be read."),
) -> None:
    """Put the rows of several ledgers into one; the same trial is kept once."""
    from ..transfer import merge as run

    merged = run(target, sources, salvage=salvage, compact=compact, curves=curves, tasks=task or None)
    console.print(merged.text, highlight=False)


def export(
    out: Path = typer.Argument(..., help="runs.csv or runs.parquet."),
    ledger: Path = LEDGER,
) -> None:
    """Write one line per run as CSV or Parquet."""
    from ..ledger import Ledger
    from ..transfer import export as run

    with Ledger.open(ledger) as book:
        count = run(book, out)
    say(f"{count} runs in {out}")
