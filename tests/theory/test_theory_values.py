"""The listed values, the reductions and the refusals."""

import itertools
import math
import subprocess
import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from critgrad import theory
from critgrad.memory.aggregations import AGGREGATIONS, Linear
from critgrad.theory.quadratic import spectral_radius

MEMORIES = [("sum", 5), ("mean", 5), ("mid", 5), ("sum", 1), ("mean", 20)]


def test_gains_are_those_of_the_aggregations():
    assert theory.gains("sum", 5) == (2, 1, 1)
    assert theory.gains("mean", 4) == pytest.approx((1, 4 / 5, 1 / 5))
    assert theory.gains("mid", 7) == (1, 1 / 2, 1 / 2)
    assert theory.gains("max", 7, kappa=0.5) == (1.5, 0.5, 1)
    for aggr in ("sum", "mean", "mid", "min", "median", "max"):
        assert theory.gains(aggr, 0) == (1, 0, 1)
        assert theory.gains(aggr, 5, kappa=0.0) == (1, 0, 1)


@pytest.mark.parametrize("aggr", ["sum", "mean", "mid"])
@pytest.mark.parametrize("kappa", [1.0, 0.3])
def test_window_weights_are_what_the_library_does_with_a_full_memory(aggr, kappa):
    from critgrad.memory.aggregations import adding_weights

    scale, share = adding_weights(aggr, kappa, torch.tensor([4]), torch.tensor([True]))
    weights = theory.window_weights(aggr, 4, kappa)
    assert weights == pytest.approx([scale.item()] + [scale.item() * share.item()] * 4)
    assert sum(weights) == pytest.approx(theory.gains(aggr, 4, kappa).S)


@given(topC=st.integers(1, 30), extra=st.integers(0, 60), aggr=st.sampled_from(["sum", "mean", "mid"]))
def test_tails_sum_to_the_weighted_delay(topC, extra, aggr):
    tau = topC + extra
    tails = theory.tail_weights(aggr, topC, tau)
    W = theory.gains(aggr, topC).W
    assert sum(tails) == pytest.approx(W * (tau - (topC - 1) / 2))
    assert all(a >= b for a, b in itertools.pairwise(tails))
    assert all(a <= b for a, b in zip(tails, theory.tail_weights(aggr, topC, tau, full=False)))


@given(st.data())
def test_no_memory_of_distinct_ages_has_heavier_tails(data):
    tau = data.draw(st.integers(1, 12))
    topC = data.draw(st.integers(1, 12))
    t = data.draw(st.integers(1, 30))
    reach = min(t, tau)  # ages there can be at step t
    n = min(topC, reach)  # the memory fills from the first step on
    ages = data.draw(st.lists(st.integers(1, reach), min_size=n, max_size=n, unique=True))
    aggr = data.draw(st.sampled_from(["sum", "mean", "mid"]))
    W = theory.gains(aggr, n).W
    for j, bound in enumerate(theory.tail_weights(aggr, topC, tau), start=1):
        assert W / n * sum(age >= j for age in ages) <= bound + 1e-12


@pytest.mark.parametrize(
    "aggr, topC, expected",
    [
        ("mean", 5, 0.8038),
        ("sum", 5, 2.2327),
        ("sum", 1, 1.0),
        ("sum", 2, 2.0),
        ("sum", 3, 2.2041),
        ("sum", 20, 2.0),
        ("mean", 1, 2.0),
        ("mean", 50, 0.0967),
    ],
)
def test_exact_limit_of_a_moving_window(aggr, topC, expected):
    assert theory.max_stable_lr(0.1, 1.0, aggr=aggr, topC=topC, method="quadratic") == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("topC", [1, 2, 5, 13, 50])
def test_exact_limit_of_mean_has_a_closed_form(topC):
    n = topC + 1
    limit = theory.max_stable_lr(0.1, 4.0, aggr="mean", topC=topC, method="quadratic")
    assert limit * 4 == pytest.approx(2 * n * math.sin(math.pi / (2 * n)) ** 2)


