"""What the commands do that know nothing of the paper: ledgers, data, lists of what there is, the playground.

Each takes the parsed command line and returns an exit code.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .errors import LabError
from .screen.console import prose, say, show, table
from .words import listed

if TYPE_CHECKING:
    from .ledger import Ledger
    from .tasks import Task
    from .tasks.data import FileStatus


def checkpoint_folder(ledger: Path) -> Path:
    """Where the checkpoints of a ledger's trials lie."""
    return ledger.with_name(ledger.stem + ".checkpoints")


# -- ledgers -----------------------------------------------------------------------------------------------------------


def status(args: Namespace) -> int:
    """What is done, running and failed."""
    from .ledger import Ledger
    from .run.status import status as read
    from .screen.progress import eta, up_to

    with Ledger.open(args.ledger) as book:
        found = read(book)
    numbers = ("done", "running", "failed")
    made = table(str(args.ledger), "task", "track", "arm", *numbers, right=numbers)
    for row in found.lines:
        made.add_row(row.task, row.track, row.arm, str(row.done), str(row.running), str(row.failed))
    made.put()
    if found.progress is not None:
        now = found.progress
        say(f"now: {now.done}/{now.total}{up_to(now)}, {eta(now)} to go")
    for entry in found.running:
        t = entry.trial
        say(f"running: {t.task} {t.optimizer} seed {t.seed} ({entry.worker})")
    if found.stale:
        say(f"{len(found.stale)} trials were running when their process ended: the next sweep runs them again")
    if not found.lines:
        say("no runs yet")
    return 0


def best(args: Namespace) -> int:
    """The best hyper-parameters of every optimizer, by mean validation over the seeds there are."""
    from .ledger import Ledger
    from .ledger.ranking import ranking

    if args.count < 1:
        raise LabError(f"Invalid -n: {args.count}, expected an int >= 1")
    with Ledger.open(args.ledger) as book:
        ranked = ranking(book.rows(task=args.task, track=args.track))
    if not ranked:
        say("no finished runs" + "".join(f" of {name}" for name in (args.task, args.track) if name))
        return 0
    numbers = ("seeds", "valid", "test")
    made = table(None, "task", "optimizer", "hyper-parameters", *numbers, right=numbers)
    for entries in ranked.values():
        for entry in entries[: args.count]:
            name = entry.task + "".join(f" {key}={value}" for key, value in entry.settings.items())
            made.add_row(
                name, entry.optimizer, listed(entry.hyper), str(entry.seeds), show(entry.valid), show(entry.test)
            )
    made.put()
    prose("\nChosen and shown on the same seeds: for a comparison use the fair track.")
    return 0


def merge(args: Namespace, afterwards: Callable[[Ledger], None] | None = None) -> int:
    """Put the rows of several ledgers into one; the same trial is kept once."""
    from .ledger.merge import merge as run

    form = {"compact": args.compact, "curves": args.curves, "tasks": args.task or None}
    say(run(args.target, args.sources, salvage=args.salvage, afterwards=afterwards, **form).text)
    return 0


def export(args: Namespace) -> int:
    """Write one line per run as CSV or Parquet."""
    from .ledger import Ledger
    from .ledger.export import export as run

    with Ledger.open(args.ledger) as book:
        count = run(book, args.out)
    say(f"{count} runs in {args.out}")
    return 0


# -- what there is -----------------------------------------------------------------------------------------------------


def tasks(args: Namespace) -> int:
    """List the tasks: the paper's, and ours."""
    from .tasks import TASKS

    if args.long:
        for task in TASKS.values():
            _print_long(task)
        return 0
    made = table(None, "task", "what it is", "metric")
    for task in TASKS.values():
        made.add_row(task.name, task.summary, task.metric.name)
    made.put()
    variants = [f"{task.name}@{name}" for task in TASKS.values() for name in task.variants]
    banks = [task.name for task in TASKS.values() if task.bankable]
    prose(f"\nVariants: {', '.join(variants)}; NAME@tiny is a small synthetic twin of each.")
    prose(f"For --engine bank: {', '.join(banks)}.\n--long tells every setting.")
    return 0


def _print_long(task: Task) -> None:
    clip = "none" if task.clip is None else f"{task.clip:g}"
    variants = "; ".join(f"@{name}: {_pairs(_changes(task, values))}" for name, values in task.variants.items())
    lines = [
        f"data {task.dataset}; metric {task.metric.name}; batch {task.batch_size}; epochs {task.epochs}; "
        f"clip {clip}; weight decay {task.weight_decay:g}{' on matrices' if task.decay_matrices_only else ''}; "
        f"schedule {task.schedule}, warmup {task.warmup:g}; engines single{' and bank' if task.bankable else ''}",
        f"options: {_pairs(task.options)}",
    ]
    lines += [f"variants: {variants}"] if variants else []
    lines += [f"in the paper's tables: {task.paper}"] if task.paper else []
    lines += [f"differs: {task.differs}"] if task.differs else []
    say(f"{task.name}  {task.summary}", "bold")
    for line in lines:
        prose(line, 4)
    say("")


