"""Tracks: plans are functions of the ledger, budgets are equal, seeds are fresh."""

from __future__ import annotations

import math
import random
from collections import Counter, defaultdict

import pytest
from protocol_helpers import ALL_ARMS, ToyLedger, finish, noise, registration, result, score

from critgrad.lab.ledger import Ledger, Planned
from critgrad.lab.run.spec import Trial
from critgrad.lab.spaces import Axis
from critgrad.lab.train.optimizers import recipe_of
from critgrad.paper.protocol.outcome import tables
from critgrad.paper.protocol.rungs import Rung
from critgrad.paper.protocol.tracks import Fair, fair, paper_best, paper_grid
from critgrad.paper.protocol.tuning import tune

FEW = ("base", "C", "F", "rival", "momentum")


def keys(plan: list[Planned]) -> list[str]:
    return [planned.trial.key for planned in plan]


def by_role(plan: list[Planned], purpose: str) -> dict[tuple[str, str], list[Trial]]:
    out = defaultdict(list)
    for planned in plan:
        for role in planned.roles:
            if role.purpose == purpose:
                out[role.family, role.arm].append(planned.trial)
    return out


def test_a_plan_is_the_same_each_time_and_changes_nothing():
    track, ledger = Fair(registration()), ToyLedger()
    assert keys(track.plan(ledger)) == keys(track.plan(ledger)) == keys(Fair(registration()).plan(ToyLedger()))
    assert not ledger.kept


def test_keys_are_stable():
    # Typed in: rows of a finished sweep must be found again by a later version.
    assert keys(Fair(registration(notes={})).plan(ToyLedger()))[0] == GOLDEN


GOLDEN = "59e384f532741939195ab460855570b9"


def test_a_sweep_that_is_killed_anywhere_runs_nothing_twice_and_ends_with_the_same_rows(finished):
    track, whole = finished
    ledger, draw, ran = ToyLedger(), random.Random(0), Counter()
    for _ in range(200):
        plan = track.plan(ledger)
        if not plan:
            break
        # Killed after a random part of the plan, done in a random order.
        for planned in draw.sample(plan, draw.randint(1, len(plan))):
            ran[planned.trial.key] += 1
            ledger.add(planned.trial, result(planned.trial))
    assert set(ledger.kept) == set(whole.kept)
    assert set(ran.values()) == {1}


def test_the_real_ledger_gives_the_same_plans(tmp_path):
    track = Fair(registration(families=("Adam",), arms=("base", "C", "C-step"), primary=(), timing=None))
    toy = ToyLedger()
    plans = finish(track, toy)
    with Ledger.open(tmp_path / "runs.db", write=True, create=True) as ledger:
        for expected in plans:
            plan = track.plan(ledger)
            assert keys(plan) == keys(expected)
            for planned in plan:
                ledger.add(planned.trial, result(planned.trial), planned.roles)
        assert track.plan(ledger) == []


def test_every_tuned_arm_gets_the_same_number_of_trials_on_the_same_learning_rates():
    r = registration()
    tuning = by_role(Fair(r).plan(ToyLedger()), "tune")
    assert {arm for family, arm in tuning if family == "SGD"} == set(ALL_ARMS[:9])
    for (family, arm), trials in tuning.items():
        assert len(trials) == r.trials * len(r.tuning_seeds), (family, arm)
        assert {trial.seed for trial in trials} == set(r.tuning_seeds)
        assert sorted(t.hyper["lr"] for t in trials) == sorted(t.hyper["lr"] for t in tuning[family, "base"])


def test_memory_arms_draw_their_own_options_and_their_controls_share_them():
    tuning = by_role(Fair(registration()).plan(ToyLedger()), "tune")
    topC = {arm: [trial.hyper["topC"] for trial in tuning["SGD", arm]] for arm in ("C", "C-FIFO", "F", "F-FIFO")}
    assert topC["C"] == topC["C-FIFO"]
    assert topC["F"] == topC["F-FIFO"]
    assert len(set(topC["C"])) > 3
    assert {trial.hyper["aggr"] for trial in tuning["SGD", "C"]} == {"sum"}
    assert {trial.hyper["aggr"] for trial in tuning["Adam", "C"]} == {"mean"}
    assert {trial.hyper["policy"] for trial in tuning["Adam", "F-random"]} == {"random"}
    assert all(trial.hyper["seed"] == trial.seed for trial in tuning["Adam", "F-random"])