@pytest.mark.parametrize("tau", [1, 2, 7, 40])
def test_one_frozen_stale_gradient_halves_the_limit_of_sgd_whatever_its_age(tau):
    weights = [1.0, *[0.0] * (tau - 1), 1.0]
    assert theory.max_stable_lr(0.1, 1.0, weights=weights, method="quadratic") == pytest.approx(1.0)


weight_lists = st.lists(st.floats(0.0, 1.0), min_size=1, max_size=7).map(lambda tail: [1.0, *tail])


@settings(deadline=None, max_examples=60)
@given(weights=weight_lists, momentum=st.sampled_from([0.0, 0.5, 0.9]))
def test_exact_limit_is_where_a_root_reaches_the_unit_circle(weights, momentum):
    limit = theory.max_stable_lr(0.1, 1.0, weights=weights, momentum=momentum, method="quadratic")
    a = torch.tensor([0.5, 0.97, 0.999], dtype=torch.float64) * limit
    w = torch.tensor(weights, dtype=torch.float64)
    assert (spectral_radius(a, w, momentum) < 1).all()
    assert spectral_radius(torch.tensor([1.001 * limit], dtype=torch.float64), w, momentum).item() > 1


@settings(deadline=None, max_examples=40)
@given(weights=weight_lists, share=st.floats(0.05, 0.95), momentum=st.sampled_from([0.0, 0.0, 0.7]))
def test_certificates_for_any_memory_are_never_below_the_exact_rate(weights, share, momentum):
    lr = share * theory.max_stable_lr(0.2, 1.0, weights=weights, momentum=momentum)
    exact = theory.rate(lr, 0.2, 1.0, weights=weights, momentum=momentum, method="quadratic")
    assert exact.valid
    for method in ("pl", "norm", "window"):
        certificate = theory.rate(lr, 0.2, 1.0, weights=weights, momentum=momentum, method=method)
        if certificate.valid:
            assert exact.norm_rate <= certificate.norm_rate + 1e-9
    best = theory.rate(lr, 0.2, 1.0, weights=weights, momentum=momentum, quadratic=True)
    assert best.method == "quadratic"


def test_the_worst_curvature_may_lie_inside_the_interval():
    weights = [1.0, 0.0, 0.0, 0.9]
    inside = theory.rate(0.5, 0.02, 1.0, weights=weights, method="quadratic").rate
    w = torch.tensor(weights, dtype=torch.float64)
    grid = spectral_radius(0.5 * torch.linspace(0.02, 1.0, 2000, dtype=torch.float64), w)
    assert inside >= grid.max().item() - 1e-9


def test_pl_limits():
    # S = 2, D = 1, and S = 1, D = 2.5
    assert theory.max_stable_lr(0.1, 1.0, aggr="sum", topC=1, tau=1) == pytest.approx(0.41421, abs=1e-5)
    assert theory.max_stable_lr(0.1, 1.0, aggr="mean", topC=5, tau=5) == pytest.approx(0.32792, abs=1e-5)
    table = {("sum", 1, 2): 0.309, ("sum", 1, 3): 0.240, ("sum", 1, 5): 0.164, ("sum", 2, 3): 0.271}
    table |= {("mean", 2, 2): 0.618, ("mean", 2, 3): 0.446, ("mean", 2, 4): 0.346}
    for (aggr, topC, tau), expected in table.items():
        limit = theory.max_stable_lr(0.1, 2.0, aggr=aggr, topC=topC, tau=tau)
        assert limit * 2 == pytest.approx(expected, abs=1e-3)


@pytest.mark.parametrize("aggr, topC", MEMORIES)
@pytest.mark.parametrize("method", ["pl", "norm", "window"])
def test_there_is_a_certificate_right_up_to_the_limit_and_none_beyond(aggr, topC, method):
    memory = {"aggr": aggr, "topC": topC, "tau": topC + 3, "method": method}
    limit = theory.max_stable_lr(0.3, 1.0, **memory)
    if method == "window" and aggr == "mean":
        assert limit == 0
        assert not theory.rate(0.01, 0.3, 1.0, **memory).valid
        return
    assert theory.rate((0.99 if method != "window" else 0.5) * limit, 0.3, 1.0, **memory).valid
    assert not theory.rate(1.001 * limit, 0.3, 1.0, **memory).valid


