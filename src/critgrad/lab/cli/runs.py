"""``critgrad train``, ``critgrad sweep``, ``critgrad compare``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import typer

from ..words import default_device, listed, pairs
from .console import console, errors, say, show
from .progress import shown

LEDGER = typer.Option(Path("runs.db"), "--ledger", help="The file that holds every run.")
DEVICE = typer.Option("auto", help="cpu, cuda, cuda:1, ... (auto: the GPU if there is one).")
SETTINGS = typer.Option([], "--set", help="A task's setting, NAME=VALUE (epochs=3, dropout=0); may be repeated.")
EXECUTOR = typer.Option("local", help="local, inline (this process, good for banks), dask or slurm.")
WORKERS = typer.Option(None, min=1, help="Processes (default: one per core, or one on a GPU).")
BANK_SIZE = typer.Option(256, min=1, help="Models in one bank.")
SECONDS = typer.Option(None, min=0.0, help="Start no run that would not be done by then, as far as the longest tells.")
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
    from ..train import deterministic_algorithms, problem_for

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
            say(f"Already in {ledger}: {task} with {optimizer} ({listed(trial.hyper)}), seed {seed}")
            return _print_result(trial, known.summary)
        say(f"{task} with {optimizer} ({listed(trial.hyper)}), seed {seed}, on {where}")
        if resume and not file.exists():
            say("There is no checkpoint of this run yet: it starts at its beginning.")
        elif file.exists() and not resume:
            say("It starts anew; --resume would go on from the checkpoint of the run that was stopped.")
        try:
            with _observer(problem_for(trial, where).steps if inspect else None) as observer:
                result = train_once(
                    trial,
                    book,
                    device=where,
                    checkpoint=file,
                    resume=resume,
                    on_epoch=observer.on_epoch,
                    on_step=observer.on_step,
                )
        except KeyboardInterrupt:
            again = "the same command with --resume goes on from here" if file.exists() else "no epoch was finished"
            errors.print(f"Stopped: {again}.", highlight=False)
            raise typer.Exit(130) from None
    _print_result(trial, result.summary)


def _observer(inspected_steps: int | None) -> Any:
    """The memory's display, of an epoch with so many steps; ``None``: plain lines."""
    from .live import Inspector
    from .progress import EpochLines

    return EpochLines(console) if inspected_steps is None else Inspector(console, inspected_steps)


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
            say(f"{name}: {summary[name]}")


