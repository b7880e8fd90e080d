"""``critgrad compare``: what is run, and the verdict table."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from critgrad.lab.ledger import Ledger, Row
from critgrad.lab.run.coordinator import run_jobs
from critgrad.lab.screen.console import console
from critgrad.paper import compare, tables
from critgrad.paper.compare import ARMS, FIRST_SEED, distinct, lines, planned
from critgrad.paper.protocol import FAMILIES, find, load_defaults
from critgrad.paper.protocol.defaults import Default, Defaults


def small(task="digits-mlp@tiny", epochs=2):
    """Three arms of one family."""
    arms = (
        Default("SGD", "base", "SGD", "SGD", {"lr": 0.3}, 2, {}),
        Default("SGD", "C", "SGD_C", "SGD_C", {"lr": 0.2, "topC": 3}, 2, {}),
        Default("SGD", "C-step", "SGD, step of _C", "SGD", {"lr": 0.4}, 0, {}),
        Default("SGD", "momentum", "not in the table", "SGDM", {"lr": 0.4}, 0, {}),
    )
    settings = {"epochs": epochs, "batch_size": 16}
    return Defaults(task, "critgrad sweep", "0" * 32, None, 2, (100,), settings, "single", arms)


def made_up(defaults, seeds, values, **special):
    """Rows whose test values are given by arm; ``special`` changes summaries, by arm and place."""
    rows = []
    for item in planned(defaults, ("SGD",), seeds):
        (role,) = item.roles
        place = item.trial.seed - FIRST_SEED
        value = values[role.arm][place]
        curve = np.linspace(10, value, defaults.settings["epochs"])
        summary = {
            "test": value,
            "valid": value,
            "initial_valid": 10.0,
            "diverged": False,
            "epochs": len(curve),
            "steps": 4 * len(curve),
            "step_ms": 0.1 if role.arm == "base" else 0.3,
            **special.get(role.arm.replace("-", "_"), {}).get(place, {}),
        }
        row = Row(item.trial.key, item.trial, "done", summary, {}, item.roles)
        row.__dict__["curves"] = {"valid": curve, "test": curve, "seconds": np.arange(1.0, len(curve) + 1)}
        rows.append(row)
    return rows


# -- what is run -------------------------------------------------------------------------------------------------------


def test_the_embedded_comparison_is_240_runs_at_most_400():
    defaults = load_defaults("digits-mlp")
    todo = planned(defaults, FAMILIES, 10)
    assert len(todo) == 240
    assert distinct(todo) <= 240 <= 400
    arms = {(role.family, role.arm) for item in todo for role in item.roles}
    assert arms == {(family, arm) for family in FAMILIES for arm in ARMS}


def test_its_seeds_have_neither_tuned_nor_reported():
    plan = find("digits-mlp")
    seeds = {item.trial.seed for item in planned(load_defaults("digits-mlp"), FAMILIES, 20)}
    assert len(seeds) == 20
    assert not seeds & {*plan.tuning_seeds, *plan.report_seeds}


def test_a_slow_minute_hits_all_arms_alike():
    todo = planned(load_defaults("digits-mlp"), FAMILIES, 3)
    assert [item.trial.seed for item in todo] == [FIRST_SEED] * 24 + [FIRST_SEED + 1] * 24 + [FIRST_SEED + 2] * 24


def test_every_run_is_single_and_has_the_sweeps_settings():
    defaults = load_defaults("digits-mlp")
    for item in planned(defaults, FAMILIES, 1):
        assert item.trial.engine == "single"
        assert dict(item.trial.settings) == defaults.settings


# -- the table ---------------------------------------------------------------------------------------------------------

VALUES = {"base": [90, 91, 92, 93, 94, 95], "C": [91, 92.1, 93, 94.1, 95, 96.1], "C-step": [90, 91, 92, 93, 94, 95]}


def by_arm(defaults, seeds, rows):
    return {line.arm: line for line in lines(defaults, ("SGD",), seeds, rows)}


def test_differences_are_paired_and_positive_is_better():
    found = by_arm(small(), 6, made_up(small(), 6, VALUES))
    assert list(found) == ["base", "C", "C-step"]
    assert found["base"].comparison is None
    assert found["C"].comparison.difference == pytest.approx(1.05)
    assert found["C"].comparison.verdict == "better"
    # The spread over seeds is large, the spread of the differences is not.
    assert found["C"].test.half_width > 1 > found["C"].comparison.high - found["C"].comparison.low
    assert found["C"].comparison.poi == 1
    assert found["C-step"].comparison.identical


def test_where_lower_is_better_the_same_numbers_are_a_loss():
    defaults = small("ptb-lstm@tiny")
    found = by_arm(defaults, 6, made_up(defaults, 6, VALUES))
    assert found["C"].comparison.difference == pytest.approx(-1.05)
    assert found["C"].comparison.verdict == "worse"


def test_only_seeds_that_both_have_are_compared():
    rows = made_up(small(), 6, VALUES)
    missing = {("base", FIRST_SEED), ("C", FIRST_SEED + 5)}
    kept = [row for row in rows if (row.roles[0].arm, row.trial.seed) not in missing]
    found = by_arm(small(), 6, kept)
    assert found["base"].test.n == found["C"].test.n == 5
    assert found["C"].comparison.n == found["C"].speedup.n == 4
    assert found["C"].comparison.difference == pytest.approx((1.1 + 1 + 1.1 + 1) / 4)


def test_without_a_base_there_is_nothing_to_compare_with():
    rows = [row for row in made_up(small(), 6, VALUES) if row.roles[0].arm != "base"]
    assert lines(small(), ("SGD",), 6, rows) == []


def test_diverged_runs_are_counted_and_never_dropped():
    values = {**VALUES, "C": [91, 0, 93, 0, 95, 96]}
    bad = {"diverged": True, "test": 0.0, "valid": 0.0}
    found = by_arm(small(), 6, made_up(small(), 6, values, C={1: bad, 3: bad}))
    assert found["C"].diverged == 2
    assert found["C"].test.n == 6
    assert found["C"].comparison.difference < -20
    assert found["C"].reach.times[1] is found["C"].reach.times[3] is None
    assert found["C"].reach.times[2] == 2


def test_the_target_and_the_speedup_come_from_the_curves():
    defaults = small(epochs=11)
    values = {"base": [90.0] * 6, "C": [170.0] * 6, "C-step": [50.0] * 6}
    found = by_arm(defaults, 6, made_up(defaults, 6, values))
    # From 10 to 90: the target 89.2 is reached in the last of 11 epochs, by twice the slope in the sixth.
    assert found["base"].reach.median == 11
    assert found["C"].reach.median == 6
    assert found["C"].speedup.text == "1.83x"
    assert found["C-step"].reach.median is None
    assert found["C-step"].speedup.text.startswith("at most")


def test_a_base_that_learns_nothing_sets_no_target():
    values = {"base": [10.0] * 6, "C": [50.0] * 6, "C-step": [10.0] * 6}
    found = by_arm(small(), 6, made_up(small(), 6, values))
    assert found["C"].reach is None
    assert found["C"].speedup is None
    lost = {place: {"initial_valid": None} for place in range(6)}
    assert by_arm(small(), 6, made_up(small(), 6, VALUES, base=lost))["C"].reach is None


def test_step_times_are_told_against_the_base():
    found = by_arm(small(), 6, made_up(small(), 6, VALUES))
    assert found["base"].cost.to_base == 1
    assert found["C"].cost.to_base == pytest.approx(3)


@pytest.mark.parametrize("width, dropped", [(80, True), (140, False)])
def test_the_table_reads_well_in_a_narrow_terminal_too(monkeypatch, capsys, width, dropped):
    monkeypatch.setattr(console, "_width", width)
    bad = {"diverged": True, "test": 0.0}
    tables.print_compare(lines(small(), ("SGD",), 6, made_up(small(), 6, VALUES, C={1: bad})), "accuracy")
    text = capsys.readouterr().out
    assert max(map(len, text.splitlines())) <= width
    assert ("P(better)" not in text) == dropped
    assert "SGD, step of _C" in text
    assert "identical" in text
    assert "\n  1 diverged" in text


def test_a_very_narrow_terminal_folds_and_cuts_nothing(monkeypatch, capsys):
    monkeypatch.setattr(console, "_width", 60)
    tables.print_compare(lines(small(), ("SGD",), 6, made_up(small(), 6, VALUES)), "accuracy")
    assert "…" not in capsys.readouterr().out


# -- real runs ---------------------------------------------------------------------------------------------------------


def test_real_runs_make_a_table(tmp_path):
    defaults = small()
    with Ledger.open(tmp_path / "runs.db", write=True, create=True) as book:
        run_jobs(planned(defaults, ("SGD",), 2), book, executor="inline")
        rows = book.rows(task=defaults.task, track=compare.TRACK)
    found = by_arm(defaults, 2, rows)
    assert len(rows) == 6
    for name, line in found.items():
        values = [row.summary["test"] for row in rows if row.roles[0].arm == name]
        assert line.test.mean == pytest.approx(np.mean(values))
        assert line.test.n == 2


def test_the_command_prints_the_table_and_writes_the_page(tmp_path, monkeypatch, capsys):
    from critgrad.cli import main

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("critgrad.paper.protocol.defaults.load_defaults", lambda task: replace(small(), task=task))
    words = ["compare", "digits-mlp@tiny", "--seeds", "2", "--families", "SGD", "--workers", "1"]
    # Processes are another test's matter.
    monkeypatch.setattr("critgrad.lab.run.coordinator.open_executor", _inline)
    assert main(words) == 0
    said = capsys.readouterr().out
    assert "6 runs on 2 seeds" in said
    assert "minus base" in said
    assert "report: report.html" in said
    assert (tmp_path / "report.html").stat().st_size > 10_000
    assert main([*words, "--no-report"]) == 0
    again = capsys.readouterr().out
    assert "report:" not in again
    assert "to go" not in again


def _inline(name, **options):
    from critgrad.lab.run.executors.base import open_inline

    return open_inline(None, "cpu", {})