@pytest.mark.parametrize("method", ["pl", "quadratic", "norm"])
@pytest.mark.parametrize("S", [1.0, 2.0])
def test_without_delay_every_rate_is_that_of_sgd(method, S):
    certificate = theory.rate(0.1, 0.1, 1.0, weights=[S], method=method)
    assert certificate.rate == pytest.approx(1 - 0.1 * 0.1 * S)
    assert certificate.constant in (1.0, None)


@pytest.mark.parametrize("method", ["pl", "quadratic", "norm", "window"])
@pytest.mark.parametrize("empty", [{"topC": 0}, {"tau": 0}])
def test_an_empty_memory_is_sgd(method, empty):
    assert theory.rate(0.1, 0.1, 1.0, method=method, **empty).rate == pytest.approx(0.99)


def test_small_steps_have_the_rate_of_sgd_at_the_effective_step():
    tau = theory.staleness_bound(5, 0.7, norm_ratio=10)
    certificate = theory.rate(0.03, 0.1, 1.0, aggr="sum", topC=5, tau=tau)
    assert certificate.rate == pytest.approx(1 - theory.effective_lr(0.03, "sum", 5) * 0.1)
    # The first step has no memory yet.
    assert certificate.constant == pytest.approx((1 - 0.03 * 0.1) / (1 - 0.06 * 0.1))


def test_momentum_is_a_longer_kernel():
    # The composite weights of SGD with momentum gamma, cut where nothing is left.
    gamma, lr = 0.5, 0.05
    by_hand = theory.rate(lr, 0.1, 1.0, weights=[gamma**k for k in range(60)])
    assert theory.rate(lr, 0.1, 1.0, topC=0, momentum=gamma).rate == pytest.approx(by_hand.rate)
    exact = theory.rate(lr, 0.1, 1.0, topC=0, momentum=gamma, method="quadratic")
    assert exact.rate == pytest.approx(
        theory.rate(lr, 0.1, 1.0, weights=[gamma**k for k in range(60)], method="quadratic").rate
    )


def test_momentum_has_the_gain_and_the_delay_of_its_composite_weights():
    gamma = 0.5
    window = theory.window_weights("sum", 3)
    composite = [sum(gamma ** (k - i) * w for i, w in enumerate(window[: k + 1])) for k in range(70)]
    limit = theory.max_stable_lr(0.1, 1.0, aggr="sum", topC=3, tau=3, momentum=gamma)
    assert limit == pytest.approx(theory.max_stable_lr(0.1, 1.0, weights=composite))
    with_momentum = theory.rate(0.95 * limit, 0.1, 1.0, aggr="sum", topC=3, tau=3, momentum=gamma)
    assert with_momentum.rate == pytest.approx(theory.rate(0.95 * limit, 0.1, 1.0, weights=composite).rate)


def test_window_theorem_values():
    for a, tau, expected in [(0.3, 10, 0.99820), (0.6, 3, 0.99283), (0.6, 10, 0.999996), (0.02, 10, 0.9981)]:
        rate = theory.rate(a, 1.0, 1.0, aggr="sum", topC=1, tau=tau, method="window").rate
        assert rate == pytest.approx(expected, abs=5e-5 if expected < 0.999 else 5e-7)


def test_auto_takes_the_best_for_quadratics_and_pl_otherwise():
    memory = {"aggr": "sum", "topC": 5, "tau": 20}
    assert theory.rate(0.01, 0.1, 1.0, **memory).method == "pl"
    assert theory.rate(0.01, 0.1, 1.0, quadratic=True, **memory).method == "pl"
    assert theory.rate(0.5, 0.1, 1.0, quadratic=True, **memory).method == "window"
    assert theory.rate(0.5, 0.1, 1.0, aggr="sum", topC=5, tau=5, quadratic=True).method == "quadratic"
    assert theory.rate(0.5, 0.1, 1.0, aggr="fisher").method == "damped"
    assert theory.max_stable_lr(0.1, 1.0, quadratic=True, **memory) == 1.0
    assert theory.max_stable_lr(0.1, 2.0, aggr="fisher") == 0.5
    assert theory.max_stable_lr(0.1, 2.0, aggr="fisher", momentum=0.9) == 0


