"""Loading by name: prepared file, raw files, or a download; and keeping what was slow to read."""

from __future__ import annotations

import contextlib
import difflib
import hashlib
import time
from functools import lru_cache
from pathlib import Path

from ...errors import LabError
from . import dataset as datasets
from . import tiny
from .dataset import Dataset, Parts, build
from .download import download, missing, offline, writable
from .files import DataCorrupt, DataMissing, File, FileStatus, cache_root, data_root, find, read, roots, verify
from .registry import DATASETS, DataSource, Record

__all__ = ["check", "fetch", "load", "prepare", "presence"]

#: A raw read that takes longer than this is kept in the cache folder.
SLOW_SECONDS = 1.0


def load(name: str) -> Dataset:
    """Return a data set by name: ``"mnist"``, ``"ptb@tiny"``, ``"noise@0.3"``, ``"noise@0.3@tiny"``.

    The result is kept for the process, one for each setting of the data folders.

    >>> load("digits").arrays["train_x"].shape
    (1197, 64)
    """
    return _load(name, roots())


@lru_cache(maxsize=8)
def _load(name: str, folders: tuple[Path, ...]) -> Dataset:
    record, variant = resolve(name)
    if variant == "tiny":
        return build(name, tiny.TINY[record.name](), "synthetic")
    if variant:
        return computed(record, name, variant)
    for i, folder in enumerate(folders):
        for path in prepared_places(record.name, folder):
            found = datasets.read(path, name, record.version)
            if found is not None:
                return held(record, found, path)
        for source in record.sources:
            places = locate(source, folders[: i + 1])
            if None not in places.values():
                return from_raw(record, source, {file: path for file, path in places.items() if path is not None})
    source = wanted(record, folders)
    return from_raw(record, source, obtain(source, folders))


def resolve(name: str) -> tuple[Record, str]:
    """Split a name into its record and what follows the @; raise for a name that does not exist."""
    base, _, variant = name.partition("@")
    record = DATASETS.get(base)
    if record is None:
        near = difflib.get_close_matches(base, DATASETS, 1)
        hint = f" (did you mean {near[0]!r}?)" if near else ""
        raise LabError(f"Unknown data set: {name!r}{hint}, expected one of {', '.join(DATASETS)}, or one with @tiny")
    if "@" in name and variant != "tiny" and (not variant or record.variant is None):
        raise LabError(f"Unknown variant of {base}: {name!r}, expected {base!r} or '{base}@tiny'")
    return record, variant


def computed(record: Record, name: str, variant: str) -> Dataset:
    """Compute the variant ``<name>@<value>``, or its tiny twin ``<name>@<value>@tiny``, of a record that has them."""
    assert record.variant is not None
    number, at, twin = variant.partition("@")
    try:
        value = float(number)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 1 or (at and twin != "tiny"):
        raise LabError(f"Invalid value in {name!r}: {variant!r}, expected a number from 0 to 1, 'tiny', or both")
    canonical = f"{record.name}@{value:g}" if value else record.name
    if twin:
        return build(f"{canonical}@tiny", tiny.TINY[record.name](value), "synthetic")
    return build(canonical, record.variant(value), record.state)


def held(record: Record, dataset: Dataset, path: Path) -> Dataset:
    """The data set, if it is the one that the record promises."""
    if record.sha256 not in (None, dataset.sha256):
        raise DataCorrupt(path, str(record.sha256), dataset.sha256)
    return dataset


def prepared_places(name: str, folder: Path) -> tuple[Path, Path]:
    """Where a prepared file may lie under a folder."""
    return folder / "prepared" / f"{name}.npz", folder / f"{name}.npz"


def locate(source: DataSource, folders: tuple[Path, ...]) -> dict[File, Path | None]:
    """Find each file of a source."""
    return {file: find(file, folders) for file in source.files}


def wanted(record: Record, folders: tuple[Path, ...]) -> DataSource:
    """Choose a source: one that is here, or can be downloaded, else the one that lacks the fewest files."""

    def rank(source: DataSource) -> tuple[bool, int]:
        lacking = absent(source, folders)
        return offline() or any(file.url is None for file in lacking), len(lacking)

    return min(record.sources, key=rank)


def absent(source: DataSource, folders: tuple[Path, ...]) -> list[File]:
    """The files of a source that are not here."""
    return [file for file, path in locate(source, folders).items() if path is None]


