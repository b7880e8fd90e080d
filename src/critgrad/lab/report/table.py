"""Tables: plain HTML that reads without scripts, and the records behind it for the data that the page embeds."""

from __future__ import annotations

import html
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..stats import Comparison, Interval, unreachable
from ..words import FEWEST_FOR_INTERVAL, interval_text
from ..words import show as shown

LARGEST_TABLE = 400  # rows that are shown
MANY_COLUMNS = 10  # so many stand closer, and their numbers may take two lines


@dataclass(frozen=True)
class Cell:
    """A cell: its text, and the number that it is sorted by where that is not the text."""

    text: str
    sort: float | None = None
    css: str = ""
    title: str = ""  # shown on hovering


@dataclass(frozen=True)
class Table:
    """A table; ``records`` has a plain dict per row, in full precision."""

    id: str
    heads: Sequence[tuple[str, str]]  # (title, what it means)
    cells: Sequence[Sequence[Cell]]
    records: Sequence[Mapping[str, Any]] = field(default=(), repr=False)
    title: str = ""
    folded: bool = False
    sortable: bool = True  # by a click, where the page has the script for it

    def html(self) -> str:
        """The element."""
        focus, css = (' tabindex="0"', "sortable") if self.sortable else ("", "plain")
        head = "".join(
            f'<th scope="col"{focus}{_attribute("class", "number" * self.is_of_numbers(index))}{_attribute("title", hint)}>'
            f"{html.escape(title)}</th>"
            for index, (title, hint) in enumerate(self.heads)
        )
        names = [title for title, _ in self.heads]
        body = "\n".join(f"<tr>{''.join(map(_cell, row, names))}</tr>" for row in self.cells[:LARGEST_TABLE])
        more = len(self.cells) - LARGEST_TABLE
        note = f'<p class="note">{more} more rows are not shown.</p>' if more > 0 else ""
        many = " many" if len(self.heads) >= MANY_COLUMNS else ""
        box = (
            f'<div class="table-box"><table id="{self.id}" class="{css}{many}"><thead><tr>{head}</tr></thead>'
            f"<tbody>{body}</tbody></table></div>{note}"
        )
        title = html.escape(self.title)
        if self.folded:
            return f"<details><summary>{title} ({len(self.cells)})</summary>{box}</details>"
        return (f"<h4>{title}</h4>" if title else "") + box

    def is_of_numbers(self, column: int) -> bool:
        """Whether most cells of a column are numbers: its heading stands over them."""
        numbers = [row[column].sort is not None and not row[column].css for row in self.cells[:LARGEST_TABLE]]
        return sum(numbers) * 2 > len(numbers)


def _cell(cell: Cell, name: str) -> str:
    """A cell; on a narrow page it stands under the others of its row, behind its column's name."""
    sort = _attribute("data-label", name) + ("" if cell.sort is None else f' data-sort="{cell.sort:.17g}"')
    kind = " ".join(filter(None, ["number" if cell.sort is not None and not cell.css else "", cell.css]))
    inner = html.escape(cell.text).replace(" ± ", "&nbsp;±&nbsp;")  # a value and its interval stay together
    if cell.css.startswith("badge"):
        return f'<td{sort}{_attribute("title", cell.title)}><span class="{cell.css}">{inner}</span></td>'
    return f"<td{sort}{_attribute('class', kind)}{_attribute('title', cell.title)}>{inner}</td>"


def _attribute(name: str, value: str) -> str:
    return f' {name}="{html.escape(value)}"' if value else ""


def table_of(
    identity: str,
    columns: Sequence[tuple[Any, ...]],
    rows: Iterable[Any],
    records: Sequence[Mapping[str, Any]] = (),
    title: str = "",
    folded: bool = False,
) -> Table:
    """A table by its columns: (heading, a row's cell), or with what it means between the two."""
    rows = list(rows)
    heads = [(head, hint[0] if hint else "") for head, *hint, _ in columns]
    return Table(identity, heads, [[cell(row) for *_, cell in columns] for row in rows], records, title, folded)


# -- values as cells -----------------------------------------------------------------------------------------------------


