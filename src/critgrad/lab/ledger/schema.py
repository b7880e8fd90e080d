"""The ledger's tables, how the file is opened, and what its errors mean.

NOTE [durability]: write-ahead log with ``synchronous=NORMAL``. A commit has been handed to the operating system when it
returns: killing any process loses nothing. Only a power failure may lose the last commits, and then whole ones: their trials
count as not done and are run again. ``FULL`` would wait for the disk once per trial (milliseconds each) for that case alone.

NOTE [shared disks]: the log's index is memory that processes share, which machines do not. On a network file system a ledger
has a rollback journal instead, written through to the server; readers wait for the moments in which the writer commits.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from .disk import on_network
from .records import LedgerError

VERSION = 1
APPLICATION = 0x63726974  # "crit": tells a ledger from any other SQLite file

# Keys are 16 bytes. What runs have in common stands once, in `shared`: specifications without their numbers, names of the
# summary's values, layouts of the curves, provenance. Thousands of runs fit in a few MiB that way.
TABLES = """
CREATE TABLE shared (id INTEGER PRIMARY KEY, text TEXT NOT NULL UNIQUE);
CREATE TABLE specs (
    id INTEGER PRIMARY KEY, text TEXT NOT NULL UNIQUE,
    schema INTEGER NOT NULL, task TEXT NOT NULL, optimizer TEXT NOT NULL, registration TEXT
);
CREATE TABLE runs (
    id INTEGER PRIMARY KEY, key BLOB NOT NULL UNIQUE, spec INTEGER NOT NULL REFERENCES specs,
    seed INTEGER NOT NULL, hyper TEXT NOT NULL, status TEXT NOT NULL CHECK (status IN ('done', 'failed')),
    finished REAL NOT NULL, summary INTEGER REFERENCES shared, provenance INTEGER REFERENCES shared,
    layout INTEGER REFERENCES shared, error TEXT, numbers TEXT, curves BLOB
);
CREATE TABLE roles (
    id INTEGER PRIMARY KEY, track TEXT NOT NULL, family TEXT NOT NULL, arm TEXT NOT NULL, purpose TEXT NOT NULL,
    UNIQUE (track, family, arm, purpose)
);
CREATE TABLE run_roles (run INTEGER NOT NULL, role INTEGER NOT NULL, PRIMARY KEY (run, role)) WITHOUT ROWID;
CREATE TABLE analyses (
    id INTEGER PRIMARY KEY, name TEXT NOT NULL, task TEXT NOT NULL, arm TEXT NOT NULL, data TEXT NOT NULL,
    layout TEXT NOT NULL, arrays BLOB NOT NULL, keys BLOB NOT NULL, UNIQUE (name, task, arm)
);
CREATE TABLE documents (name TEXT PRIMARY KEY, text TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE state (name TEXT PRIMARY KEY, text TEXT NOT NULL) WITHOUT ROWID;
"""

_SAFE = "Everything committed before is safe"
# What SQLite says -> what that means. The first that matches counts.
_CURES = (
    (
        ("disk is full",),
        "The disk that holds it is full. " + _SAFE + ": free some space and start the same command again",
    ),
    (("disk i/o",), "The disk refuses to be read or written (full, over quota, or broken?). " + _SAFE),
    (
        ("malformed", "not a database", "unsupported file format"),
        "The file is damaged or no ledger, and was left as it is. Copy it away, with its -wal file if there is one; "
        "then `critgrad merge NEW.db {path} --salvage` keeps all runs that can be read, and a sweep runs the others again",
    ),
    (("readonly",), "You may not write to it: copy it, or give another --ledger"),
    (("unable to open",), "Is it there, and may you read it and write to its folder?"),
    (("locked",), "Another program holds it (a database browser?): close that and try again"),
)


@contextmanager
def explained(path: Path) -> Iterator[None]:
    """Turn SQLite's errors into ones that name the file and the cure."""
    try:
        yield
    except sqlite3.Error as error:
        text = str(error).lower()
        known = (cure for signs, cure in _CURES if any(sign in text for sign in signs))
        cure = next(known, "The file is not what this version of critgrad expects")
        raise LedgerError(f"Ledger {path}: {error}. {cure.format(path=path)}") from error


def connect_writer(path: Path) -> sqlite3.Connection:
    """Open for writing, making the tables if the file is new or was abandoned before they were there."""
    connection = sqlite3.connect(f"{path.resolve().as_uri()}?mode=rwc", uri=True, isolation_level=None, timeout=30)
    try:
        connection.execute("PRAGMA page_size=8192")  # rows are about 1.5 kB: less is wasted at the end of each page
        shared = on_network(path)
        connection.execute(f"PRAGMA journal_mode={'DELETE' if shared else 'WAL'}")
        connection.execute(f"PRAGMA synchronous={'FULL' if shared else 'NORMAL'}")
        if _is_empty(connection):
            connection.executescript(
                f"BEGIN; {TABLES} PRAGMA application_id={APPLICATION}; PRAGMA user_version={VERSION}; COMMIT;"
            )
        check_version(connection, path)
        problem = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
        if problem != "ok":
            raise sqlite3.DatabaseError(f"database disk image is malformed: {problem}")
    except BaseException:
        connection.close()
        raise
    return connection


def connect_reader(path: Path) -> sqlite3.Connection:
    """Open for reading; works beside a writer, after a killed one, and in a folder that cannot be written to."""
    uri = path.resolve().as_uri()
    log = path.with_name(path.name + "-wal")
    # Where there is no log a look makes one and its index, and only who might write takes them away again.
    mode = "ro" if log.exists() else "rw"
    connection = sqlite3.connect(f"{uri}?mode={mode}", uri=True, isolation_level=None, timeout=30)
    try:
        connection.execute("PRAGMA query_only=ON")
        try:
            empty = _is_empty(connection)
        except sqlite3.OperationalError:
            # The log's index would have to be made beside the ledger. Without a log there is nothing it could be about.
            if log.exists() and log.stat().st_size:
                raise
            connection.close()
            connection = sqlite3.connect(f"{uri}?mode=ro&immutable=1", uri=True, isolation_level=None)
            empty = _is_empty(connection)
        if empty:
            raise LedgerError(f"The ledger {path} is empty: start a sweep, or give another --ledger")
        check_version(connection, path)
    except BaseException:
        connection.close()
        raise
    return connection


def check_version(connection: sqlite3.Connection, path: Path) -> None:
    """Refuse files that are not ours, and those of a later version."""
    application = connection.execute("PRAGMA application_id").fetchone()[0]
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    if application != APPLICATION:
        raise LedgerError(f"{path} is a database, but no ledger of critgrad: give another --ledger")
    if version > VERSION:
        raise LedgerError(
            f"The ledger {path} has format {version}, and this critgrad knows formats up to {VERSION}: update it"
        )


def _is_empty(connection: sqlite3.Connection) -> bool:
    return not connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
