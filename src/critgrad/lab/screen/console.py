"""Lines and tables for a terminal or a log: by rich where it is installed, else as plain columns."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ..words import show as show

try:
    import rich  # noqa: F401

    HAS_RICH = True
except ImportError:  # a bare machine: torch and numpy alone
    HAS_RICH = False

if TYPE_CHECKING or HAS_RICH:
    from rich.console import Console, ConsoleDimensions
    from rich.padding import Padding
    from rich.table import Table as RichTable
    from rich.text import Text

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


LOG_WIDTH = 160  # of a table that goes to a file or a pipe
console: Any = LabConsole() if HAS_RICH else None


def say(text: str, style: str = "") -> None:
    """A line as it is: neither folded nor read as markup (paths and lists have brackets)."""
    if console is None:
        print(text, flush=True)
    else:
        console.print(Text(text, style=style), highlight=False, soft_wrap=True)


def prose(text: str, indent: int = 0) -> None:
    """A longer text, which is folded to the width of a terminal."""
    if console is None:
        print(" " * indent + text, flush=True)
    else:
        console.print(Padding(Text(text), (0, 0, 0, indent)), highlight=False)


def complain(text: str, error: bool = True) -> None:
    """A line on standard error."""
    print(f"Error: {text}" if error else text, file=sys.stderr, flush=True)


def coloured(text: str, style: str) -> Any:
    """A cell in a colour or in bold, where there are such."""
    return Text(text, style=style) if HAS_RICH and style else text


@dataclass
class ScreenTable:
    """A plain table: names in bold, numbers to the right, under a heading that is not folded to the table's own width."""

    heading: str | None
    columns: tuple[str, ...]
    right: tuple[str, ...] = ()
    whole: tuple[str, ...] = ()  # columns that are never folded
    rows: list[tuple[str, ...]] = field(default_factory=list)

    def add_row(self, *cells: str) -> None:
        """A row; without cells an empty one."""
        self.rows.append(cells or ("",) * len(self.columns))

    def put(self) -> None:
        """Print it."""
        if self.heading:
            say(self.heading, "italic")
        if console is None:
            print(self.plain(), flush=True)
            return
        made = RichTable(box=None, header_style="bold", pad_edge=False)
        for name in self.columns:
            side: Any = "right" if name in self.right else "left"
            made.add_column(name, justify=side, overflow="fold", no_wrap=name in self.whole)
        for row in self.rows:
            made.add_row(
                *(Text(cell) if isinstance(cell, str) else cell for cell in row)
            )  # no markup: names have brackets
        console.print(made)

    def plain(self) -> str:
        """As columns of characters."""
        lines: list[tuple[str, ...]] = [self.columns]
        for row in self.rows:
            parts = [cell.split("\n") for cell in row]
            deepest = max(map(len, parts), default=0)
            lines += [tuple(part[k] if k < len(part) else "" for part in parts) for k in range(deepest)]
        widths = [max(len(line[i]) for line in lines) for i in range(len(self.columns))]
        sides = [">" if name in self.right else "<" for name in self.columns]
        return "\n".join(
            "  ".join(f"{cell:{side}{width}}" for cell, side, width in zip(line, sides, widths)).rstrip()
            for line in lines
        )


def table(heading: str | None, *columns: str, right: tuple[str, ...] = (), whole: tuple[str, ...] = ()) -> ScreenTable:
    """A table to fill and ``put``."""
    return ScreenTable(heading, columns, right, whole)


def width() -> int:
    """Columns that there are."""
    return LOG_WIDTH if console is None else int(console.width)
