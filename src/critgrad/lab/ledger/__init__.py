"""The ledger: every run of an experiment in one SQLite file, written by one process, read by many."""

from .lock import Holder, holder_of
from .records import LedgerError, Planned, Role, Row, StoredAnalysis
from .store import Ledger

__all__ = ["Holder", "Ledger", "LedgerError", "Planned", "Role", "Row", "StoredAnalysis", "holder_of"]
