"""``critgrad analyze``, ``ablate``, ``report``, ``theory``, ``playground``."""

from __future__ import annotations

import webbrowser
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from ..words import default_device, pairs
from .console import console, say
from .progress import shown
from .runs import BANK_SIZE, DEVICE, EXECUTOR, LEDGER, SECONDS, SETTINGS, WORKERS

if TYPE_CHECKING:
    from ..analyses import Options

SEEDS = typer.Option(5, min=1, help="Runs of each arm.")
ENGINE = typer.Option("single", help="single, or bank (many small models at once on a GPU).")
RETRY = typer.Option(False, "--retry", help="Run the trials that failed once more.")


def analyze(
    name: str = typer.Argument(
        ..., help="staleness, gt-vs-gc, sensitivity, noise, runtime, convex, spectrum, damping or decompose."
    ),
    task: str | None = typer.Argument(None, help="A task (default: the first that the paper uses for it)."),
    seeds: int = SEEDS,
    engine: str = ENGINE,
    optimizer: str | None = typer.Option(None, "--optimizer", "-o", help="Instead of the analysis's own."),
    lines: bool = typer.Option(False, "--lines", help="sensitivity: the paper's two lines, not the whole grid."),
    set_: list[str] = SETTINGS,
    device: str = DEVICE,
    executor: str = EXECUTOR,
    workers: int | None = WORKERS,
    bank_size: int = BANK_SIZE,
    seconds: float | None = SECONDS,
    retry: bool = RETRY,
    ledger: Path = LEDGER,
) -> None:
    """Make one of the paper's analyses: runs what is missing, prints the numbers; [bold]report[/bold] draws them."""
    from ..analyses import Options

    if name == "decompose":
        from ..analyses.decompose import decompose
        from .tables import print_decomposition

        return print_decomposition(decompose(ledger, task or "digits-mlp"))
    options = Options(seeds, pairs(set_, "--set"), engine, optimizer, lines)
    jobs = {"executor": executor, "workers": workers, "bank_size": bank_size, "seconds": seconds, "retry_failed": retry}
    _analyze(name, task, options, device, ledger, jobs)


def ablate(
    task: str = typer.Argument("digits-mlp", help="A task; the paper uses cifar10-convnet and ptb-lstm."),
    seeds: int = SEEDS,
    engine: str = ENGINE,
    optimizer: str | None = typer.Option(None, "--optimizer", "-o", help="One base instead of the paper's."),
    set_: list[str] = SETTINGS,
    device: str = DEVICE,
    executor: str = EXECUTOR,
    workers: int | None = WORKERS,
    bank_size: int = BANK_SIZE,
    seconds: float | None = SECONDS,
    retry: bool = RETRY,
    ledger: Path = LEDGER,
) -> None:
    """Vary selection, replacement and aggregation, one at a time, with intervals."""
    from ..analyses import Options

    options = Options(seeds, pairs(set_, "--set"), engine, optimizer)
    jobs = {"executor": executor, "workers": workers, "bank_size": bank_size, "seconds": seconds, "retry_failed": retry}
    _analyze("ablation", task, options, device, ledger, jobs)


def _analyze(name: str, task: str | None, options: Options, device: str, ledger: Path, jobs: dict[str, Any]) -> None:
    from ..commands import analyze as run
    from ..commands import checkpoint_folder
    from ..ledger import Ledger
    from .tables import print_analysis

    where = default_device(device)
    with Ledger.open(ledger, write=True, create=True) as book, shown(console, name) as on_event:
        found = run(
            name, task, options, book, on_event=on_event, device=where, checkpoints=checkpoint_folder(ledger), **jobs
        )
    if found.data:
        print_analysis(name, found.data)
    if found.missing:
        say(found.lacking)
        raise typer.Exit(130 if found.outcome is not None and found.outcome.interrupted else 1)


def report(
    out: Path = typer.Option(Path("report.html"), "--out", help="The page to write."),
    format_: list[str] = typer.Option([], "--format", help="Also export each figure: svg, pdf, png; may be repeated."),
    title: str = typer.Option("critgrad", help="The page's title."),
    open_: bool = typer.Option(False, "--open", help="Open the page in a browser."),
    ledger: Path = LEDGER,
) -> None:
    """Make one self-contained page from a ledger: verdicts, curves, analyses, provenance."""
    from ..report import write_report

    for path in write_report(ledger, out, formats=tuple(format_), title=title):
        say(str(path))
    if open_:
        webbrowser.open(out.resolve().as_uri())


def theory(
    topC: int = typer.Option(5, "--topC", help="Entries in the memory."),
    decay: float = typer.Option(0.7, help="Of the priorities, per step."),
    aggr: str = typer.Option("sum", help="mean, sum, mid, min, median, max, fisher."),
    kappa: float = typer.Option(1.0, help="The memory's share."),
    rho: float = typer.Option(0.3, help="Strength of the damping (fisher)."),
    momentum: float = typer.Option(0.0, help="Of the base optimizer."),
    max_age: int | None = typer.Option(None, help="The option max_age."),
    norm_ratio: float = typer.Option(10.0, help="Largest over smallest gradient norm."),
    norm_decay: float = typer.Option(1.0, help="By which norms shrink per step."),
) -> None:
    """What holds for a memory: effective step, staleness bound, largest safe lr * L, matched momentum."""
    from critgrad.theory.report import summary

    console.print(
        summary(
            topC=topC,
            decay=decay,
            aggr=aggr,
            kappa=kappa,
            rho=rho,
            momentum=momentum,
            max_age=max_age,
            norm_ratio=norm_ratio,
            norm_decay=norm_decay,
        ),
        highlight=False,
        soft_wrap=True,
    )


def playground(
    out: Path = typer.Option(Path("playground.html"), "--out", help="The page to write."),
    open_: bool = typer.Option(True, "--open/--no-open", help="Open the page in a browser."),
) -> None:
    """Watch two optimizers and their memories on a loss surface, in a browser."""
    from ..playground import main

    main(out=out, open_browser=open_, echo=say)
