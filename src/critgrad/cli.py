"""The ``critgrad`` command: the one command line above the lab and the paper's study, with or without rich.

``python -m critgrad.lab`` is the same, straight from the sources, on a machine that has nothing but torch and numpy.
"""

from __future__ import annotations

import argparse
import io
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Sequence
from pathlib import Path

from critgrad._version import __version__

RUN, LOOK, READ, KNOW = "Run experiments", "Look at a ledger", "Analyse and read", "What there is"

# The commands, in the order in which the guide tells about them.
COMMANDS: dict[str, dict[str, str]] = {
    RUN: {
        "compare": "Each base optimizer, its memory twins (_C adds, _F damps) and controls: which differences are real?",
        "study": "Your optimizer or mine, on your task: tune both alike, replicate the whole, and get a verdict.",
        "train": "Train once; checkpointed each epoch, resumable, written to the ledger.",
        "sweep": "Run a whole track; what the ledger has is not run again, so a killed sweep goes on with the same "
        "command.",
        "search": "Read the screens of variants with few runs each: every variant is listed, losers too.",
        "batch": "Run the sweeps and analyses of a file one after the other, by the same workers.",
    },
    LOOK: {
        "status": "What is done, running and failed.",
        "best": "The best hyper-parameters of every optimizer, by mean validation over the seeds there are.",
        "merge": "Put the rows of several ledgers into one; the same trial is kept once.",
        "export": "Write one line per run as CSV or Parquet.",
    },
    READ: {
        "analyze": "Make one of the paper's analyses: runs what is missing, prints the numbers; report draws them.",
        "ablate": "Vary selection, replacement and aggregation, one at a time, with intervals.",
        "report": "Make one self-contained page from a ledger: verdicts, curves, analyses, provenance.",
        "theory": "What holds for a memory: effective step, staleness bound, largest safe lr * L, matched momentum.",
        "playground": "Watch two optimizers and their memories on a loss surface, in a browser.",
    },
    KNOW: {
        "tasks": "List the tasks: the paper's, and ours.",
        "optimizers": "List the optimizers, the memory's policies and its aggregations.",
        "data": "Data sets: what is there, what is missing, and one file for a machine without a network.",
    },
}
DATA = {
    "list": "List the data sets: whether they are here, their state and licence.",
    "check": "Look for every file, and compare its sha256; fails where one is corrupt, or missing of the NAME asked for.",
    "fetch": "Download what is missing, where a download exists.",
    "prepare": "Write one compact npz, all that a machine without the raw files needs (in CRITGRAD_DATA).",
}
STUDY = {
    "new": "Write study.toml and task.py, commented, that run as they are in under a minute.",
    "check": "Find what is wrong, see how long it takes and what it can find; nothing is written.",
    "run": "Run what is missing, give the verdict and write report.html; goes on after any kill.",
    "report": "Give the verdict of what has been run, and write report.html again.",
}

_HEAD = """A memory of critical gradients for any PyTorch optimizer, and the lab that tests it.

Start with critgrad compare: it trains the bundled digits with every optimizer and its memory twins and says which
differences are real. critgrad tasks lists what else can be trained, critgrad sweep tunes fairly, critgrad report makes
the page to read. critgrad COMMAND --help has a command's options.
"""


def guide() -> str:
    """What ``critgrad --help`` says."""
    out = ["Usage: critgrad [--version] [--help] COMMAND ...", "", _HEAD.rstrip()]
    for panel, commands in COMMANDS.items():
        out += ["", f"{panel}:", *(f"  {name:12}{text}" for name, text in commands.items())]
    return "\n".join(out) + "\n"


class _Parser(ArgumentParser):
    def format_usage(self) -> str:
        return super().format_usage().replace("usage: ", "Usage: ", 1)

    def format_help(self) -> str:
        return guide() if self.prog == "critgrad" else super().format_help().replace("usage: ", "Usage: ", 1)


def parser() -> ArgumentParser:
    """Every command with its options."""
    top = _Parser(prog="critgrad", allow_abbrev=False)
    top.add_argument("--version", action="version", version=f"critgrad {__version__}")
    commands = top.add_subparsers(dest="command", metavar="COMMAND")
    made = {
        name: commands.add_parser(name, help=text, description=text, allow_abbrev=False)
        for panel in COMMANDS.values()
        for name, text in panel.items()
    }
    for name, add in _OPTIONS.items():
        add(made[name])
    of_data = made["data"].add_subparsers(dest="what", metavar="COMMAND", required=True)
    for name, text in DATA.items():
        _data(of_data.add_parser(name, help=text, description=text, allow_abbrev=False), name)
    of_study = made["study"].add_subparsers(dest="what", metavar="COMMAND", required=True)
    for name, text in STUDY.items():
        _study(of_study.add_parser(name, help=text, description=text, allow_abbrev=False), name)
    return top


