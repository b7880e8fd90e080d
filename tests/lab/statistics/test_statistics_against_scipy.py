"""Everything that scipy can compute too."""

import numpy as np
import pytest

from critgrad.lab.stats import (
    interquartile_mean,
    kaplan_meier,
    mean_interval,
    probability_of_improvement,
    sign_flip,
    speedup,
    t_quantile,
)
from critgrad.lab.stats.simulate import band
from critgrad.lab.stats.student import incomplete_beta

special = pytest.importorskip("scipy.special")
stats = pytest.importorskip("scipy.stats")


@pytest.mark.parametrize("confidence", [0.01, 0.5, 0.9, 0.95, 0.99, 0.999999])
def test_t_quantile(confidence):
    for df in (0.5, 1, 2, 3.7, 4, 9, 19, 100, 999, 1001, 1e5, 1e9):
        assert t_quantile(df, confidence) == pytest.approx(stats.t.ppf((1 + confidence) / 2, df), rel=1e-9)


def test_incomplete_beta():
    for a, b, x in np.random.default_rng(0).uniform(0.01, 1, size=(200, 3)) * [50, 50, 1]:
        assert incomplete_beta(a, b, x) == pytest.approx(special.betainc(a, b, x), rel=1e-10, abs=1e-300)


def test_mean_interval():
    values = np.random.default_rng(1).normal(size=7)
    found = mean_interval(values, 0.9)
    expected = stats.t.interval(0.9, 6, values.mean(), stats.sem(values))
    assert (found.low, found.high) == pytest.approx(expected, rel=1e-10)


@pytest.mark.parametrize("n", [3, 6, 11])
def test_sign_flip_is_the_exact_paired_permutation_test(n):
    differences = np.random.default_rng(n).normal(0.4, 1, size=n)
    expected = stats.permutation_test(
        (differences,), np.sum, permutation_type="samples", n_resamples=np.inf, vectorized=False
    )
    assert sign_flip(differences).p == pytest.approx(expected.pvalue, rel=1e-12)


def test_sign_flip_on_ranks_is_wilcoxon():
    ranks = np.array([1.0, 2, -3, 4, 5, -6, 7, 8, 9, 10])
    assert sign_flip(ranks).p == pytest.approx(stats.wilcoxon(ranks, method="exact").pvalue, rel=1e-12)


def test_unpaired_improvement_is_mann_whitney():
    rng = np.random.default_rng(2)
    arm, rival = rng.integers(0, 6, 9).astype(float), rng.integers(0, 6, 7).astype(float)
    u = stats.mannwhitneyu(arm, rival).statistic
    assert probability_of_improvement(arm, rival, paired=False).value == pytest.approx(u / 63)


def test_interquartile_mean_is_the_trimmed_mean():
    scores = np.random.default_rng(3).normal(size=(4, 6))
    expected = stats.trim_mean(scores, 0.25, axis=None)
    assert interquartile_mean({str(i): row for i, row in enumerate(scores)}) == pytest.approx(expected, rel=1e-12)


def test_kaplan_meier():
    times, limits = [2.0, None, 4.0, None, 6.0, 4.0], [9.0, 3.0, 9.0, 5.0, 9.0, 9.0]
    shown = [limit if t is None else t for t, limit in zip(times, limits)]
    data = stats.CensoredData.right_censored(shown, [t is None for t in times])
    expected = stats.ecdf(data).sf
    found = kaplan_meier(times, limits)
    for t, waiting in zip(found.times, found.waiting):
        assert waiting == pytest.approx(float(expected.evaluate(t)))


def test_the_sign_test_of_speedups_is_binomial():
    found = speedup([5.0] * 8 + [30.0, 40.0], [10.0] * 7 + [None, 20.0, 20.0], 50.0)
    assert (found.earlier, found.later) == (8, 2)
    assert found.p == pytest.approx(stats.binomtest(8, 10).pvalue)


@pytest.mark.parametrize("rows", [2000, 4000])
def test_band(rows):
    low, high = stats.binom.interval(0.99, rows, 0.05)
    assert band(0.05, rows) == (low / rows, high / rows)
