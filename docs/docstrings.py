"""How the API reference reads our docstrings (an extension of griffe, the reader behind mkdocstrings).

The source is written to be read as source. Three of its habits mean something else in Markdown: an example after ``>>>``
(a quotation), a ``::`` before a block (two colons), and a field's meaning in a comment behind it (nothing at all).
"""

from __future__ import annotations

import ast
import inspect
import re
from typing import Any

import griffe

EXAMPLE = re.compile(r"^( *)>>> .*(?:\n(?! *$).*)*", re.MULTILINE)
COMMENT = re.compile(r"#:?\s+(.+)$")


def fenced(text: str) -> str:
    """The text with its examples as code blocks, and without double colons."""
    text = EXAMPLE.sub(lambda m: f"{m[1]}```pycon\n{m[0]}\n{m[1]}```", text)
    return re.sub(r"(?<=\w)::$", ":", text, flags=re.MULTILINE)


def is_field(attr: griffe.Attribute) -> bool:
    """Whether it is a public field of a record, and not a property or a value of a class."""
    return attr.annotation is not None and not attr.name.startswith("_") and "property" not in attr.labels


def comment(attr: griffe.Attribute) -> str:
    """What the source says behind a field."""
    last = attr.endlineno or attr.lineno
    found = COMMENT.search(attr.lines_collection[attr.filepath][last - 1]) if last else None
    return found[1] if found else ""


class Docstrings(griffe.Extension):
    """Prepares every docstring before it is parsed."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Fence the examples of an object that has a docstring."""
        if obj.docstring is not None:
            obj.docstring.value = fenced(obj.docstring.value)

    def on_attribute(self, *, attr: griffe.Attribute, **kwargs: Any) -> None:
        """The text that all optimizers share is a docstring in itself."""
        if attr.path == "critgrad.optimizers.MEMORY_OPTIONS":
            text = inspect.cleandoc(ast.literal_eval(str(attr.value)))
            attr.docstring = griffe.Docstring(text, lineno=attr.lineno, parent=attr)

    def on_class(self, *, cls: griffe.Class, **kwargs: Any) -> None:
        """The fields of a record become a list in its docstring, unless that explains them as arguments."""
        if cls.docstring is None or "Args:" in cls.docstring.value:
            return
        fields = [f"    {field.name}: {comment(field)}" for field in cls.attributes.values() if is_field(field)]
        if fields:
            cls.docstring.value += "\n\nAttributes:\n" + "\n".join(fields)
