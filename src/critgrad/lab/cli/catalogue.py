"""What there is: ``critgrad tasks``, ``critgrad optimizers``, ``critgrad data``."""

from __future__ import annotations

from pathlib import Path

import typer

from .console import console, table


def tasks(
    long: bool = typer.Option(False, "--long", "-l", help="Every setting, and where it departs from the paper."),
) -> None:
    """List the tasks: the paper's, and ours."""
    from ..tasks import TASKS

    if not long:
        made = table(None, "task", "what it is", "metric", "batch", "epochs", "bank", right=("batch", "epochs"))
        for task in TASKS.values():
            bank = "yes" if task.bankable else ""
            names = [f"@{name}" for name in task.variants]
            made.add_row(
                task.name,
                task.summary,
                task.metric.name,
                str(task.batch_size),
                str(task.epochs),
                " ".join([bank, *names]),
            )
        console.print(made)
        console.print("\nNAME@tiny is a small synthetic twin of each. --long tells more.", highlight=False)
        return
    for task in TASKS.values():
        console.print(f"[bold]{task.name}[/]  {task.summary}", highlight=False)
        clip = "none" if task.clip is None else f"{task.clip:g}"
        options = ", ".join(f"{name}={value}" for name, value in task.options.items())
        variants = ", ".join(f"@{name} ({_pairs(values)})" for name, values in task.variants.items())
        for line in (
            f"data {task.dataset}; metric {task.metric.name}; batch {task.batch_size}; epochs {task.epochs}; "
            f"clip {clip}; weight decay {task.weight_decay:g}",
            options and f"options: {options}",
            variants and f"variants: {variants}",
            task.paper and f"in the paper's tables: {task.paper}",
            task.differs and f"differs: {task.differs}",
        ):
            if line:
                console.print(f"    {line}", highlight=False)
        console.print()


def _pairs(values: object) -> str:
    return ", ".join(f"{name}={value}" for name, value in dict(values).items())  # type: ignore[call-overload]


def optimizers() -> None:
    """List the optimizers, the memory's policies and its aggregations."""
    from critgrad.options import AGGREGATIONS
    from critgrad.policies import POLICIES

    from ..optimizers import OPTIMIZERS, PAPER

    made = table(None, "optimizer", "family", "role", "arguments", "what it is")
    for recipe in OPTIMIZERS.values():
        star = " *" if recipe.name in PAPER else ""
        made.add_row(recipe.name + star, recipe.family, recipe.role, _pairs(recipe.defaults), recipe.summary)
    console.print(made)
    console.print("\n* one of the paper's eight. Every argument is an option: --opt NAME=VALUE.", highlight=False)
    console.print("policy: " + ", ".join(POLICIES), highlight=False)
    console.print("aggr: " + ", ".join(AGGREGATIONS), highlight=False)


def data_list() -> None:
    """List the data sets, their state and licence."""
    from ..data import DATASETS

    made = table(None, "data set", "state", "what it is", "licence")
    for record in DATASETS.values():
        made.add_row(record.name, record.state, record.summary, record.licence)
    console.print(made)


def data_check(
    name: str | None = typer.Argument(None, help="A data set or a task; all of them by default."),
) -> None:
    """Look for every file, and compare its sha256."""
    from ..data import DATASETS, check

    made = table(None, "data set", "file", "state", "where")
    bad = False
    for dataset in [_dataset(name)] if name else list(DATASETS):
        for found in check(dataset):
            made.add_row(dataset, found.path, found.status, found.detail)
            bad |= found.status == "corrupt"
    console.print(made)
    if bad:
        raise typer.Exit(1)


def data_fetch(name: str = typer.Argument(..., help="A data set or a task.")) -> None:
    """Download what is missing, where a download exists."""
    from ..data import fetch

    for path in fetch(_dataset(name)):
        console.print(str(path), highlight=False)


def data_prepare(
    name: str = typer.Argument(..., help="A task or a data set."),
    out: Path | None = typer.Option(None, help="File to write; by default among the data."),
) -> None:
    """Write one compact npz, all that a machine without the raw files needs (in CRITGRAD_DATA)."""
    from ..data import prepare

    console.print(str(prepare(_dataset(name), out)), highlight=False)


def _dataset(name: str) -> str:
    """The data set of a task; a data set's own name as it is."""
    from ..data import DATASETS
    from ..tasks import TASKS

    plain = name.split("@")[0]
    if plain in TASKS:
        return TASKS[plain].dataset
    if plain in DATASETS:
        return name
    raise ValueError(f"Invalid name: {name!r}, expected a task or one of the data sets {', '.join(DATASETS)}")
