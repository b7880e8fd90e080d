"""One writer: an advisory lock on a small file beside the ledger.

The operating system holds the lock for the process, so it ends with the process, however that ends. The file's text only
says who the holder is.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import time
import warnings
from dataclasses import asdict, dataclass
from pathlib import Path

from .records import LedgerError

if sys.platform == "win32":
    import msvcrt

    # Locked bytes cannot be read by others on Windows: the lock is on one far behind the text.
    _FAR = 1 << 30

    def _try_lock(descriptor: int, shared: bool) -> bool:
        os.lseek(descriptor, _FAR, os.SEEK_SET)
        try:
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        except OSError:
            return False
        finally:
            os.lseek(descriptor, 0, os.SEEK_SET)
        return True
else:
    import fcntl

    def _try_lock(descriptor: int, shared: bool) -> bool:
        try:
            fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError as error:  # no locks on this file system, or no server to ask
            raise LedgerError(
                f"Cannot lock the ledger: flock says {error}. Put it on a disk of this machine, or on one with locks "
                "(--ledger OTHER.db), and join ledgers with `critgrad merge`"
            ) from error
        return True


# A look by ``holder_of`` takes the lock for some microseconds: a writer tries again before it believes in another writer.
_ATTEMPTS, _PAUSE = 10, 0.02


@dataclass(frozen=True)
class Holder:
    """The process that writes to a ledger."""

    pid: int
    host: str
    since: float

    def __str__(self) -> str:
        return (
            f"process {self.pid} on {self.host}, since {time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(self.since))}"
        )


def lock_path(ledger: Path) -> Path:
    """The file that is locked: one for all names of a ledger."""
    ledger = ledger.resolve()
    return ledger.with_name(ledger.name + ".lock")


class WriterLock:
    """The right to write to a ledger, from construction until ``release`` or the end of the process."""

    def __init__(self, ledger: Path) -> None:
        self.path = lock_path(ledger)
        for attempt in range(_ATTEMPTS):
            if attempt:
                time.sleep(_PAUSE)
            self._descriptor = self._open(ledger)
            # Whoever releases the lock removes the file: what was locked must still be the file of that name.
            try:
                if _try_lock(self._descriptor, shared=False) and self._is_current():
                    break
            except LedgerError:
                os.close(self._descriptor)
                raise
            os.close(self._descriptor)
        else:
            raise LedgerError(
                f"Another process is writing to {ledger}: {_read(self.path) or 'it does not say which'}. "
                "Wait for it or stop it, or give this one its own (--ledger OTHER.db) and join them with `critgrad merge`"
            )
        self.holder = Holder(os.getpid(), socket.gethostname(), time.time())
        os.ftruncate(self._descriptor, 0)
        os.write(self._descriptor, json.dumps(asdict(self.holder)).encode())

    def _open(self, ledger: Path) -> int:
        try:
            return os.open(self.path, os.O_RDWR | os.O_CREAT, 0o666)
        except OSError as error:
            raise LedgerError(
                f"Cannot write beside {ledger} ({error}): give --ledger a file in a folder that you may write to"
            ) from error

    def _is_current(self) -> bool:
        try:
            return os.path.samestat(os.fstat(self._descriptor), os.stat(self.path))
        except FileNotFoundError:
            return False

    def release(self) -> None:
        """Let others write."""
        if self._descriptor < 0:
            return
        if sys.platform != "win32":  # where an open file cannot be removed
            self.path.unlink(missing_ok=True)
        os.close(self._descriptor)
        self._descriptor = -1


def holder_of(ledger: str | Path) -> Holder | None:
    """The process that writes to a ledger now; ``None`` if nobody does."""
    path = lock_path(Path(ledger))
    try:
        descriptor = os.open(path, os.O_RDONLY if sys.platform != "win32" else os.O_RDWR)
    except OSError:
        return None
    try:
        return None if _try_lock(descriptor, shared=True) else _read(path)
    except LedgerError as error:
        warnings.warn(f"Who writes to {ledger} is not known: {error}", RuntimeWarning, stacklevel=2)
        return None
    finally:
        os.close(descriptor)


def _read(path: Path) -> Holder | None:
    try:
        return Holder(**json.loads(path.read_text()))
    except (OSError, ValueError, TypeError):
        return None  # it is being written at this very moment