def _changes(task: Task, variant: Mapping[str, Any]) -> dict[str, Any]:
    """What a variant sets otherwise. How its class of problem works is what ``differs`` tells."""
    plain = {name: value for name, value in variant.items() if name not in ("problem", "options")}
    options = variant.get("options", {})
    own = {name: value for name, value in options.items() if name not in task.options or task.options[name] != value}
    return {**plain, **own}


def _pairs(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={getattr(value, 'name', value)}" for name, value in values.items())


def optimizers(args: Namespace, starred: Sequence[str] = (), star: str = "") -> int:
    """List the optimizers, the memory's policies and its aggregations; some with a star, and what it says."""
    from critgrad.memory.options import AGGREGATIONS
    from critgrad.memory.policies import POLICIES

    from .train.optimizers import TRAINED

    made = table(None, "optimizer", "family", "role", "arguments", "what it is")
    for recipe in TRAINED.values():
        mark = " *" if recipe.name in starred else ""
        made.add_row(recipe.name + mark, recipe.family, recipe.role, _pairs(recipe.defaults), recipe.summary)
    made.put()
    prose(f"\n{star}Every argument is an option: --opt NAME=VALUE.")
    prose("policy: " + ", ".join(POLICIES))
    prose("aggr: " + ", ".join(AGGREGATIONS))
    return 0


# -- data --------------------------------------------------------------------------------------------------------------


def dataset_of(name: str) -> str:
    """The data set of a task, with its variants; a data set's own name as it is.

    >>> dataset_of("ptb-lstm@tiny"), dataset_of("noise@0.3")
    ('ptb@tiny', 'noise@0.3')
    """
    from .tasks import TASKS, task_of
    from .tasks.data import DATASETS

    plain = name.split("@")[0]
    if plain in TASKS:
        return task_of(name).dataset
    if plain in DATASETS:
        return name
    raise LabError(f"Invalid name: {name!r}, expected a task or one of the data sets {', '.join(DATASETS)}")


def data_list(args: Namespace) -> int:
    """List the data sets: whether they are here, their state and licence."""
    from .tasks.data import DATASETS, presence

    made = table(None, "data set", "here", "state", "what it is", "licence")
    for record in DATASETS.values():
        made.add_row(record.name, presence(record.name), record.state, record.summary, record.licence)
    made.put()
    prose(
        "\nhere: download means at first use, or by critgrad data fetch NAME; critgrad data check NAME tells where to put "
        "what is not here."
    )
    return 0


def data_check(args: Namespace) -> int:
    """Look for every file, and compare its sha256; fails where one is corrupt, or missing of the NAME asked for."""
    from .tasks.data import DATASETS, check

    if args.name is not None:
        dataset = dataset_of(args.name)
        found = check(dataset)
        for file in found:
            say(f"{file.status:8}{file.path}" + (f"\n        {file.detail}" if file.detail != file.path else ""))
        if not found:
            say(f"ok      {dataset} needs no file")
    else:
        # One line each: what is missing is told at length for the one that is asked for.
        made = table(None, "data set", "state", "files", "where")
        found = ()
        for dataset in DATASETS:
            files = check(dataset)
            found += files
            made.add_row(dataset, *_checked(files))
        made.put()
        prose("\ncritgrad data check NAME tells what is missing and where to put it.")
    # Few have all the data there is: what is missing counts where it was asked for.
    bad = ("corrupt",) if args.name is None else ("corrupt", "missing")
    return int(any(file.status in bad for file in found))


def _checked(files: Sequence[FileStatus]) -> tuple[str, str, str]:
    """State, number of files, and the folder of a data set in one line."""
    if not files:
        return "ok", "none", "computed, or in the package"
    bad = {state: sum(file.status == state for file in files) for state in ("corrupt", "missing")}
    there = [file for file in files if file.status == "ok"]
    state = ", ".join(f"{count} {word}" for word, count in bad.items() if count) or "ok"
    place = Path(there[0].detail.removeprefix("prepared file ")).parent if there else ""
    return state, f"{len(there)} of {len(files)}", str(place)


def data_fetch(args: Namespace) -> int:
    """Download what is missing, where a download exists."""
    from .tasks.data import fetch

    paths = fetch(dataset_of(args.name))
    for path in paths:
        say(str(path))
    if not paths:
        say(f"{dataset_of(args.name)} needs no file")
    return 0


def data_prepare(args: Namespace) -> int:
    """Write one compact npz, all that a machine without the raw files needs (in CRITGRAD_DATA)."""
    from .tasks.data import prepare

    say(str(prepare(dataset_of(args.name), args.out)))
    return 0


# -- to look at --------------------------------------------------------------------------------------------------------


def playground(args: Namespace) -> int:
    """Watch two optimizers and their memories on a loss surface, in a browser."""
    from .playground import main

    main(out=args.out, open_browser=args.open, echo=say)
    return 0
