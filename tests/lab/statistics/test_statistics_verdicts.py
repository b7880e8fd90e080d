"""The rule of words, applied to every combination of interval, test and role."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from critgrad.lab.stats import Pair, judge, margin_of, seeds_needed, sign_flip, unreachable
from critgrad.lab.stats.verdicts import FEWEST_SEEDS

RNG = np.random.default_rng(0)


def pair(differences, *, primary=True, higher=True, task="t", family="f"):
    rival = np.full(len(differences), 50.0)
    arm = rival + differences if higher else rival - differences
    return Pair(task, family, "arm", "rival", arm, rival, higher, primary)


def clear(n):
    return np.linspace(0.9, 1.1, n)


@pytest.mark.parametrize("higher", [True, False])
@pytest.mark.parametrize("sign, verdict", [(1, "better"), (-1, "worse")])
def test_a_clear_difference_is_a_win_or_a_loss_in_both_directions(higher, sign, verdict):
    (row,) = judge([pair(sign * clear(10), higher=higher)])
    assert row.verdict == verdict
    assert row.difference == pytest.approx(sign)
    assert row.poi == (sign + 1) / 2
    assert (row.n, row.testable, row.primary, row.note) == (10, True, True, "")
    assert row.p == row.p_holm == 2 / 1024


def test_an_interval_that_holds_zero_is_a_tie():
    (row,) = judge([pair(np.array([1.0, -1.0, 2.0, -2.0, 0.5, -0.4, 0.1]))])
    assert row.low < 0 < row.high
    assert row.verdict == "open"


def test_five_seeds_are_not_testable_and_the_interval_decides():
    (row,) = judge([pair(clear(5))])
    assert (row.verdict, row.testable, row.p_holm, row.note) == ("better", False, None, "not testable")
    assert row.p == 0.0625
    assert seeds_needed(1) == FEWEST_SEEDS


def test_an_interval_without_zero_is_not_enough_where_the_test_says_otherwise():
    # One seed barely against, the others alike: the t-interval is off 0, two signs of 64 more reach as far.
    differences = np.array([1.0, 1.0, 1.0, 1.0, 1.0, -0.01])
    (row,) = judge([pair(differences)])
    assert row.low > 0
    assert row.p_holm == sign_flip(differences).p == 0.0625
    assert row.verdict == "open"


def test_holm_runs_over_testable_primaries_alone():
    rows = judge(
        [
            pair(clear(10), task="a"),
            pair(clear(10), task="b"),
            pair(clear(5), task="c"),  # not testable
            pair(clear(10), task="a", primary=False),
            pair(clear(10), task="d", primary=False),
        ]
    )
    assert [row.p_holm for row in rows] == [4 / 1024, 4 / 1024, None, None, None]
    assert [row.note for row in rows] == ["", "", "not testable", "descriptive", "descriptive"]
    assert all(row.verdict == "better" for row in rows)


def test_nine_primaries_with_ten_seeds_can_be_won_and_with_eight_cannot():
    ten = judge([pair(clear(10), task=str(i)) for i in range(9)])
    eight = judge([pair(clear(8), task=str(i)) for i in range(9)])
    assert {row.verdict for row in ten} == {"better"}
    assert {row.verdict for row in eight} == {"open"}
    assert unreachable(ten) == []
    assert unreachable(eight) == eight
    assert seeds_needed(9) == 9


def test_unreachable_knows_that_won_tests_make_room_for_the_later_ones():
    # Holm takes 20 and 10 seeds first (3 and 2 tests left), then asks six seeds for 0.03125 < 0.05: reachable.
    rows = judge([pair(clear(n), task=str(n)) for n in (6, 10, 20)])
    assert unreachable(rows) == []
    assert {row.verdict for row in rows} == {"better"}
    two = judge([pair(clear(6), task="a"), pair(clear(6), task="b"), pair(clear(10), task="c")])
    assert [row.task for row in unreachable(two)] == ["a", "b"]


def test_identical_runs_are_a_tie_and_are_named():
    (row,) = judge([pair(np.zeros(10))])
    assert (row.verdict, row.identical, row.p, row.poi, row.note) == ("open", True, 1.0, 0.5, "identical")


def test_one_seed_decides_nothing():
    (row,) = judge([pair(np.array([5.0]))])
    assert (row.verdict, row.testable) == ("open", False)


def test_two_primaries_for_one_task_and_family_are_refused():
    with pytest.raises(ValueError, match="More than one primary"):
        judge([pair(clear(10)), pair(clear(10))])
    judge([pair(clear(10)), pair(clear(10), family="other")])


def test_a_diverged_run_left_unfilled_is_refused():
    broken = dataclasses.replace(pair(clear(6)), arm_values=[1.0, float("nan"), 1.0, 1.0, 1.0, 1.0])
    with pytest.raises(ValueError, match="worst_filled"):
        judge([broken])


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(-10, 10, allow_subnormal=False), min_size=1, max_size=12), st.booleans())
def test_the_verdict_turns_around_with_the_sides_and_wins_need_an_interval_above_zero(differences, primary):
    d = np.round(np.array(differences), 3)
    (there,), (back,) = judge([pair(d, primary=primary)]), judge([pair(-d, primary=primary)])
    assert back.verdict == {"better": "worse", "worse": "better", "open": "open"}[there.verdict]
    assert back.p == there.p
    if there.verdict == "better":
        assert there.low > 0
        assert there.p_holm is None or there.p_holm < 0.05


def test_seeds_needed_refuses_nonsense():
    with pytest.raises(ValueError, match="0 at alpha"):
        seeds_needed(0)


@pytest.mark.parametrize("margin, verdict", [(None, "open"), (0.05, "open"), (2.0, "same")])
def test_values_are_the_same_only_inside_a_margin_that_was_given(margin: float | None, verdict: str) -> None:
    rival = np.random.default_rng(3).normal(90, 1, 12)
    arm = rival + np.random.default_rng(4).normal(0, 0.5, 12)
    one = Pair("task", "Adam_F", "Adam_F", "Adam", arm.tolist(), rival.tolist(), primary=True, margin=margin)
    assert judge([one])[0].verdict == verdict


def test_a_difference_that_the_test_sees_is_called_better_however_small() -> None:
    one = dataclasses.replace(pair(0.1 * clear(12)), margin=5.0)
    assert judge([one])[0].verdict == "better"


def test_a_perplexity_is_learnt_in_its_logarithm() -> None:
    """1 % of the way from 33,278 to 180 would be 331 perplexities: no difference would ever count."""
    assert margin_of(33278.0, 180.0) == pytest.approx(331, abs=1)
    assert margin_of(33278.0, 180.0, logarithmic=True) == pytest.approx(180 * 0.0522, abs=0.01)
