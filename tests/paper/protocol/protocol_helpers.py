"""A ledger in memory and a made-up task, on which the answer to every question of the protocol is known."""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from critgrad.lab.ledger import Planned, Role
from critgrad.lab.run.results import Result
from critgrad.lab.run.spec import Trial
from critgrad.lab.spaces import Axis
from critgrad.paper.protocol.registration import Primary, Registration, Timing
from critgrad.paper.protocol.tracks import Track

# The learning rate at which each optimizer of the made-up task is best, and how good it is there.
BEST_LR = {"SGD": 0.1, "SGDM": 0.02, "Nesterov": 0.02, "AggMo": 0.02, "RMSprop": 1e-3, "Adam": 1e-3, "NAdam": 1e-3}
TOP = {"SGD_F": 4.0, "Adam_F": 4.0, "Adam_C": -2.0, "SGD_C": -2.0, "NAdam": 1.0}
DIVERGES_ABOVE = 100.0  # times the best learning rate


@dataclass
class ToyRow:
    key: str
    trial: Trial
    summary: dict[str, Any]
    curves: dict[str, np.ndarray]
    roles: tuple[Role, ...] = ()
    provenance: dict[str, Any] = field(default_factory=dict)
    status: str = "done"
    finished: float = field(default_factory=time.time)


@dataclass
class ToyLedger:
    """The part of a ledger's contract that tracks and tables read."""

    kept: dict[str, ToyRow] = field(default_factory=dict)
    documents: dict[str, str] = field(default_factory=dict)

    def add(self, trial: Trial, result: Result, roles: tuple[Role, ...] = ()) -> None:
        self.kept[trial.key] = ToyRow(trial.key, trial, result.summary, result.curves, roles, result.provenance)

    def rows(self, *, task: str | None = None, registration: str | None = None) -> list[ToyRow]:
        return [
            row
            for row in self.kept.values()
            if task in (None, row.trial.task) and registration in (None, row.trial.registration)
        ]

    def put_document(self, name: str, text: str) -> None:
        self.documents[name] = text

    def document(self, name: str) -> str | None:
        return self.documents.get(name)


def noise(*what: object) -> float:
    """A number in [-.5, .5) that only depends on what it is for."""
    return int.from_bytes(hashlib.sha256(repr(what).encode()).digest()[:4], "big") / 2**32 - 0.5


def score(trial: Trial) -> float:
    """Accuracy of the made-up task: a parabola in log lr, better or worse by optimizer, a little noise by seed."""
    base = trial.optimizer.removesuffix("_C").removesuffix("_F")
    off = math.log10(trial.hyper["lr"] / BEST_LR[base])
    kind = "yoked" if "donor_seed" in trial.hyper else ""
    return 80 + TOP.get(trial.optimizer, 0.0) - 5 * off**2 + noise(trial.seed) + 0.1 * noise(kind, trial.key)


def result(trial: Trial, worst: float = 0.0, higher: bool = True, score: Callable[[Trial], float] = score) -> Result:
    """What training would give."""
    base = trial.optimizer.removesuffix("_C").removesuffix("_F")
    epochs = trial.settings["epochs"]
    diverged = trial.hyper["lr"] > DIVERGES_ABOVE * BEST_LR[base]
    top = score(trial)
    curve = 10 + (top - 10) * (1 - np.exp(-np.arange(1, epochs + 1) / 1.5))
    curve *= top / curve[-1]
    curve = curve if higher else 100 - curve
    n = 1 if diverged else epochs
    curves = {"valid": curve[:n], "test": curve[:n], "valid_loss": -curve[:n], "train_loss": 100 - curve[:n]}
    if trial.engine == "single":
        slow = 1.5 if trial.optimizer.endswith(("_C", "_F")) else 1.0
        curves["seconds"] = np.arange(1, n + 1) * slow + 3.0
    if "update" in trial.probe:
        gain = 0.5 if trial.optimizer.endswith("_F") else 3.0 if trial.optimizer.endswith("_C") else 1.0
        curves["update_rms"] = np.full(n, trial.hyper["lr"] * gain)
    if "memory" in trial.probe:
        curves["ages"] = np.full((n, trial.hyper["topC"]), 4)
    summary = {
        "diverged": diverged,
        "initial_valid": 10.0 if higher else 90.0,
        "epochs": n,
        "steps": 40 * n,
        "higher_is_better": higher,
        "data_state": "synthetic",
        "data_sha256": "0" * 8,
        "best_epoch": None if diverged else n,
        "valid": worst if diverged else float(curve[n - 1]),
        "test": worst if diverged else float(curve[n - 1]),
        "final_train_loss": None if diverged else float(100 - curve[n - 1]),
    }
    if trial.engine == "single":
        summary |= {"step_ms": 0.1, "step_ms_low": 0.1, "step_ms_high": 0.2}
    return Result(curves, summary)


ALL_ARMS = (
    *("base", "C", "F", "rival", "momentum", "AggMo", "C-FIFO", "F-FIFO", "F-random"),
    *("C-step", "C-momentum", "C-yoked", "C-longer", "F-step", "F-yoked", "F-longer"),
)


def registration(**changes: Any) -> Registration:
    """A small experiment on the made-up task."""
    lr = {"SGD": Axis("log", 1e-3, 10.0, widen=1.0), "Adam": Axis("log", 1e-5, 0.1, widen=1.0)}
    lr |= {"SGDM": lr["SGD"], "RMSprop": lr["Adam"]}
    momentum = Axis("complement", 0.0, 0.99)
    values: dict[str, Any] = {
        "task": "toy",
        "metric": "accuracy",
        "direction": "max",
        "epochs": 6,
        "batch_size": 8,
        "engine": "single",
        "trials": 8,
        "space_seed": 3,
        "lr": lr,
        "axes": {
            "momentum": {"momentum": momentum, "beta1": momentum},
            "C": {"topC": Axis("log", 2, 20, integer=True), "decay": Axis("complement", 0.5, 0.99)},
            "F": {
                "topC": Axis("log", 3, 30, integer=True),
                "decay": Axis("complement", 0.9, 0.999),
                "rho": Axis("log", 1e-5, 3.0),
            },
        },
        "tuning_seeds": (100, 101),
        "report_seeds": tuple(range(8)),
        "families": ("SGD", "Adam"),
        "arms": ALL_ARMS,
        "primary": (Primary("F", ("base", "rival", "momentum")), Primary("C", ("base", "rival", "momentum"))),
        "timing": Timing((200, 201), 4),
    }
    return Registration(**{**values, **changes})


def finish(
    track: Track, ledger: ToyLedger, run: Callable[[Trial], Result] = result, rounds: int = 20
) -> list[list[Planned]]:
    """Run what is planned until nothing is; the plans, one after the other."""
    plans = []
    for _ in range(rounds):
        plan = track.plan(ledger)  # type: ignore[arg-type]
        if not plan:
            return plans
        plans.append(plan)
        for planned in plan:
            ledger.add(planned.trial, run(planned.trial), planned.roles)
    raise AssertionError(f"the track did not finish in {rounds} rounds")
