"""The signed-rank test against scipy, against all signs counted one by one, and against itself: test, interval, power."""

import itertools
import math

import numpy as np
import pytest

from critgrad.lab.stats import signed_rank as sr
from critgrad.lab.stats.signed_rank import signed_rank


def samples(n: int, count: int = 20) -> np.ndarray:
    rng = np.random.default_rng(n)
    return rng.standard_t(2, size=(count, n)) + rng.normal(size=(count, 1))


@pytest.mark.parametrize("n", [1, 2, 5, 6, 7, 10, 13, 25, 40])
def test_p_is_scipys_where_nothing_is_tied(n):
    scipy_stats = pytest.importorskip("scipy.stats")
    for row in samples(n):
        assert signed_rank(row).p == pytest.approx(scipy_stats.wilcoxon(row, method="exact").pvalue, rel=1e-9)


@pytest.mark.parametrize("n", [5, 6, 8, 10, 17])
def test_the_interval_leaves_zero_outside_exactly_where_p_is_below_five_percent(n):
    seen = set()
    for row in (*samples(n, 60), *np.round(samples(n, 60)), *np.round(2 * samples(n, 60)) / 2):
        found = signed_rank(row)
        outside = found.low > 0 or found.high < 0
        assert outside == (found.p < 0.05)
        assert found.low <= found.estimate <= found.high
        seen.add(outside)
    assert seen == ({False} if n == 5 else {False, True})


def test_the_ends_are_where_the_test_of_a_shift_changes_its_mind():
    row = samples(9, 1)[0]
    found = signed_rank(row)
    for end, inwards in ((found.low, 1e-6), (found.high, -1e-6)):
        assert signed_rank(row - end - inwards).p >= 0.05 > signed_rank(row - end + inwards).p


def every_sign(values: list[float]) -> float:
    """The share of all signs whose p is below .05, with the sizes as they are: the test's level on data with ties."""
    ps = [
        signed_rank([s * v for s, v in zip(signs, values)]).p
        for signs in itertools.product((1, -1), repeat=len(values))
    ]
    return float(np.mean([p < 0.05 for p in ps]))


@pytest.mark.parametrize(
    "sizes",
    [
        [1, 2, 3, 4, 5, 6, 7, 8, 9],
        [1, 1, 1, 1, 1, 1, 1, 1, 1],
        [0, 0, 1, 2, 3, 4, 5, 5, 5],
        [0, 0, 0, 0, 0, 0, 0, 0, 3],
        [1, 1, 2, 2, 3, 3, 4, 4, 4],
    ],
    ids=str,
)
def test_ties_and_zeros_never_raise_the_level(sizes):
    assert every_sign([float(size) for size in sizes]) <= 0.05


def test_p_without_ties_is_the_share_of_signs_with_a_smaller_sum_of_ranks():
    row = np.array([0.3, -0.1, 0.8, 1.1, -0.2, 0.9, 0.5])
    ranks = np.abs(row).argsort().argsort() + 1
    seen = min(ranks[row < 0].sum(), ranks[row > 0].sum())
    sums = [sum(itertools.compress(ranks, signs)) for signs in itertools.product((0, 1), repeat=7)]
    assert signed_rank(row).p == 2 * np.mean([s <= seen for s in sums])


def test_differences_of_one_size_are_tied_though_their_last_bits_differ():
    assert 63.4 - 63.1 != -(59.9 - 60.2)
    exact = signed_rank([1.0, 2.0, 3.0, 4.0, 5.0, -1.0])
    assert signed_rank([63.4 - 63.1, 0.6, 0.9, 1.2, 1.5, 59.9 - 60.2]).p == exact.p


def test_one_far_value_hardly_moves_the_verdict():
    near = [0.9, 1.0, 1.1, 1.2, 0.8, 1.05, 0.95, 1.15]
    far = [*near[:-1], 1000.0]
    assert signed_rank(far).p == signed_rank(near).p == 2 / 2**8
    assert signed_rank(far).estimate == pytest.approx(1.0, abs=0.1)
    assert sr.spread(far) < 3 * sr.spread(near)


def test_five_differences_have_no_interval():
    found = signed_rank([1.0, 2.0, 3.0, 4.0, 5.0])
    assert (found.low, found.high, found.p) == (-math.inf, math.inf, 0.0625)


@pytest.mark.parametrize("claims", [1, 3])
@pytest.mark.parametrize("effect", [0.0, 0.7, 1.5])
def test_the_power_is_what_fresh_samples_show(effect, claims):
    rng = np.random.default_rng(7)
    rows = rng.normal(effect, 1.0, size=(1500, 9))
    found = [signed_rank(row) for row in rows]
    share = np.mean([one.p < 0.05 / claims and one.estimate > 0 for one in found])
    assert sr.power(effect, 9, claims) == pytest.approx(share, abs=0.04)
    inside = np.mean([one.low >= -1.2 and one.high <= 1.2 for one in found])
    assert sr.power_of_same(effect, 1.2, 9) == pytest.approx(inside, abs=0.04)


def test_plans_agree_with_their_power():
    for claims in (1, 6):
        n = sr.needed_for_better(0.9, claims)
        assert sr.power(0.9, n, claims) >= 0.8 > sr.power(0.9, n - 1, claims)
        assert sr.detectable(1.0, n, claims) <= 0.9 < sr.detectable(1.0, n - 1, claims)
        assert sr.power(sr.detectable(1.0, n, claims) + 1e-9, n, claims) >= 0.8
    n = sr.needed_for_same(0.2, 1.0)
    assert sr.power_of_same(0.2, 1.0, n) >= 0.8 > sr.power_of_same(0.2, 1.0, n - 1)
    assert sr.detectable(3.0, 10) == pytest.approx(3 * sr.detectable(1.0, 10))


@pytest.mark.parametrize("n", [3, 4, 7, 12])
def test_the_spread_of_normal_values_is_their_standard_deviation(n):
    rng = np.random.default_rng(3)
    rows = rng.normal(0.0, 2.0, size=(2000, n))
    assert np.mean([sr.shamos(row) for row in rows]) == pytest.approx(2.0, rel=0.05)
    # It stays below by little: a sample's own standard deviation does, and its far values are pulled in.
    assert 0.85 * 2.0 < np.mean([sr.spread(row) for row in rows]) <= 2.0
