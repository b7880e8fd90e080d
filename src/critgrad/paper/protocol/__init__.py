"""How optimizers are compared: registrations, search spaces, arms, tracks, and what comes out of them.

A track is a pure function of the ledger. ``fair("digits-mlp").plan(ledger)`` gives the runs that are wanted next,
``tables(ledger, registration)`` what the finished ones say.
"""

from .arms import ARMS, FAMILIES, PAPER, FairArm
from .defaults import Defaults, chosen_hyper, load_defaults, write_defaults
from .outcome import SuiteRow, suite, suite_table, tables
from .records import ArmResult, Decomposition, Outcome
from .registration import Registration, find, load, registered
from .tracks import Fair, PaperTrack, Track, fair, paper_best, paper_grid

__all__ = [
    "ARMS",
    "FAMILIES",
    "PAPER",
    "ArmResult",
    "Decomposition",
    "Defaults",
    "Fair",
    "FairArm",
    "Outcome",
    "PaperTrack",
    "Registration",
    "SuiteRow",
    "Track",
    "chosen_hyper",
    "fair",
    "find",
    "load",
    "load_defaults",
    "paper_best",
    "paper_grid",
    "registered",
    "suite",
    "suite_table",
    "tables",
    "write_defaults",
]