# -- options -----------------------------------------------------------------------------------------------------------


def _ledger(p: ArgumentParser) -> None:
    p.add_argument("--ledger", type=Path, default=Path("runs.db"), help="the file that holds every run (runs.db)")


def _device(p: ArgumentParser) -> None:
    p.add_argument("--device", default="auto", help="cpu, cuda, cuda:1, ... (auto: the GPU if there is one)")


def _settings(p: ArgumentParser) -> None:
    p.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a task's setting (epochs=3, dropout=0); may be repeated",
    )


def _workers(p: ArgumentParser) -> None:
    p.add_argument("--workers", type=int, help="processes (default: one per core, or one on a GPU)")


def _budget(p: ArgumentParser) -> None:
    p.add_argument(
        "--seconds", type=float, help="start no run that would not be done by then, as far as the longest tells"
    )


def _executor(p: ArgumentParser) -> None:
    p.add_argument("--executor", default="local", help="local, inline (this process, good for banks), dask or slurm")
    p.add_argument(
        "--executor-opt",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="of the executor (address=tcp://..., partition=gpu); may be repeated",
    )


def _jobs(p: ArgumentParser) -> None:
    """Where and how runs are made."""
    _executor(p)
    _workers(p)
    _bank(p)
    _budget(p)
    _timeout(p)
    p.add_argument("--retry", action="store_true", help="run the trials that failed once more")


def _timeout(p: ArgumentParser) -> None:
    p.add_argument(
        "--trial-timeout",
        type=float,
        metavar="S",
        help="end a trial (a bank) that runs longer, as failed; local executor",
    )


def _bank(p: ArgumentParser) -> None:
    p.add_argument("--bank-size", type=int, default=256, help="models in one bank")


def _deterministic(p: ArgumentParser) -> None:
    p.add_argument(
        "--deterministic",
        action=argparse.BooleanOptionalAction,
        default=False,
        help="the same bits every time on CUDA, too (slower)",
    )


def _compare(p: ArgumentParser) -> None:
    p.add_argument("task", nargs="?", help="a task that has been swept (digits-mlp)")
    p.add_argument("--seeds", type=int, default=10, help="runs of each arm (10)")
    p.add_argument("--families", help="with commas: SGD,Adam (default: all four)")
    _workers(p)
    _timeout(p)
    p.add_argument("--out", type=Path, default=Path("report.html"), help="the report page to write")
    p.add_argument("--no-report", dest="report", action="store_false", help="print the table, write no page")
    _device(p)
    _ledger(p)


def _train(p: ArgumentParser) -> None:
    p.add_argument("task", nargs="?", help="a task, with variants: ptb-lstm@b420, mnist-mlp@tiny (digits-mlp)")
    p.add_argument("--optimizer", "-o", default="Adam_C", help="a name of critgrad optimizers (Adam_C)")
    p.add_argument("--lr", type=float, help="learning rate (default: chosen by a fair sweep, or the paper's)")
    p.add_argument("--topC", type=int, help="gradients in the memory")
    p.add_argument("--decay", type=float, help="of the priorities, per step")
    p.add_argument("--aggr", help="mean, sum, mid, min, median, max, fisher")
    p.add_argument("--rho", type=float, help="damping of fisher")
    p.add_argument("--policy", help="KotH, FIFO, random, ...")
    p.add_argument("--epochs", type=int, help="instead of the task's")
    p.add_argument("--seed", type=int, default=0, help="of initialisation, data order and dropout")
    p.add_argument(
        "--opt",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="an optimizer's argument (policy=FIFO); may be repeated",
    )
    _settings(p)
    _device(p)
    _ledger(p)
    p.add_argument("--checkpoint", type=Path, help="file (default: beside the ledger, by the trial's key)")
    p.add_argument("--resume", action="store_true", help="go on from the checkpoint of a run that was stopped")
    p.add_argument("--inspect", action="store_true", help="show the memory's slots while training")
    _deterministic(p)