def obtain(source: DataSource, folders: tuple[Path, ...]) -> dict[File, Path]:
    """Return where each file is, after downloading those that are not here."""
    places = locate(source, folders)
    for file, path in places.items():
        if path is None and file.url is None:  # said before anything is downloaded in vain
            raise missing(file, "There is no address to download it from.")
    return {file: path or download(file) for file, path in places.items()}


def from_raw(record: Record, source: DataSource, places: dict[File, Path]) -> Dataset:
    """Verify the files, then read them, or what an earlier slow reading of the very same files has left."""
    for file, path in places.items():
        verify(file, path)
    kept = cache_root() / "derived" / f"{record.name}-{key(record, source)}.npz"
    with contextlib.suppress(DataCorrupt):  # a damaged copy of ours is no loss: it is read and written anew
        found = datasets.read(kept, record.name, record.version) if source.files else None
        if found is not None:
            return found
    begin = time.monotonic()
    dataset = held(record, build(record.name, parts_of(source, places), source.state), Path(record.name))
    if source.files and time.monotonic() - begin > SLOW_SECONDS:
        with contextlib.suppress(OSError):
            datasets.write(dataset, kept, record.version, compress=False)
    return dataset


def parts_of(source: DataSource, places: dict[File, Path]) -> Parts:
    """Call the source's reader with a function that opens its files by their plain paths."""
    by_name = {file.plain: path for file, path in places.items()}
    return source.read(lambda name: read(by_name[name]))


def key(record: Record, source: DataSource) -> str:
    """Name what a reading depends on: the reader's version and the content of each file, whatever its packing."""
    parts = [f"{file.plain} {file.content or file.sha256}" for file in source.files]
    return hashlib.sha256("\n".join([str(record.version), *parts]).encode()).hexdigest()[:16]


def prepare(name: str, out: Path | None = None) -> Path:
    """Write the data set to one compact npz and return its path.

    ``out`` is a file (``.npz``) or a folder. Without it the file goes to ``prepared/`` in ``$CRITGRAD_DATA``, or in
    the cache folder where that cannot be written; ``load`` finds it in both.
    """
    record, _ = resolve(name)
    dataset = load(name)
    if out is None:
        data = data_root()
        folder = data / "prepared" if data is not None else None
        target = (folder if folder and writable(folder) else cache_root() / "prepared") / f"{name}.npz"
    else:
        out = Path(out)
        target = out if out.suffix == ".npz" and not out.is_dir() else out / f"{name}.npz"
    datasets.write(dataset, target, record.version)
    return target


def presence(name: str) -> str:
    """Whether ``load`` would find the data set: ``"yes"``, ``"no"``, or ``"download"``. Looks at names, not at contents."""
    record, variant = resolve(name)
    folders = roots()
    if variant or any(path.exists() for folder in folders for path in prepared_places(record.name, folder)):
        return "yes"
    lacking = absent(wanted(record, folders), folders)
    if not lacking:
        return "yes"
    return "no" if offline() or any(file.url is None for file in lacking) else "download"


def check(name: str) -> tuple[FileStatus, ...]:
    """Say of each file that ``load`` would use, or would need, whether it is ok, missing or corrupt.

    A prepared file alone will do, and is then the one that is named. What is computed has no files.
    """
    record, variant = resolve(name)
    if variant:
        return ()
    folders = roots()
    for folder in folders:
        for path in prepared_places(record.name, folder):
            try:
                found = datasets.read(path, name, record.version)
            except DataCorrupt as error:
                return (FileStatus(path.name, "corrupt", str(error)),)
            if found is not None:
                return (FileStatus(path.name, "ok", f"prepared file {path}"),)
    return tuple(status(file, folders) for file in wanted(record, folders).files)


def status(file: File, folders: tuple[Path, ...]) -> FileStatus:
    """Find and verify one file."""
    path = find(file, folders)
    if path is None:
        return FileStatus(file.path, "missing", str(missing(file)))
    try:
        verify(file, path)
    except DataMissing as error:  # another file of that name
        return FileStatus(file.path, "missing", str(error))
    except DataCorrupt as error:
        return FileStatus(file.path, "corrupt", str(error))
    return FileStatus(file.path, "ok", str(path))


def fetch(name: str) -> tuple[Path, ...]:
    """Download what is missing of a data set, verify all of it, and return where its raw files are."""
    record, variant = resolve(name)
    if variant:
        return ()
    folders = roots()
    places = obtain(wanted(record, folders), folders)
    for file, path in places.items():
        verify(file, path)
    return tuple(places.values())
