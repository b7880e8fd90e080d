"""The ledger itself. A run is in it as a whole or not at all: each method that writes is one transaction."""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from ..run.results import Result, dumps
from ..run.spec import SCHEMA, STUDY_SCHEMA, Trial
from .codec import join_summary, pack, split_summary
from .lock import WriterLock
from .packed import is_packed, unpacked
from .records import LedgerError, Role, Row, StoredAnalysis
from .schema import connect_reader, connect_writer, explained

# A part of a trial that is the same for its whole group: all but the numbers of ``hyper`` and the seed.
_SPEC_COLUMNS = ("schema", "task", "optimizer", "registration")
_SPEC_FIELDS = (*_SPEC_COLUMNS, "settings", "engine", "probe")

_ROWS = """
SELECT runs.key, specs.text, runs.seed, runs.hyper, runs.status, runs.finished, names.text, runs.numbers, origin.text,
       runs.error, layouts.text, runs.curves, runs.id
FROM runs JOIN specs ON specs.id = runs.spec
LEFT JOIN shared AS names ON names.id = runs.summary
LEFT JOIN shared AS origin ON origin.id = runs.provenance
LEFT JOIN shared AS layouts ON layouts.id = runs.layout
"""


class Ledger:
    """All runs of an experiment, in one file.

    Open it with ``Ledger.open``; one process at a time may write, any number may read meanwhile. It is a context manager.
    ``writable``: whether it was opened for writing.
    """

    def __init__(self, path: Path, connection: sqlite3.Connection, writable: bool, held: ExitStack) -> None:
        self.path, self.writable = path, writable
        self._connection = connection
        self._held = held  # what is given back when it is closed
        self._depth = 0
        self._ids: dict[tuple[str, Any], int] = {}

    @classmethod
    def open(cls, path: str | Path, *, write: bool = False, create: bool = False) -> Ledger:
        """Open the ledger at ``path``, for reading unless ``write``; ``create`` makes it if it is not there."""
        path = Path(path)
        if not path.exists() and not (write and create):
            raise LedgerError(
                f"There is no ledger at {path}: give its file with --ledger, or start a sweep that writes it"
            )
        if path.is_dir():
            raise LedgerError(f"Ledger {path} is a folder: give the file, such as --ledger {path / 'runs.db'}")
        if write and is_packed(path):
            raise LedgerError(f"The ledger {path} is packed: `critgrad merge` writes it, no other command does")
        with ExitStack() as held, explained(path):
            if write:
                held.callback(WriterLock(path).release)
            file = held.enter_context(unpacked(path)) if is_packed(path) else path
            connection = connect_writer(file) if write else connect_reader(file)
            held.callback(connection.close)
            return cls(path, connection, write, held.pop_all())

    def close(self) -> None:
        """Close the file and let others write."""
        self._held.close()

    def __enter__(self) -> Ledger:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    # -- writing -------------------------------------------------------------------------------------------------------

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """All that is written inside is there afterwards, or nothing of it. Inside another one it is part of that."""
        if not self.writable:
            raise LedgerError(f"The ledger {self.path} was opened for reading: open it with write=True")
        if self._depth:
            yield
            return
        self._depth = 1
        try:
            with explained(self.path):
                self._connection.execute("BEGIN IMMEDIATE")
                try:
                    yield
                    self._connection.execute("COMMIT")
                except BaseException:
                    self._ids.clear()  # some of these numbers are being taken back
                    # After some errors, a full disk among them, SQLite has already rolled back by itself.
                    if self._connection.in_transaction:
                        self._connection.execute("ROLLBACK")
                    raise
        finally:
            self._depth = 0

    def add(self, trial: Trial, result: Result, roles: Iterable[Role] = (), *, finished: float | None = None) -> bool:
        """Take the result of a trial. ``False``: the trial was done already; the first result stays, roles are added.

        ``finished`` is when it ended, if that was not just now (a run of another ledger keeps its time).
        """
        layout, curves = pack(result.curves)
        names, numbers = split_summary(result.summary)
        values: dict[str, Any] = {"error": None, "numbers": numbers, "curves": curves}
        with self.transaction():
            if self._known(trial.key)[1] == "done":
                self.add_roles(trial.key, roles)
                return False
            values["summary"] = self._shared(names)
            values["layout"] = self._shared(layout)
            values["provenance"] = self._shared(dumps(result.provenance))
            self._link(self._write(trial, "done", {**values, **_at(finished)}), roles)
            return True

    def fail(self, trial: Trial, error: str, roles: Iterable[Role] = (), *, finished: float | None = None) -> bool:
        """Note that a trial could not be run. ``False``: it had been done before, and stays done."""
        with self.transaction():
            if self._known(trial.key)[1] == "done":
                return False
            self._link(self._write(trial, "failed", {"error": error, **_at(finished)}), roles)
            return True

    def add_roles(self, key: str, roles: Iterable[Role]) -> None:
        """Give a run that is in the ledger more roles; those that it has already stay as they are."""
        with self.transaction():
            number, _ = self._known(key)
            if number is None:
                raise LedgerError(f"There is no run {key} in {self.path}: add the run before its roles")
            self._link(number, roles)

    def put_analysis(
        self,
        name: str,
        task: str,
        arm: str,
        data: Mapping[str, Any],
        arrays: Mapping[str, np.ndarray],
        keys: Sequence[str],
    ) -> None:
        """Keep what was computed from the runs ``keys``; it replaces an earlier one of the same name, task and arm."""
        row = (name, task, arm, dumps(data), *pack(arrays), b"".join(bytes.fromhex(key) for key in keys))
        with self.transaction():
            self._connection.execute(
                "INSERT OR REPLACE INTO analyses (name, task, arm, data, layout, arrays, keys) VALUES (?, ?, ?, ?, ?, ?, ?)",
                row,
            )

    def put_document(self, name: str, text: str) -> None:
        """Keep a text, e.g. the file that registered an experiment; it replaces an earlier one of the same name."""
        with self.transaction():
            self._connection.execute("INSERT OR REPLACE INTO documents (name, text) VALUES (?, ?)", (name, text))

    def put_state(self, name: str, value: Any) -> None:
        """Keep a value that matters to running processes only; ``None`` removes it. Neither merged nor exported."""
        with self.transaction():
            if value is None:
                self._connection.execute("DELETE FROM state WHERE name = ?", (name,))
            else:
                self._connection.execute(
                    "INSERT OR REPLACE INTO state (name, text) VALUES (?, ?)", (name, json.dumps(value))
                )

    def _known(self, key: str) -> tuple[int | None, str | None]:
        """Number and status of a run, where there is one."""
        sql = "SELECT id, status FROM runs WHERE key = ?"
        return self._connection.execute(sql, (bytes.fromhex(key),)).fetchone() or (None, None)

    def _write(self, trial: Trial, status: str, values: Mapping[str, Any]) -> int:
        """Write a row, over that of a failed run if there is one, whose roles then stay; the row's number."""
        whole = trial.to_dict()
        text = dumps({**{name: whole[name] for name in _SPEC_FIELDS}, "names": list(whole["hyper"])})
        row = {
            "key": bytes.fromhex(trial.key),
            "spec": self._numbered("specs", text, text=text, **{name: whole[name] for name in _SPEC_COLUMNS}),
            "seed": trial.seed,
            "hyper": json.dumps(list(whole["hyper"].values()), separators=(",", ":")),
            "status": status,
            "finished": time.time(),
            **values,
        }
        updates = ", ".join(f"{name} = excluded.{name}" for name in row if name != "key")
        sql = f"INSERT INTO runs ({', '.join(row)}) VALUES ({', '.join('?' * len(row))})"
        sql += f" ON CONFLICT (key) DO UPDATE SET {updates} RETURNING id"
        return int(self._connection.execute(sql, tuple(row.values())).fetchone()[0])

    def _link(self, run: int, roles: Iterable[Role]) -> None:
        for role in roles:
            number = self._numbered("roles", role, **role._asdict())
            self._connection.execute("INSERT OR IGNORE INTO run_roles (run, role) VALUES (?, ?)", (run, number))

    def _shared(self, text: str) -> int:
        return self._numbered("shared", text, text=text)

    def _numbered(self, table: str, known_as: Any, **columns: Any) -> int:
        """The number of a row of a small table, which is added if it is not there."""
        found = self._ids.get((table, known_as))
        if found is None:
            match = " AND ".join(f"{name} IS ?" for name in columns)
            values = tuple(columns.values())
            number = self._connection.execute(f"SELECT id FROM {table} WHERE {match}", values).fetchone()
            if number is None:
                sql = (
                    f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({', '.join('?' * len(columns))}) RETURNING id"
                )
                number = self._connection.execute(sql, values).fetchone()
            found = self._ids[table, known_as] = number[0]
        return found

    # -- reading -------------------------------------------------------------------------------------------------------

    def done(self, keys: Iterable[str]) -> set[str]:
        """Those of the keys whose runs are done."""
        return self._with_status(keys, "done")

    def failed(self, keys: Iterable[str]) -> set[str]:
        """Those of the keys whose runs failed."""
        return self._with_status(keys, "failed")

    def _with_status(self, keys: Iterable[str], status: str) -> set[str]:
        wanted = [bytes.fromhex(key) for key in keys]
        found: set[str] = set()
        for begin in range(0, len(wanted), 500):  # SQLite takes so many values at least
            part = wanted[begin : begin + 500]
            sql = f"SELECT key FROM runs WHERE status = ? AND key IN ({', '.join('?' * len(part))})"
            found.update(row[0].hex() for row in self._select(sql, (status, *part)))
        return found

    def row(self, key: str) -> Row | None:
        """The run of that key, done or failed."""
        rows = self._rows("WHERE runs.key = ?", (bytes.fromhex(key),))
        return rows[0] if rows else None

    def rows(
        self,
        *,
        task: str | None = None,
        optimizer: str | None = None,
        track: str | None = None,
        purpose: str | None = None,
        arm: str | None = None,
        family: str | None = None,
        registration: str | None = None,
        status: str | None = "done",
        schema: int = SCHEMA,
    ) -> list[Row]:
        """The runs that match every value given, in the order in which they were added; ``status=None``: failed ones, too.

        ``track``, ``purpose``, ``arm`` and ``family`` must match within one role of the run. Runs of another ``schema`` are
        left out: of specifications whose meaning has changed since, and of studies.
        """
        conditions, values = ["specs.schema = ?"], [schema]
        given: dict[str, Any] = {
            "runs.status": status,
            "specs.task": task,
            "specs.optimizer": optimizer,
            "specs.registration": registration,
        }
        roles: dict[str, Any] = {"track": track, "purpose": purpose, "arm": arm, "family": family}
        for name, value in given.items():
            if value is not None:
                conditions.append(f"{name} = ?")
                values.append(value)
        wanted = {name: value for name, value in roles.items() if value is not None}
        if wanted:
            match = " AND ".join(f"roles.{name} = ?" for name in wanted)
            conditions.append(
                f"runs.id IN (SELECT run FROM run_roles JOIN roles ON roles.id = run_roles.role WHERE {match})"
            )
            values += wanted.values()
        return self._rows(f"WHERE {' AND '.join(conditions)} ORDER BY runs.id", tuple(values))

    def _rows(self, where: str, values: Sequence[Any]) -> list[Row]:
        with explained(self.path):
            # One moment for both questions, while a writer may go on.
            own = not self._connection.in_transaction
            if own:
                self._connection.execute("BEGIN")
            try:
                found = self._connection.execute(f"{_ROWS} {where}", values).fetchall()
                links = self._roles([row[-1] for row in found])
            finally:
                if own:
                    self._connection.execute("ROLLBACK")
        return [_row(values, links.get(values[-1], ())) for values in found]

    def _roles(self, runs: list[int]) -> dict[int, tuple[Role, ...]]:
        """The roles of runs, by their numbers."""
        sql = "SELECT run, track, family, arm, purpose FROM run_roles JOIN roles ON roles.id = run_roles.role"
        few = len(runs) <= 500
        if few:
            sql += f" WHERE run IN ({', '.join('?' * len(runs))})"
        links: dict[int, tuple[Role, ...]] = {}
        for run, *role in self._connection.execute(sql, runs if few else ()):
            links[run] = (*links.get(run, ()), Role(*role))
        return links

    def counts(self) -> list[tuple[str, str, str, str, int]]:
        """Runs by task, track, arm and status; a run without a role has empty track and arm."""
        sql = """
        SELECT task, coalesce(track, ''), coalesce(arm, ''), status, count(DISTINCT runs.id)
        FROM runs JOIN specs ON specs.id = runs.spec LEFT JOIN run_roles ON run_roles.run = runs.id
        LEFT JOIN roles ON roles.id = run_roles.role WHERE schema IN (?, ?) GROUP BY 1, 2, 3, 4 ORDER BY 1, 2, 3, 4
        """
        return self._select(sql, (SCHEMA, STUDY_SCHEMA))

    def analyses(self, name: str | None = None, task: str | None = None) -> list[StoredAnalysis]:
        """What was computed, of that name and task if given."""
        sql = """
        SELECT name, task, arm, data, keys, layout, arrays FROM analyses
        WHERE (?1 IS NULL OR name = ?1) AND (?2 IS NULL OR task = ?2) ORDER BY id
        """
        found = self._select(sql, (name, task))
        return [
            StoredAnalysis(name, task, arm, json.loads(data), _keys(keys), (layout, arrays))
            for name, task, arm, data, keys, layout, arrays in found
        ]

    def document(self, name: str) -> str | None:
        """The text of that name."""
        found = self._select("SELECT text FROM documents WHERE name = ?", (name,))
        return found[0][0] if found else None

    def documents(self) -> list[str]:
        """The names of the texts."""
        return [row[0] for row in self._select("SELECT name FROM documents ORDER BY name", ())]

    def state(self, name: str) -> Any:
        """What ``put_state`` has kept; ``None`` if nothing."""
        found = self._select("SELECT text FROM state WHERE name = ?", (name,))
        return json.loads(found[0][0]) if found else None

    def keys(self) -> list[str]:
        """The keys of all runs, done or failed, in the order in which they were added."""
        return [row[0].hex() for row in self._select("SELECT key FROM runs ORDER BY id", ())]

    def salvage_numbers(self) -> Iterable[int]:
        """Numbers that may belong to a run, for reading a damaged file run by run."""
        for column in ("id", "+id"):  # by the table's own order, else by the index of keys
            try:
                return range(1, 1 + (self._select(f"SELECT max({column}) FROM runs", ())[0][0] or 0))
            except LedgerError:
                continue
        return range(1, 1 + 100 * self._select("PRAGMA page_count", ())[0][0])  # no page holds more

    def row_by_number(self, number: int) -> Row | None:
        """The run of that number, for reading a damaged file run by run."""
        rows = self._rows("WHERE runs.id = ?", (number,))
        return rows[0] if rows else None

    def _select(self, sql: str, values: Sequence[Any]) -> list[tuple[Any, ...]]:
        with explained(self.path):
            return self._connection.execute(sql, values).fetchall()


def _at(finished: float | None) -> dict[str, float]:
    return {} if finished is None else {"finished": finished}


def _row(values: Sequence[Any], roles: tuple[Role, ...]) -> Row:
    key, spec, seed, hyper, status, finished, names, numbers, origin, error, layout, curves, _ = values
    whole = json.loads(spec)
    trial = Trial.from_dict({**whole, "seed": seed, "hyper": dict(zip(whole["names"], json.loads(hyper)))})
    summary = join_summary(names, numbers) if names is not None else {}
    provenance = json.loads(origin) if origin is not None else {}
    packed = (layout, curves) if layout is not None else None
    return Row(key.hex(), trial, status, summary, provenance, roles, error, finished, packed)


def _keys(joined: bytes) -> tuple[str, ...]:
    return tuple(joined[begin : begin + 16].hex() for begin in range(0, len(joined), 16))