def _sweep(p: ArgumentParser) -> None:
    p.add_argument("task", help="a task; TASK+QUESTION for what was asked of it later")
    p.add_argument("--track", default="fair", help="fair, paper-best or paper-grid")
    p.add_argument("--trials", type=int, help="of each tuned arm, instead of the registration's")
    p.add_argument("--seeds", type=int, help="to report on, instead of the track's")
    p.add_argument("--families", help="with commas: SGD,Adam (default: all)")
    p.add_argument("--engine", help="single, or bank (many small models at once on a GPU)")
    _jobs(p)
    p.add_argument(
        "--shard", default="1/1", help="i/n: this machine's share of the trials; critgrad merge joins the ledgers"
    )
    p.add_argument("--untimed", action="store_true", help="leave the timed runs to a sweep that has the machine alone")
    p.add_argument("--write-defaults", action="store_true", help="make the choices the task's defaults (fair)")
    _settings(p)
    _device(p)
    _deterministic(p)
    _ledger(p)


def _search(p: ArgumentParser) -> None:
    p.add_argument("task", help="a task of the search")
    p.add_argument("--name", default="damping-variants", help="of the file that says what was tried (paper/searches)")
    p.add_argument("--table", action="store_true", help="print what the ledger has: what is done anyway")
    p.add_argument("--confirm", action="store_true", help=argparse.SUPPRESS)  # of the time when searches were run
    p.add_argument("--families", help="with commas: Adam,SGDM (default: all of the search)")
    _ledger(p)


def _batch(p: ArgumentParser) -> None:
    p.add_argument("file", type=Path, help="one command a line; NAME=VALUE before it is for its workers")
    _budget(p)
    p.add_argument("--workers", type=int, help="processes, where a line does not say how many")
    _device(p)


def _best(p: ArgumentParser) -> None:
    p.add_argument("task", nargs="?", help="one task; all of them by default")
    p.add_argument("--track", help="one track: fair, paper-best, paper-grid, train, ...")
    p.add_argument("-n", dest="count", type=int, default=1, help="how many of each optimizer")
    _ledger(p)


def _merge(p: ArgumentParser) -> None:
    p.add_argument("target", type=Path, help="the ledger that gets the rows")
    p.add_argument("sources", type=Path, nargs="+", help="ledgers to take them from (shards)")
    p.add_argument(
        "--compact", action="store_true", help="the form to publish: curves rounded to five digits, none of tuning runs"
    )
    p.add_argument(
        "--curves",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="--no-curves with --compact: leave out all curves",
    )
    p.add_argument("--task", action="append", default=[], help="the runs of this task alone; may be repeated")
    p.add_argument("--salvage", action="store_true", help="take from a damaged file what can still be read")


def _export(p: ArgumentParser) -> None:
    p.add_argument("out", type=Path, help="runs.csv or runs.parquet")
    _ledger(p)


def _analysis(p: ArgumentParser) -> None:
    p.add_argument("--seeds", type=int, default=5, help="runs of each arm (5)")
    p.add_argument("--engine", default="single", help="single, or bank (many small models at once on a GPU)")
    p.add_argument("--optimizer", "-o", help="instead of the analysis's own")
    _settings(p)
    _device(p)
    _jobs(p)
    _ledger(p)


def _analyze(p: ArgumentParser) -> None:
    p.add_argument(
        "name", help="staleness, gt-vs-gc, sensitivity, noise, runtime, convex, spectrum, damping or decompose"
    )
    p.add_argument("task", nargs="?", help="a task (default: the first that the paper uses for it)")
    p.add_argument("--lines", action="store_true", help="sensitivity: the paper's two lines, not the whole grid")
    _analysis(p)


def _ablate(p: ArgumentParser) -> None:
    p.add_argument("task", nargs="?", help="a task; the paper uses cifar10-convnet and ptb-lstm (digits-mlp)")
    _analysis(p)


def _report(p: ArgumentParser) -> None:
    p.add_argument("--out", type=Path, default=Path("report.html"), help="the page to write")
    p.add_argument(
        "--format", action="append", default=[], help="also export each figure: svg, pdf, png; may be repeated"
    )
    p.add_argument("--title", help="the page's title (default: its tasks)")
    p.add_argument("--open", action="store_true", help="open the page in a browser")
    _ledger(p)


