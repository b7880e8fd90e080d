"""Early stopping by epochs: who goes on, that short runs decide nothing else, and that no other experiment notices."""

from __future__ import annotations

import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from protocol_helpers import ToyLedger, finish, registration, result, score
from test_protocol_tracks import FEW, by_role, keys

from critgrad.lab.ledger.reach import target_of
from critgrad.lab.report.outcome_figures import best_after_figures
from critgrad.lab.run.results import Result
from critgrad.lab.run.spec import Trial
from critgrad.paper.protocol.outcome import tables
from critgrad.paper.protocol.registration import Registration, Timing, from_dict, load
from critgrad.paper.protocol.rungs import Rung
from critgrad.paper.protocol.tracks import Fair, fair
from critgrad.paper.protocol.tuning import Selected, tune, tuning_trial
from critgrad.paper.report.panels import fair_panel
from critgrad.paper.report.sections import _fair_block


def by_epochs(epochs: tuple[Any, ...], keep: tuple[Any, ...]) -> tuple[Rung, ...]:
    return tuple(Rung(left, epochs=long) for long, left in zip(epochs, keep))


RUNGS = by_epochs((1, 3), (4, 2))
EPOCHS = (1, 3, 6)


def plan_of(**changes: Any) -> Registration:
    return registration(**{"rungs": RUNGS, "arms": FEW, "timing": None, **changes})


def alone(**changes: Any) -> Registration:
    """One arm, so that every row is its own."""
    return plan_of(families=("SGD",), arms=("base",), primary=(), widenings=0, **changes)


def chosen_of(r: Registration, ledger: ToyLedger) -> Selected:
    return tune(r, "SGD", Fair(r).view(ledger)).selected["base"]


def lrs(ledger: ToyLedger, epochs: int, purpose: str = "tune") -> set[float]:
    """The learning rates that were run for so long."""
    rows = [row for row in ledger.kept.values() if any(role.purpose == purpose for role in row.roles)]
    return {row.trial.hyper["lr"] for row in rows if row.trial.settings["epochs"] == epochs}


def drawn(r: Registration) -> list[float]:
    return [point["lr"] for point in tune(r, "SGD", Fair(r).view(ToyLedger())).points["base"]]


def graded(values: dict[tuple[float, int], float], losses: dict[float, float] | None = None):
    """Runs whose values are given by learning rate and epochs; 50 where nothing is said."""

    def run(trial: Trial) -> Result:
        lr, epochs = trial.hyper["lr"], trial.settings["epochs"]
        found = result(trial)
        value = values.get((lr, epochs), 50.0)
        found.summary |= {"diverged": False, "valid": value, "test": value, "best_epoch": 1, "final_train_loss": 1.0}
        found.curves["valid_loss"] = [(losses or {}).get(lr, 1.0)]
        return found

    return run


def test_all_points_run_for_the_first_rung_the_kept_for_the_next_and_the_last_for_all_epochs():
    r, ledger = plan_of(), ToyLedger()
    plans = finish(Fair(r), ledger)
    tried: dict[tuple[str, str], set[float]] = {}
    for plan, epochs, points in zip(plans, EPOCHS, (8, 4, 2)):
        tuned = by_role(plan, "tune")
        assert {role.purpose for planned in plan for role in planned.roles} == {"tune"}
        assert {arm for _, arm in tuned} == set(FEW)
        for arm, trials in tuned.items():
            assert len(trials) == points * len(r.tuning_seeds)
            assert {(t.settings["epochs"], t.registration) for t in trials} == {(epochs, r.hash)}
            assert {t.seed for t in trials} == set(r.tuning_seeds)
            now = {t.hyper["lr"] for t in trials}
            assert now <= tried.get(arm, now)
            tried[arm] = now


def test_the_best_of_each_rung_go_on_and_the_choice_is_made_among_the_last():
    r, ledger = alone(), ToyLedger()
    a, b, c, d, e, *_ = drawn(r)
    # e would have been the best in the end and is not kept; a leads for long and is.
    values = {(a, 1): 99, (b, 1): 60, (c, 1): 70, (d, 1): 80, (e, 1): 55, (e, 3): 97, (e, 6): 98}
    values |= {(a, 3): 90, (b, 3): 91, (c, 3): 60, (d, 3): 60, (a, 6): 70, (b, 6): 75}
    finish(Fair(r), ledger, graded(values))
    assert [lrs(ledger, epochs) for epochs in EPOCHS] == [set(drawn(r)), {a, b, c, d}, {a, b}]
    chosen = chosen_of(r, ledger)
    assert (chosen.point["lr"], chosen.valid, chosen.tied) == (b, 75.0, 1)
    assert lrs(ledger, 6, "report") == {b}
    assert lrs(ledger, 1, "report") == lrs(ledger, 3, "report") == set()


