"""The sign-flip test counts what a plain loop over all signs counts; Holm by hand."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from critgrad.lab.stats import holm, sign_flip
from critgrad.lab.stats.signflip import sign_flip_rows


def by_loop(differences):
    seen = abs(sum(differences))
    hits = [
        abs(sum(s * d for s, d in zip(signs, differences))) >= seen - 1e-9 * sum(map(abs, differences))
        for signs in itertools.product((1, -1), repeat=len(differences))
    ]
    return sum(hits) / len(hits)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(-20, 20).map(lambda k: k / 10), min_size=1, max_size=9))
def test_p_is_the_share_of_all_signs_that_reach_as_far(differences):
    assert sign_flip(differences).p == pytest.approx(by_loop(differences), abs=1e-15)


@pytest.mark.parametrize("n", [1, 2, 5, 12, 13, 20])
def test_many_at_once_equals_one_by_one(n):
    rows = np.round(np.random.default_rng(n).normal(size=(12, n)), 1)
    assert sign_flip_rows(rows).tolist() == pytest.approx([sign_flip(row).p for row in rows], abs=1e-15)


@pytest.mark.parametrize("n, smallest", [(1, 1.0), (5, 0.0625), (6, 0.03125), (10, 2 / 1024), (20, 2.0**-19)])
def test_all_seeds_won_gives_the_smallest_p(n, smallest):
    found = sign_flip(np.linspace(0.1, 2.0, n))
    assert found.p == found.smallest == smallest
    assert found.exact


def test_twenty_equal_differences_are_a_binomial():
    # Of 20 equal sizes 15 positive: the sum is 10, reached by 15 or more heads and by 5 or fewer.
    p = 2 * sum(math.comb(20, k) for k in range(15, 21)) / 2**20
    assert sign_flip([1.0] * 15 + [-1.0] * 5).p == pytest.approx(p, rel=1e-12)


def test_zeros_change_nothing_but_the_smallest_p():
    plain, padded = sign_flip([1.0, 2.0, -0.5]), sign_flip([1.0, 0.0, 2.0, 0.0, -0.5])
    assert plain.p == padded.p
    assert (plain.smallest, padded.smallest, padded.n) == (0.25, 0.25, 5)
    nothing = sign_flip([0.0, 0.0])
    assert (nothing.p, nothing.smallest) == (1.0, 1.0)


def test_equal_differences_that_differ_in_their_last_bits_are_ties():
    noisy = [63.4 - 63.1, 60.2 - 59.9, -(61.5 - 61.2), 0.3]
    assert len({abs(d) for d in noisy}) > 1
    assert sign_flip(noisy).p == sign_flip([0.3, 0.3, -0.3, 0.3]).p == 0.625


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(-100, 100, allow_subnormal=False), min_size=1, max_size=10), st.floats(0.01, 100))
def test_p_ignores_the_overall_sign_and_scale_and_is_never_below_the_smallest(differences, scale):
    found = sign_flip(differences)
    assert found.smallest <= found.p <= 1
    assert sign_flip([-d for d in differences]).p == found.p


def test_beyond_the_exact_range_signs_are_drawn_reproducibly_and_near_the_exact_p():
    differences = np.random.default_rng(1).normal(0.35, 1.0, size=24)
    exact = sign_flip(differences)
    drawn = sign_flip(differences, exact_up_to=20)
    assert exact.exact
    assert not drawn.exact
    assert drawn == sign_flip(differences, exact_up_to=20)
    # Five standard errors of 100,000 draws.
    assert drawn.p == pytest.approx(exact.p, abs=5 * (exact.p / 1e5) ** 0.5)
    assert sign_flip(np.ones(50)).p == sign_flip(np.ones(50)).smallest == 1 / 100_001


def test_holm_by_hand():
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.5, 0.6]) == [1.0, 1.0]
    assert holm([]) == []


def test_holm_leaves_out_what_cannot_be_tested():
    assert holm([None, 0.02, None, 0.03]) == pytest.approx([None, 0.04, None, 0.04])
    assert holm([None]) == [None]


@settings(max_examples=80, deadline=None)
@given(st.lists(st.one_of(st.none(), st.floats(0, 1)), max_size=12))
def test_holm_keeps_the_order_and_lies_between_p_and_bonferroni(ps):
    found = holm(ps)
    count = sum(p is not None for p in ps)
    pairs = sorted((p, q) for p, q in zip(ps, found) if p is not None)
    assert all(p <= q <= min(1.0, count * p) + 1e-12 for p, q in pairs)
    assert [q for _, q in pairs] == sorted(q for _, q in pairs)
    assert [q is None for q in found] == [p is None for p in ps]


def test_holm_refuses_what_is_no_probability():
    with pytest.raises(ValueError, match=r"1\.5"):
        holm([1.5])
