"""Runs as a table: one line for each, as CSV or Parquet."""

from __future__ import annotations

import csv
import importlib
import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

from ..errors import LabError, MissingPackageError
from ..replacing import replacing
from .store import Ledger

_FIRST = ("key", "task", "optimizer", "seed", "engine", "status", "track", "family", "arm", "purpose", "registration")


def table(ledger: Ledger) -> list[dict[str, Any]]:
    """One record per run, failed ones too; hyper-parameters as ``hyper.NAME``, settings as ``settings.NAME``.

    A run with several roles has them joined by ``;`` in each of the four columns, in the same order.
    """
    records = []
    for row in ledger.rows(status=None):
        trial = row.trial
        record: dict[str, Any] = {
            "key": row.key,
            **{name: getattr(trial, name) for name in ("task", "optimizer", "seed", "engine")},
            "status": row.status,
            **{
                name: ";".join(getattr(role, name) for role in row.roles)
                for name in ("track", "family", "arm", "purpose")
            },
            "registration": trial.registration,
            **{f"hyper.{name}": value for name, value in trial.hyper.items()},
            **{f"settings.{name}": value for name, value in trial.settings.items()},
            **row.summary,
            **{f"provenance.{name}": value for name, value in row.provenance.items()},
            "error": row.error.strip().splitlines()[-1] if row.error and row.error.strip() else None,
        }
        records.append(record)
    return records


def columns(records: Sequence[dict[str, Any]]) -> list[str]:
    """The names of all columns: what identifies a run first, then hyper-parameters and settings, then outcomes."""
    names = dict.fromkeys(_FIRST)
    for prefix in ("hyper.", "settings.", ""):
        for record in records:
            names.update(
                dict.fromkeys(name for name in record if name.startswith(prefix) and (prefix or "." not in name))
            )
    for record in records:
        names.update(dict.fromkeys(record))
    return list(names)


def export(ledger: Ledger, path: str | Path) -> int:
    """Write one row per run to a ``.csv`` or ``.parquet`` file; the number of rows."""
    path = Path(path)
    writers = {".csv": _write_csv, ".parquet": _write_parquet}
    if path.suffix not in writers:
        raise LabError(
            f"Invalid file for an export: {str(path)!r}, expected a name that ends in {' or '.join(writers)}"
        )
    records = table(ledger)
    with replacing(path) as file:
        writers[path.suffix](file, records, columns(records))
    return len(records)


def _flat(value: Any) -> Any:
    """A value for one cell: lists and the like as JSON."""
    return json.dumps(value) if isinstance(value, (list, dict)) else value


def _write_csv(file: IO[bytes], records: Sequence[dict[str, Any]], names: Sequence[str]) -> None:
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, names, restval="")
    writer.writeheader()
    writer.writerows({name: _flat(value) for name, value in record.items()} for record in records)
    file.write(text.getvalue().encode())


def _write_parquet(file: IO[bytes], records: Sequence[dict[str, Any]], names: Sequence[str]) -> None:
    try:
        pyarrow = importlib.import_module("pyarrow")
        parquet = importlib.import_module("pyarrow.parquet")
    except ModuleNotFoundError as error:
        raise MissingPackageError(
            "Parquet needs another package: pip install pyarrow; or export to a .csv file"
        ) from error
    arrays = [pyarrow.array(_column([_flat(record.get(name)) for record in records])) for name in names]
    parquet.write_table(pyarrow.table(arrays, names=list(names)), file)


def _column(values: list[Any]) -> list[Any]:
    """Values of one type: numbers with numbers, or else all of them as texts."""
    kinds = {type(value) for value in values if value is not None}
    if len(kinds) <= 1:
        return values
    if kinds <= {int, float}:
        return [None if value is None else float(value) for value in values]
    return [None if value is None else str(value) for value in values]
