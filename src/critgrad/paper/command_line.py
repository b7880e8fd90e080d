"""What the paper's commands do and show: compare, train, sweep, search, analyze, ablate, report, theory, batch.

Each takes the parsed command line and returns an exit code.
"""

from __future__ import annotations

import sys
import time
import webbrowser
from argparse import Namespace
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from critgrad.lab.commands import checkpoint_folder
from critgrad.lab.errors import LabError
from critgrad.lab.ledger import Ledger, Role
from critgrad.lab.run.coordinator import run_jobs
from critgrad.lab.screen.console import complain, prose, say, show
from critgrad.lab.screen.progress import EpochLines, shown
from critgrad.lab.tasks import task_of
from critgrad.lab.train.optimizers import recipe_of
from critgrad.lab.words import default_device, listed, pairs

from . import commands
from .protocol import FAMILIES, Fair, tables
from .protocol.announced import AnnouncedSource
from .search import SearchTrack, find, standings
from .search.file import LAST_RUN


def train(args: Namespace) -> int:
    """Train once; checkpointed each epoch, resumable, written to the ledger."""
    from critgrad.lab.screen.live import Inspector
    from critgrad.lab.train import deterministic_algorithms, loop, problem_for

    task = args.task or "digits-mlp"
    given = {name: getattr(args, name) for name in ("lr", "topC", "decay", "aggr", "rho", "policy")}
    hyper = {**{name: value for name, value in given.items() if value is not None}, **pairs(args.opt, "--opt")}
    settings = {**({} if args.epochs is None else {"epochs": args.epochs}), **pairs(args.set, "--set")}
    trial = commands.one_trial(task, args.optimizer, hyper, args.seed, settings)
    where = default_device(args.device)
    deterministic_algorithms(args.deterministic)
    file = args.checkpoint or checkpoint_folder(args.ledger) / f"{trial.key}.pt"
    said = f"{task} with {args.optimizer} ({listed(trial.hyper)}), seed {args.seed}"
    with Ledger.open(args.ledger, write=True, create=True) as book:
        known = book.row(trial.key)
        if known is not None and known.status == "done":
            say(f"Already in {args.ledger}: {said}")
            _print_result(trial, known.summary)
            return 0
        say(f"{said}, on {where}")
        if args.resume and not file.exists():
            say("There is no checkpoint of this run yet: it starts at its beginning.")
        elif file.exists() and not args.resume:
            say("It starts anew; --resume would go on from the checkpoint of the run that was stopped.")
        try:
            with Inspector(problem_for(trial, where).steps) if args.inspect else EpochLines() as observer:
                if not args.resume:
                    file.unlink(missing_ok=True)
                on_epoch, on_step = observer.on_epoch, observer.on_step
                result = loop.train(trial, device=where, checkpoint=file, on_epoch=on_epoch, on_step=on_step)
                book.add(trial, result, (Role("train", recipe_of(trial.optimizer).family, trial.optimizer, "report"),))
                file.unlink(missing_ok=True)  # the ledger has the run
        except KeyboardInterrupt:
            again = "the same command with --resume goes on from here" if file.exists() else "no epoch was finished"
            complain(f"Stopped: {again}.", error=False)
            return 130
    _print_result(trial, result.summary)
    return 0


def _print_result(trial: Any, summary: dict[str, Any]) -> None:
    if summary["diverged"]:
        say("diverged: the loss was no longer finite; counts as the task's worst value", "bold red")
        return
    say(
        f"{summary['metric']}: test {show(summary['test'])} at epoch {summary['best_epoch']} "
        f"(best validation: {show(summary['valid'])}); final training loss {show(summary['final_train_loss'])}"
    )
    if summary.get("step_ms") is not None:
        say(f"optimizer.step(): {summary['step_ms']:.3f} ms (median of the timed steps)")
    if summary["data_state"] != "whole":
        say(f"data: {summary['data_state']} ({trial.task})", "yellow")
    for name in ("weights", "vectors"):
        if name in summary:
            say(f"{name}: {summary[name]}")


def _jobs(args: Namespace) -> dict[str, Any]:
    """How jobs are run, as the command line says."""
    return {
        "executor": args.executor,
        "options": pairs(args.executor_opt, "--executor-opt"),
        "workers": args.workers,
        "seconds": args.seconds,
        "device": default_device(args.device),
        "checkpoints": checkpoint_folder(args.ledger),
        "retry_failed": args.retry,
        "bank_size": args.bank_size,
        "trial_timeout": args.trial_timeout,
    }


