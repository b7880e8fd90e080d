"""Screens of many variants with few runs each: to find what is worth a fair experiment, not to claim anything.

A committed file says what is tried (``searches/*.json``), ``SearchTrack`` plans its runs as a function of the ledger,
``standings`` reads what they say. Every variant is listed, with the number tried beside the winner.
"""

from .file import Search, SearchArm, find, searches, tasks_of
from .standings import ArmLine, Confirmed, Standings, standings
from .track import SearchTrack

__all__ = [
    "ArmLine",
    "Confirmed",
    "Search",
    "SearchArm",
    "SearchTrack",
    "Standings",
    "find",
    "searches",
    "standings",
    "tasks_of",
]
