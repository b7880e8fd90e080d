"""Derived arms: when they appear, what they are computed from, and why one may be left out."""

from __future__ import annotations

import math

import numpy as np
import pytest
from protocol_helpers import ToyLedger, finish, registration, result

from critgrad import theory
from critgrad.lab.run.spec import Trial
from critgrad.paper.protocol.derived import Control, LeftOut, Waiting, derive
from critgrad.paper.protocol.registration import Timing
from critgrad.paper.protocol.tracks import Fair, FamilyState


def states(track: Fair, ledger: ToyLedger) -> dict[str, FamilyState]:
    return track.states(track.view(ledger))


def control(finished, family: str, arm: str) -> Control:
    found = states(*finished)[family].derived[arm]
    assert isinstance(found, Control)
    return found


def point(finished, family: str, arm: str) -> dict:
    return states(*finished)[family].selected[arm].hyper(0)


def test_derived_arms_wait_for_their_measurements_and_come_after_them():
    track, ledger = Fair(registration()), ToyLedger()
    seen: list[set[str]] = []
    for plan in finish(track, ledger):
        seen.append({role.arm for p in plan for role in p.roles if role.purpose == "report"})
    assert seen[0] == set()
    assert {"C-yoked", "F-yoked", "base", "C", "F"} <= seen[1]
    assert not {"C-longer", "F-longer", "F-step", "C-momentum"} & seen[1]
    assert {"C-longer", "F-longer"} <= seen[2]
    assert "F-step" in set().union(*seen[2:])


def test_only_the_controls_inputs_are_planned_before_it():
    track, ledger = (
        Fair(registration(families=("Adam",), arms=("base", "C", "C-step"), primary=(), timing=None)),
        ToyLedger(),
    )
    for planned in track.plan(ledger):
        ledger.add(planned.trial, result(planned.trial))
    waiting = states(track, ledger)["Adam"].derived["C-step"]
    assert isinstance(waiting, Waiting)
    assert waiting.purpose == "analysis:matching"
    assert {trial.probe for trial in waiting.trials} == {("memory", "update"), ("update",)}
    assert {trial.seed for trial in waiting.trials} == set(track.registration.tuning_seeds)


def test_sgd_takes_the_gain_of_sum_as_its_step(finished):
    found = control(finished, "SGD", "C-step")
    assert found.optimizer == "SGD"
    assert found.hyper["lr"] == pytest.approx(2 * point(finished, "SGD", "C")["lr"], rel=1e-3)


def test_adam_takes_the_learning_rate_of_equal_update_rms(finished):
    # The made-up Adam_C moves three times as far as Adam at the same learning rate, the damped ones half as far.
    found = control(finished, "Adam", "C-step")
    assert found.hyper == {"lr": pytest.approx(3 * point(finished, "Adam", "C")["lr"], rel=1e-3)}
    for family in ("SGD", "Adam"):
        damped = control(finished, family, "F-step")
        assert damped.hyper["lr"] == pytest.approx(0.5 * point(finished, family, "F")["lr"], rel=1e-3)
        assert "topC" not in damped.hyper
        assert damped.optimizer == family


def test_momentum_has_the_gain_and_the_measured_delay_of_the_memory(finished):
    chosen, found = point(finished, "SGD", "C"), control(finished, "SGD", "C-momentum")
    beta, factor = theory.matched_momentum(ages=[4.0], aggr="sum", topC=chosen["topC"])
    assert found.optimizer == "SGDM"
    assert found.hyper["momentum"] == pytest.approx(beta, abs=1e-6)
    assert found.hyper["lr"] == pytest.approx(chosen["lr"] * factor, rel=1e-3)


def test_a_base_with_momentum_of_its_own_keeps_its_delay_and_gain():
    r = registration(families=("SGDM",), arms=("base", "C", "C-momentum", "C-step"), primary=(), timing=None)
    track, ledger = Fair(r), ToyLedger()
    finish(track, ledger)
    state = states(track, ledger)["SGDM"]
    chosen, found = state.selected["C"].hyper(0), state.derived["C-momentum"]
    assert isinstance(found, Control)
    beta = found.hyper["momentum"]
    # Memory: mean delay D / S = 4 / 2; momentum .9 adds 9.
    assert beta / (1 - beta) == pytest.approx(2 + 9, rel=1e-4)
    assert found.hyper["lr"] / (1 - beta) == pytest.approx(chosen["lr"] * 2 / (1 - 0.9), rel=1e-3)
    step = state.derived["C-step"]
    assert isinstance(step, Control)
    assert step.hyper["momentum"] == 0.9