def number(value: float | None, digits: int = 4, suffix: str = "") -> Cell:
    """A number, sorted as one."""
    known = value is not None and math.isfinite(value)
    return Cell(shown(value, digits) + (suffix if known else ""), float(value) if known else None)  # type: ignore[arg-type]


def word(text: object, title: str = "") -> Cell:
    """A text."""
    return Cell(str(text), title=title)


def prose(text: object) -> Cell:
    """A longer text, which may take several lines."""
    return Cell(str(text), css="wrap")


def interval(found: Interval | None, signed: bool = False) -> Cell:
    """A mean with its 95 % interval, sorted by the mean."""
    if found is None:
        return Cell("-")
    known = math.isfinite(found.half_width) and found.n >= FEWEST_FOR_INTERVAL
    few = f"{found.n} run{'s' if found.n > 1 else ''}: too few for an interval"
    hint = f"{found.low:.5g} to {found.high:.5g}" if known else few
    return Cell(interval_text(found, "+" if signed else ""), found.mean, title=hint)


_WORDS = {
    "better": "▲ better",
    "worse": "▼ worse",
    "same": "= same",
    "open": "? open",
    "identical": "≡ identical",
    "one seed": "one seed",
    "not tested": "not tested",
}
_ORDER = {"worse": -1.0, "better": 1.0}
_BADGES = {"better": "win", "worse": "loss", "identical": "identical"}  # colours of the page


def verdict(found: Comparison | None) -> Cell:
    """The verdict, as a word and a sign; colour is an addition."""
    if found is None:
        return Cell("")
    name = found.shown
    return Cell(_WORDS.get(name, name), _ORDER.get(name, 0.0), f"badge {_BADGES.get(name, 'plain')}")


def notes_of(rows: Sequence[Comparison]) -> list[str]:
    """What stands beside each verdict."""
    # Holm runs over the primaries of one memory at a time (SGD_F, Adam_F, ...): so does the question whether any could pass.
    memories = {row.family.rpartition("_")[2] for row in rows}
    hopeless = [r for m in memories for r in unreachable([row for row in rows if row.family.rpartition("_")[2] == m])]
    out = []
    for row in rows:
        notes = [row.note] if row.note else []
        if any(row is other for other in hopeless):
            notes.append("unreachable: too few seeds for so many tests")
        out.append(", ".join(notes))
    return out


def comparison_cells(row: Comparison, note: str) -> list[Cell]:
    """The columns of ``COMPARISON``."""
    return [*(cell(row) for *_, cell in _COMPARED), prose(note)]


_VERDICT = "better: the interval lies above 0 and, where testable, p (Holm) < 0.05; same: it lies inside the margin"
_COMPARED: tuple[tuple[str, str, Callable[[Comparison], Cell]], ...] = (
    ("arm", "", lambda row: word(row.arm)),
    ("against", "primary: the rival that was best on the tuning seeds", lambda row: word(row.rival)),
    ("seeds", "reported, other ones than the tuning seeds", lambda row: number(row.n)),
    (
        "difference",
        "mean paired difference with its 95 % t-interval; positive: the arm is better",
        lambda row: interval(row.interval, signed=True),
    ),
    ("verdict", _VERDICT, verdict),
    ("p", "exact two-sided sign-flip test", lambda row: number(row.p, 3)),
    (
        "p (Holm)",
        "corrected over the primary comparisons; a dash: not testable, or not primary",
        lambda row: number(row.p_holm, 3),
    ),
    ("P(better)", "share of the seeds on which the arm is better", lambda row: number(row.poi, 2)),
)
COMPARISON = (*((head, hint) for head, hint, _ in _COMPARED), ("notes", ""))


def comparison_record(row: Comparison, note: str) -> dict[str, Any]:
    """The same as plain values."""
    names = ("task", "family", "arm", "rival", "n", "difference", "low", "high", "p", "p_holm", "testable", "poi")
    return {
        **{name: getattr(row, name) for name in names},
        "verdict": row.verdict,
        "primary": row.primary,
        "note": note,
    }


def interval_record(found: Interval | None) -> dict[str, Any] | None:
    """An interval as plain values."""
    if found is None:
        return None
    return {"mean": found.mean, "low": _finite(found.low), "high": _finite(found.high), "n": found.n}


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
