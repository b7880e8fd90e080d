"""From rows to tables: directions, divergences, censoring, rivals chosen on tuning seeds, effects that add up."""

from __future__ import annotations

import math

import numpy as np
import pytest
from protocol_helpers import ToyLedger, finish, noise, registration, result

from critgrad.lab.ledger import committed
from critgrad.lab.ledger.ranking import ranking
from critgrad.lab.ledger.reach import reach
from critgrad.lab.run.spec import Trial
from critgrad.paper.protocol.defaults import chosen_hyper, load_defaults, write_defaults
from critgrad.paper.protocol.outcome import suite, suite_table, tables
from critgrad.paper.protocol.tracks import Fair


def test_the_planted_winner_wins_and_the_planted_loser_loses(outcome):
    verdicts = {row.family: row.verdict for row in outcome.primary}
    assert verdicts == {"SGD_F": "better", "Adam_F": "better", "SGD_C": "worse", "Adam_C": "worse"}
    planted = next(row for row in outcome.primary if row.family == "SGD_F")
    assert planted.difference == pytest.approx(4, abs=0.3)


def test_the_primary_rival_is_the_best_on_the_tuning_seeds(outcome):
    rivals = {row.family: row.rival for row in outcome.primary}
    assert rivals["Adam_F"] == rivals["Adam_C"] == "NAdam"


def test_the_rival_is_not_chosen_by_the_report_seeds(finished, outcome):
    track, ledger = finished
    spoilt = ToyLedger(dict(ledger.kept), ledger.documents)
    for row in ledger.kept.values():
        if row.trial.seed in track.registration.report_seeds and row.trial.optimizer == "NAdam":
            spoilt.add(row.trial, result(row.trial, score=lambda trial: 30 + noise(trial.key)), row.roles)
    changed = tables(spoilt, track.registration)
    assert [row.rival for row in changed.primary] == [row.rival for row in outcome.primary]


def test_holm_runs_over_each_memorys_primaries_and_over_all_tasks_of_a_suite(outcome):
    smallest = 2.0 ** (1 - len(outcome.registration.report_seeds))
    assert {row.p_holm for row in outcome.primary} == {2 * smallest}
    other = tables_of(registration(task="toy2"))
    assert {row.p_holm for row in suite([outcome, other])} == {4 * smallest}


def test_the_suites_scale_has_the_untrained_model_at_0_and_the_tuned_base_at_1(outcome):
    turned = tables_of(
        registration(task="toy2", direction="min", metric="training loss", arms=("base", "F"), primary=(), timing=None),
        lambda trial: result(trial, worst=100.0, higher=False),
    )
    rows = {(row.family, row.arm): row for row in suite_table([outcome, turned])}
    assert rows["SGD", "base"].score.value == pytest.approx(1, abs=0.01)
    assert rows["SGD", "base"].difference is None
    assert rows["SGD", "F"].tasks == ("toy", "toy2")
    assert rows["SGD", "F"].difference.low > 0.03
    assert rows["SGD", "C"].tasks == ("toy",)
    assert rows["SGD", "C"].difference.high < 0


def tables_of(r, run=result):
    ledger = ToyLedger()
    finish(Fair(r), ledger, run)
    return tables(ledger, r)


def test_reported_runs_that_were_not_all_made_in_one_way_are_named(finished, outcome):
    track, ledger = finished
    mixed = ToyLedger(dict(ledger.kept), ledger.documents)
    reported = {key for arm in outcome.arms for key in arm.keys}
    for key in list(reported)[:3]:
        row = ledger.kept[key]
        made = result(row.trial)
        made.provenance["compiled"] = True
        mixed.add(row.trial, made, row.roles)
    said = f"3 of the {len(reported)} reported runs are compiled, the others not"
    assert said in tables(mixed, track.registration).warnings
    assert not any("compiled" in line for line in outcome.warnings)


def test_with_a_loss_the_lower_value_is_the_better_one(outcome):
    r = registration(direction="min", metric="training loss")
    turned = tables_of(r, lambda trial: result(trial, worst=100.0, higher=False))
    assert {row.family: row.verdict for row in turned.primary} == {row.family: row.verdict for row in outcome.primary}
    for row in turned.arms:
        same = outcome.arm(row.family, row.arm)
        if row.arm in ("base", "C", "F"):
            assert row.hyper["lr"] == same.hyper["lr"]
            assert row.test.mean == pytest.approx(100 - same.test.mean, abs=0.2)
    base, damped = turned.arm("SGD", "base"), turned.arm("SGD", "F")
    assert damped.test.mean < base.test.mean
    assert damped.reach["epochs"].median < base.reach["epochs"].median