def test_adams_beta1_takes_up_the_memorys_delay_at_equal_update_rms(finished):
    chosen, found = point(finished, "Adam", "C"), control(finished, "Adam", "C-momentum")
    C = chosen["topC"]
    beta1 = found.hyper["beta1"]
    assert beta1 / (1 - beta1) == pytest.approx(9 + 4 * C / (C + 1), rel=1e-4)
    assert found.hyper["lr"] == pytest.approx(3 * chosen["lr"], rel=1e-3)


def test_a_yoked_run_replays_another_report_seed(finished):
    track, ledger = finished
    state = states(track, ledger)["Adam"]
    trials, own = track.report_trials(state, "C-yoked"), track.report_trials(state, "C")
    seeds = track.registration.report_seeds
    assert [trial.hyper["donor_seed"] for trial in trials] == [*seeds[1:], seeds[0]]
    for trial, donor in zip(trials, [*own[1:], own[0]]):
        assert {**trial.hyper, "donor_seed": None} == {**donor.hyper, "donor_seed": None}
        assert trial.hyper["donor_seed"] == donor.seed != trial.seed


def test_the_base_trains_longer_by_the_measured_time_ratio(finished):
    track, ledger = finished
    state = states(track, ledger)["SGD"]
    found = control(finished, "SGD", "C-longer")
    assert found.epochs == 9
    assert found.hyper == state.selected["base"].hyper(0)
    assert {trial.settings["epochs"] for trial in track.report_trials(state, "C-longer")} == {9}
    timed = [row.trial for row in ledger.kept.values() if any(role.purpose == "analysis:timing" for role in row.roles)]
    assert {trial.engine for trial in timed} == {"single"}
    assert {trial.settings["epochs"] for trial in timed} == {4}


def test_bank_experiments_are_timed_by_single_runs():
    timing = Timing((200, 201), 4, ("base", "C"))
    r = registration(engine="bank", families=("Adam",), arms=("base", "C", "C-longer"), primary=(), timing=timing)
    ledger = ToyLedger()
    finish(Fair(r), ledger)
    engines = {(role.purpose, row.trial.engine) for row in ledger.kept.values() for role in row.roles}
    assert engines == {("tune", "bank"), ("report", "bank"), ("analysis:timing", "single")}


def test_without_timing_the_longer_arm_is_left_out_with_the_reason():
    track, ledger = Fair(registration(timing=None)), ToyLedger()
    finish(track, ledger)
    found = states(track, ledger)["SGD"].derived["C-longer"]
    assert isinstance(found, LeftOut)
    assert "time" in found.reason


def test_rows_without_what_a_control_must_match_leave_it_out_with_the_reason():
    def blind(trial: Trial):
        found = result(trial)
        found.curves.pop("update_rms", None)
        found.curves.pop("ages", None)
        return found

    track, ledger = Fair(registration(families=("Adam",))), ToyLedger()
    finish(track, ledger, blind)
    derived = states(track, ledger)["Adam"].derived
    assert isinstance(derived["F-step"], LeftOut)
    assert "update_rms" in derived["F-step"].reason
    assert isinstance(derived["C-momentum"], LeftOut)
    assert "ages" in derived["C-momentum"].reason


def test_where_the_base_diverges_at_the_memorys_learning_rate_matching_starts_lower(finished):
    track, _ledger = finished
    start = point(finished, "SGD", "F")["lr"]

    def fragile(trial: Trial):
        found = result(trial)
        if trial.optimizer == "SGD" and trial.probe and trial.hyper["lr"] >= start:
            found.summary["diverged"] = True
            found.curves.pop("update_rms")
        return found

    again = ToyLedger()
    finish(track, again, fragile)
    found = states(track, again)["SGD"].derived["F-step"]
    assert isinstance(found, Control)
    assert found.hyper["lr"] == pytest.approx(start / 2, rel=1e-3)


def test_matching_corrects_again_when_the_first_correction_falls_short():
    def saturating(trial: Trial):
        found = result(trial)
        if "update" in trial.probe and not trial.optimizer.endswith("_F"):
            found.curves["update_rms"] = found.curves["update_rms"] ** 0.8
        if "update" in trial.probe and trial.optimizer.endswith("_F"):
            found.curves["update_rms"] = np.full(trial.settings["epochs"], 1e-3)
        return found

    r = registration(families=("SGD",), arms=("base", "F", "F-step"), primary=(), timing=None)
    track, ledger = Fair(r), ToyLedger()
    finish(track, ledger, saturating)
    found = states(track, ledger)["SGD"].derived["F-step"]
    assert isinstance(found, Control)
    assert abs(math.log(found.hyper["lr"] ** 0.8 / 1e-3)) < 0.1


def test_derive_is_a_function_of_the_rows(finished):
    track, ledger = finished
    bench = states(track, ledger)["SGD"].bench
    assert bench is not None
    assert derive("F-step", bench) == derive("F-step", bench)
