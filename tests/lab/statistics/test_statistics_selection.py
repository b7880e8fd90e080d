"""Best-so-far, edges of the search space, and the choice of a trial."""

import itertools
from statistics import mean

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from critgrad.lab.stats import EdgeAxis, at_edge, choose, expected_best

small = st.lists(st.integers(-9, 9).map(float), min_size=1, max_size=7)


@settings(max_examples=40, deadline=None)
@given(small, st.booleans())
def test_expected_best_is_the_mean_over_all_subsets(values, higher):
    found = expected_best(values, higher_is_better=higher)
    best = max if higher else min
    for k, value in zip(found.trials, found.validation):
        assert value == pytest.approx(mean(best(c) for c in itertools.combinations(values, k)), abs=1e-9)
    assert found.test is None


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(-9, 9)), min_size=1, max_size=6))
def test_the_test_value_is_that_of_the_trial_chosen_on_validation_ties_shared(trials):
    validation, test = ([float(v) for v in side] for side in zip(*trials))
    found = expected_best(validation, test, higher_is_better=False)
    for k, value in zip(found.trials, found.test):
        by_subset = []
        for order in itertools.permutations(range(len(trials)), k):  # the first of equals wins: in any order alike
            by_subset.append(test[min(order, key=lambda i: validation[i])])
        assert value == pytest.approx(mean(by_subset), abs=1e-9)


def test_best_of_405_against_best_of_45_gains_what_the_normal_order_statistics_say():
    # The selection gain of nine times the trials, in standard deviations of one trial.
    pool = np.random.default_rng(0).normal(size=3000)
    curve = expected_best(pool[:1200]).validation
    assert curve[404] - curve[44] == pytest.approx(0.76, abs=0.15)


def test_many_trials_neither_overflow_nor_lose_the_end():
    curve = expected_best(list(range(1000))).validation
    assert curve[0] == pytest.approx(499.5)
    assert curve[-1] == 999
    assert all(a <= b + 1e-9 for a, b in itertools.pairwise(curve))


def test_expected_best_needs_a_test_value_for_each_trial():
    with pytest.raises(ValueError, match="2 validation values and 1"):
        expected_best([1.0, 2.0], [1.0])


SPACE = {"lr": EdgeAxis(1e-4, 1.0), "beta": EdgeAxis(0.8, 1.0, "linear")}


@pytest.mark.parametrize(
    "point, edges",
    [
        ({"lr": 1e-2, "beta": 0.9}, {}),
        ({"lr": 1e-4, "beta": 0.9}, {"lr": "low"}),
        ({"lr": 1.5e-4, "beta": 0.9}, {"lr": "low"}),  # within 5 % of four decades
        ({"lr": 2e-4, "beta": 0.9}, {}),
        ({"lr": 2.0, "beta": 0.995}, {"lr": "high", "beta": "high"}),
        ({"lr": 0.0, "beta": 0.9}, {"lr": "low"}),
    ],
)
def test_edges_are_measured_on_the_axis_own_scale(point, edges):
    assert at_edge(point, SPACE) == edges


def test_the_outermost_trial_is_an_edge_even_far_from_the_end_of_the_range():
    tried = [{"lr": lr, "beta": 0.9} for lr in (1e-3, 1e-2, 1e-1)]
    assert at_edge(tried[0], SPACE, tried) == {"lr": "low"}
    assert at_edge(tried[1], SPACE, tried) == {}
    assert at_edge(tried[2], SPACE, tried) == {"lr": "high"}  # beta never varied: not searched


def test_bad_axes_and_points_are_refused():
    with pytest.raises(ValueError, match="'cubic'"):
        EdgeAxis(0.0, 1.0, "cubic")
    with pytest.raises(ValueError, match=r"0\.0 to 1\.0 on a log"):
        EdgeAxis(0.0, 1.0)
    with pytest.raises(ValueError, match="no 'beta'"):
        at_edge({"lr": 0.1}, SPACE)


def test_the_best_mean_is_chosen_in_either_direction():
    trials = {"a": [1.0, 3.0], "b": [2.5, 2.5], "c": [0.0, 1.0]}
    assert choose(trials).key == "b"
    found = choose(trials, higher_is_better=False)
    assert (found.key, found.mean, found.tied) == ("c", 0.5, ("c",))


def test_ties_go_to_the_tie_break_and_then_to_the_first():
    trials = {"a": [0.1, 0.2], "b": [0.3, 0.0], "c": [0.2, 0.1]}
    assert choose(trials).key == "a"
    assert choose(trials).tied == ("a", "b", "c")
    loss = {"a": [3.0, 3.0], "b": [1.0, 2.0], "c": [2.0, 1.0]}
    assert choose(trials, tie_break=loss).key == "b"
    assert choose(trials, tie_break=loss, tie_higher_is_better=True).key == "a"


def test_a_trial_that_lost_a_seed_is_refused():
    with pytest.raises(ValueError, match="worst_filled"):
        choose({"a": [1.0, 2.0], "b": [3.0]})
    with pytest.raises(ValueError, match="No trials"):
        choose({})
