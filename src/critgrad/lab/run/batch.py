"""A file of commands that are run one after the other by the same workers.

A worker loads libraries, data and kernels once; a command by itself starts its workers anew, which on a GPU takes a quarter of
a minute. For a machine that is there for minutes that is much.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..errors import LabError, require_known

_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)


@dataclass(frozen=True)
class BatchLine:
    """A command of the file, and what stands before it: ``NAME=VALUE`` for the environment of its workers, as in a shell."""

    number: int
    environment: Mapping[str, str]
    arguments: tuple[str, ...]

    @property
    def text(self) -> str:
        """As it could stand in the file."""
        return shlex.join([*(f"{name}={value}" for name, value in self.environment.items()), *self.arguments])


def read_lines(path: Path, commands: Sequence[str]) -> list[BatchLine]:
    """The commands of a file, some of ``commands``, one on each line; empty lines and ``# comments`` do not count."""
    found = []
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError as error:
        raise LabError(f"{path} is no text: {error}") from error
    for number, text in enumerate(lines, 1):
        try:
            words = shlex.split(text, comments=True)
        except ValueError as error:  # a quotation that does not end
            raise LabError(f"Invalid line {number} of {path}: {error}, in {text!r}") from error
        environment = {}
        while words and (match := _ASSIGNMENT.fullmatch(words[0])):
            environment[match[1]] = match[2]
            words.pop(0)
        if not words and not environment:
            continue
        require_known(words[0] if words else "", commands, f"command in line {number} of {path}")
        found.append(BatchLine(number, environment, tuple(words)))
    return found


class Surroundings:
    """The environment of the workers, which they take from this process when they start."""

    def __init__(self) -> None:
        self._before: dict[str, str | None] = {}

    def change(self, wanted: Mapping[str, str]) -> bool:
        """Make it that of a line; whether it has changed, so that new workers are needed."""
        here = dict(os.environ)
        self.restore()
        self._before = {name: os.environ.get(name) for name in wanted}
        os.environ.update(wanted)
        return here != dict(os.environ)

    def restore(self) -> None:
        """As it was before any line."""
        for name, value in self._before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        self._before = {}
