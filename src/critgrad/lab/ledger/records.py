"""What goes into a ledger and what comes out of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from ..errors import LabError
from ..run.spec import Trial
from .codec import unpack


class LedgerError(LabError):
    """A ledger cannot be read or written. The message names the file and the cure."""


class Role(NamedTuple):
    """Why a trial was run. One trial may have several: a base's tuning run serves every family that it is compared in."""

    track: str
    family: str
    arm: str
    purpose: str  # "tune", "report", "paper" or "analysis:<name>"


class Planned(NamedTuple):
    """A trial that is wanted, and why."""

    trial: Trial
    roles: tuple[Role, ...] = ()


@dataclass
class Row:
    """A run in the ledger. ``summary`` has ``None`` where the run gave a number that is not finite."""

    key: str
    trial: Trial
    status: str  # "done" or "failed"
    summary: dict[str, Any]
    provenance: dict[str, Any]
    roles: tuple[Role, ...] = ()
    error: str | None = None
    finished: float = 0.0  # when the ledger took it, in seconds since 1970
    _packed: tuple[str, bytes] | None = field(default=None, repr=False)

    @cached_property
    def curves(self) -> dict[str, np.ndarray]:
        """The curves, unpacked when first asked for; empty for a failed run."""
        return {} if self._packed is None else unpack(*self._packed)


@dataclass
class StoredAnalysis:
    """What was computed from several runs; ``keys`` names them."""

    name: str
    task: str
    arm: str
    data: dict[str, Any]
    keys: tuple[str, ...]
    _packed: tuple[str, bytes] = field(repr=False)

    @cached_property
    def arrays(self) -> dict[str, np.ndarray]:
        """The arrays, unpacked when first asked for."""
        return unpack(*self._packed)