def sweep(args: Namespace, **of_batch: Any) -> int:
    """Run a whole track; what the ledger has is not run again, so a killed sweep goes on with the same command."""
    if args.write_defaults and args.track != "fair":
        raise LabError(f"Invalid --write-defaults with --track {args.track}: defaults come from the fair track alone")
    part, chosen = commands.parse_shard(args.shard), commands.family_names(args.families)
    made = commands.make_track(
        args.task,
        args.track,
        trials=args.trials,
        seeds=args.seeds,
        engine=args.engine,
        settings=pairs(args.set, "--set"),
    )
    grown = f", up to {made.most} where ranges have to be widened" if made.most > made.total else ""
    total = "" if chosen or part != (1, 1) else f": about {made.total} runs in all{grown}"
    say(f"{args.task}, track {args.track}{total}")
    with Ledger.open(args.ledger, write=True, create=True) as book:
        with shown(f"{args.task} {args.track}") as on_event:
            outcome = commands.sweep(
                made,
                book,
                shard=part,
                families=chosen,
                untimed=args.untimed,
                on_event=on_event,
                deterministic=args.deterministic,
                **_jobs(args),
                **of_batch,
            )
        say(outcome.text)
        if part == (1, 1):
            _print_track(made, book, chosen, args.write_defaults)
        else:
            say(
                f"This was shard {args.shard}. `critgrad merge` joins the shards' ledgers; what follows needs all of them."
            )
    if outcome.interrupted:
        return 130
    if outcome.failed:
        say(f"{outcome.failed} runs have failed (critgrad export tells why): --retry runs them once more")
    return int(bool(outcome.failed))


def _print_track(made: Any, book: Any, families: Sequence[str] | None, write: bool) -> None:
    from .protocol.defaults import write_defaults
    from .tables import print_outcome, print_paper

    if not isinstance(made, Fair):
        print_paper(made.best(book, task_of(made.task).metric.higher_is_better), made.label)
        return
    found = tables(book, made.registration)
    print_outcome(found, families)
    if write:
        say(f"defaults: {write_defaults(found)}")


def search(args: Namespace) -> int:
    """Screens of many variants with few runs each, as they were published: every variant is listed, losers too."""
    from .tables import print_standings

    track = SearchTrack(find(args.name, args.task))
    chosen = commands.family_names(args.families, track.search.families)
    with Ledger.open(args.ledger) as book:
        print_standings(standings(track, book), chosen)
    prose(
        f"Searches are read, and no longer run: commit {LAST_RUN} can run them. docs/research.md says what came of each."
    )
    return 0


def compare(args: Namespace) -> int:
    """Each base optimizer, its memory twins (_C adds, _F damps) and controls: which differences are real?"""
    from .compare import TRACK, distinct, lines, planned
    from .protocol.defaults import load_defaults
    from .report import write_report
    from .tables import print_compare

    task = args.task or "digits-mlp"
    if args.seeds < 1:
        raise LabError(f"Invalid seeds: {args.seeds}, expected an int >= 1")
    chosen = commands.family_names(args.families) or FAMILIES
    where = default_device(args.device)
    record = task_of(task)
    defaults = load_defaults(task)
    todo = planned(defaults, chosen, args.seeds)
    say(f"{record.name}: {record.summary}")
    say(
        f"{distinct(todo)} runs on {args.seeds} seeds; hyper-parameters from {defaults.command} "
        f"({defaults.trials} trials for each tuned arm, on other seeds)"
    )
    with Ledger.open(args.ledger, write=True, create=True) as book:
        with shown(f"compare {task}") as on_event:
            outcome = run_jobs(
                todo,
                book,
                workers=args.workers,
                device=where,
                checkpoints=checkpoint_folder(args.ledger),
                on_event=on_event,
                trial_timeout=args.trial_timeout,
            )
        rows = book.rows(task=task, track=TRACK)
    print_compare(lines(defaults, chosen, args.seeds, rows), record.metric.name)
    prose("\n" + (Path(__file__).parent / "values" / "reading.txt").read_text(encoding="utf-8").strip())
    lacking = distinct(todo) - len({item.trial.key for item in todo} & {row.key for row in rows})
    if lacking:
        say(f"{lacking} runs are missing (critgrad status): the table pairs the seeds that both sides have")
    if args.report:
        for path in write_report(args.ledger, args.out, title=f"critgrad compare {task}"):
            say(f"report: {path}")
    return 130 if outcome.interrupted else int(bool(lacking))


