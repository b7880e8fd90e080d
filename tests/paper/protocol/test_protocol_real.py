"""The fair track on a real, tiny task, with the real ledger and both engines."""

from __future__ import annotations

from pathlib import Path

import pytest
from protocol_helpers import registration

from critgrad.lab.ledger import Ledger, Planned
from critgrad.lab.run.results import Result
from critgrad.lab.train.bank import bank_groups, run_bank
from critgrad.lab.train.loop import train
from critgrad.paper.protocol import tables
from critgrad.paper.protocol.registration import Timing
from critgrad.paper.protocol.tracks import Fair

ARMS = ("base", "C", "F", "rival", "C-step", "C-momentum", "C-yoked", "C-longer", "F-step", "F-yoked")


def run(plan: list[Planned]) -> dict[str, Result]:
    trials = [planned.trial for planned in plan]
    done = {trial.key: train(trial) for trial in trials if trial.engine == "single"}
    for group in bank_groups([trial for trial in trials if trial.engine == "bank"], 64):
        done |= {trial.key: result for trial, result in zip(group, run_bank(group, device="cpu"))}
    return done


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["single", "bank"])
def test_a_tiny_sweep_runs_to_its_end_and_every_control_has_numbers(tmp_path: Path, engine: str):
    r = registration(
        task="digits-mlp@tiny",
        engine=engine,
        trials=4,
        epochs=2,
        batch_size=16,
        arms=ARMS,
        primary=(),
        report_seeds=(0, 1),
        timing=Timing((200,), 2, ("base", "C")),
        widenings=0,
    )
    track = Fair(r)
    with Ledger.open(tmp_path / "runs.db", write=True, create=True) as ledger:
        for _ in range(12):
            plan = track.plan(ledger)
            if not plan:
                break
            results = run(plan)
            for planned in plan:
                ledger.add(planned.trial, results[planned.trial.key], planned.roles)
        found = tables(ledger, r)
    assert found.complete
    assert found.missing == ()
    assert {(row.family, row.arm) for row in found.arms} == {
        (family, arm) for family in ("SGD", "Adam") for arm in ARMS
    }
    assert {(d.family, d.arm) for d in found.decompositions} == {(f, a) for f in ("SGD", "Adam") for a in ("C", "F")}
    assert all("synthetic" in line for line in found.warnings if "data" in line)
