"""``critgrad train``, ``critgrad sweep``, ``critgrad compare``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer

from ..words import default_device, listed, pairs
from .console import console, show
from .progress import shown

LEDGER = typer.Option(Path("runs.db"), "--ledger", help="The file that holds every run.")
DEVICE = typer.Option("auto", help="cpu, cuda, cuda:1, ... (auto: the GPU if there is one).")
SETTINGS = typer.Option([], "--set", help="A task's setting, NAME=VALUE (epochs=3, dropout=0); may be repeated.")
OPTIONS = typer.Option([], "--opt", help="An optimizer's argument, NAME=VALUE (policy=FIFO); may be repeated.")


def train(
    task: str = typer.Argument("digits-mlp", help="A task, with variants: ptb-lstm@b420, mnist-mlp@tiny."),
    optimizer: str = typer.Option("Adam_C", "--optimizer", "-o", help="A name of critgrad optimizers."),
    lr: float | None = typer.Option(None, help="Learning rate (default: chosen by a fair sweep, or the paper's)."),
    topC: int | None = typer.Option(None, "--topC", help="Gradients in the memory."),
    decay: float | None = typer.Option(None, help="Of the priorities, per step."),
    aggr: str | None = typer.Option(None, help="mean, sum, mid, min, median, max, fisher."),
    rho: float | None = typer.Option(None, help="Damping of fisher."),
    policy: str | None = typer.Option(None, help="KotH, FIFO, random, ..."),
    epochs: int | None = typer.Option(None, help="Instead of the task's."),
    seed: int = typer.Option(0, help="Of initialisation, data order and dropout."),
    opt: list[str] = OPTIONS,
    set_: list[str] = SETTINGS,
    device: str = DEVICE,
    ledger: Path = LEDGER,
    checkpoint: Path | None = typer.Option(None, help="File (default: beside the ledger, by the trial's key)."),
    resume: bool = typer.Option(False, "--resume", help="Go on from the checkpoint of a run that was stopped."),
    inspect: bool = typer.Option(False, "--inspect", help="Show the memory's slots while training."),
    deterministic: bool = typer.Option(False, help="The same bits every time on CUDA, too (slower)."),
) -> None:
    """Train once; checkpointed each epoch, resumable, written to the ledger."""
    from ..commands import checkpoint_folder, one_trial, train_once
    from ..ledger import Ledger
    from ..train import deterministic_algorithms

    given = {"lr": lr, "topC": topC, "decay": decay, "aggr": aggr, "rho": rho, "policy": policy}
    hyper = {**{name: value for name, value in given.items() if value is not None}, **pairs(opt, "--opt")}
    settings = {**({} if epochs is None else {"epochs": epochs}), **pairs(set_, "--set")}
    trial = one_trial(task, optimizer, hyper, seed, settings)
    where = default_device(device)
    deterministic_algorithms(deterministic)
    file = checkpoint or checkpoint_folder(ledger) / f"{trial.key}.pt"
    with Ledger.open(ledger, write=True, create=True) as book:
        known = book.row(trial.key)
        if known is not None and known.status == "done":
            console.print(f"Already in {ledger}:", highlight=False)
            return _print_result(trial, known.summary)
        console.print(f"{task} with {optimizer} ({listed(trial.hyper)}), seed {seed}, on {where}", highlight=False)
        with _observer(inspect) as observer:
            result = train_once(
                trial,
                book,
                device=where,
                checkpoint=file,
                resume=resume,
                on_epoch=observer.on_epoch,
                on_step=observer.on_step,
            )
    _print_result(trial, result.summary)


def _observer(inspect: bool) -> Any:
    from .live import Inspector
    from .progress import EpochLines

    return Inspector(console) if inspect else EpochLines(console)


def _print_result(trial: Any, summary: dict[str, Any]) -> None:
    if summary["diverged"]:
        console.print("[bold red]diverged[/]: the loss was no longer finite; counts as the task's worst value")
        return
    console.print(
        f"{summary['metric']}: test {show(summary['test'])} at epoch {summary['best_epoch']} "
        f"(best validation: {show(summary['valid'])}); final training loss {show(summary['final_train_loss'])}",
        highlight=False,
    )
    if summary.get("step_ms") is not None:
        console.print(f"optimizer.step(): {summary['step_ms']:.3f} ms (median of the timed steps)", highlight=False)
    if summary["data_state"] != "whole":
        console.print(f"[yellow]data: {summary['data_state']}[/] ({trial.task})", highlight=False)
    for name in ("weights", "vectors"):
        if name in summary:
            console.print(f"{name}: {summary[name]}", highlight=False)


def sweep(
    task: str = typer.Argument(..., help="A task."),
    track: str = typer.Option("fair", help="fair, paper-best or paper-grid."),
    trials: int | None = typer.Option(None, help="Of each tuned arm, instead of the registration's."),
    seeds: int | None = typer.Option(None, help="To report on, instead of the track's."),
    families: str | None = typer.Option(None, help="With commas: SGD,Adam (default: all)."),
    engine: str | None = typer.Option(None, help="single, or bank (many small models at once on a GPU)."),
    executor: str = typer.Option("local", help="local, dask or slurm."),
    executor_options: list[str] = typer.Option(
        [], "--executor-opt", help="NAME=VALUE (address=tcp://..., partition=gpu)."
    ),
    workers: int | None = typer.Option(None, help="Processes (default: one per core, or one on a GPU)."),
    shard: str = typer.Option(
        "1/1", help="i/n: this machine's share of the trials; `critgrad merge` joins the ledgers."
    ),
    retry: bool = typer.Option(False, "--retry", help="Run the trials that failed once more."),
    write_defaults: bool = typer.Option(False, "--write-defaults", help="Make the choices the task's defaults (fair)."),
    set_: list[str] = SETTINGS,
    device: str = DEVICE,
    deterministic: bool = typer.Option(False, help="The same bits every time on CUDA, too (slower)."),
    ledger: Path = LEDGER,
) -> None:
    """Run a whole track; what the ledger has is not run again, so a killed sweep goes on with the same command."""
    from .. import commands
    from ..ledger import Ledger

    made = commands.make_track(task, track, trials=trials, seeds=seeds, engine=engine, settings=pairs(set_, "--set"))
    console.print(f"{task}, track {track}: about {made.total} runs in all", highlight=False)
    with Ledger.open(ledger, write=True, create=True) as book:
        with shown(console, f"{task} {track}") as on_event:
            outcome = commands.sweep(
                made,
                book,
                shard=commands.parse_shard(shard),
                families=families.split(",") if families else None,
                on_event=on_event,
                executor=executor,
                options=pairs(executor_options, "--executor-opt"),
                workers=workers,
                device=default_device(device),
                checkpoints=commands.checkpoint_folder(ledger),
                retry_failed=retry,
                deterministic=deterministic,
            )
        console.print(outcome.text, highlight=False)
        _print_track(made, book, write_defaults)
    if outcome.failed or outcome.interrupted:
        raise typer.Exit(130 if outcome.interrupted else 1)


def _print_track(made: Any, book: Any, write: bool) -> None:
    from ..protocol import tables
    from ..protocol.defaults import write_defaults
    from ..protocol.tracks import Fair
    from ..tasks import task_of
    from .tables import print_outcome, print_paper

    if not isinstance(made, Fair):
        print_paper(made.best(book, task_of(made.task).metric.higher_is_better), made.label)
        return
    found = tables(book, made.registration)
    print_outcome(found)
    if write:
        console.print(f"defaults: {write_defaults(found)}", highlight=False)


def compare(
    task: str = typer.Argument("digits-mlp", help="A task that has been swept (lab/defaults)."),
    seeds: int = typer.Option(10, help="Runs of each arm."),
    families: str = typer.Option("SGD,SGDM,RMSprop,Adam", help="With commas."),
    workers: int | None = typer.Option(None, help="Processes (default: one per core)."),
    out: Path | None = typer.Option(Path("report.html"), "--out", help="The report page to write."),
    device: str = DEVICE,
    ledger: Path = LEDGER,
) -> None:
    """Each base optimizer, its memory twins (_C adds, _F damps) and controls: which differences are real?"""
    from .. import commands
    from ..compare import lines, planned
    from ..coordinator import run_jobs
    from ..ledger import Ledger
    from ..protocol.defaults import load_defaults
    from ..report import write_report
    from ..tasks import task_of
    from .tables import print_compare

    defaults = load_defaults(task)
    chosen = families.split(",")
    todo = planned(defaults, chosen, seeds)
    record = task_of(task)
    console.print(
        f"[bold]{record.name}[/]: {record.summary}\n"
        f"{len(todo)} runs on {seeds} seeds; hyper-parameters from {defaults.command} "
        f"({defaults.trials} trials for each tuned arm, on other seeds)",
        highlight=False,
    )
    with Ledger.open(ledger, write=True, create=True) as book:
        with shown(console, f"compare {task}") as on_event:
            outcome = run_jobs(
                todo,
                book,
                workers=workers,
                device=default_device(device),
                checkpoints=commands.checkpoint_folder(ledger),
                on_event=on_event,
            )
        found = lines(defaults, chosen, seeds, book.rows(task=task, track="compare"))
    print_compare(found, record.metric.name)
    console.print(READING, highlight=False)
    if out is not None:
        for path in write_report(ledger, out, title=f"critgrad compare {task}"):
            console.print(f"report: {path}", highlight=False)
    if outcome.failed or outcome.interrupted:
        raise typer.Exit(130 if outcome.interrupted else 1)


READING = """
test: at the epoch of the best validation value; ±: 95 % t-interval. minus base: mean paired difference (same start, same
batches), positive = better. verdict: the interval leaves 0 outside; these comparisons are descriptive and uncorrected:
between equals one in twenty leaves 0 outside by chance. _C adds its memory, _F damps with it; "step of": the base with the
memory's step size; look-ahead: Nesterov or NAdam, tuned alike. sooner: median ratio of epochs to the base's target.
step: time of optimizer.step() against the base's in this run."""
