"""One finished experiment for all tests that only read it."""

from __future__ import annotations

import pytest
from protocol_helpers import ToyLedger, finish, registration

from critgrad.paper.protocol.outcome import tables
from critgrad.paper.protocol.records import Outcome
from critgrad.paper.protocol.tracks import Fair


@pytest.fixture(scope="session")
def finished() -> tuple[Fair, ToyLedger]:
    track, ledger = Fair(registration()), ToyLedger()
    finish(track, ledger)
    return track, ledger


@pytest.fixture(scope="session")
def outcome(finished: tuple[Fair, ToyLedger]) -> Outcome:
    track, ledger = finished
    return tables(ledger, track.registration)