def test_with_a_loss_the_lowest_go_on():
    r, ledger = alone(direction="min", metric="loss"), ToyLedger()
    low = drawn(r)[3:5]
    finish(Fair(r), ledger, graded({(lr, epochs): 1.0 + i for i, lr in enumerate(low) for epochs in EPOCHS}))
    assert lrs(ledger, 6) == set(low)
    assert chosen_of(r, ledger).point["lr"] == low[0]


def test_of_equals_that_of_the_lower_loss_goes_on_then_the_one_drawn_first():
    r, ledger = alone(), ToyLedger()
    points = drawn(r)
    finish(Fair(r), ledger, graded({}, losses={points[6]: 0.1, points[4]: 0.2}))
    assert lrs(ledger, 3) == {points[i] for i in (6, 4, 0, 1)}
    assert lrs(ledger, 6) == {points[6], points[4]}
    assert chosen_of(r, ledger).point["lr"] == points[6]


def test_rungs_by_seeds_still_cut_equals_by_their_order_alone():
    r, ledger = alone(rungs=(Rung(1, seeds=1),)), ToyLedger()
    points = drawn(r)
    finish(Fair(r), ledger, graded({}, losses={points[6]: 0.1}))
    assert chosen_of(r, ledger).point["lr"] == points[0]


def test_short_runs_are_counted():
    r, ledger = plan_of(widenings=0), ToyLedger()
    finish(Fair(r), ledger)
    assert r.tuning_runs == (8 + 4 + 2) * 2
    for family in r.families:
        for chosen in tune(r, family, Fair(r).view(ledger)).selected.values():
            assert (chosen.trials, chosen.runs) == (8, r.tuning_runs)
    assert Fair(r).total == len(ledger.kept)
    assert registration(tuning_seeds=(7, 8, 9), report_seeds=(1,), rungs=(Rung(2, seeds=1),)).tuning_runs == 8 + 2 * 2
    assert registration().tuning_runs == 8 * 2


def test_a_sweep_that_is_killed_anywhere_runs_nothing_twice_and_ends_with_the_same_rows():
    r, whole, ledger = plan_of(families=("SGD",)), ToyLedger(), ToyLedger()
    finish(Fair(r), whole)
    draw, ran = random.Random(0), Counter()
    while plan := Fair(r).plan(ledger):
        for planned in draw.sample(plan, draw.randint(1, len(plan))):
            ran[planned.trial.key] += 1
            ledger.add(planned.trial, result(planned.trial))
    assert set(ledger.kept) == set(whole.kept)
    assert set(ran.values()) == {1}


def test_after_a_widening_all_points_compete_again_from_the_first_rung():
    r, ledger = plan_of(families=("SGD",), arms=("base",), primary=(), widenings=1), ToyLedger()

    def rising(trial: Trial) -> Result:
        return result(trial.replace(hyper={**trial.hyper, "lr": trial.hyper["lr"] / 1e3}))

    plans = finish(Fair(r), ledger, rising)
    ran = Counter(key for plan in plans for key in keys(plan))
    assert set(ran.values()) == {1}
    tuning = tune(r, "SGD", Fair(r).view(ledger))
    chosen, new = tuning.selected["base"], {point["lr"] for point in tuning.points["base"][r.trials :]}
    assert tuning.widened == ("high",)
    assert {t.hyper["lr"] for t in by_role(plans[3], "tune")["SGD", "base"]} == new
    assert {t.settings["epochs"] for t in by_role(plans[3], "tune")["SGD", "base"]} == {1}
    assert chosen.point["lr"] in new
    assert chosen.trials == r.trials + len(new)
    # Runs of points that the new ones have pushed out were run, too.
    assert chosen.runs == len([row for row in ledger.kept.values() if row.trial.seed in r.tuning_seeds])


