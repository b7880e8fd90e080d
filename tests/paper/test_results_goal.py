"""The table of the goal: what counts as won, and what a run is worth when it ends sooner."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from critgrad.lab.stats import Interval
from critgrad.paper.results_page.findings import Findings, gather
from critgrad.paper.results_page.goal import NINE, GoalCell, _at_equal_time, _line, _value_after, cells
from critgrad.paper.results_page.judged import families, replaced
from critgrad.paper.results_page.rules import HOLDS, NOT_SEEN, NOT_TESTED, six_wins

RESULTS = Path(__file__).parents[2] / "results"


def run(valid: list[float], test: list[float], diverged: bool = False) -> Any:
    curves = {"valid": valid, "valid_loss": [0.0] * len(valid), "test": test}
    return SimpleNamespace(summary={"diverged": diverged, "test": -1.0}, curves=curves)


def test_a_run_that_ends_sooner_has_the_test_value_of_its_best_epoch_so_far() -> None:
    row = run([1, 3, 2, 5], [10, 30, 20, 50])
    assert [_value_after(row, epochs, True) for epochs in (1, 2, 3, 4, 9)] == [10, 30, 30, 50, 50]
    assert _value_after(row, 4, False) == 10
    assert _value_after(run([], [], diverged=True), 3, True) == -1.0


def arm(seconds: float | None, name: str = "rival", by_seed: dict[int, float] | None = None) -> Any:
    cost = None if seconds is None else SimpleNamespace(epoch_seconds=seconds, by_seed=by_seed or {7: seconds})
    return SimpleNamespace(family="Adam", arm=name, cost=cost, epochs=4, values=(50.0, 51.0), keys=("a", "b"))


@pytest.mark.parametrize(
    "ours, rival, epochs", [(1.0, 1.0, 4), (2.0, 1.0, 2), (1.01, 1.0, 3), (9.0, 1.0, 1), (0.5, 1.0, 4)]
)
def test_ours_has_the_epochs_that_fit_into_the_rivals_time(ours: float, rival: float, epochs: int) -> None:
    rows: Any = {key: run([1, 2, 3, 4], [10, 20, 30, 60]) for key in "ab"}
    outcome: Any = SimpleNamespace(registration=SimpleNamespace(higher_is_better=True))
    found, taken, around = _at_equal_time(outcome, arm(ours), arm(rival), rows)
    assert taken == (epochs, 4)
    assert found is not None
    assert not around  # one timed seed has no range
    assert found.mean == pytest.approx([10, 20, 30, 60][epochs - 1] - 50.5)


def test_a_tuned_momentum_is_timed_by_its_base_and_nothing_is_guessed() -> None:
    rows: Any = {key: run([1, 2], [10, 20]) for key in "ab"}
    registration = SimpleNamespace(higher_is_better=True)
    known: Any = SimpleNamespace(registration=registration, arm=lambda family, name: arm(1.0, name=name))
    untimed: Any = SimpleNamespace(registration=registration, arm=lambda family, name: None)
    assert _at_equal_time(known, arm(2.0), arm(None), rows)[1] == (2, 4)
    assert _at_equal_time(untimed, arm(2.0), arm(None), rows) == (None, None, {})
    assert _at_equal_time(known, arm(None), arm(1.0), rows) == (None, None, {})


def test_the_epochs_by_the_timed_runs_of_each_seed_stand_around_those_by_their_median() -> None:
    rows: Any = {key: run([1, 2, 3, 4], [10, 20, 30, 60]) for key in "ab"}
    outcome: Any = SimpleNamespace(registration=SimpleNamespace(higher_is_better=True))
    ours = arm(1.3, by_seed={1: 1.0, 2: 2.0, 3: 9.0})
    _, taken, around = _at_equal_time(outcome, ours, arm(1.0, by_seed={2: 1.0, 1: 1.0}), rows)  # seed 3 has no pair
    assert taken == (3, 4)
    assert {epochs: found.mean for epochs, found in around.items()} == pytest.approx({2: -30.5, 3: -20.5, 4: 9.5})


def test_a_task_is_won_at_equal_wall_clock_too_or_not_at_all() -> None:
    better: Any = SimpleNamespace(verdict="better")
    undecided: Any = SimpleNamespace(verdict="open")
    above, around = Interval(1.0, 0.5, 1.5, 7), Interval(0.1, -0.5, 0.7, 7)
    assert GoalCell("ptb-lstm", "Adam", found=better, clock=above).won is True
    assert GoalCell("ptb-lstm", "Adam", found=better, clock=around).won is False
    assert GoalCell("ptb-lstm", "Adam", found=better).won is None
    assert GoalCell("ptb-lstm", "Adam", found=undecided, clock=above).won is False
    assert GoalCell("ptb-lstm", "Adam").won is None
    assert GoalCell("multiwoz-roberta", "Adam").won is False


def test_a_win_that_single_timed_runs_would_take_back_says_so() -> None:
    above, around = Interval(1.0, 0.5, 1.5, 7), Interval(0.1, -0.5, 0.7, 7)
    row = {"interval": above, "p_holm": 0.01, "arm": "NAdam_F", "rival": "Adam"}
    better: Any = SimpleNamespace(verdict="better", **row)
    undecided: Any = SimpleNamespace(verdict="open", **row)

    def shown(found: Any, clock: Interval, others: dict[int, Interval]) -> tuple[bool | None, str, str]:
        cell = GoalCell("ptb-lstm", "Adam", found=found, clock=clock, epochs=(18, 20), around=others)
        line = _line(cell)
        return cell.won, line[5].partition(" (")[2].rstrip(")"), line[6]

    single = "18 epochs for 20; 17 to 19 by single timed runs"
    assert shown(better, above, {}) == (True, "18 epochs for 20", "yes")
    assert shown(better, above, {18: above}) == (True, "18 epochs for 20; 18 by single timed runs", "yes")
    assert shown(better, above, {17: above, 18: above, 19: above}) == (True, single, "yes")
    found = shown(better, above, {17: around, 18: above, 19: above})
    assert found == (True, f"{single}; not at 17", "yes, but not at 17 epochs")
    assert shown(better, around, {17: around, 18: around, 19: above}) == (
        False,
        f"{single}; at 19",
        "no, but at 19 epochs",
    )
    assert shown(undecided, above, {17: around, 18: above, 19: above}) == (False, single, "no")


def test_the_verdict_waits_for_both_families() -> None:
    six = [True] * 6 + [False] * 3
    assert six_wins({"Adam": six, "SGDM": six}).verdict == HOLDS
    assert six_wins({"Adam": six, "SGDM": [True] * 5 + [False] * 3 + [None]}).verdict == NOT_TESTED
    assert six_wins({"Adam": six, "SGDM": [None] * 5 + [False] * 4}).verdict == NOT_SEEN


@pytest.fixture(scope="module")
def published() -> Findings:
    return gather(sorted(RESULTS.glob("*.db.xz")))


def test_what_was_asked_again_stands_in_the_first_ones_place_and_nothing_else_of_it_goes(published: Findings) -> None:
    judged = [found for role in ("F-rival", "F-tensor") for found in families(published)[role].rows]
    rows = {found.row.family: found.row for found in judged if found.row.task == "ptb-lstm@b420"}
    names = {cell.family: cell.name for cell in cells(published) if cell.task == "ptb-lstm"}
    experiments = {outcome.name: outcome for outcome in published.outcomes}
    for family, name in (("Adam", "ptb-lstm@b420+finer"), ("SGDM", "ptb-lstm@b420")):
        arms = {row.family: row for row in experiments[name].primary}
        assert names[family] == name
        assert rows[f"{family}_F-rival"].difference == arms[f"{family}_F-rival"].difference
    assert len(judged) == len({(found.row.task, found.row.family) for found in judged})
    assert [(found.outcome.name, found.row.family) for found in replaced(published)] == [
        ("ptb-lstm@b420", "Adam_F-rival")
    ]


def test_the_published_table_has_every_task_with_both_families_and_both_numbers_where_it_was_timed(
    published: Findings,
) -> None:
    found = cells(published)
    assert [(cell.task, cell.family) for cell in found] == [
        (task, family) for family in ("Adam", "SGDM") for task in NINE
    ]
    for cell in found:
        if cell.found is None:
            assert cell.why
        elif cell.epochs is not None and cell.clock is not None and cell.epochs[0] == cell.epochs[1]:
            assert cell.clock.mean == pytest.approx(cell.found.difference, abs=1e-3)


def test_the_difference_to_each_rival_stands_beside_the_one_to_the_best_on_the_tuning_seeds(
    published: Findings,
) -> None:
    for cell in cells(published):
        if cell.found is not None:
            each = dict(cell.to_each)
            assert len(each) == len(cell.to_each) == 3
            assert each[cell.found.rival].mean == pytest.approx(cell.found.difference)
