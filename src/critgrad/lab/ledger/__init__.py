"""The ledger: every run of an experiment in one SQLite file, written by one process, read by many."""

from .lock import Holder, holder_of
from .records import Analysis, LedgerError, Planned, Role, Row
from .store import Ledger

__all__ = ["Analysis", "Holder", "Ledger", "LedgerError", "Planned", "Role", "Row", "holder_of"]
