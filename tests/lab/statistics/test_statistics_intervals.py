"""t-intervals of paired differences, and the rule for diverged runs."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from critgrad.lab.stats import direction, mean_interval, paired_difference, t_quantile, worst_filled, worst_value
from critgrad.lab.stats.intervals import interval_rows
from critgrad.lab.stats.student import binomial_tail, incomplete_beta

numbers = st.floats(-1e6, 1e6, allow_subnormal=False)


@pytest.mark.parametrize(
    "df, confidence, expected",
    [
        (1, 0.95, 12.7062047),
        (4, 0.95, 2.7764451),
        (9, 0.95, 2.2621572),
        (9, 0.99, 3.2498355),
        (19, 0.9, 1.7291328),
        (1e6, 0.95, 1.9599664),
        (math.inf, 0.95, 1.9599640),
    ],
)
def test_t_quantile_equals_the_printed_tables(df, confidence, expected):
    assert t_quantile(df, confidence) == pytest.approx(expected, abs=2e-7)


@pytest.mark.parametrize("df", [1, 2, 3, 8, 31])
@pytest.mark.parametrize("confidence", [0.2, 0.95, 0.999])
def test_the_closed_form_for_whole_degrees_of_freedom_gives_the_confidence_back(df, confidence):
    # Abramowitz and Stegun 26.7.3 and 26.7.4: P(|T| < t), exact for whole df.
    theta = math.atan(t_quantile(df, confidence) / math.sqrt(df))
    term, total = math.cos(theta) if df % 2 else 1.0, 0.0
    for k in range(df % 2, df - 1, 2):
        total += term
        term *= math.cos(theta) ** 2 * (k + 1) / (k + 2)
    inside = 2 / math.pi * (theta + math.sin(theta) * total) if df % 2 else math.sin(theta) * total
    assert inside == pytest.approx(confidence, rel=1e-12)


def test_t_quantile_has_closed_forms_for_one_and_two_degrees_of_freedom():
    for c in (0.01, 0.3, 0.5, 0.9, 0.999999):
        assert t_quantile(1, c) == pytest.approx(math.tan(math.pi * c / 2), rel=1e-9)
        assert t_quantile(2, c) == pytest.approx(c * math.sqrt(2 / (1 - c * c)), rel=1e-9)


def test_the_two_branches_of_t_quantile_meet():
    assert t_quantile(1000.0) == pytest.approx(t_quantile(1000.0000001), rel=1e-10)
    assert t_quantile(1000.0, 0.9999) == pytest.approx(t_quantile(1000.0000001, 0.9999), rel=1e-9)


@settings(max_examples=60, deadline=None)
@given(st.floats(0.3, 3000), st.floats(0.01, 0.98))
def test_t_quantile_grows_with_confidence_and_shrinks_with_df(df, confidence):
    assert t_quantile(df, confidence) < t_quantile(df, confidence + 0.01)
    assert t_quantile(df, confidence) > t_quantile(df * 1.5, confidence)


@pytest.mark.parametrize("df, confidence", [(0, 0.95), (-1, 0.95), (math.nan, 0.95), (3, 0.0), (3, 1.0)])
def test_t_quantile_refuses_what_has_no_quantile(df, confidence):
    with pytest.raises(ValueError, match="Invalid"):
        t_quantile(df, confidence)


def test_incomplete_beta_at_its_ends_and_against_the_binomial():
    assert incomplete_beta(2, 3, 0.0) == 0
    assert incomplete_beta(2, 3, 1.0) == 1
    assert incomplete_beta(7, 4, 0.3) == pytest.approx(binomial_tail(7, 10, 0.3), rel=1e-12)


def test_interval_of_hand_computed_values():
    found = mean_interval([1.0, 2.0, 3.0, 4.0, 5.0])
    half = 2.7764451 * math.sqrt(2.5 / 5)
    assert (found.mean, found.n) == (3.0, 5)
    assert (found.low, found.high) == pytest.approx((3 - half, 3 + half), abs=1e-6)
    assert found.half_width == pytest.approx(half, abs=1e-6)
    assert found.excludes_zero


def test_one_value_has_an_infinite_interval_and_excludes_nothing():
    found = mean_interval([7.0])
    assert (found.mean, found.low, found.high) == (7.0, -math.inf, math.inf)
    assert not found.excludes_zero


def test_equal_values_have_an_interval_of_no_width():
    found = mean_interval([0.1] * 7)
    assert found.low == found.mean == found.high == 0.1


def test_many_intervals_at_once_equal_one_by_one():
    values = np.random.default_rng(0).normal(size=(20, 6))
    values[3] = 0.3
    rows = np.stack(interval_rows(values), -1)
    for row, single in zip(rows, values):
        found = mean_interval(single)
        assert row.tolist() == [found.mean, found.low, found.high]


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(numbers, numbers), min_size=1, max_size=12), st.booleans())
def test_exchanging_arm_and_rival_or_the_direction_turns_the_interval_around(pairs, higher):
    arm, rival = zip(*pairs)
    found = paired_difference(arm, rival, higher_is_better=higher)
    for other in (
        paired_difference(rival, arm, higher_is_better=higher),
        paired_difference(arm, rival, higher_is_better=not higher),
    ):
        assert (other.mean, other.low, other.high) == pytest.approx((-found.mean, -found.high, -found.low))
    assert found.low <= found.mean <= found.high


def test_a_positive_difference_means_better_in_both_directions():
    assert paired_difference([90.0, 91.0], [80.0, 82.0], higher_is_better=True).mean == 9.5
    assert paired_difference([1.0, 1.0], [2.0, 3.0], higher_is_better=False).mean == 1.5


def test_more_confidence_is_a_wider_interval():
    values = [1.0, 4.0, 2.0]
    assert mean_interval(values, 0.99).half_width > mean_interval(values, 0.9).half_width


def test_pairs_need_equal_seeds_and_finite_values():
    with pytest.raises(ValueError, match="3 values of the arm and 2"):
        paired_difference([1.0, 2.0, 3.0], [1.0, 2.0])
    with pytest.raises(ValueError, match="worst_filled"):
        paired_difference([1.0, math.nan], [1.0, 2.0])
    with pytest.raises(ValueError, match="at least one value"):
        mean_interval([])


def test_a_diverged_run_is_counted_and_never_dropped():
    filled = worst_filled([0.9, math.nan, math.inf, 0.8], [False, True, False, True], worst=0.0)
    assert filled.tolist() == [0.9, 0.0, 0.0, 0.0]


def test_with_a_direction_nothing_counts_worse_than_a_divergence():
    assert worst_filled([3.0, 1.0], [False] * 2, 2.3, higher_is_better=False).tolist() == [2.3, 1.0]
    assert worst_filled([3.0, 1.0], [False] * 2, 2.3, higher_is_better=True).tolist() == [3.0, 2.3]
    assert worst_filled([3.0, 1.0], [False] * 2, 2.3).tolist() == [3.0, 1.0]


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.floats(), st.booleans()), max_size=12), numbers, st.sampled_from([None, True, False]))
def test_filled_values_are_finite_as_many_and_on_the_right_side(runs, worst, higher):
    filled = worst_filled([v for v, _ in runs], [d for _, d in runs], worst, higher_is_better=higher)
    assert filled.shape == (len(runs),)
    assert np.isfinite(filled).all()
    if higher is not None:
        assert ((filled >= worst) if higher else (filled <= worst)).all()


def test_worst_values_by_metric():
    assert worst_value("accuracy") == worst_value("bleu", initial=3.0) == 0
    assert worst_value("perplexity", initial=10_000.0) == 10_000
    assert [direction(m) for m in ("accuracy", "bleu", "loss", "perplexity")] == [True, True, False, False]
    with pytest.raises(ValueError, match="initial="):
        worst_value("loss")
    with pytest.raises(ValueError, match="'f1'"):
        worst_value("f1")


def test_worst_filled_refuses_a_worst_value_that_is_not_finite_and_missing_marks():
    with pytest.raises(ValueError, match="inf"):
        worst_filled([1.0], [True], math.inf)
    with pytest.raises(ValueError, match="one mark for each value"):
        worst_filled([1.0, 2.0], [True], 0.0)