def test_diverged_runs_count_as_the_worst_and_are_never_dropped():
    def unlucky(trial: Trial):
        found = result(trial)
        if trial.optimizer == "SGD_F" and trial.seed in (3, 4) and not trial.probe:
            found.summary |= {"diverged": True, "valid": 0.0, "test": 0.0, "final_train_loss": None, "best_epoch": None}
        return found

    r = registration(families=("SGD",), arms=("base", "F", "rival", "momentum"), primary=(), timing=None)
    row = tables_of(r, unlucky).arm("SGD", "F")
    assert row.diverged == 2
    assert row.divergence_rate == 0.25
    assert [value for value in row.values if value == 0.0] == [0.0, 0.0]
    assert row.test.n == 8
    assert row.reach["epochs"].times[3] is None
    assert row.reach["epochs"].reached == 6
    assert row.train_loss.n == 8
    assert math.isfinite(row.train_loss.mean)


def test_a_finished_run_never_counts_worse_than_a_diverged_one():
    def bad(trial: Trial):
        found = result(trial, worst=90.0, higher=False)
        if trial.optimizer == "SGD_C" and trial.seed == 5:
            found.summary |= {"test": 1e9}
        return found

    r = registration(families=("SGD",), arms=("base", "C"), primary=(), timing=None, direction="min", metric="loss")
    row = tables_of(r, bad).arm("SGD", "C")
    assert row.values[5] == 90.0
    assert row.diverged == 0


def test_a_run_that_never_reaches_the_target_is_censored(outcome):
    row = outcome.arm("SGD", "C")
    assert None in row.reach["epochs"].times
    assert row.reach["epochs"].restricted_mean > outcome.arm("SGD", "F").reach["epochs"].restricted_mean
    assert row.speedup["epochs"].bound == "at most"


def test_time_to_target_is_counted_in_epochs_steps_and_seconds(outcome):
    times = outcome.arm("SGD", "F").reach
    assert set(times) == {"epochs", "steps", "seconds"}
    for epochs, steps, seconds in zip(*(times[unit].times for unit in ("epochs", "steps", "seconds"))):
        assert steps == 40 * epochs
        assert seconds == pytest.approx(1.5 * epochs + 3)
    assert times["epochs"].limits == (6.0,) * 8


def test_bank_rows_give_no_seconds():
    trial = Trial("toy", "SGD", {"lr": 0.1}, 0, {"epochs": 6}, "bank")
    row = type("Row", (), {"summary": result(trial).summary, "curves": result(trial).curves})()
    assert set(reach([row], 70.0, True, 6)) == {"epochs", "steps"}


def test_the_effects_of_a_memory_add_up_to_its_difference_to_the_base(outcome):
    assert {(d.family, d.arm) for d in outcome.decompositions} == {(f, a) for f in ("SGD", "Adam") for a in ("C", "F")}
    for found in outcome.decompositions:
        assert sum(term.difference.mean for term in found.terms) == pytest.approx(found.total.mean)
        assert all(term.difference.low <= term.difference.mean <= term.difference.high for term in found.terms)
    adding = next(d for d in outcome.decompositions if (d.family, d.arm) == ("SGD", "C"))
    assert [(t.minuend, t.subtrahend) for t in adding.terms] == [
        ("C", "C-yoked"),
        ("C-yoked", "C-momentum"),
        ("C-momentum", "C-step"),
        ("C-step", "base"),
    ]


def test_every_arm_says_how_many_trials_it_had_and_the_best_grows_with_them(outcome):
    for row in outcome.arms:
        assert row.trials == (8 if row.tuned else 0)
        assert row.tuning_runs == 2 * row.trials
        if row.tuned:
            assert row.best_after.trials == tuple(range(1, 9))
            assert all(np.diff(row.best_after.validation) >= -1e-9)
            assert row.best_after.validation[-1] == pytest.approx(row.valid)


def test_costs_come_from_the_timed_runs(outcome):
    assert outcome.arm("SGD", "F").cost.epoch_seconds == 1.5
    assert outcome.arm("SGD", "base").cost.epoch_seconds == 1.0
    assert outcome.arm("SGD", "base").cost.peak_bytes is None
    assert outcome.arm("SGD", "F").cost.by_seed == {200: 1.5, 201: 1.5}


@pytest.mark.parametrize("with_times, known", [(range(8), True), ((0,), False), ((), False)])
def test_reported_runs_stand_for_timed_ones_only_where_all_of_them_have_times(with_times, known):
    """Side by side on a GPU a run has times only if its CUDA graph could not be captured: that one says nothing."""

    def run(trial):
        found = result(trial)
        if trial.seed not in with_times:
            found.summary["step_ms"] = None
        return found

    plan = registration(arms=("base", "F"), primary=(), timing=None)
    assert (tables_of(plan, run).arm("SGD", "base").cost is not None) == known


def test_an_unfinished_sweep_says_what_is_missing():
    track, ledger = Fair(registration()), ToyLedger()
    early = tables(ledger, track.registration)
    assert not early.complete
    assert early.arms == ()
    assert set(early.pending) == {"tune"}
    assert {row.reason for row in early.missing} == {"not tuned yet"}
    for planned in track.plan(ledger):
        ledger.add(planned.trial, result(planned.trial), planned.roles)
    middle = tables(ledger, track.registration)
    assert "report" in middle.pending
    assert {"not run on all report seeds yet", "not measured yet"} == {row.reason for row in middle.missing}
    assert not middle.decided


