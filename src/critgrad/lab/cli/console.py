"""The one console, and errors as a user reads them."""

from __future__ import annotations

import functools
import sqlite3
from collections.abc import Callable
from typing import Any

import typer
from rich.console import Console
from rich.table import Table

console = Console()
errors = Console(stderr=True)

# What a user can put right; everything else is a defect and keeps its traceback.
EXPECTED = (ValueError, TypeError, FileNotFoundError, FileExistsError, PermissionError, ImportError, sqlite3.Error)


def friendly(function: Callable[..., Any]) -> Callable[..., Any]:
    """Turn errors that a user can put right into one line and exit code 1."""

    @functools.wraps(function)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        from ..ledger import LedgerError

        try:
            return function(*args, **kwargs)
        except (*EXPECTED, LedgerError) as error:
            errors.print(f"[bold red]Error:[/] {error}", highlight=False, soft_wrap=True)
            raise typer.Exit(1) from error
        except KeyboardInterrupt:
            errors.print("Stopped. The same command goes on from here.")
            raise typer.Exit(130) from None

    return wrapped


def table(title: str | None, *columns: str, right: tuple[str, ...] = ()) -> Table:
    """A plain table: a line under the head, numbers to the right."""
    made = Table(title=title, title_justify="left", box=None, header_style="bold", pad_edge=False)
    for column in columns:
        made.add_column(column, justify="right" if column in right else "left", overflow="fold")
    return made


def show(value: float | None, digits: int = 4) -> str:
    """A number as one reads it; a dash for none."""
    return "-" if value is None else f"{value:.{digits}g}"