def _theory(p: ArgumentParser) -> None:
    p.add_argument("--topC", type=int, default=5, help="entries in the memory")
    p.add_argument("--decay", type=float, default=0.7, help="of the priorities, per step")
    p.add_argument("--aggr", default="sum", help="mean, sum, mid, min, median, max, fisher")
    p.add_argument("--kappa", type=float, default=1.0, help="the memory's share")
    p.add_argument("--rho", type=float, default=0.3, help="strength of the damping (fisher)")
    p.add_argument("--momentum", type=float, default=0.0, help="of the base optimizer")
    p.add_argument("--max-age", type=int, help="the option max_age")
    p.add_argument("--norm-ratio", type=float, default=10.0, help="largest over smallest gradient norm")
    p.add_argument("--norm-decay", type=float, default=1.0, help="by which norms shrink per step")


def _playground(p: ArgumentParser) -> None:
    p.add_argument("--out", type=Path, default=Path("playground.html"), help="the page to write")
    p.add_argument("--open", action=argparse.BooleanOptionalAction, default=True, help="open the page in a browser")


def _tasks(p: ArgumentParser) -> None:
    p.add_argument("--long", "-l", action="store_true", help="every setting, and where it departs from the paper")


def _data(p: ArgumentParser, name: str) -> None:
    if name != "list":
        p.add_argument("name", nargs="?" if name == "check" else None, help="a data set or a task")
    if name == "prepare":
        p.add_argument("--out", type=Path, help="file to write; by default among the data")


def _study(p: ArgumentParser, name: str) -> None:
    if name == "new":
        p.add_argument("folder", type=Path, nargs="?", default=Path("."), help="where to write them (here)")
        return
    p.add_argument("file", type=Path, help="study.toml")
    p.add_argument("--ledger", type=Path, help="the file that holds every run (study.db beside FILE)")
    if name != "check":
        p.add_argument("--json", type=Path, metavar="FILE", help="write the answer there, too")
    if name != "report":
        _device(p)
        _workers(p)
    if name == "run":
        _executor(p)
        p.add_argument("--minutes", type=float, help="begin no replicate but the first that would not be whole by then")
        _timeout(p)
        p.add_argument("--retry", action="store_true", help="run what failed or took too long once more")


_OPTIONS: dict[str, Callable[[ArgumentParser], None]] = {
    **{"compare": _compare, "train": _train, "sweep": _sweep, "search": _search, "batch": _batch},
    **{"status": _ledger, "best": _best, "merge": _merge, "export": _export},
    **{"analyze": _analyze, "ablate": _ablate, "report": _report, "theory": _theory, "playground": _playground},
    "tasks": _tasks,
}


# -- running -----------------------------------------------------------------------------------------------------------


def parse(argv: Sequence[str] | None = None) -> Namespace:
    """The command line as values; a wrong one ends the process with code 2."""
    top = parser()
    args, rest = top.parse_known_args(argv)
    if len(rest) == 1 and not rest[0].startswith("-") and getattr(args, "task", "") is None:
        args.task = rest.pop()  # argparse gives an optional argument up at the first option: "sensitivity --lines TASK"
    if rest:
        top.error(f"unrecognized arguments: {' '.join(rest)}")
    return args


def _run(args: Namespace) -> int:
    from critgrad.lab import commands as lab
    from critgrad.paper import command_line as paper

    if args.command == "data":
        return {
            "list": lab.data_list,
            "check": lab.data_check,
            "fetch": lab.data_fetch,
            "prepare": lab.data_prepare,
        }[args.what](args)
    if args.command == "study":
        from critgrad.lab.study import commands as study

        return {"new": study.new, "check": study.check, "run": study.run, "report": study.report}[args.what](args)
    if args.command == "merge":
        from critgrad.paper.commands import name_commits

        return lab.merge(args, afterwards=name_commits)
    if args.command == "optimizers":
        from critgrad.paper.protocol import PAPER

        return lab.optimizers(args, PAPER, "* one of the paper's eight. ")
    if args.command == "batch":
        from critgrad.lab.errors import EXPECTED

        return paper.batch(args, parse, EXPECTED)
    run: Callable[[Namespace], int] = getattr(lab if hasattr(lab, args.command) else paper, args.command)
    return run(args)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; what a user can put right is one line on standard error."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a screen without a letter must not cost the verdict
    args = parse(argv)
    if args.command is None:
        print(guide(), end="")
        return 2
    from critgrad.lab.errors import EXPECTED, exit_code
    from critgrad.lab.screen.console import complain

    try:
        return _run(args)
    except EXPECTED as error:
        complain(" ".join(str(error).split()) or type(error).__name__)
        return exit_code(error)
    except KeyboardInterrupt:
        again = "with --resume " if args.command == "train" else ""
        complain(f"Stopped. The same command {again}goes on from here.", error=False)
        return 130


if __name__ == "__main__":
    raise SystemExit(main())
