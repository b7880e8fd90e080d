"""What a data set is, its hash, and the one file it can be kept in."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from ...replacing import replacing
from .files import DataCorrupt

#: The member of a prepared file that holds, as JSON bytes, everything but the arrays.
META = "critgrad"


class Parts(NamedTuple):
    """What a reader returns: the arrays, the facts about them, and one sentence on parts and splits."""

    arrays: dict[str, np.ndarray]
    info: dict[str, Any]
    note: str


@dataclass(frozen=True)
class Dataset:
    """Arrays and what must be known about them.

    ``load`` hands the same object to every caller: do not write into its arrays.
    """

    name: str
    arrays: Mapping[str, np.ndarray]
    state: str
    sha256: str
    note: str
    info: Mapping[str, Any]


def digest(arrays: Mapping[str, np.ndarray]) -> str:
    """Hash names, types, shapes and values, in the order of the names and little-endian on every machine."""
    total = hashlib.sha256()
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        array = array.astype(array.dtype.newbyteorder("<"), copy=False)
        total.update(f"{name} {array.dtype.str} {array.shape}\n".encode())
        total.update(array.reshape(-1).view(np.uint8).data)
    return total.hexdigest()


def build(name: str, parts: Parts, state: str) -> Dataset:
    """Make the data set of what a reader returned."""
    info = json.loads(json.dumps(parts.info))  # as it will be when it comes back from a file
    arrays = MappingProxyType(dict(parts.arrays))
    return Dataset(name, arrays, state, digest(arrays), parts.note, MappingProxyType(info))


def write(dataset: Dataset, path: Path, version: int, compress: bool = True) -> None:
    """Write the data set to one npz: compressed to be carried, or plain to be read fast."""
    meta = {name: getattr(dataset, name) for name in ("name", "state", "sha256", "note")}
    meta |= {"info": dict(dataset.info), "version": version}
    text = np.frombuffer(json.dumps(meta, sort_keys=True).encode(), np.uint8)
    save = np.savez_compressed if compress else np.savez
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as file:
        save(file, **{META: text}, **dict(dataset.arrays))  # type: ignore[arg-type]


def read(path: Path, name: str, version: int) -> Dataset | None:
    """Read what ``write`` wrote.

    Return None for an npz of another origin, another name or another version of the reader: the raw files then
    decide. A file that claims to be ours and is damaged raises.
    """
    try:
        with np.load(path, allow_pickle=False) as file:
            if META not in file.files:
                return None
            meta = json.loads(file[META].tobytes())
            if meta["name"] != name or meta["version"] != version:
                return None
            arrays = {key: file[key] for key in file.files if key != META}
    except FileNotFoundError:
        return None
    except (
        Exception
    ) as error:  # a damaged zip raises nearly anything: BadZipFile, zlib.error, RuntimeError, KeyError ...
        raise DataCorrupt(path, "a prepared file of critgrad", f"an unreadable one ({error})") from error
    found = digest(arrays)
    if found != meta["sha256"]:
        raise DataCorrupt(path, meta["sha256"], found)
    return Dataset(name, MappingProxyType(arrays), meta["state"], found, meta["note"], MappingProxyType(meta["info"]))


def vocabulary(words: list[str]) -> np.ndarray:
    """Store words as one array of bytes: npz has no variable-length strings without pickle."""
    return np.frombuffer("\n".join(words).encode(), np.uint8).copy()


def words_of(array: np.ndarray) -> list[str]:
    """Return the words that ``vocabulary`` stored: word i has id i."""
    return array.tobytes().decode().split("\n")
