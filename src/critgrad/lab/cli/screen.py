"""``critgrad search``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from ..words import default_device
from .console import console, say, table
from .progress import shown
from .runs import BANK_SIZE, DEVICE, LEDGER, SECONDS

if TYPE_CHECKING:
    from ..search import Standings


def search(
    task: str = typer.Argument(..., help="A task of the search (TASK@tiny: a few short runs)."),
    name: str = typer.Option("damping-variants", help="Of the file that says what is tried (lab/searches)."),
    confirm: bool = typer.Option(
        False, "--confirm", help="Run the best, and what they are held against, on other seeds."
    ),
    only_table: bool = typer.Option(False, "--table", help="Run nothing, print what the ledger has."),
    families: str | None = typer.Option(None, help="With commas: Adam,SGDM (default: all of the search)."),
    retry: bool = typer.Option(False, "--retry", help="Run the trials that failed once more."),
    workers: int = typer.Option(1, min=1, help="Processes; more than one for a search in the single engine."),
    bank_size: int = BANK_SIZE,
    seconds: float | None = SECONDS,
    device: str = DEVICE,
    ledger: Path = LEDGER,
) -> None:
    """Screen variants with few runs each, most in banks of many models; every variant is listed, losers too."""
    from .. import commands
    from ..ledger import Ledger
    from ..search import standings

    track, chosen = commands.make_search(task, name, confirm=confirm, families=families)
    outcome = None
    where = "cpu" if only_table else default_device(device)
    with Ledger.open(ledger, write=not only_table, create=not only_table) as book:
        if not only_table:
            say(f"{name} on {task}: {track.total} runs in all")
            with shown(console, f"{task} {name}") as on_event:
                outcome = commands.sweep(
                    track,
                    book,
                    families=chosen,
                    seconds=seconds,
                    on_event=on_event,
                    executor="inline" if workers == 1 else "local",
                    workers=workers,
                    device=where,
                    bank_size=bank_size,
                    retry_failed=retry,
                )
            say(outcome.text)
        _print(standings(track, book), chosen)
    if outcome is not None and (outcome.failed or outcome.interrupted):
        raise typer.Exit(130 if outcome.interrupted else 1)


def _print(found: Standings, chosen: tuple[str, ...] | None) -> None:
    from ..search.standings import HEADS, cells, confirmed_text

    say(f"{found.name} on {found.task}: {found.standing.text}")
    families = chosen or tuple(dict.fromkeys(line.family for line in found.lines))
    for family in families:
        mine = [line for line in found.lines if line.family == family]
        mine.sort(key=lambda line: (line.rank is None, line.rank or 0))
        made = table(family, *HEADS, right=("rank", "valid", "loss", "minus base", "minus rival", "runs", "diverged"))
        for line in mine:
            made.add_row(*cells(line))
        console.print(made)
    for family in families:
        say(found.verdict(family))
    for arm in found.confirmed:
        if arm.family in families:
            say(confirmed_text(arm))
