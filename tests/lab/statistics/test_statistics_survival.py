"""Time to target, with runs that never get there."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from critgrad.lab.stats import kaplan_meier, speedup, target_value, time_to_target

LIMIT = 50.0
times = st.lists(st.one_of(st.none(), st.integers(1, 50).map(float)), min_size=1, max_size=9)


def test_target_is_99_percent_of_the_way_to_the_median_best():
    assert target_value(0.0, [90.0, 100.0, 300.0], True) == pytest.approx(99)
    assert target_value(1000.0, [200.0, 100.0], False) == pytest.approx(1000 - 0.99 * 850)
    assert target_value(10.0, [20.0], True, fraction=0.5) == 15


@pytest.mark.parametrize("best, higher", [([5.0], True), ([15.0], False), ([10.0], True)])
def test_a_base_that_did_not_learn_gives_no_target(best, higher):
    with pytest.raises(ValueError, match="No target"):
        target_value(10.0, best, higher)


def test_the_first_epoch_at_or_beyond_the_target_counts_even_if_the_run_falls_back():
    assert time_to_target([1.0, 5.0, 2.0, 9.0], 5.0, True) == 2
    assert time_to_target([9.0, 5.0, 7.0], 5.0, False) == 2
    assert time_to_target([9.0, 8.0], 5.0, False) is None
    assert time_to_target([], 5.0, False) is None


def test_other_clocks_and_no_interpolation():
    assert time_to_target([0.0, 10.0], 5.0, True, times=[100, 200]) == 200
    with pytest.raises(ValueError, match="2 values and 1 times"):
        time_to_target([0.0, 10.0], 5.0, True, times=[1])
    with pytest.raises(ValueError, match="increase"):
        time_to_target([0.0, 10.0], 5.0, True, times=[2, 1])


def test_values_that_are_not_finite_reach_nothing():
    assert time_to_target([math.nan, math.inf, 7.0], 5.0, True) == 3
    assert time_to_target([-math.inf, math.nan], 5.0, False) is None


def test_kaplan_meier_by_hand_with_early_censoring():
    # At 2: 1 of 5. One leaves at 3. At 4: 1 of 3. One leaves at 5. At 6: 1 of 1.
    found = kaplan_meier([2.0, None, 4.0, None, 6.0], [6.0, 3.0, 6.0, 5.0, 6.0])
    assert found.times == (2, 4, 6)
    assert found.at_risk == (5, 3, 1)
    assert found.waiting == pytest.approx((0.8, 0.8 * 2 / 3, 0.0))
    assert found.restricted_mean == pytest.approx(2 + 0.8)  # up to 3, the shortest limit


@settings(max_examples=60, deadline=None)
@given(times)
def test_with_one_limit_kaplan_meier_is_the_plain_share_and_its_area_the_mean_of_cut_times(observed):
    found = kaplan_meier(observed, LIMIT)
    for t, waiting in zip(found.times, found.waiting):
        assert waiting == pytest.approx(sum(o is None or o > t for o in observed) / len(observed))
    assert found.restricted_mean == pytest.approx(np.mean([LIMIT if o is None else o for o in observed]))


def test_speedup_without_censoring_is_the_median_ratio():
    found = speedup([10.0, 20.0, 10.0], [20.0, 30.0, 30.0], LIMIT)
    assert found.bound == "exact"
    assert found.ratio_low == found.ratio_high == pytest.approx(2)
    assert (found.earlier, found.later, found.undecided, found.p) == (3, 0, 0, 0.25)
    assert found.saved.mean == pytest.approx(40 / 3)
    assert found.low == pytest.approx(1.5)
    assert found.high == pytest.approx(3)


def test_of_two_middle_ratios_the_geometric_mean_counts():
    assert speedup([10.0, 20.0], [20.0, 10.0], LIMIT).ratio_low == pytest.approx(1)


@pytest.mark.parametrize(
    "arm, rival, text, decided",
    [
        ([10.0] * 3, [None] * 3, "at least 5.00x", (3, 0, 0)),
        ([None] * 3, [10.0] * 3, "at most 0.20x", (0, 3, 0)),
        ([None] * 3, [None] * 3, "unknown", (0, 0, 3)),
        ([10.0, 10.0, 10.0], [20.0, 20.0, None], "2.00x", (3, 0, 0)),  # the bound lies above the median anyway
        ([10.0, 25.0, None], [20.0, None, 30.0], "2.00x", (2, 1, 0)),  # 2, at least 2, at most 0.6
    ],
)
def test_where_censoring_decides_the_median_says_so(arm, rival, text, decided):
    found = speedup(arm, rival, LIMIT)
    assert found.text == text
    assert (found.earlier, found.later, found.undecided) == decided


def test_a_bound_on_each_side_of_the_median_leaves_a_range():
    # 2 exactly, at least 1.25, at most 4: the median may be anything from 1.25 to 4.
    found = speedup([10.0, 40.0, None], [20.0, None, 200.0], [50.0, 50.0, 50.0], [50.0, 50.0, 300.0])
    assert (found.ratio_low, found.ratio_high, found.bound) == (pytest.approx(1.25), pytest.approx(4), "between")
    assert found.text == "1.25x to 4.00x"


def test_censored_counts_as_later_than_an_arrival_at_the_very_limit():
    found = speedup([50.0], [None], LIMIT)
    assert (found.earlier, found.undecided) == (1, 0)
    assert found.text == "at least 1.00x"


def test_with_limits_of_their_own_a_censored_run_is_later_only_if_it_had_the_time():
    # The rival was stopped at 20; the arm arrived at 30: nobody knows who is sooner.
    found = speedup([30.0], [None], 50.0, 20.0)
    assert (found.earlier, found.later, found.undecided) == (0, 0, 1)
    assert found.text == "at least 0.67x"
    assert found.saved.mean == 0  # within the first 20 epochs neither gained anything


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 100), st.integers(1, 100)), min_size=1, max_size=9))
def test_the_range_always_holds_the_ratio_that_no_censoring_would_have_shown(pairs):
    arm, rival = ([float(t) for t in side] for side in zip(*pairs))
    whole = speedup(arm, rival, 100.0, draws=50)
    cut = speedup([t if t <= LIMIT else None for t in arm], [t if t <= LIMIT else None for t in rival], LIMIT, draws=50)
    assert cut.ratio_low <= whole.ratio_low * (1 + 1e-9)
    assert cut.ratio_high >= whole.ratio_high * (1 - 1e-9)
    assert cut.low <= whole.low * (1 + 1e-9)
    assert cut.high >= whole.high * (1 - 1e-9)
    assert cut.earlier <= whole.earlier
    assert cut.later <= whole.later


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(*[st.one_of(st.none(), st.integers(1, 50).map(float))] * 2), min_size=1, max_size=9))
def test_exchanging_the_sides_inverts_everything(pairs):
    arm, rival = (list(side) for side in zip(*pairs))
    there, back = speedup(arm, rival, LIMIT, draws=50), speedup(rival, arm, LIMIT, draws=50)

    def inverse(x):
        return math.inf if x == 0 else 1 / x

    assert back.ratio_low == pytest.approx(inverse(there.ratio_high))
    assert back.low == pytest.approx(inverse(there.high))
    assert (back.earlier, back.later, back.p) == (there.later, there.earlier, there.p)
    assert back.saved.mean == pytest.approx(-there.saved.mean)


def test_impossible_times_are_refused():
    with pytest.raises(ValueError, match="limit"):
        speedup([60.0], [10.0], LIMIT)
    with pytest.raises(ValueError, match="limit"):
        kaplan_meier([0.0], LIMIT)
    with pytest.raises(ValueError, match="same seeds"):
        speedup([1.0], [1.0, 2.0], LIMIT)