def test_the_aggregation_is_drawn_where_the_registration_asks_for_it():
    r = registration()
    axes = {**r.axes, "C": {**r.axes["C"], "aggr": Axis("choice", choices=("sum", "mean"))}}
    tuning = by_role(Fair(registration(axes=axes)).plan(ToyLedger()), "tune")
    assert {trial.hyper["aggr"] for trial in tuning["Adam", "C"]} == {"sum", "mean"}


def test_what_both_sgd_families_search_alike_is_run_once():
    track = Fair(
        registration(families=("SGD", "SGDM"), arms=("base", "rival", "momentum", "AggMo"), primary=(), timing=None)
    )
    plan = track.plan(ToyLedger())
    assert len(plan) == 5 * 8 * 2 == len(set(keys(plan)))
    shared = [planned for planned in plan if {role.family for role in planned.roles} == {"SGD", "SGDM"}]
    assert len(shared) == 3 * 8 * 2


def test_every_trial_carries_the_registration_and_says_its_epochs():
    r = registration()
    for planned in Fair(r).plan(ToyLedger()):
        assert planned.trial.registration == r.hash
        assert planned.trial.settings == {"epochs": 6, "batch_size": 8}


def test_reported_seeds_are_fresh(finished):
    track, ledger = finished
    seeds = defaultdict(set)
    for row in ledger.kept.values():
        for role in row.roles:
            seeds[role.purpose].add(row.trial.seed)
    assert seeds["report"] == set(track.registration.report_seeds)
    assert seeds["tune"] == seeds["analysis:matching"] == set(track.registration.tuning_seeds)
    assert not seeds["report"] & seeds["tune"]


def test_nothing_is_reported_before_its_family_is_tuned():
    track, ledger = Fair(registration(arms=FEW)), ToyLedger()
    plan = track.plan(ledger)
    assert {role.purpose for planned in plan for role in planned.roles} == {"tune"}
    for planned in plan:
        if planned.roles[0].family == "SGD":
            ledger.add(planned.trial, result(planned.trial), planned.roles)
    later = track.plan(ledger)
    assert {role.purpose for p in later for role in p.roles if role.family == "SGD"} == {"report", "analysis:timing"}
    assert {role.purpose for p in later for role in p.roles if role.family == "Adam"} == {"tune"}


def test_the_choice_ignores_the_report_seeds(finished):
    track, ledger = finished
    before = tune(track.registration, "SGD", track.view(ledger)).selected
    spoilt = ToyLedger(dict(ledger.kept))
    for row in ledger.kept.values():
        if row.trial.seed in track.registration.report_seeds:
            spoilt.add(row.trial, result(row.trial, score=lambda trial: 10 + 50 * noise(trial.key)), row.roles)
    after = tune(track.registration, "SGD", track.view(spoilt)).selected
    assert before == after


def test_a_diverged_trial_is_never_chosen_over_one_that_learnt_something(finished):
    track, ledger = finished
    assert any(row.summary["diverged"] for row in ledger.kept.values())
    for family in track.registration.families:
        for chosen in tune(track.registration, family, track.view(ledger)).selected.values():
            assert chosen.valid > 50


def test_a_best_learning_rate_at_the_edge_widens_the_range_for_all_arms():
    r = registration(families=("SGD",), arms=FEW, timing=None)

    def rising(trial: Trial):
        # The base wants more than the range has; the others are content inside.
        shift = 1e3 if trial.optimizer == "SGD" else 1.0
        return result(trial.replace(hyper={**trial.hyper, "lr": trial.hyper["lr"] / shift}))

    ledger = ToyLedger()
    plans = finish(Fair(r), ledger, rising)
    tuning = tune(r, "SGD", Fair(r).view(ledger))
    assert tuning.widened[0] == "high"
    assert len(by_role(plans[1], "tune")) == len(FEW)
    counts = {arm: chosen.trials for arm, chosen in tuning.selected.items()}
    assert len(set(counts.values())) == 1
    assert counts["base"] > r.trials
    assert tuning.selected["base"].point["lr"] > r.lr["SGD"].high
    lrs = {arm: [point["lr"] for point in points] for arm, points in tuning.points.items()}
    assert all(lrs[arm] == lrs["base"] for arm in FEW)
    outcome = tables(ledger, r)
    assert outcome.trials == {"SGD": counts["base"]} == {arm.family: arm.trials for arm in outcome.arms if arm.tuned}
    assert outcome.widened == {"SGD": tuning.widened}