def sweep(
    task: str = typer.Argument(..., help="A task."),
    track: str = typer.Option("fair", help="fair, paper-best or paper-grid."),
    trials: int | None = typer.Option(None, min=1, help="Of each tuned arm, instead of the registration's."),
    seeds: int | None = typer.Option(None, min=1, help="To report on, instead of the track's."),
    families: str | None = typer.Option(None, help="With commas: SGD,Adam (default: all)."),
    engine: str | None = typer.Option(None, help="single, or bank (many small models at once on a GPU)."),
    executor: str = EXECUTOR,
    executor_options: list[str] = typer.Option(
        [], "--executor-opt", help="NAME=VALUE (address=tcp://..., partition=gpu)."
    ),
    workers: int | None = WORKERS,
    bank_size: int = BANK_SIZE,
    shard: str = typer.Option(
        "1/1", help="i/n: this machine's share of the trials; `critgrad merge` joins the ledgers."
    ),
    untimed: bool = typer.Option(
        False, "--untimed", help="Leave the timed runs to a later sweep that has the machine to itself."
    ),
    seconds: float | None = SECONDS,
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

    if write_defaults and track != "fair":
        raise ValueError(f"Invalid --write-defaults with --track {track}: defaults come from the fair track alone")
    part, chosen = commands.parse_shard(shard), commands.family_names(families)
    where = default_device(device)
    made = commands.make_track(task, track, trials=trials, seeds=seeds, engine=engine, settings=pairs(set_, "--set"))
    total = "" if chosen or part != (1, 1) else f": about {made.total} runs in all"
    say(f"{task}, track {track}{total}")
    with Ledger.open(ledger, write=True, create=True) as book:
        with shown(console, f"{task} {track}") as on_event:
            outcome = commands.sweep(
                made,
                book,
                shard=part,
                families=chosen,
                seconds=seconds,
                untimed=untimed,
                on_event=on_event,
                executor=executor,
                options=pairs(executor_options, "--executor-opt"),
                workers=workers,
                device=where,
                checkpoints=commands.checkpoint_folder(ledger),
                retry_failed=retry,
                bank_size=bank_size,
                deterministic=deterministic,
            )
        say(outcome.text)
        if part == (1, 1):
            _print_track(made, book, chosen, write_defaults)
        else:
            say(f"This was shard {shard}. `critgrad merge` joins the shards' ledgers; what follows needs all of them.")
    if outcome.failed and not outcome.interrupted:
        say(f"{outcome.failed} runs have failed (critgrad export tells why): --retry runs them once more")
    if outcome.failed or outcome.interrupted:
        raise typer.Exit(130 if outcome.interrupted else 1)


def _print_track(made: Any, book: Any, families: Sequence[str] | None, write: bool) -> None:
    from ..protocol import tables
    from ..protocol.defaults import write_defaults
    from ..protocol.tracks import Fair
    from ..tasks import task_of
    from .tables import print_outcome, print_paper

    if not isinstance(made, Fair):
        print_paper(made.best(book, task_of(made.task).metric.higher_is_better), made.label)
        return
    found = tables(book, made.registration)
    print_outcome(found, families)
    if write:
        say(f"defaults: {write_defaults(found)}")


def compare(
    task: str = typer.Argument("digits-mlp", help="A task that has been swept (lab/defaults)."),
    seeds: int = typer.Option(10, min=1, help="Runs of each arm."),
    families: str | None = typer.Option(None, help="With commas: SGD,Adam (default: all four)."),
    workers: int | None = WORKERS,
    out: Path = typer.Option(Path("report.html"), "--out", help="The report page to write."),
    no_report: bool = typer.Option(False, "--no-report", help="Print the table, write no page."),
    device: str = DEVICE,
    ledger: Path = LEDGER,
) -> None:
    """Each base optimizer, its memory twins (_C adds, _F damps) and controls: which differences are real?"""
    from .. import commands
    from ..compare import TRACK, distinct, lines, planned
    from ..coordinator import run_jobs
    from ..ledger import Ledger
    from ..optimizers import FAMILIES
    from ..protocol.defaults import load_defaults
    from ..report import write_report
    from ..tasks import task_of
    from .tables import print_compare

    chosen = commands.family_names(families) or FAMILIES
    where = default_device(device)
    record = task_of(task)
    defaults = load_defaults(task)
    todo = planned(defaults, chosen, seeds)
    console.print(f"[bold]{record.name}[/]: {record.summary}", highlight=False)
    say(
        f"{distinct(todo)} runs on {seeds} seeds; hyper-parameters from {defaults.command} "
        f"({defaults.trials} trials for each tuned arm, on other seeds)"
    )
    with Ledger.open(ledger, write=True, create=True) as book:
        with shown(console, f"compare {task}") as on_event:
            outcome = run_jobs(
                todo,
                book,
                workers=workers,
                device=where,
                checkpoints=commands.checkpoint_folder(ledger),
                on_event=on_event,
            )
        rows = book.rows(task=task, track=TRACK)
    found = lines(defaults, chosen, seeds, rows)
    print_compare(found, record.metric.name)
    console.print(READING, highlight=False)
    lacking = distinct(todo) - len({item.trial.key for item in todo} & {row.key for row in rows})
    if lacking:
        say(f"{lacking} runs are missing (critgrad status): the table pairs the seeds that both sides have")
    if not no_report:
        for path in write_report(ledger, out, title=f"critgrad compare {task}"):
            say(f"report: {path}")
    if outcome.interrupted or lacking:
        raise typer.Exit(130 if outcome.interrupted else 1)


READING = (
    "\ntest: at the epoch of the best validation value; ±: 95 % t-interval. minus base: mean paired difference (same start, "
    "same batches), positive = better. verdict: the interval leaves 0 outside; these comparisons are descriptive and "
    "uncorrected: between equals one in twenty leaves 0 outside by chance. _C adds its memory, _F damps with it; "
    '"step of": the base with that memory\'s step size; Nesterov, NAdam, momentum .9: rivals, tuned alike. '
    "to target: epochs to the base's target; sooner: median ratio of them. step: time of optimizer.step() against the "
    "base's in this run."
)