def analyze(args: Namespace, **of_batch: Any) -> int:
    """Make one of the paper's analyses: runs what is missing, prints the numbers; ``report`` draws them."""
    from .analyses import Options
    from .report.verdict_tables import decomposition_table
    from .tables import print_analysis, put

    if args.name == "decompose":
        parts = AnnouncedSource(args.ledger).decomposition(args.task or "digits-mlp")
        put(decomposition_table("", parts), title="")  # what a memory's difference to its base is made of
        return 0
    options = Options(args.seeds, pairs(args.set, "--set"), args.engine or "single", args.optimizer, args.lines)
    with Ledger.open(args.ledger, write=True, create=True) as book, shown(args.name) as on_event:
        found = commands.analyze(
            args.name,
            args.task,
            options,
            book,
            on_event=on_event,
            **_jobs(args),
            **of_batch,
        )
    if found.outcome is not None:
        say(found.outcome.text)
    if found.data:
        print_analysis(args.name, found.data)
    if found.missing:
        say(found.lacking)
    interrupted = found.outcome is not None and found.outcome.interrupted
    return 130 if interrupted else int(bool(found.missing))


def ablate(args: Namespace, **of_batch: Any) -> int:
    """Vary selection, replacement and aggregation, one at a time, with intervals."""
    args.name, args.task, args.lines = "ablation", args.task or "digits-mlp", False
    return analyze(args, **of_batch)


def report(args: Namespace) -> int:
    """Make one self-contained page from a ledger: verdicts, curves, analyses, provenance."""
    from .report import write_report

    for path in write_report(args.ledger, args.out, formats=tuple(args.format), title=args.title):
        say(str(path))
    if args.open:
        webbrowser.open(args.out.resolve().as_uri())
    return 0


THEORY = ("topC", "decay", "aggr", "kappa", "rho", "momentum", "max_age", "norm_ratio", "norm_decay")


def theory(args: Namespace) -> int:
    """What holds for a memory: effective step, staleness bound, largest safe lr * L, matched momentum."""
    from critgrad.theory.report import summary

    try:
        text = summary(**{name: getattr(args, name) for name in THEORY})
    except ValueError as error:  # a value for which nothing is known
        raise LabError(str(error)) from error
    say(text)
    return 0


RUNNERS: dict[str, Callable[..., int]] = {"sweep": sweep, "analyze": analyze, "ablate": ablate}


def batch(args: Namespace, parse: Callable[[Sequence[str]], Namespace], expected: tuple[type[Exception], ...]) -> int:
    """Run the sweeps and analyses of a file one after the other, by the same workers.

    ``parse`` reads a line's arguments; ``expected`` errors of one line do not keep the next from running.
    """
    from critgrad.lab.run.batch import Surroundings, read_lines
    from critgrad.lab.run.executors import KeptExecutor

    from .analyses import ANALYSES

    lines = read_lines(args.file, tuple(RUNNERS))
    asked = [parse(line.arguments) for line in lines]  # a mistake in any line before the first is run
    began, codes = time.monotonic(), []
    kept, surroundings = KeptExecutor(), Surroundings()
    try:
        for line, own in zip(lines, asked):
            left = None if args.seconds is None else args.seconds - (time.monotonic() - began)
            if left is not None and left <= 0:
                say(f"No time for line {line.number}: {line.text}")
                codes.append(1)
                continue
            say(f"Line {line.number}: {line.text}")
            own.device, own.executor = args.device, "local"
            # An analysis of times: one run after the other, unless it is told otherwise.
            if not (own.command == "analyze" and own.name in ANALYSES and ANALYSES[own.name].timed):
                own.workers = own.workers or args.workers
            own.seconds = left if own.seconds is None else own.seconds if left is None else min(left, own.seconds)
            if surroundings.change(line.environment):
                kept.close()
            try:
                codes.append(RUNNERS[own.command](own, kept=kept, command=_by_itself(line.arguments, own)))
            except expected as error:
                complain(" ".join(str(error).split()) or type(error).__name__)
                codes.append(1)
            if codes[-1] == 130:
                break
    finally:
        kept.close()
        surroundings.restore()
    return max(codes, default=0)  # 130, an interruption, before 1, something that is missing


def _by_itself(arguments: Sequence[str], own: Namespace) -> list[str]:
    """The command that does what a line of a batch does: the file need not be there any more when somebody asks."""
    workers = [] if "--workers" in arguments or own.workers is None else ["--workers", str(own.workers)]
    return [sys.argv[0], *arguments, "--device", own.device, *workers]