def test_an_edge_that_no_widening_reaches_is_flagged():
    r = registration(families=("SGD",), arms=FEW, timing=None, widenings=1)
    ledger = ToyLedger()

    def ever_rising(trial: Trial):
        tame = trial.replace(hyper={**trial.hyper, "lr": trial.hyper["lr"] / 1e4})  # none of them diverges
        return result(tame, score=lambda t: 80 + 3 * math.log10(t.hyper["lr"]))

    finish(Fair(r), ledger, ever_rising)
    tuning = tune(r, "SGD", Fair(r).view(ledger))
    assert {chosen.edges.get("lr") for chosen in tuning.selected.values()} == {"high"}


def test_a_race_runs_the_later_seeds_for_the_best_points_alone():
    r = registration(tuning_seeds=(100, 101, 102), rungs=(Rung(2, seeds=1),), arms=FEW, timing=None)
    ledger = ToyLedger()
    plans = finish(Fair(r), ledger)
    first, second = by_role(plans[0], "tune"), by_role(plans[1], "tune")
    assert all(len(trials) == r.trials and {t.seed for t in trials} == {100} for trials in first.values())
    assert set(first) == set(second)
    assert all(len(trials) == 2 * 2 and {t.seed for t in trials} == {101, 102} for trials in second.values())


def test_equal_validation_values_are_decided_by_the_validation_loss():
    r = registration(families=("SGD",), arms=("base",), primary=(), timing=None, widenings=0)

    def tied(trial: Trial):
        found = result(trial, score=lambda t: 70.0)
        found.summary["diverged"] = False
        found.summary |= {"valid": 70.0, "best_epoch": 1}
        found.curves["valid_loss"] = [abs(trial.hyper["lr"] - 0.5)]
        return found

    ledger = ToyLedger()
    finish(Fair(r), ledger, tied)
    chosen = tune(r, "SGD", Fair(r).view(ledger)).selected["base"]
    points = tune(r, "SGD", Fair(r).view(ledger)).points["base"]
    assert chosen.tied == r.trials
    assert chosen.point == min(points, key=lambda point: abs(point["lr"] - 0.5))


def test_overrides_make_another_experiment():
    r = registration(rungs=(Rung(4, seeds=1),))
    assert fair(r).registration is r
    small = fair(r, trials=2, seeds=3, engine="bank").registration
    assert (small.trials, small.report_seeds, small.engine, small.rungs) == (2, (0, 1, 2), "bank", (Rung(2, seeds=1),))
    assert small.hash != r.hash


def test_the_estimate_of_all_runs_is_close(finished):
    track, ledger = finished
    assert track.total == pytest.approx(len(ledger.kept), rel=0.1)


# -- the paper's tracks ------------------------------------------------------------------------------------------------


def test_paper_best_is_eight_optimizers_on_five_seeds():
    track = paper_best("cifar10-convnet")
    plan = track.plan(ToyLedger())
    assert track.total == len(plan) == 40
    assert {planned.roles[0].purpose for planned in plan} == {"paper"}
    assert plan[0].trial == Trial("cifar10-convnet", "Adam", {"lr": 0.001, "beta1": 0.9, "beta2": 0.99}, 0)
    assert all(planned.trial.registration is None for planned in plan)


def test_paper_grid_is_eighty_and_seven_hundred_twenty_settings():
    track = paper_grid("mnist-mlp", engine="bank")
    assert track.total == 4000
    assert "9 settings" in track.label
    counts = Counter(recipe_of(setting.optimizer).role for setting in track.settings)
    assert counts == {"base": 80, "C": 720}
    assert len(set(keys(track.plan(ToyLedger())))) == 4000
    assert paper_grid("mnist-mlp", seeds=2, trials=3).total == 8 * 3 * 2


def test_paper_grid_resumes_and_selects_on_the_seeds_that_it_reports():
    track = paper_grid("toy", seeds=2, trials=5, settings={"epochs": 6})
    ledger = ToyLedger()
    finish(track, ledger, lambda trial: result(trial))
    assert track.plan(ledger) == []
    some = ToyLedger(dict(list(ledger.kept.items())[:30]))
    assert len(track.plan(some)) == track.total - 30
    found = {row.optimizer: row for row in track.best(ledger, higher_is_better=True)}
    assert set(found) == {"Adam", "Adam_C", "RMSprop", "RMSprop_C", "SGDM", "SGDM_C", "SGD", "SGD_C"}
    assert found["SGD"].hyper["lr"] == 0.1
    assert found["SGD"].edges == ("lr high",)
    assert found["SGD"].settings_tried == 5
    assert found["SGD"].paper is None
    best = next(setting for setting in track.settings if setting.optimizer == "SGD" and setting.hyper["lr"] == 0.1)
    assert found["SGD"].test.mean == pytest.approx(sum(map(score, track.trials(best))) / 2)
