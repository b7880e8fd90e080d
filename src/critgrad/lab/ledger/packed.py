"""Packed ledgers, ``*.db.xz``: the form for keeping and publishing. They are read as they are, and written by a merge.

What thousands of runs have in common is spread over the pages of an SQLite file; xz makes a half to a fifth of it.
"""

from __future__ import annotations

import lzma
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ..replacing import replacing
from .records import LedgerError

SUFFIX = ".xz"


def is_packed(path: str | Path) -> bool:
    """Whether a path names a packed ledger.

    >>> is_packed("results/small-tasks.db.xz"), is_packed("runs.db")
    (True, False)
    """
    return Path(path).suffix == SUFFIX


def pack(ledger: Path, target: Path) -> None:
    """Write the packed form of a ledger that nobody has open: the old file or the new one is there, never half of it."""
    best = 9 | lzma.PRESET_EXTREME
    with open(ledger, "rb") as source, replacing(target) as file, lzma.open(file, "wb", preset=best) as packed:
        shutil.copyfileobj(source, packed)


@contextmanager
def unpacked(packed: Path) -> Iterator[Path]:
    """A ledger unpacked in a folder of its own, to be read."""
    with tempfile.TemporaryDirectory(prefix="critgrad-") as folder:
        path = Path(folder) / packed.stem
        try:
            with lzma.open(packed, "rb") as source, open(path, "wb") as target:
                shutil.copyfileobj(source, target)
        except (lzma.LZMAError, EOFError) as error:
            raise LedgerError(f"Ledger {packed}: {error}. The file is damaged or not packed with xz") from error
        yield path
