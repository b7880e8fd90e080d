"""The API pages as they can be read in a clone: a table of every name with the first sentence of its docstring.

python docs/make_api.py          # writes what stands between <!-- names --> and <!-- end --> in docs/api/*.md
"""

from __future__ import annotations

import importlib
import inspect
import re
from pathlib import Path
from typing import Any

API = Path(__file__).parent / "api"
BEGIN, END = "<!-- names -->\n", "<!-- end -->\n"
ENTRY = re.compile(r"^::: (\S+)\n((?:    .*\n|\n(?=    ))*)", re.MULTILINE)
LISTED = re.compile(r"members: \[([^\]]*)\]|members:\n((?: +- \w+\n?)+)")


def found(path: str) -> Any:
    """The object behind a dotted path: an attribute where there is one, else a module."""
    first, *rest = path.split(".")
    made: Any = importlib.import_module(first)
    for name in rest:
        made = getattr(made, name) if hasattr(made, name) else importlib.import_module(f"{made.__name__}.{name}")
    return made


def names(text: str) -> list[str]:
    """The dotted paths that a page shows: what it lists, or the members of a module."""
    out = []
    for path, options in ENTRY.findall(text):
        listed = LISTED.search(options)
        members = re.findall(r"\w+", "".join(listed.groups(""))) if listed else []
        if inspect.ismodule(found(path)):
            out += [f"{path}.{name}" for name in members]
        else:
            out += [path]
    return out


def sentence(path: str) -> str:
    """The first sentence of a docstring; nothing for a value that has none."""
    made = found(path)
    text = inspect.getdoc(made) if callable(made) else ""
    first = " ".join((text or "").split("\n\n")[0].split())
    return re.split(r"(?<=[^.]\.) (?=[A-Z`])", first)[0].rstrip(":").replace("``", "`").replace("|", "\\|")


def table(text: str) -> str:
    """The names of a page, with where each is from."""
    rows = [f"| `{path.removeprefix('critgrad.')}` | {said} |" for path in names(text) if (said := sentence(path))]
    return "\n".join(["| `critgrad.` | |", "|---|---|", *rows]) + "\n"


def made_anew(text: str) -> str:
    """A page with its table."""
    before, rest = text.split(BEGIN, 1)
    return before + BEGIN + table(text) + END + rest.split(END, 1)[1]


if __name__ == "__main__":
    for page in sorted(API.glob("*.md")):
        page.write_text(made_anew(page.read_text()))