def test_targets_rivals_and_values_come_from_runs_of_all_epochs():
    r, ledger = plan_of(), ToyLedger()

    def lucky(trial: Trial) -> Result:
        """Short runs look better than any of all epochs."""
        return result(trial, score=lambda t: score(t) + (15 if t.settings["epochs"] < r.epochs else 0))

    finish(Fair(r), ledger, lucky)
    outcome, view = tables(ledger, r), Fair(r).view(ledger)
    assert outcome.complete
    assert {row.family: row.verdict for row in outcome.primary}["SGD_F"] == "better"
    for family in r.families:
        base = tune(r, family, view).selected["base"]
        full = view.of(tuning_trial(r, base.search, base.point, seed) for seed in r.tuning_seeds)
        assert {row.trial.settings["epochs"] for row in full} == {r.epochs}
        assert outcome.targets[family] == target_of(full, view, r.target) < 82
        assert outcome.arm(family, "base").valid == base.valid < 82
    assert all(row.epochs == r.epochs for row in outcome.arms)


def test_the_best_after_k_trials_takes_the_longest_runs_of_each_point():
    r, ledger = alone(), ToyLedger()
    values = {(lr, epochs): 10.0 * i + epochs for i, lr in enumerate(drawn(r)) for epochs in EPOCHS}
    finish(Fair(r), ledger, graded(values))
    outcome = tables(ledger, r)
    best = outcome.arm("SGD", "base").best_after
    longest = [1, 11, 21, 31, 43, 53, 66, 76]
    assert best.trials == tuple(range(1, 9))
    assert best.validation[0] == pytest.approx(sum(longest) / 8)
    assert best.validation[-1] == pytest.approx(76) == chosen_of(r, ledger).valid
    (figure,) = best_after_figures(fair_panel(ledger, outcome))
    assert "longest runs" in figure.caption
    assert f"({r.rungs_text})" in _fair_block(outcome).intro


# -- what a registration says ------------------------------------------------------------------------------------------


def test_the_file_gives_back_the_rungs_and_its_hash_depends_on_them(tmp_path: Path):
    r = plan_of()
    path = tmp_path / "toy.json"
    path.write_text(json.dumps(r.to_dict()))
    assert '"rungs": {"epochs": [1, 3], "keep": [4, 2]}' in path.read_text()
    assert load(path) == r
    assert load(path).hash == r.hash
    assert len({r.hash, plan_of(rungs=()).hash, plan_of(rungs=by_epochs((1, 3), (4, 1))).hash}) == 3


def test_a_registration_without_rungs_has_the_hash_that_it_always_had():
    r = registration()
    assert "rungs" not in r.to_dict()
    assert from_dict({**r.to_dict(), "rungs": None}).hash == r.hash


@pytest.mark.parametrize(
    "changes, names",
    [
        ({"rungs": by_epochs((0, 3), (4, 2))}, "more than the one before"),
        ({"rungs": by_epochs((3, 3), (4, 2))}, "more than the one before"),
        ({"rungs": by_epochs((3, 1), (4, 2))}, "more than the one before"),
        ({"rungs": by_epochs((1, 6), (4, 2))}, "fewer than 2 seeds and 6 epochs"),
        ({"rungs": by_epochs((1, 2.5), (4, 2))}, r"epochs=2\.5"),
        ({"rungs": by_epochs((1, 3), (2, 4))}, "no more than 2"),
        ({"rungs": by_epochs((1, 3), (4, 0))}, "at least 1 point"),
        ({"rungs": by_epochs((1, 3), (9, 2))}, "no more than 8"),
        ({"timing": Timing((101, 200), 3)}, r"timing: \[101\]"),
    ],
)
def test_bad_rungs_are_refused_and_the_value_named(changes: dict[str, Any], names: str):
    with pytest.raises(ValueError, match=names):
        plan_of(**changes)


@pytest.mark.parametrize(
    "written, names",
    [
        ({"rungs": {"epochs": [], "keep": []}}, "one or more"),
        ({"rungs": {"epochs": 3, "keep": 2}}, "as many epochs as points"),
        ({"rungs": {"epochs": [1, 3], "keep": [4]}}, "as many epochs as points"),
        ({"race": {"first": 1, "keep": 4}}, "one of them"),
    ],
)
def test_what_a_file_says_of_them_is_held_to_its_form(written: dict[str, Any], names: str):
    with pytest.raises(ValueError, match=names):
        from_dict({**plan_of().to_dict(), **written})


def test_fewer_trials_keep_no_more_points_than_there_are():
    small = fair(plan_of(), trials=3).registration
    assert (small.trials, small.rungs) == (3, by_epochs((1, 3), (3, 2)))
    assert fair(plan_of(), trials=9).registration.rungs == RUNGS
    assert fair(plan_of(), trials=8).registration == plan_of()
