"""Screens of many variants with few runs each: to find what is worth a fair experiment, not to claim anything.

A committed file says what was tried (``searches/*.json``), ``SearchTrack`` tells its runs as a function of the ledger,
``standings`` reads what they say. Every variant is listed, with the number tried beside the winner.
"""

from .file import Search, find, searches, tasks_of
from .standings import Confirmed, Standings, standings
from .track import SearchTrack

__all__ = ["Confirmed", "Search", "SearchTrack", "Standings", "find", "searches", "standings", "tasks_of"]
