"""Raw files: where they may be, in which packing, and whether they are the right ones."""

from __future__ import annotations

import gzip
import hashlib
import lzma
import os
import platform
import sys
import sysconfig
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePath, PurePosixPath
from typing import Any

from ...errors import LabError, MissingFileError

PACKAGE = Path(__file__).parent
OPENERS: dict[str, Any] = {"": open, ".gz": gzip.open, ".xz": lzma.open}
UNREADABLE = (OSError, EOFError, lzma.LZMAError, zlib.error)
CHUNK = 1 << 20

# Reads a raw file by its path without packing, and returns its unpacked bytes.
Open = Callable[[str], bytes]


class DataMissing(MissingFileError):  # noqa: N818 (the state of the data, as DataCorrupt)
    """A file is neither here nor to be had; the message says where it comes from and where it belongs."""


class DataCorrupt(LabError):  # noqa: N818
    """A file is here but is not the one it should be."""

    def __init__(self, path: Path, expected: str, found: str) -> None:
        super().__init__(
            f"Wrong content in {path}: expected sha256 {expected}, found {found}. Remove it and try again."
        )
        self.path, self.expected, self.found = path, expected, found


@dataclass(frozen=True)
class File:
    """One raw file.

    ``path`` is folder and published name; the last suffix says how it was packed. ``sha256`` is that of the
    published form, ``content`` that of what is inside: with it, any packing can be verified. Either may be unknown.
    ``url`` gives the published file or another packing of the same content.
    """

    path: str
    sha256: str | None = None
    content: str | None = None
    url: str | None = None
    origin: str = ""
    packaged: bool = False
    stdlib: str = ""  # the release of Python in whose standard library it lies

    @property
    def packing(self) -> str:
        """How the published file is packed: "", ".gz" or ".xz"."""
        return packing_of(PurePosixPath(self.path))

    @property
    def plain(self) -> str:
        """The path without the packing's suffix."""
        return self.path.removesuffix(self.packing)

    def candidates(self) -> Iterator[str]:
        """The names under which the file may lie here, the published one first; those that cannot be verified not."""
        yield self.path
        if self.content is not None:
            yield from (self.plain + packing for packing in OPENERS if packing != self.packing)


@dataclass(frozen=True)
class FileStatus:
    """What ``check`` found: ``status`` is "ok", "missing" or "corrupt"; ``detail`` says where, or what to do."""

    path: str
    status: str
    detail: str


def data_root() -> Path | None:
    """``$CRITGRAD_DATA``, if it is set."""
    folder = os.environ.get("CRITGRAD_DATA")
    return Path(folder).expanduser() if folder else None


def cache_root() -> Path:
    """The platform's cache folder for critgrad."""
    if sys.platform == "win32":
        base = Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    elif sys.platform == "darwin":
        base = Path.home() / "Library" / "Caches"
    else:
        base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return base / "critgrad"


def roots() -> tuple[Path, ...]:
    """The folders to look in, in order."""
    data = data_root()
    return (data, cache_root()) if data else (cache_root(),)


def find(file: File, folders: tuple[Path, ...]) -> Path | None:
    """Return the first place where the file lies, in any packing."""
    if file.packaged:
        return PACKAGE / file.path
    if file.stdlib:
        path = Path(sysconfig.get_path("stdlib")) / file.path
        return path if path.is_file() else None
    for folder in folders:
        for candidate in file.candidates():
            if (folder / candidate).is_file():
                return folder / candidate
    return None


def hash_of(path: Path, packing: str = "") -> str:
    """Return the sha256 of a file, or of what is packed in it."""
    total = hashlib.sha256()
    with OPENERS[packing](path, "rb") as stream:
        while chunk := stream.read(CHUNK):
            total.update(chunk)
    return total.hexdigest()


def packing_of(path: PurePath) -> str:
    """How a file is packed, by its name."""
    return path.suffix if path.suffix in OPENERS else ""


def verify(file: File, path: Path, packing: str | None = None) -> None:
    """Raise DataCorrupt unless ``path`` is the file, in the packing given or else the one that its name says.

    The published form is tried first: its hash needs no unpacking. Another tool may have packed the same content
    into other bytes, so the content decides where its hash is known.
    """
    if file.stdlib:
        if hash_of(path) != file.sha256:
            raise other_release(file, f"{path} is not that of Python {file.stdlib}")
        return
    packing = packing_of(path) if packing is None else packing
    expected = file.content or file.sha256 or "of a file with a known hash"
    found = ""
    if file.sha256 is not None and packing == file.packing:
        found = hash_of(path)
        if found == file.sha256:
            return
        expected = file.sha256
    if file.content is not None:
        try:
            found = hash_of(path, packing)
        except UNREADABLE as error:
            raise DataCorrupt(path, expected, f"{found or 'nothing'} (cannot be unpacked: {error})") from error
        if found == file.content:
            return
        expected = file.content
    raise DataCorrupt(path, expected, found or "no hash to compare")


def other_release(file: File, found: str) -> DataMissing:
    """The error for a standard library that is not the listed one: nothing is to be removed, another file is wanted."""
    return DataMissing(
        f"Another standard library: {found} (this is Python {platform.python_version()}). "
        f"Pack the data with Python {file.stdlib} (`critgrad data prepare NAME --out FOLDER`), "
        "and set CRITGRAD_DATA to that folder."
    )


def read(path: Path) -> bytes:
    """Return the content of a verified file, unpacked."""
    with OPENERS[packing_of(path)](path, "rb") as stream:
        return stream.read()
