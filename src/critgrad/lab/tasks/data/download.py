"""Downloading one file: checked before it takes its name, nothing left behind when it fails."""

from __future__ import annotations

import http.client
import os
import urllib.error
import urllib.request
from pathlib import Path, PurePosixPath
from typing import IO
from urllib.parse import urlsplit

from ...replacing import replacing
from .files import CHUNK, OPENERS, DataCorrupt, DataMissing, File, data_root, other_release, roots, verify

TIMEOUT = 30.0


def offline() -> bool:
    """Whether ``CRITGRAD_OFFLINE`` forbids the network."""
    return os.environ.get("CRITGRAD_OFFLINE", "") not in ("", "0")


def writable(folder: Path) -> bool:
    """Whether a file can be put into the folder; it is made if it does not exist."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return False
    return os.access(folder, os.W_OK | os.X_OK)


def home() -> Path:
    """The folder that new files go to: ``$CRITGRAD_DATA`` if it can be written, else the cache."""
    data = data_root()
    return data if data is not None and writable(data) else roots()[-1]


def missing(file: File, reason: str = "") -> DataMissing:
    """The error for a file that is not here: which, from where, and where to put it."""
    if file.stdlib:
        return other_release(file, f"it has no {file.path}, which that of Python {file.stdlib} has")
    places = " or ".join(str(folder / file.path) for folder in roots())
    source = ", ".join(text for text in (file.origin, file.url) if text)
    packings = " (plain, .gz or .xz)" if file.content is not None else ""
    return DataMissing(
        f"Missing data file: {file.path}{packings}. It comes from {source or 'its publisher'}; "
        f"put it at {places}{'' if data_root() else ', or set CRITGRAD_DATA to your data folder'}."
        + (f" {reason}" if reason else "")
    )


def transfer(url: str, out: IO[bytes]) -> None:
    """Copy what the address gives; a connection that ends early is an error, not a short file."""
    request = urllib.request.Request(url, headers={"User-Agent": "critgrad"})
    with urllib.request.urlopen(request, timeout=TIMEOUT) as response:
        promised = response.headers.get("Content-Length")
        received = 0
        while chunk := response.read(CHUNK):
            out.write(chunk)
            received += len(chunk)
    if promised is not None and received != int(promised):
        raise http.client.IncompleteRead(b"", int(promised) - received)


def download(file: File) -> Path:
    """Fetch the file, verify it, and only then give it its name."""
    if file.url is None:
        raise missing(file, "There is no address to download it from.")
    if offline():
        raise missing(file, "It was not downloaded because CRITGRAD_OFFLINE is set.")
    # The address may give another packing than the published one: the suffix must say which.
    suffix = PurePosixPath(urlsplit(file.url).path).suffix
    packing = suffix if suffix in OPENERS else "" if file.content is not None else file.packing
    target = home() / (file.plain + packing)
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        with replacing(target) as out:
            transfer(file.url, out)
            out.flush()
            verify(file, Path(out.name), packing)
    except DataCorrupt as error:
        raise DataCorrupt(Path(file.path), error.expected, f"{error.found} at {file.url}") from error
    except (urllib.error.URLError, http.client.HTTPException, TimeoutError, ConnectionError) as error:
        raise missing(file, f"The download failed: {error}.") from error
    return target
