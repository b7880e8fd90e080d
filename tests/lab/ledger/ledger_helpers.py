"""Runs to put into ledgers."""

from __future__ import annotations

import numpy as np

from critgrad.lab.ledger import Role
from critgrad.lab.run.results import Result
from critgrad.lab.run.spec import Trial

TUNE = Role("fair", "Adam", "Adam_C", "tune")
REPORT = Role("fair", "Adam", "Adam_C", "report")


def trial(seed: int = 0, **changes: object) -> Trial:
    return Trial("digits-mlp", "Adam_C", {"lr": 0.1, "topC": 5}, seed=seed).replace(**changes)


def result(seed: int = 0, epochs: int = 20) -> Result:
    rng = np.random.default_rng(seed)
    curves = {name: rng.normal(size=epochs).cumsum() for name in ("train_loss", "valid_loss", "seconds")}
    curves |= {name: rng.integers(0, 180, epochs) / 180 for name in ("valid", "test")}
    curves |= {"ages": rng.integers(0, 9, (epochs, 5)), "decisions": rng.integers(-1, 5, 10 * epochs)}
    numbers = {"valid": 0.9, "test": float(rng.random()), "final_train_loss": float(rng.random()), "best_epoch": 3}
    words = {"diverged": False, "metric": "accuracy", "data_sha256": "a" * 64, "data_state": "whole"}
    origin = {"command": ["critgrad", "sweep"], "torch": "2.13.0", "device": "cpu", "threads": 1}
    return Result(curves, {**numbers, **words, "step_ms": float(rng.random()), "steps": 200}, origin)
