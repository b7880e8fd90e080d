"""How optimizers are compared: registrations, search spaces, arms, tracks, and what comes out of them.

A track is a pure function of the ledger. ``fair("digits-mlp").plan(ledger)`` gives the runs that are wanted next,
``tables(ledger, registration)`` what the finished ones say.
"""

from .arms import ARMS, Arm
from .committed import Standing, record, require_committed, standing
from .defaults import Defaults, chosen_hyper, load_defaults, write_defaults
from .outcome import tables
from .ranking import Entry, ranking
from .records import ArmResult, Decomposition, Outcome
from .registration import Registration, find, load, registered
from .spaces import Axis, widened
from .suite import SuiteRow, suite, suite_table
from .tracks import Fair, PaperTrack, Track, fair, paper_best, paper_grid

__all__ = [
    "ARMS",
    "Arm",
    "ArmResult",
    "Axis",
    "Decomposition",
    "Defaults",
    "Entry",
    "Fair",
    "Outcome",
    "PaperTrack",
    "Registration",
    "Standing",
    "SuiteRow",
    "Track",
    "chosen_hyper",
    "fair",
    "find",
    "load",
    "load_defaults",
    "paper_best",
    "paper_grid",
    "ranking",
    "record",
    "registered",
    "require_committed",
    "standing",
    "suite",
    "suite_table",
    "tables",
    "widened",
    "write_defaults",
]
