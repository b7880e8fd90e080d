"""Noise floors, and the bias of a memory that is selected by norms."""

import itertools
import math

import pytest
import torch
from simulate import at_random, newest, quadratic, run

from critgrad import theory
from critgrad.reference import ReferenceMemory


def outliers(generator, *shape):
    """Mean 0, variance 1: 3 with probability 0.1, -1/3 otherwise. Least squares on ten samples, one an outlier."""
    return torch.where(torch.rand(*shape, generator=generator, dtype=torch.float64) < 0.1, 3.0, -1 / 3)


def noisy(grad, generator, size=1.0):
    return lambda x: grad(x) + size * outliers(generator, *x.shape)


def settled(F):
    """The mean over the second half of all runs."""
    return F[len(F) // 2 :].mean().item()


@pytest.mark.parametrize("lr", [0.01, 0.1])
def test_the_floor_of_sgd(lr):
    assert theory.noise_floor(lr, 0.5, 2.0, 3.0, topC=0) == pytest.approx(lr * 2.0 * 3.0 / (2 * 0.5))
    exact = theory.noise_floor(lr, 1.0, 1.0, 1.0, topC=0, method="quadratic")
    assert exact == pytest.approx(lr / (2 * (2 - lr)))
    assert exact <= theory.noise_floor(lr, 1.0, 1.0, 1.0, topC=0)


def test_a_moving_window_has_practically_the_floor_of_sgd_at_its_effective_step():
    floor = theory.noise_floor(0.02, 1.0, 1.0, 1.0, aggr="sum", topC=5, method="quadratic")
    assert floor == pytest.approx(0.01004, abs=1e-5)
    sgd = theory.noise_floor(theory.effective_lr(0.02, "sum", 5), 1.0, 1.0, 1.0, topC=0, method="quadratic")
    assert sgd == pytest.approx(0.01020, abs=1e-5)


@pytest.mark.parametrize("aggr, topC, lr", [("sum", 5, 0.1), ("mean", 3, 0.2), ("sum", 1, 0.3)])
def test_the_exact_floor_is_what_a_moving_window_has(aggr, topC, lr):
    generator = torch.Generator().manual_seed(2)
    x = torch.zeros(2000, 1, dtype=torch.float64)
    path = run(noisy(lambda x: x, generator), x, lr, 200, aggr, topC, topC, newest)
    exact = theory.noise_floor(lr, 1.0, 1.0, 1.0, aggr=aggr, topC=topC, method="quadratic")
    assert settled((path**2).sum(-1) / 2) == pytest.approx(exact, rel=0.03)


@pytest.mark.parametrize("aggr, topC, tau", [("sum", 5, 5), ("mean", 3, 3), ("sum", 3, 8), ("mean", 3, 6)])
def test_the_floor_for_memories_that_do_not_look_at_the_noise(aggr, topC, tau):
    problem = quadratic(0.3, 1.0, d=3)
    generator = torch.Generator().manual_seed(3)
    memory = {"aggr": aggr, "topC": topC, "tau": tau}
    for share in (0.1, 0.6):
        lr = share * theory.max_stable_lr(problem.mu, problem.L, **memory)
        floor = theory.noise_floor(lr, problem.mu, problem.L, 3.0, selection="oblivious", **memory)
        x = torch.zeros(200, 3, dtype=torch.float64)
        path = run(noisy(problem.grad, generator), x, lr, 250, aggr, topC, tau, at_random)
        assert settled(problem.F(path)) <= floor < math.inf


def test_the_floor_of_oblivious_selection_vanishes_with_the_step_and_that_of_norms_does_not():
    memory = {"aggr": "sum", "topC": 5, "tau": 11}
    ratios = [
        theory.noise_floor(lr, 1.0, 1.0, 1.0, selection="oblivious", **memory) / lr for lr in (1e-3, 1e-4, 1e-5, 1e-6)
    ]
    assert all(a >= b for a, b in itertools.pairwise(ratios))
    assert theory.noise_floor(1e-6, 1.0, 1.0, 1.0, **memory) == pytest.approx(11 / 5 / 8, rel=1e-2)
    assert theory.noise_floor(1e-6, 1.0, 1.0, 1.0, noise_bound=1.2, **memory) == pytest.approx(1.2**2 / 8, rel=1e-2)


def reference_gap(lr, steps, noise="outliers", begin=0.0, **options):
    """The settled F-gap of ``x^2 / 2`` with noise, and the mean of x, for SGD with a reference memory."""
    generator = torch.Generator().manual_seed(4)
    memory = ReferenceMemory(**options)
    zeta = outliers(generator, steps, 1)
    if noise == "symmetric":
        zeta = torch.randn(steps, 1, generator=generator, dtype=torch.float64)
    x = torch.full((1,), begin, dtype=torch.float64)
    seen = []
    for t in range(steps):
        g = x + zeta[t] * (x.abs() if noise == "vanishing" else 1.0)
        x = x - lr * memory.direction(g)
        memory.insert(g)
        seen.append(x)
    half = torch.cat(seen)[steps // 2 :]
    return (half**2).mean().item() / 2, half.mean().item()


def test_norms_select_noise_and_the_memory_is_biased():
    tau = 30
    for aggr in ("sum", "mean"):
        gap, where = reference_gap(0.01, 3000, topC=5, decay=0.99, aggr=aggr, max_age=tau)
        assert where < -0.3
        for bound in (None, 3.0):
            assert gap <= theory.noise_floor(0.01, 1.0, 1.0, 1.0, aggr=aggr, topC=5, tau=tau, noise_bound=bound)
    fifo, where = reference_gap(0.01, 3000, topC=5, policy="FIFO", aggr="sum")
    assert abs(where) < 0.05
    assert fifo <= theory.noise_floor(0.01, 1.0, 1.0, 1.0, aggr="sum", topC=5, tau=5)


def test_symmetric_noise_and_noise_that_vanishes_at_the_optimum_leave_no_bias():
    memory = {"topC": 5, "decay": 0.9, "aggr": "sum"}
    assert reference_gap(0.01, 3000, **memory)[1] < -0.25
    assert abs(reference_gap(0.01, 3000, noise="symmetric", **memory)[1]) < 0.1
    assert reference_gap(0.05, 1000, noise="vanishing", begin=1.0, **memory)[0] < 1e-6


def test_the_biased_limit_does_not_depend_on_the_step():
    for lr, steps in [(0.1, 3000), (0.01, 4000), (0.003, 9000)]:
        gap, where = reference_gap(lr, steps, topC=5, decay=0.99, aggr="sum")
        assert gap == pytest.approx(0.5, abs=0.06)
    assert where == pytest.approx(-1.0, abs=0.05)


def test_no_floor_where_there_is_no_certificate():
    memory = {"aggr": "sum", "topC": 5}
    assert theory.noise_floor(0.1, 1.0, 1.0, 1.0, tau=math.inf, **memory) == math.inf
    assert theory.noise_floor(0.9, 1.0, 1.0, 1.0, tau=20, **memory) == math.inf
    # Fixed weights only, and oblivious ones.
    assert theory.noise_floor(0.01, 1.0, 1.0, 1.0, tau=20, method="quadratic", **memory) == math.inf
    assert theory.noise_floor(2.5, 1.0, 1.0, 1.0, method="quadratic", **memory) == math.inf
    assert theory.noise_floor(1.5, 1.0, 1.0, 1.0, aggr="fisher") == math.inf


def test_quadratics_take_the_smaller_floor():
    memory = {"aggr": "sum", "topC": 5, "tau": 5}
    both = theory.noise_floor(0.02, 0.1, 1.0, 1.0, quadratic=True, **memory)
    assert both == theory.noise_floor(0.02, 0.1, 1.0, 1.0, method="quadratic", **memory)
    assert both < theory.noise_floor(0.02, 0.1, 1.0, 1.0, **memory)
