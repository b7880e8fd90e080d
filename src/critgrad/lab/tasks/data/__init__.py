"""The lab's data: read, verified, split, and described.

>>> from critgrad.lab.tasks import data
>>> tiny = data.load("ptb@tiny")
>>> tiny.state, tiny.arrays["train"].dtype.name
('synthetic', 'int32')

``load`` looks for a prepared file, then for the raw files (plain, .gz or .xz), in ``$CRITGRAD_DATA`` and in the
platform's cache folder; what is missing and has an address is downloaded. Nothing is used before its sha256 agrees,
and nothing is ever unpickled. Every name has a synthetic twin ``<name>@tiny`` that needs no file at all.
"""

from __future__ import annotations

from .dataset import Dataset
from .files import DataCorrupt, DataMissing, File, FileStatus
from .registry import DATASETS, DataSource, Record
from .store import check, fetch, load, prepare, presence

__all__ = [
    "DATASETS",
    "DataCorrupt",
    "DataMissing",
    "DataSource",
    "Dataset",
    "File",
    "FileStatus",
    "Record",
    "check",
    "fetch",
    "load",
    "prepare",
    "presence",
]
