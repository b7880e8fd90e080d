"""The one console, and errors as a user reads them."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import typer
from rich.console import Console, ConsoleDimensions, ConsoleOptions, RenderResult
from rich.markup import escape
from rich.table import Table
from rich.text import Text

LOG_WIDTH = 160  # of a table that goes to a file or a pipe


class LabConsole(Console):
    """As wide as the terminal; a log gets tables that are not folded to the 80 columns which it does not have."""

    @property
    def size(self) -> ConsoleDimensions:
        """Columns and lines."""
        found = super().size
        return found if self.is_terminal or self._width is not None else ConsoleDimensions(LOG_WIDTH, found.height)

    @size.setter
    def size(self, new_size: tuple[int, int]) -> None:
        self._width, self._height = new_size


console = LabConsole()
errors = LabConsole(stderr=True)


def say(text: str) -> None:
    """A line as it is: neither folded, nor coloured, nor read as markup (paths and lists have brackets)."""
    console.print(text, highlight=False, markup=False, soft_wrap=True)


def friendly(function: Callable[..., Any]) -> Callable[..., Any]:
    """Turn errors that a user can put right into one line and their exit code."""

    @functools.wraps(function)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        from ..commands import EXPECTED, exit_code

        try:
            return function(*args, **kwargs)
        except EXPECTED as error:
            text = " ".join(str(error).split()) or type(error).__name__
            errors.print(f"[bold red]Error:[/] {escape(text)}", highlight=False, soft_wrap=True)
            raise typer.Exit(exit_code(error)) from error
        except KeyboardInterrupt:
            errors.print("Stopped. The same command goes on from here.")
            raise typer.Exit(130) from None

    return wrapped


class LabTable(Table):
    """A table under a heading that is not folded to the table's own width."""

    heading: str | None = None

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if self.heading:
            yield Text(self.heading, style="italic")
        yield from super().__rich_console__(console, options)


def table(heading: str | None, *columns: str, right: tuple[str, ...] = ()) -> LabTable:
    """A plain table: names in bold, numbers to the right."""
    made = LabTable(box=None, header_style="bold", pad_edge=False)
    made.heading = heading
    for column in columns:
        made.add_column(column, justify="right" if column in right else "left", overflow="fold")
    return made


def show(value: float | None, digits: int = 4) -> str:
    """A number as one reads it; a dash for none.

    >>> show(0.123456), show(float("nan"))
    ('0.1235', '-')
    """
    return "-" if value is None or not math.isfinite(value) else f"{value:.{digits}g}"
