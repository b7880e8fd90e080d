"""The certificates by semidefinite programming (the extra ``theory``)."""

import pytest
import torch
from simulate import at_random, greedy, logistic, oldest, one_sided, run, start

from critgrad import theory

for package in ("cvxpy", "clarabel"):
    pytest.importorskip(package, reason=f"{package} is not installed: pip install critgrad[theory]")


def filled(path, tau, topC):
    """Squared distances from the step on at which the memory is full, over their sum in the window up to it."""
    squares = (path**2).sum(-1)
    begin = max(tau, topC)
    return squares[begin:] / squares[begin - tau : begin + 1].sum(0)


def never_violated(certificate, path, tau, topC):
    ratios = filled(path, tau, topC)
    bounds = torch.tensor([certificate.bound(t) for t in range(len(ratios))], dtype=torch.float64)
    return bool((ratios <= bounds[:, None] * (1 + 1e-6)).all())


@pytest.mark.parametrize("aggr, topC, tau, a, expected", [("sum", 1, 4, 0.3, 0.9398), ("mean", 3, 5, 0.3, 0.9207)])
def test_lmi_values_and_simulated_memories(aggr, topC, tau, a, expected):
    certificate = theory.rate(a, 1.0, 1.0, aggr=aggr, topC=topC, tau=tau, method="lmi")
    assert certificate.rate == pytest.approx(expected, abs=3e-4)
    assert certificate.numerical
    x = torch.ones(20, 1, dtype=torch.float64)
    for adversary in (oldest, at_random, greedy):
        path = run(lambda x: x, x, a, 200, aggr, topC, tau, adversary)
        assert never_violated(certificate, path, tau, topC)


def test_lmi_covers_an_interval_of_curvatures():
    certificate = theory.rate(0.2, 0.2, 1.0, aggr="sum", topC=1, tau=2, method="lmi")
    eta = torch.linspace(0.2, 1.0, 12, dtype=torch.float64)[:, None]
    for adversary in (oldest, at_random, greedy):
        path = run(lambda x: eta * x, torch.ones_like(eta), 0.2, 150, "sum", 1, 2, adversary)
        assert never_violated(certificate, path, 2, 1)


def test_lmi_of_fixed_weights_is_the_exact_rate():
    exact = theory.rate(0.4, 1.0, 1.0, aggr="sum", topC=3, method="quadratic").rate
    certificate = theory.rate(0.4, 1.0, 1.0, aggr="sum", topC=3, tau=3, method="lmi")
    assert exact <= certificate.rate <= exact + 2e-4


def test_lmi_limit():
    # One entry of age 1 is a fixed weight: the exact limit is 1.
    assert theory.max_stable_lr(1.0, 1.0, aggr="sum", topC=1, tau=1, method="lmi") == pytest.approx(1.0, abs=5e-3)


def test_lmi_floor_holds_for_selection_by_norms():
    from test_theory_noise import reference_gap

    floor = theory.noise_floor(0.01, 1.0, 1.0, 1.0, aggr="sum", topC=1, tau=2, method="lmi")
    assert 2 * floor == pytest.approx(0.179, abs=2e-3)
    gap, _ = reference_gap(0.01, 1500, topC=1, decay=0.99, aggr="sum", max_age=2)
    assert gap <= floor


def test_pep_of_gradient_descent():
    assert theory.rate(1.0, 0.1, 1.0, topC=0, method="pep").rate == pytest.approx(0.9, abs=3e-4)
    assert theory.rate(2 / 1.1, 0.1, 1.0, topC=0, method="pep").rate == pytest.approx(9 / 11, abs=3e-4)
    # Units: only lr * L and mu / L matter.
    assert theory.rate(0.25, 0.4, 4.0, topC=0, method="pep").rate == pytest.approx(0.9, abs=3e-4)


@pytest.mark.parametrize("lr, expected", [(0.3, 0.9381), (0.5, 0.9192)])
def test_pep_values_and_simulated_memories(lr, expected):
    memory = {"aggr": "sum", "topC": 1, "tau": 2}
    certificate = theory.rate(lr, 0.1, 1.0, method="pep", **memory)
    assert certificate.rate == pytest.approx(expected, abs=5e-4)
    plain = theory.rate(lr, 0.1, 1.0, **memory)
    assert certificate.norm_rate < plain.norm_rate  # inf where Theorem C has nothing to say
    for problem in (one_sided(0.1, 1.0), logistic(0.1)):
        certified = certificate if problem.L == 1.0 else theory.rate(lr, problem.mu, problem.L, method="pep", **memory)
        for adversary in (oldest, at_random, greedy):
            path = run(problem.grad, start(10, 5), lr, 100, "sum", 1, 2, adversary)
            assert never_violated(certified, path, 2, 1)


def test_pep_limit_is_far_above_that_of_theorem_c():
    memory = {"aggr": "sum", "topC": 1, "tau": 2}
    limit = theory.max_stable_lr(0.1, 1.0, method="pep", **memory)
    assert limit == pytest.approx(0.652, abs=3e-3)
    assert limit > 2 * theory.max_stable_lr(0.1, 1.0, **memory)


def test_no_certificate_where_a_frozen_entry_diverges():
    memory = {"aggr": "sum", "topC": 1, "tau": 3}
    for method in ("lmi", "pep"):
        certificate = theory.rate(1.1, 0.5, 1.0, method=method, **memory)
        assert not certificate.valid
        assert certificate.reason


def test_refusals():
    for method in ("lmi", "pep"):
        assert not theory.rate(0.01, 0.1, 1.0, topC=1, tau=2, momentum=0.5, method=method).valid
        assert not theory.rate(0.01, 0.1, 1.0, topC=1, tau=float("inf"), method=method).valid
        assert theory.max_stable_lr(0.1, 1.0, topC=1, tau=float("inf"), method=method) == 0
    assert not theory.rate(0.01, 1.0, 1.0, topC=1, tau=2, method="pep").valid
    assert not theory.rate(0.01, 0.1, 1.0, topC=1, tau=7, method="pep").valid
    assert not theory.rate(0.01, 0.1, 1.0, aggr="mean", topC=6, tau=12, full=False, method="lmi").valid
    assert theory.noise_floor(0.01, 0.1, 1.0, 1.0, topC=5, tau=float("inf"), method="lmi") == float("inf")