def test_an_experiment_is_decided_once_its_tuned_arms_are_reported_though_controls_are_missing(finished):
    track, whole = finished
    assert tables(whole, track.registration).decided
    controls = {"C-yoked", "F-yoked"}
    ledger = ToyLedger()
    for row in whole.rows():
        arms = {role.arm for role in row.roles}
        if not arms <= controls:
            ledger.add(row.trial, row, row.roles)
    found = tables(ledger, track.registration)
    assert not found.complete
    assert {row.arm for row in found.missing} == controls
    assert found.decided


def test_an_arm_that_cannot_be_computed_is_listed_with_the_reason():
    found = tables_of(registration(timing=None))
    assert {(row.family, row.arm) for row in found.missing} == {
        (family, arm) for family in ("SGD", "Adam") for arm in ("C-longer", "F-longer")
    }
    assert found.complete
    assert all("time" in row.reason for row in found.missing)


def test_results_without_a_commit_say_not_registered(finished, outcome):
    track, ledger = finished
    assert "not registered" in outcome.warnings[0]
    assert "synthetic" in outcome.warnings[1]
    named = ToyLedger(ledger.kept, {})
    text = '{"commit": "abc", "reason": "", "checkout": true}'
    named.put_document(committed.document_name(track.registration.hash), text)
    assert not any("registered" in line for line in tables(named, track.registration).warnings)


def test_an_edge_of_the_learning_rate_is_a_warning():
    def rising(trial: Trial):
        tame = trial.replace(hyper={**trial.hyper, "lr": trial.hyper["lr"] / 1e4})
        return result(tame, score=lambda t: 80 + 3 * math.log10(t.hyper["lr"]))

    r = registration(families=("SGD",), arms=("base",), primary=(), timing=None, widenings=0)
    found = tables_of(r, rising)
    assert found.arm("SGD", "base").edges == {"lr": "high"}
    assert any("high end" in line for line in found.warnings)


def test_everything_is_compared_with_the_base_and_each_memory_with_its_controls(outcome):
    pairs = {(row.family, row.arm, row.rival) for row in outcome.descriptive}
    assert ("SGD", "Nesterov", "SGD") in pairs
    assert ("SGD", "SGD_C", "SGD_C FIFO") in pairs
    assert ("Adam", "Adam_F", "Adam_C") in pairs
    assert ("Adam", "Adam_F", "Adam_F random") in pairs
    assert all(not row.primary for row in outcome.descriptive)


# -- what is made from an outcome --------------------------------------------------------------------------------------


def test_defaults_keep_the_choices_with_their_registration(outcome, tmp_path):
    path = write_defaults(outcome, tmp_path / "toy.json")
    found = load_defaults("toy", path)
    assert found.registration == outcome.registration.hash
    assert found.trials == 8
    assert found.task == "toy"
    assert found.arm("Adam", "C").hyper == dict(outcome.arm("Adam", "C").hyper)
    assert found.arm("Adam", "rival").label == "NAdam"
    assert found.arm("SGD", "C-longer") is None
    assert "donor_seed" not in found.arm("SGD", "C-yoked").hyper


def test_an_unfinished_sweep_writes_no_defaults(tmp_path):
    with pytest.raises(ValueError, match="not finished"):
        write_defaults(tables(ToyLedger(), registration()), tmp_path / "toy.json")
    with pytest.raises(FileNotFoundError, match="critgrad sweep nothing"):
        load_defaults("nothing")


def test_hyper_parameters_to_start_from_are_the_sweeps_then_the_papers_then_a_guess(outcome, tmp_path, monkeypatch):
    from critgrad.paper.protocol import defaults

    monkeypatch.setattr(defaults, "FOLDER", tmp_path)
    write_defaults(outcome)
    assert chosen_hyper("toy@tiny", "SGD_F") == dict(outcome.arm("SGD", "F").hyper)
    assert chosen_hyper("toy", "NAdam") == dict(outcome.arm("Adam", "rival").hyper)
    assert chosen_hyper("toy", "RMSprop") == {"lr": 0.001}
    assert chosen_hyper("cifar10-convnet", "SGD") == {"lr": 0.01}


def test_the_ranking_puts_the_best_setting_first_and_counts_each_seed_once(finished):
    _, ledger = finished
    ranked = ranking(list(ledger.kept.values()))
    entries = next(
        found for group, found in ranked.items() if group[:2] == ("toy", "SGD") and '"epochs": 6' in group[2]
    )
    assert [entry.valid for entry in entries] == sorted((entry.valid for entry in entries), reverse=True)
    assert entries[0].hyper["lr"] == min((e.hyper["lr"] for e in entries), key=lambda lr: abs(math.log(lr / 0.1)))
    assert max(entry.seeds for entry in entries) <= 2 + 8
