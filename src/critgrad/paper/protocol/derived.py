"""Derived arms: controls that are computed from a memory's selected point and have no tuning of their own.

What they need to know of the memory (its ages, the size of its updates, its time) is measured on the *tuning* seeds or
on timing seeds, never on the reported ones. A control is planned once its measurements are in the ledger; one that
cannot be computed is left out, and the reason is kept.

Letters as in ``docs/theory.md``: ``S`` the memory's gain, ``dl`` the mean delay that it adds, ``gamma`` the base's own
momentum.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from critgrad import theory
from critgrad.lab.ledger.view import RowLike, View
from critgrad.lab.run.spec import Trial
from critgrad.lab.spaces import rounded_lr

from .arms import ARMS
from .registration import Registration
from .tuning import Selected

ADAPTIVE = ("RMSprop", "Adam")
_MATCHED_WITHIN = 0.05  # an update RMS this close needs no further step
_MATCHING_STEPS = 3
_BACK_OFF = 3.0  # where the base diverges at the learning rate to be corrected, it is divided by this
_LARGEST_STEP = 30.0  # one matching step changes the learning rate by no more than this factor


@dataclass(frozen=True)
class Waiting:
    """Measurements that are still to be run."""

    trials: tuple[Trial, ...]
    purpose: str  # "analysis:matching" or "analysis:timing"


@dataclass(frozen=True)
class LeftOut:
    """Why there is no such arm here."""

    reason: str


@dataclass(frozen=True)
class Control:
    """A derived arm, computed: an optimizer's arguments for each report seed."""

    optimizer: str
    hyper: Mapping[str, Any]
    note: str = ""
    epochs: int | None = None  # where it trains for longer than the others
    yoked: bool = False

    def for_seed(self, index: int, seeds: Sequence[int]) -> dict[str, Any]:
        """The arguments for report seed number ``index``; a yoked run's donor is the next seed, the last one's the first."""
        if not self.yoked:
            return dict(self.hyper)
        return {**self.hyper, "donor_seed": seeds[(index + 1) % len(seeds)]}


State = Control | Waiting | LeftOut


class Bench:
    """One family's selected points, and the measurements at them that the ledger has."""

    def __init__(self, registration: Registration, family: str, view: View, selected: Mapping[str, Selected]) -> None:
        self.registration = registration
        self.family = family
        self.view = view
        self.selected = selected
        self.base = ARMS["base"].search[family]

    def probed(self, optimizer: str, hyper: Mapping[str, Any], probe: tuple[str, ...]) -> list[Trial]:
        """Runs on the tuning seeds that record what a control must match."""
        r = self.registration
        return [r.trial(optimizer, hyper, seed, probe=probe) for seed in r.tuning_seeds]

    def of_memory(self, role: str) -> list[Trial]:
        """The memory arm at its selected point, looked at."""
        arm = self.selected[role]
        return self.probed(arm.optimizer, arm.hyper(0), ("memory", "update"))

    def timed(self, arm: str) -> list[Trial]:
        """Single runs of a tuned arm that are only timed; none where the registration does not time it."""
        r, chosen = self.registration, self.selected[arm]
        if r.timing is None or arm not in r.timing.arms:
            return []
        seeds, epochs = r.timing.seeds, r.timing.epochs
        return [r.trial(chosen.optimizer, chosen.hyper(seed), seed, epochs, engine="single") for seed in seeds]


def derive(arm: str, bench: Bench) -> State:
    """The state of a derived arm."""
    return DERIVED[arm](bench)


# -- step size ---------------------------------------------------------------------------------------------------------


def _step_of_c(bench: Bench) -> State:
    """SGD: the learning rate times the memory's gain. Adam, RMSprop: equal update RMS, since they rescale any gain."""
    if bench.family in ADAPTIVE:
        return _matched_rms(bench, "C")
    point = bench.selected["C"].hyper(0)
    gain = _gain(point)
    hyper = {**bench.base.fixed, "lr": rounded_lr(point["lr"] * gain)}
    return Control(bench.base.optimizer, hyper, f"lr x {gain:g}")


def _matched_rms(bench: Bench, role: str, start: float | None = None, **more: float) -> State:
    """The base with the learning rate at which its updates have the memory's RMS, found by measuring and correcting.

    It begins at ``start``, or at the memory's own.
    """
    goal, optimizer, hyper = bench.of_memory(role), bench.base.optimizer, {**bench.base.fixed, **more}
    lr, note = rounded_lr(bench.selected[role].hyper(0)["lr"] if start is None else start), ""
    for _ in range(_MATCHING_STEPS):
        trials = bench.probed(optimizer, {**hyper, "lr": lr}, ("update",))
        if missing := bench.view.missing([*goal, *trials]):
            return Waiting(tuple(missing), "analysis:matching")
        wanted, got = bench.view.of(goal), bench.view.of(trials)
        if any(row.summary.get("diverged") for row in wanted):
            return LeftOut(f"the {role} arm diverged on a tuning seed: there is no update RMS to match")
        if any(row.summary.get("diverged") for row in got):
            note, lr = f"diverged at lr {lr:g}", rounded_lr(lr / _BACK_OFF)
            continue
        ratio = _rms_ratio(wanted, got)
        if not math.isfinite(ratio):
            return LeftOut(f"the rows at lr {lr:g} carry no update_rms that could be compared")
        note = f"last measured update RMS ratio {ratio:.3g}"
        if abs(math.log(ratio)) < _MATCHED_WITHIN:
            break
        lr = rounded_lr(lr * min(max(ratio, 1 / _LARGEST_STEP), _LARGEST_STEP))
    return Control(optimizer, {**hyper, "lr": lr}, f"lr {lr:g}, {note}")


