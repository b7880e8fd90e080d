"""What there is: ``critgrad tasks``, ``critgrad optimizers``, ``critgrad data``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.padding import Padding
from rich.text import Text

from .console import console, say, table

if TYPE_CHECKING:
    from ..data import FileStatus
    from ..tasks import Task


def tasks(
    long: bool = typer.Option(False, "--long", "-l", help="Every setting, and where it departs from the paper."),
) -> None:
    """List the tasks: the paper's, and ours."""
    from ..tasks import TASKS

    if long:
        for task in TASKS.values():
            _print_long(task)
        return
    made = table(None, "task", "what it is", "metric")
    for task in TASKS.values():
        made.add_row(task.name, task.summary, task.metric.name)
    console.print(made)
    variants = [f"{task.name}@{name}" for task in TASKS.values() for name in task.variants]
    banks = [task.name for task in TASKS.values() if task.bankable]
    console.print(
        f"\nVariants: {', '.join(variants)}; NAME@tiny is a small synthetic twin of each.\n"
        f"For --engine bank: {', '.join(banks)}.\n--long tells every setting.",
        highlight=False,
    )


def _print_long(task: Task) -> None:
    clip = "none" if task.clip is None else f"{task.clip:g}"
    variants = "; ".join(f"@{name}: {_pairs(_changes(task, values))}" for name, values in task.variants.items())
    lines = [
        f"data {task.dataset}; metric {task.metric.name}; batch {task.batch_size}; epochs {task.epochs}; "
        f"clip {clip}; weight decay {task.weight_decay:g}; engines single{' and bank' if task.bankable else ''}",
        f"options: {_pairs(task.options)}",
    ]
    lines += [f"variants: {variants}"] if variants else []
    lines += [f"in the paper's tables: {task.paper}"] if task.paper else []
    lines += [f"differs: {task.differs}"] if task.differs else []
    console.print(f"[bold]{task.name}[/]  {task.summary}", highlight=False)
    for line in lines:
        console.print(Padding(Text(line), (0, 0, 0, 4)))
    console.print()


def _changes(task: Task, variant: Mapping[str, Any]) -> dict[str, Any]:
    """What a variant sets otherwise. How its class of problem works is what ``differs`` tells."""
    plain = {name: value for name, value in variant.items() if name not in ("problem", "options")}
    options = variant.get("options", {})
    own = {name: value for name, value in options.items() if name not in task.options or task.options[name] != value}
    return {**plain, **own}


def _pairs(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={getattr(value, 'name', value)}" for name, value in values.items())


def optimizers() -> None:
    """List the optimizers, the memory's policies and its aggregations."""
    from critgrad.memory.options import AGGREGATIONS
    from critgrad.memory.policies import POLICIES

    from ..optimizers import OPTIMIZERS, PAPER, TRAINED

    made = table(None, "optimizer", "family", "role", "arguments", "what it is")
    for recipe in OPTIMIZERS.values():
        star = " *" if recipe.name in PAPER else ""
        made.add_row(recipe.name + star, recipe.family, recipe.role, _pairs(recipe.defaults), recipe.summary)
    console.print(made)
    console.print("\n* one of the paper's eight. Every argument is an option: --opt NAME=VALUE.", highlight=False)
    tried = [name for name in TRAINED if name not in OPTIMIZERS]
    console.print("Being tried, and taken by critgrad train, too: " + ", ".join(tried), highlight=False)
    console.print("policy: " + ", ".join(POLICIES), highlight=False)
    console.print("aggr: " + ", ".join(AGGREGATIONS), highlight=False)


def data_list() -> None:
    """List the data sets: whether they are here, their state and licence."""
    from ..data import DATASETS, presence

    made = table(None, "data set", "here", "state", "what it is", "licence")
    for record in DATASETS.values():
        made.add_row(record.name, presence(record.name), record.state, record.summary, record.licence)
    console.print(made)
    console.print(
        "\nhere: download means at first use, or by critgrad data fetch NAME; critgrad data check NAME tells where to put "
        "what is not here.",
        highlight=False,
    )


def data_check(
    name: str | None = typer.Argument(None, help="A data set or a task; all of them by default."),
) -> None:
    """Look for every file, and compare its sha256; fails where one is corrupt, or missing of the NAME asked for."""
    from ..commands import dataset_of
    from ..data import DATASETS, check

    if name is not None:
        dataset = dataset_of(name)
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
        console.print(made)
        console.print("\ncritgrad data check NAME tells what is missing and where to put it.", highlight=False)
    # Few have all the data there is: what is missing counts where it was asked for.
    bad = ("corrupt",) if name is None else ("corrupt", "missing")
    if any(file.status in bad for file in found):
        raise typer.Exit(1)


def _checked(files: Sequence[FileStatus]) -> tuple[str, str, str]:
    """State, number of files, and the folder of a data set in one line."""
    if not files:
        return "ok", "none", "computed, or in the package"
    bad = {state: sum(file.status == state for file in files) for state in ("corrupt", "missing")}
    there = [file for file in files if file.status == "ok"]
    state = ", ".join(f"{count} {word}" for word, count in bad.items() if count) or "ok"
    place = Path(there[0].detail.removeprefix("prepared file ")).parent if there else ""
    return state, f"{len(there)} of {len(files)}", str(place)


def data_fetch(name: str = typer.Argument(..., help="A data set or a task.")) -> None:
    """Download what is missing, where a download exists."""
    from ..commands import dataset_of
    from ..data import fetch

    paths = fetch(dataset_of(name))
    for path in paths:
        say(str(path))
    if not paths:
        say(f"{dataset_of(name)} needs no file")


def data_prepare(
    name: str = typer.Argument(..., help="A task or a data set."),
    out: Path | None = typer.Option(None, help="File to write; by default among the data."),
) -> None:
    """Write one compact npz, all that a machine without the raw files needs (in CRITGRAD_DATA)."""
    from ..commands import dataset_of
    from ..data import prepare

    say(str(prepare(dataset_of(name), out)))