def test_no_certificate_means_rate_inf_and_a_reason():
    for arguments in (
        {"lr": 0.5, "aggr": "mean", "topC": 5, "tau": 20},
        {"lr": 0.1, "aggr": "sum", "topC": 5, "tau": math.inf},
        {"lr": 0.1, "aggr": "sum", "topC": 5, "tau": math.inf, "quadratic": True},
        {"lr": 1.01, "aggr": "sum", "topC": 1, "tau": 2, "method": "window"},
        {"lr": 0.1, "aggr": "sum", "topC": 5, "tau": 9, "method": "quadratic"},
        {"lr": 2.5, "aggr": "sum", "topC": 5, "method": "quadratic"},
        {"lr": 0.1, "aggr": "sum", "topC": 5, "tau": 9, "momentum": 0.9, "method": "norm"},
        {"lr": 0.1, "aggr": "sum", "topC": 5, "tau": 9, "momentum": 0.9, "method": "window"},
        {"lr": 1.1, "aggr": "fisher"},
        {"lr": 0.1, "aggr": "fisher", "momentum": 0.9},
        {"lr": 1e-20, "topC": 0},  # 1 - lr mu rounds to 1
    ):
        certificate = theory.rate(mu=0.1, L=1.0, **arguments)
        assert certificate.rate == math.inf
        assert not certificate.valid
        assert certificate.reason
        assert certificate.bound(100) == math.inf


def test_a_certificate_cannot_claim_a_rate_of_one():
    for rate in (1.0, 1.5, math.inf, math.nan, -0.1):
        with pytest.raises(ValueError, match="rate"):
            theory.Certificate(rate=rate, metric="F-gap")
    with pytest.raises(ValueError, match="inf"):
        theory.Certificate(rate=0.9, metric="F-gap", valid=False)
    with pytest.raises(ValueError, match="metric"):
        theory.Certificate(rate=0.9, metric="speed")


def test_matched_momentum_values():
    for aggr, topC, expected in [
        ("sum", 5, (0.6, 0.8)),
        ("sum", 20, (0.84, 0.32)),
        ("mean", 5, (0.714, 0.286)),
        ("mean", 20, (0.909, 0.091)),
        ("sum", 0, (0.0, 1.0)),
    ]:
        assert theory.matched_momentum(aggr=aggr, topC=topC) == pytest.approx(expected, abs=1e-3)
        weights = theory.window_weights(aggr, topC)
        assert theory.matched_momentum(weights) == pytest.approx(theory.matched_momentum(aggr=aggr, topC=topC))


@given(weights=weight_lists)
def test_matched_momentum_matches_gain_and_delay(weights):
    beta, lr_mult = theory.matched_momentum(weights)
    S, D = sum(weights), sum(k * w for k, w in enumerate(weights))
    assert lr_mult / (1 - beta) == pytest.approx(S)
    assert beta / (1 - beta) == pytest.approx(D / S)


def test_gains_are_those_of_the_record_in_the_table(monkeypatch):
    half = Linear(
        "half", lambda kappa, n: (2 / (2 + kappa), kappa / (2 * n))
    )  # (2 g + kappa * mean of M) / (2 + kappa)
    monkeypatch.setitem(AGGREGATIONS, "half", half)
    assert theory.gains("half", 5) == pytest.approx((1.0, 1 / 3, 2 / 3))


