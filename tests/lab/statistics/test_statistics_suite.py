"""Probability of improvement and the interquartile mean over a suite."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from critgrad.lab.stats import interquartile_mean, normalised, probability_of_improvement, suite_difference, suite_score
from critgrad.lab.stats.bootstrap import percentile_interval

values = st.lists(st.integers(-5, 5).map(float), min_size=2, max_size=8)


def test_improvement_by_hand_with_ties_as_halves():
    arm, rival = [3.0, 1.0, 2.0, 5.0], [1.0, 1.0, 4.0, 2.0]
    assert probability_of_improvement(arm, rival).value == 2.5 / 4
    # 3 beats 1, 1, 2; 1 ties 1, 1; 2 beats 1, 1 and ties 2; 5 beats all.
    assert probability_of_improvement(arm, rival, paired=False).value == (3 + 1 + 2.5 + 4) / 16
    assert probability_of_improvement(arm, rival, higher_is_better=False).value == 1.5 / 4


@settings(max_examples=50, deadline=None)
@given(values, values, st.booleans())
def test_improvement_of_arm_over_rival_and_back_is_one(arm, rival, paired):
    if paired:
        arm, rival = arm[: len(rival)], rival[: len(arm)]
    there = probability_of_improvement(arm, rival, paired=paired, draws=50)
    back = probability_of_improvement(rival, arm, paired=paired, draws=50)
    lower = probability_of_improvement(arm, rival, paired=paired, higher_is_better=False, draws=50)
    assert there.value + back.value == pytest.approx(1)
    assert lower.value == back.value
    assert 0 <= there.low <= there.value <= there.high <= 1


def test_ten_wins_in_ten_are_not_certainty():
    found = probability_of_improvement(np.arange(10) + 1, np.arange(10))
    assert (found.value, found.high) == (1, 1)
    assert found.low**10 == pytest.approx(0.025)
    lost = probability_of_improvement(np.arange(10), np.arange(10) + 1)
    assert (lost.low, lost.high) == (0, pytest.approx(1 - found.low))


def test_unpaired_interval_equals_a_bootstrap_by_hand():
    rng = np.random.default_rng(3)
    arm, rival = rng.normal(0.5, 1, 8), rng.normal(0, 1, 6)
    found = probability_of_improvement(arm, rival, paired=False, draws=4000)
    a, b = arm[rng.integers(0, 8, (4000, 8))], rival[rng.integers(0, 6, (4000, 6))]
    low, high = np.quantile((a[:, :, None] > b[:, None, :]).mean((1, 2)), [0.025, 0.975])
    assert (found.low, found.high) == pytest.approx((low, high), abs=0.04)


def test_the_same_values_give_the_same_interval_and_leave_the_global_stream_alone():
    np.random.seed(0)
    before = np.random.get_state()[1].tolist()
    arm, rival = [1.0, 3.0, 2.0, 4.0], [2.0, 1.0, 1.0, 5.0]
    assert probability_of_improvement(arm, rival) == probability_of_improvement(arm, rival)
    assert suite_score({"a": arm}) == suite_score({"a": arm})
    assert np.random.get_state()[1].tolist() == before


def test_percentiles_are_samples_and_lie_outwards():
    assert percentile_interval(np.array([3.0, -np.inf, 1.0, 2.0, np.inf]), 0.5) == (1.0, 3.0)
    assert percentile_interval(np.array([-np.inf, 1.0, np.inf]), 0.95) == (-np.inf, np.inf)
    with pytest.raises(ValueError, match=r"1\.2"):
        percentile_interval(np.zeros(3), 1.2)


def test_interquartile_mean_ignores_the_outer_quarters():
    assert interquartile_mean({"a": [-1e9, 1.0, 2.0, 1e9]}) == 1.5
    assert interquartile_mean({"a": [5.0]}) == 5
    # Six values: the border ones count half. (0.5 * 2 + 3 + 4 + 0.5 * 5) / 3
    assert interquartile_mean({"a": [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]}) == pytest.approx(3.5)
    assert interquartile_mean({"a": [0.0, 2.0, 3.0, 4.0, 9.0, 9.0]}) == pytest.approx((1 + 3 + 4 + 4.5) / 3)


def test_a_task_with_more_seeds_weighs_no_more():
    few = {"cheap": [1.0, 2.0], "dear": [5.0, 9.0]}
    many = {"cheap": [1.0, 2.0] * 10, "dear": [5.0, 9.0]}
    assert interquartile_mean(many) == pytest.approx(interquartile_mean(few)) == pytest.approx(3.5)


@settings(max_examples=40, deadline=None)
@given(st.lists(values, min_size=1, max_size=4), st.integers(-9, 9), st.integers(1, 9))
def test_interquartile_mean_follows_shift_and_scale_and_stays_in_range(tasks, shift, scale):
    scores = {str(i): task for i, task in enumerate(tasks)}
    moved = {name: [scale * v + shift for v in task] for name, task in scores.items()}
    plain = interquartile_mean(scores)
    assert interquartile_mean(moved) == pytest.approx(scale * plain + shift, abs=1e-9)
    assert min(map(min, tasks)) - 1e-9 <= plain <= max(map(max, tasks)) + 1e-9


def test_the_bootstrap_is_stratified_tasks_never_trade_places():
    # Within a task nothing varies, so nothing may vary after resampling either.
    found = suite_score({"a": [0.0] * 5, "b": [1.0] * 5, "c": [2.0] * 5, "d": [9.0] * 5})
    assert found.low == found.value == found.high == pytest.approx(1.5)
    assert found.tasks == 4


def test_pairing_takes_the_seeds_luck_out_of_the_difference():
    luck = np.random.default_rng(0).normal(0, 10, size=(3, 10))
    small = np.random.default_rng(1).normal(0, 0.1, size=(3, 10))
    rival = {str(i): row for i, row in enumerate(luck)}
    arm = {str(i): row + 1 for i, row in enumerate(luck + small)}
    found = suite_difference(arm, rival)
    assert found.low < 1 < found.high
    assert found.high - found.low < 1
    assert suite_score(arm).high - suite_score(arm).low > 5


def test_suites_of_different_tasks_or_seeds_are_refused():
    with pytest.raises(ValueError, match=r"\['b'\]"):
        suite_difference({"a": [1.0]}, {"a": [1.0], "b": [2.0]})
    with pytest.raises(ValueError, match="2 seeds of the arm and 1"):
        suite_difference({"a": [1.0, 2.0]}, {"a": [1.0]})
    with pytest.raises(ValueError, match="no task"):
        interquartile_mean({})


def test_normalised_scores_rise_towards_the_reference_in_both_directions():
    assert normalised([100.0, 60.0, 20.0], worst=100.0, reference=60.0).tolist() == [0, 1, 2]
    assert normalised([10.0, 60.0], worst=10.0, reference=60.0).tolist() == [0, 1]
    with pytest.raises(ValueError, match="worst 1"):
        normalised([1.0], worst=1.0, reference=1.0)