def _rms_ratio(wanted: Sequence[RowLike], got: Sequence[RowLike]) -> float:
    """The memory's update RMS over the control's: geometric mean over epochs and seeds, which all weigh alike."""
    logs = []
    for one, other in zip(wanted, got):
        a, b = (np.asarray(row.curves.get("update_rms", ()), np.float64) for row in (one, other))
        if len(a) != len(b) or not len(a) or not all((np.isfinite(rms) & (rms > 0)).all() for rms in (a, b)):
            return math.nan
        logs += (np.log(a) - np.log(b)).tolist()
    return math.exp(float(np.mean(logs)))


# -- delay -------------------------------------------------------------------------------------------------------------


def _momentum_of_c(bench: Bench) -> State:
    """Momentum of the memory's gain and measured mean delay, the base's own momentum included.

    Heavy ball with momentum ``beta`` has the gain ``1 / (1 - beta)`` and the delay ``beta / (1 - beta)``. A base with
    ``gamma`` under a memory has ``S / (1 - gamma)`` and ``dl + gamma / (1 - gamma)``. Equal delays give ``beta``, equal
    gains the learning rate; for Adam (``beta1``) and RMSprop the learning rate is matched in update RMS instead.
    """
    trials = bench.of_memory("C")
    if missing := bench.view.missing(trials):
        return Waiting(tuple(missing), "analysis:matching")
    age = mean_age(bench.view.of(trials))
    if not math.isfinite(age):
        return LeftOut("the rows at its point carry no ages")
    point = bench.selected["C"].hyper(0)
    own, _ = theory.matched_momentum(ages=[age], aggr=point["aggr"], topC=point["topC"])
    gamma = 0.9 if bench.family == "Adam" else bench.base.fixed.get("momentum", 0.0)
    delay = own / (1 - own) + gamma / (1 - gamma)
    beta = round(delay / (1 + delay), 6)
    note = f"mean age {age:.3g}, momentum {beta:.4g}"
    if bench.family in ADAPTIVE:
        name, start = ("beta1", point["lr"]) if bench.family == "Adam" else ("momentum", point["lr"] * (1 - beta))
        found = _matched_rms(bench, "C", start, **{name: beta})
        return Control(found.optimizer, found.hyper, f"{note}, {found.note}") if isinstance(found, Control) else found
    lr = rounded_lr(point["lr"] * _gain(point) / (1 - gamma) * (1 - beta))
    return Control("SGDM", {"momentum": beta, "lr": lr}, f"{note}, lr {lr:g}")


def mean_age(rows: Sequence[RowLike]) -> float:
    """Of the entries standing in the memory at the ends of epochs; NaN where no row has any."""
    ages = [np.asarray(row.curves["ages"], np.float64) for row in rows if "ages" in row.curves]
    live = np.concatenate([a[a > 0] for a in ages]) if ages else np.empty(0)
    return float(live.mean()) if live.size else math.nan


def _gain(point: Mapping[str, Any]) -> float:
    return theory.gains(point["aggr"], point["topC"]).S


# -- selection ---------------------------------------------------------------------------------------------------------


def _yoked(bench: Bench, role: str) -> State:
    if len(bench.registration.report_seeds) < 2:
        return LeftOut("a donor needs a second report seed")
    arm = bench.selected[role]
    return Control(arm.optimizer, arm.hyper(0), "decisions of the next report seed", yoked=True)


# -- wall-clock --------------------------------------------------------------------------------------------------------


def _longer(bench: Bench, role: str, without: str = "base") -> State:
    """The tuned base, or rival, for as many epochs as fit in the memory's time, rounded in its favour."""
    mine, theirs = bench.timed(role), bench.timed(without)
    if not mine or not theirs:
        return LeftOut(f"the registration does not time it and its {without}")
    if missing := bench.view.missing([*mine, *theirs]):
        return Waiting(tuple(missing), "analysis:timing")
    ratio = epoch_seconds(bench.view.of(mine)) / epoch_seconds(bench.view.of(theirs))
    if not math.isfinite(ratio):
        return LeftOut("the timed runs carry no seconds for two epochs")
    epochs = max(bench.registration.epochs, math.ceil(bench.registration.epochs * ratio))
    plain = bench.selected[without]
    return Control(plain.optimizer, plain.hyper(0), f"time ratio {ratio:.3g}, {epochs} epochs", epochs=epochs)


def epoch_seconds(rows: Sequence[RowLike]) -> float:
    """Median seconds of training per epoch. The first epoch is left out: kernels are compiled there."""
    parts = [np.diff(row.curves["seconds"]) for row in rows if "seconds" in row.curves]
    found = np.concatenate(parts) if parts else np.empty(0)
    return float(np.median(found)) if found.size else math.nan


DERIVED: dict[str, Callable[[Bench], State]] = {
    "C-step": _step_of_c,
    "C-momentum": _momentum_of_c,
    "C-yoked": partial(_yoked, role="C"),
    "C-longer": partial(_longer, role="C"),
    "F-step": partial(_matched_rms, role="F"),
    "F-yoked": partial(_yoked, role="F"),
    "F-longer": partial(_longer, role="F"),
    "F-rival-longer": partial(_longer, role="F-rival", without="rival"),
}