def test_effective_step():
    assert theory.effective_lr(0.1, "sum", 5) == 0.2
    assert theory.effective_lr(0.1, "mean", 5) == 0.1
    assert theory.effective_lr(0.1, "sum", 0) == 0.1
    assert theory.effective_lr(0.1, "sum", 5, momentum=0.9) == pytest.approx(2.0)
    assert theory.effective_lr(0.1, "sum", 5, kappa=0.5) == pytest.approx(0.15)


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: theory.rate(-1.0, 0.1, 1.0, topC=0), "lr"),
        (lambda: theory.rate(0.1, 2.0, 1.0, topC=0), "mu"),
        (lambda: theory.rate(0.1, 0.0, 1.0, topC=0), "mu"),
        (lambda: theory.rate(0.1, 0.1, 1.0), "tau is needed"),
        (lambda: theory.rate(0.1, 0.1, 1.0, tau=-1), "tau"),
        (lambda: theory.rate(0.1, 0.1, 1.0, tau=2.5), "tau"),
        (lambda: theory.rate(0.1, 0.1, 1.0, tau=5, method="magic"), "method"),
        (lambda: theory.rate(0.1, 0.1, 1.0, tau=5, method="damped"), "damped"),
        (lambda: theory.rate(0.1, 0.1, 1.0, aggr="fisher", method="pl"), "damped"),
        (lambda: theory.rate(0.1, 0.1, 1.0, tau=5, momentum=1.0), "momentum"),
        (lambda: theory.rate(0.1, 0.1, 1.0, weights=[]), "weights"),
        (lambda: theory.rate(0.1, 0.1, 1.0, weights=[1.0, -0.5]), "weights"),
        (lambda: theory.rate(0.1, 0.1, 1.0, aggr="average", tau=5), "aggr"),
        (lambda: theory.gains("fisher", 5), "damping_bounds"),
        (lambda: theory.gains("sum", -1), "topC"),
        (lambda: theory.window_weights("max", 3), "one entry"),
        (lambda: theory.tail_weights("sum", 3, -1), "tau"),
        (lambda: theory.matched_momentum([1.0], ages=[1]), "not both"),
        (lambda: theory.staleness_bound(5, 1.5), "decay"),
        (lambda: theory.staleness_bound(5, 0.5, norm_ratio=0), "norm_ratio"),
        (lambda: theory.staleness_bound(5, 0.5, norm_ratio=2, norm_decay=2), "norm_decay"),
        (lambda: theory.damping_bounds(0.0), "rho"),
        (lambda: theory.damping_bounds(0.1, kappa=2.0), "kappa"),
        (lambda: theory.noise_floor(0.1, 0.1, 1.0, -1.0, topC=0), "sigma2"),
        (lambda: theory.noise_floor(0.1, 0.1, 1.0, 1.0, topC=0, selection="luck"), "selection"),
        (lambda: theory.noise_floor(0.1, 0.1, 1.0, 1.0, topC=0, method="norm"), "method"),
        (lambda: theory.noise_floor(0.1, 0.1, 1.0, 1.0, aggr="fisher", method="pl"), "damped"),
    ],
)
def test_errors_name_what_was_wrong(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_theory_needs_neither_numpy_nor_scipy():
    code = (
        "import sys\n"
        "for name in ('numpy', 'scipy', 'cvxpy', 'clarabel'):\n"
        "    sys.modules[name] = None  # importing it raises ImportError\n"
        "from critgrad import theory\n"
        "theory.summary()\n"
        "theory.rate(0.1, 0.1, 1.0, topC=3, method='quadratic')\n"
        "theory.noise_floor(0.1, 0.1, 1.0, 1.0, topC=3, method='quadratic')\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_extra_is_named_where_it_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "cvxpy", None)
    monkeypatch.setitem(sys.modules, "clarabel", None)
    for method in ("lmi", "pep"):
        with pytest.raises(ImportError, match=r"pip install critgrad\[theory\]"):
            theory.rate(0.1, 0.1, 1.0, topC=1, tau=1, method=method)
        with pytest.raises(ImportError, match=r"pip install critgrad\[theory\]"):
            theory.max_stable_lr(0.1, 1.0, topC=1, tau=1, method=method)
