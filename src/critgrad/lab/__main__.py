"""``python -m critgrad.lab``: the lab where there is nothing but torch and numpy (a bare GPU machine).

The same runs, the same ledger and the same keys as the ``critgrad`` command; plain lines instead of pictures.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from .coordinator import Event
from .words import default_device, pairs


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m critgrad.lab", description=(__doc__ or "").split("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)

    def command(name: str, text: str) -> argparse.ArgumentParser:
        return commands.add_parser(name, help=text, description=text)

    one = command("train", "Train once and write the result to the ledger.")
    one.add_argument("task")
    one.add_argument("--optimizer", default="Adam_C")
    one.add_argument("--opt", action="append", default=[], help="an optimizer's argument, NAME=VALUE")
    one.add_argument("--seed", type=int, default=0)
    one.add_argument("--resume", action="store_true", help="go on from the checkpoint of a run that was stopped")

    many = command("sweep", "Run a track: what the ledger lacks, and nothing else.")
    many.add_argument("task")
    many.add_argument("--track", choices=("paper-best", "paper-grid", "fair"), default="fair")
    many.add_argument("--trials", type=int, help="of each tuned arm, instead of the registration's")
    many.add_argument("--families", help="with commas, instead of all")
    many.add_argument("--shard", default="1/1", help="i/n: this machine's share of the trials")
    many.add_argument("--untimed", action="store_true", help="leave the timed runs to a sweep that is alone here")
    many.add_argument(
        "--seconds",
        type=float,
        help="start nothing that would not be done by then, as far as the longest job so far tells",
    )

    seek = command("search", "Screen variants: run what the ledger lacks, and print what was found.")
    seek.add_argument("task")
    seek.add_argument("--name", default="damping-variants", help="of the file that says what is tried")
    seek.add_argument(
        "--confirm", action="store_true", help="run the best, and what they are held against, on other seeds"
    )
    seek.add_argument("--table", action="store_true", help="run nothing, print what the ledger has")
    seek.add_argument("--families", help="with commas, instead of all")
    seek.add_argument(
        "--seconds",
        type=float,
        help="start nothing that would not be done by then, as far as the longest job so far tells",
    )
    seek.add_argument("--retry", action="store_true", help="run the trials that failed once more")
    seek.add_argument("--workers", type=int, default=1, help="processes; more than one for the single engine")
    seek.add_argument("--bank-size", type=int, default=256, help="models in one bank")
    seek.add_argument("--device", default="auto")
    seek.add_argument("--ledger", type=Path, default=Path("runs.db"))

    look = command("analyze", "Run the trials of an analysis.")
    look.add_argument("name")
    look.add_argument("task", nargs="?", help="default: the first that the paper uses for it")
    look.add_argument("--optimizer")
    look.add_argument("--seconds", type=float, help="start nothing that would not be done by then")
    look.add_argument("--lines", action="store_true", help="sensitivity: the paper's two lines, not the whole grid")

    for runs in (one, many, look):
        runs.add_argument("--set", action="append", default=[], help="a task's setting, NAME=VALUE")
        runs.add_argument("--device", default="auto")
        runs.add_argument("--ledger", type=Path, default=Path("runs.db"))
    for sweeps in (many, look):
        sweeps.add_argument("--seeds", type=int, help="runs of each arm")
        sweeps.add_argument("--retry", action="store_true", help="run the trials that failed once more")
        sweeps.add_argument("--engine", choices=("single", "bank"))
        sweeps.add_argument("--executor", default="local", help="local, or inline: this process (best for banks)")
        sweeps.add_argument("--workers", type=int)
        sweeps.add_argument("--bank-size", type=int, default=256, help="models in one bank")

    several = command("batch", "Run the sweeps and analyses of a file one after the other, by the same workers.")
    several.add_argument("file", type=Path, help="one command a line; NAME=VALUE before it is for its workers")
    several.add_argument("--seconds", type=float, help="start nothing that would not be done by then")
    several.add_argument("--workers", type=int, help="processes, where a line does not say how many")
    several.add_argument("--device", default="auto")

    joined = command("merge", "Put the rows of several ledgers into one.")
    joined.add_argument("target", type=Path)
    joined.add_argument("sources", type=Path, nargs="+")
    joined.add_argument(
        "--compact", action="store_true", help="the form to publish: curves rounded, none of tuning runs"
    )
    joined.add_argument("--no-curves", action="store_true", help="with --compact: leave out all curves")
    joined.add_argument("--task", action="append", help="the runs of this task alone; may be repeated")
    joined.add_argument("--salvage", action="store_true", help="take from a damaged file what can still be read")

    ready = command("prepare", "Write a task's data as one compact npz.")
    ready.add_argument("name", help="a task or a data set")
    ready.add_argument("--out", type=Path)
    return parser


class PlainLines:
    """One line of progress now and then."""

    def __init__(self, every: float = 10.0) -> None:
        self.every, self.said = every, 0.0

    def __call__(self, event: Event) -> None:
        p = event.progress
        if not p.total:
            return
        if event.kind == "failed":
            print(f"failed: {event.trial.to_dict() if event.trial else ''}: {event.text}", flush=True)
        if event.kind in ("begin", "end", "stopping") or time.monotonic() - self.said >= self.every:
            self.said = time.monotonic()
            eta = "-" if p.eta is None else f"{p.eta:.0f} s"
            print(
                f"{p.done}/{p.total} done, {p.failed} failed, {p.running} running, {p.seconds:.0f} s, {eta} to go",
                flush=True,
            )


def _train(args: argparse.Namespace) -> int:
    from .commands import checkpoint_folder, one_trial, train_once
    from .ledger import Ledger

    trial = one_trial(args.task, args.optimizer, pairs(args.opt, "--opt"), args.seed, pairs(args.set, "--set"))
    with Ledger.open(args.ledger, write=True, create=True) as book:
        if book.done([trial.key]):
            print(f"{trial.key} is in {args.ledger} already")
            return 0
        result = train_once(
            trial,
            book,
            device=default_device(args.device),
            checkpoint=checkpoint_folder(args.ledger) / f"{trial.key}.pt",
            resume=args.resume,
            on_epoch=lambda p: print(
                f"{args.task} epoch {p.epoch}/{p.epochs} train {p.train_loss:.4f} valid {p.valid:.4g} test {p.test:.4g}",
                flush=True,
            ),
        )
    print(f"{args.task} {args.optimizer}: test {result.summary['test']:.4g}, {result.summary['train_seconds']:.1f} s")
    return 0


def _sweep(args: argparse.Namespace, **of_batch: Any) -> int:
    from . import commands
    from .ledger import Ledger

    track = commands.make_track(
        args.task,
        args.track,
        trials=args.trials,
        seeds=args.seeds,
        engine=args.engine,
        settings=pairs(args.set, "--set"),
    )
    shard, device = commands.parse_shard(args.shard), default_device(args.device)
    with Ledger.open(args.ledger, write=True, create=True) as book:
        outcome = commands.sweep(
            track,
            book,
            shard=shard,
            families=commands.family_names(args.families),
            seconds=args.seconds,
            untimed=args.untimed,
            on_event=PlainLines(),
            executor=args.executor,
            workers=args.workers,
            device=device,
            checkpoints=commands.checkpoint_folder(args.ledger),
            bank_size=args.bank_size,
            retry_failed=args.retry,
            **of_batch,
        )
    print(outcome.text)
    return 130 if outcome.interrupted else 1 if outcome.failed else 0


def _search(args: argparse.Namespace) -> int:
    from . import commands
    from .ledger import Ledger
    from .search import standings
    from .search.standings import plain_text

    track, families = commands.make_search(args.task, args.name, confirm=args.confirm, families=args.families)
    outcome = None
    device = "cpu" if args.table else default_device(args.device)
    with Ledger.open(args.ledger, write=not args.table, create=not args.table) as book:
        if not args.table:
            outcome = commands.sweep(
                track,
                book,
                families=families,
                seconds=args.seconds,
                on_event=PlainLines(),
                executor="inline" if args.workers == 1 else "local",
                workers=args.workers,
                device=device,
                bank_size=args.bank_size,
                retry_failed=args.retry,
            )
        print(plain_text(standings(track, book)))
    if outcome is None:
        return 0
    print(outcome.text)
    return 130 if outcome.interrupted else 1 if outcome.failed else 0


def _analyze(args: argparse.Namespace, **of_batch: Any) -> int:
    from .analyses import Options
    from .commands import analyze, checkpoint_folder
    from .ledger import Ledger

    options = Options(args.seeds or 5, pairs(args.set, "--set"), args.engine or "single", args.optimizer, args.lines)
    device = default_device(args.device)
    with Ledger.open(args.ledger, write=True, create=True) as book:
        found = analyze(
            args.name,
            args.task,
            options,
            book,
            executor=args.executor,
            workers=args.workers,
            device=device,
            checkpoints=checkpoint_folder(args.ledger),
            on_event=PlainLines(),
            bank_size=args.bank_size,
            retry_failed=args.retry,
            seconds=args.seconds,
            **of_batch,
        )
    print("Nothing was left to run." if found.outcome is None else found.outcome.text)
    if found.missing:
        print(found.lacking)
    if found.outcome is not None and found.outcome.interrupted:
        return 130
    return 1 if found.missing else 0


def _batch(args: argparse.Namespace) -> int:
    from .batch import Surroundings, read_lines
    from .commands import EXPECTED, is_timed
    from .executors import KeptExecutor

    lines = read_lines(args.file)
    asked = [_arguments(_parser(), line.arguments) for line in lines]  # a mistake in any line before the first is run
    began, codes = time.monotonic(), []
    kept, surroundings = KeptExecutor(), Surroundings()
    try:
        for line, own in zip(lines, asked):
            left = None if args.seconds is None else args.seconds - (time.monotonic() - began)
            if left is not None and left <= 0:
                print(f"No time for line {line.number}: {line.text}", flush=True)
                codes.append(1)
                continue
            print(f"Line {line.number}: {line.text}", flush=True)
            own.device, own.executor = args.device, "local"
            if not (own.command == "analyze" and is_timed(own.name)):
                own.workers = own.workers or args.workers
            own.seconds = left if own.seconds is None else own.seconds if left is None else min(left, own.seconds)
            if surroundings.change(line.environment):
                kept.close()
            try:
                run = {"sweep": _sweep, "analyze": _analyze}[own.command]
                codes.append(run(own, kept=kept, command=_by_itself(line.arguments, own)))
            except EXPECTED as error:
                print(_said(error), file=sys.stderr)
                codes.append(1)
            if codes[-1] == 130:
                break
    finally:
        kept.close()
        surroundings.restore()
    return max(codes, default=0)  # 130, an interruption, before 1, something that is missing


def _by_itself(arguments: Sequence[str], own: argparse.Namespace) -> list[str]:
    """The command that does what a line of a batch does: the file need not be there any more when somebody asks."""
    workers = [] if "--workers" in arguments or own.workers is None else ["--workers", str(own.workers)]
    return [sys.argv[0], *arguments, "--device", own.device, *workers]


def _merge(args: argparse.Namespace) -> int:
    from .transfer import merge

    form = {"compact": args.compact, "curves": not args.no_curves, "tasks": args.task}
    print(merge(args.target, args.sources, salvage=args.salvage, **form).text)
    return 0


def _prepare(args: argparse.Namespace) -> int:
    from .commands import dataset_of
    from .data import prepare

    print(prepare(dataset_of(args.name), args.out))
    return 0


_COMMANDS: dict[str, Callable[[argparse.Namespace], int]] = {
    "train": _train,
    "sweep": _sweep,
    "search": _search,
    "analyze": _analyze,
    "batch": _batch,
    "merge": _merge,
    "prepare": _prepare,
}


def _arguments(parser: argparse.ArgumentParser, argv: Sequence[str] | None) -> argparse.Namespace:
    args, rest = parser.parse_known_args(argv)
    if len(rest) == 1 and not rest[0].startswith("-") and getattr(args, "task", "") is None:
        args.task = rest.pop()  # argparse gives an optional argument up at the first option: "sensitivity --lines TASK"
    if rest:
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    return args


def _said(error: BaseException) -> str:
    """What a user can put right, in one line."""
    return f"Error: {' '.join(str(error).split()) or type(error).__name__}"


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; what a user can put right is one line."""
    args = _arguments(_parser(), argv)
    from .commands import EXPECTED, exit_code

    try:
        return _COMMANDS[args.command](args)
    except EXPECTED as error:
        print(_said(error), file=sys.stderr)
        return exit_code(error)
    except KeyboardInterrupt:
        again = "with --resume " if args.command == "train" else ""
        print(f"Stopped. The same command {again}goes on from here.", file=sys.stderr)
        return 130


if __name__ == "__main__":
    raise SystemExit(main())
