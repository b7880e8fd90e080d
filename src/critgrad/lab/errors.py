"""What users did wrong: told in one line on standard error, with an exit status. Everything else is a defect of ours, and
keeps its traceback.
"""

from __future__ import annotations

from collections.abc import Iterable


class LabError(ValueError):
    """A value, a file or an order that a user can put right; the message says how."""

    exit_code = 1


class MissingFileError(LabError, FileNotFoundError):
    """A file that has to be there."""


class MissingPackageError(LabError, ModuleNotFoundError):
    """A package that has to be installed."""


def require_known(name: object, known: Iterable[str], what: str, count: str = "one") -> None:
    """Refuse a name that is not among the known ones, which the error lists.

    >>> require_known("adam", ("SGD", "Adam"), "optimizer")
    Traceback (most recent call last):
    critgrad.lab.errors.LabError: Invalid optimizer: 'adam', expected one of SGD, Adam
    """
    names = list(known)
    if name not in names:
        raise LabError(f"Invalid {what}: {name!r}, expected {count} of {', '.join(names)}")


# Paths that a command was given, as the operating system complains of them.
EXPECTED: tuple[type[Exception], ...] = (
    *(LabError, FileNotFoundError, FileExistsError, IsADirectoryError, NotADirectoryError, PermissionError),
)


def exit_code(error: BaseException) -> int:
    """What a command ends with after one of the ``EXPECTED`` errors."""
    return error.exit_code if isinstance(error, LabError) else 1
