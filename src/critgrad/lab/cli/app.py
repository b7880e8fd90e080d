"""The commands, in the order in which ``critgrad --help`` tells about them."""

from __future__ import annotations

import typer

from critgrad._version import __version__

from . import catalogue, ledgers, runs, screen, study
from .console import console, friendly

app = typer.Typer(
    name="critgrad",
    help="A memory of critical gradients for any PyTorch optimizer, and the lab that tests it.\n\n"
    "Start with [bold]critgrad compare[/bold]: it trains the bundled digits with every optimizer and its memory twins and "
    "says which differences are real. [bold]critgrad tasks[/bold] lists what else can be trained, "
    "[bold]critgrad sweep[/bold] tunes fairly, [bold]critgrad report[/bold] makes the page to read.",
    rich_markup_mode="rich",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_show_locals=False,
)


def _version(value: bool) -> None:
    if value:
        console.print(f"critgrad {__version__}", highlight=False)
        raise typer.Exit


@app.callback()
def _main(
    version: bool = typer.Option(False, "--version", callback=_version, is_eager=True, help="Print the version."),
) -> None:
    """Options of the command itself."""


RUN, LOOK, READ, KNOW = "Run experiments", "Look at a ledger", "Analyse and read", "What there is"

for function, panel in (
    (runs.compare, RUN),
    (runs.train, RUN),
    (runs.sweep, RUN),
    (screen.search, RUN),
    (ledgers.status, LOOK),
    (ledgers.best, LOOK),
    (ledgers.merge, LOOK),
    (ledgers.export, LOOK),
    (study.analyze, READ),
    (study.ablate, READ),
    (study.report, READ),
    (study.theory, READ),
    (study.playground, READ),
    (catalogue.tasks, KNOW),
    (catalogue.optimizers, KNOW),
):
    app.command(rich_help_panel=panel)(friendly(function))

data = typer.Typer(help="Data sets: what is there, what is missing, and one file for a machine without a network.")
for function in (catalogue.data_list, catalogue.data_check, catalogue.data_fetch, catalogue.data_prepare):
    data.command(function.__name__.removeprefix("data_"))(friendly(function))
app.add_typer(data, name="data", rich_help_panel=KNOW)
