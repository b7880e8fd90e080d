"""Adversarial and real memories never violate a certificate."""

import math

import pytest
import torch
from simulate import ADVERSARIES, PROBLEMS, at_random, greedy, oldest, quadratic, run, run_reference, start

from critgrad import theory

ROUNDING = 1e-9


def holds(values, certificate, first):
    """``values[t] <= bound(t) * first`` for all t; rounding aside."""
    bounds = torch.tensor([certificate.bound(t) for t in range(len(values))], dtype=torch.float64)
    shape = (-1,) + (1,) * (values.dim() - 1)
    return bool((values <= bounds.view(shape) * first * (1 + ROUNDING) + 1e-25).all())


MEMORIES = [("sum", 1, 1), ("sum", 1, 6), ("sum", 5, 12), ("mean", 1, 4), ("mean", 5, 9), ("mid", 3, 10)]


@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda problem: problem.name)
@pytest.mark.parametrize("adversary", ADVERSARIES, ids=lambda adversary: adversary.__name__)
def test_theorem_c_holds_for_any_memory(problem, adversary):
    for aggr, topC, tau in MEMORIES:
        memory = {"aggr": aggr, "topC": topC, "tau": tau}
        for share in (0.4, 0.97):
            lr = share * theory.max_stable_lr(problem.mu, problem.L, **memory)
            certificate = theory.rate(lr, problem.mu, problem.L, **memory)
            path = run(problem.grad, start(4, 5), lr, 80, aggr, topC, tau, adversary)
            assert certificate.valid
            assert holds(problem.F(path), certificate, problem.F(path[0]))


@pytest.mark.parametrize("momentum", [0.5, 0.9])
def test_theorem_c_holds_with_momentum(momentum):
    for problem in PROBLEMS:
        for aggr, topC, tau in [("sum", 2, 5), ("mean", 3, 6), ("sum", 0, 0)]:
            memory = {"aggr": aggr, "topC": topC, "tau": tau, "momentum": momentum}
            lr = 0.95 * theory.max_stable_lr(problem.mu, problem.L, **memory)
            certificate = theory.rate(lr, problem.mu, problem.L, **memory)
            for adversary in (oldest, greedy):
                path = run(problem.grad, start(4, 5), lr, 120, aggr, topC, tau, adversary, momentum)
                assert holds(problem.F(path), certificate, problem.F(path[0]))


@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda problem: problem.name)
@pytest.mark.parametrize(
    "policy, decay", [("KotH", 0.7), ("KotH", 0.99), ("FIFO", 0.7), ("bottomC", 0.9), ("CDS", 0.9)]
)
def test_theorem_c_holds_for_real_memories(problem, policy, decay):
    for aggr in ("sum", "mean", "max"):
        topC, max_age = 4, 9
        memory = {"aggr": aggr, "topC": topC, "tau": topC if policy == "FIFO" else max_age}
        lr = 0.95 * theory.max_stable_lr(problem.mu, problem.L, **memory)
        certificate = theory.rate(lr, problem.mu, problem.L, **memory)
        path, age = run_reference(
            problem.grad, start(1, 5)[0], lr, 50, topC=topC, decay=decay, aggr=aggr, policy=policy, max_age=max_age
        )
        assert age <= memory["tau"]
        assert holds(problem.F(path), certificate, problem.F(path[0]))


def test_the_constant_pays_for_the_first_step_which_has_no_memory():
    # Along the flattest direction the first step of sum shrinks F by (1 - lr mu)^2, which is more than 1 - 2 lr mu.
    problem = quadratic(0.1, 1.0)
    x = torch.tensor([[1.0, 0, 0, 0, 0]], dtype=torch.float64)
    certificate = theory.rate(0.1, 0.1, 1.0, aggr="sum", topC=1, tau=3)
    F = problem.F(run(problem.grad, x, 0.1, 60, "sum", 1, 3, oldest))
    assert (F[1] / F[0]).item() > certificate.rate
    assert holds(F, certificate, F[0])


@pytest.mark.parametrize("aggr", ["sum", "mean"])
def test_theorem_c_holds_for_a_memory_that_is_not_full(aggr):
    # Three slots, of which only one is ever taken.
    for problem in PROBLEMS:
        memory = {"aggr": aggr, "topC": 3, "tau": 8, "full": False}
        lr = 0.97 * theory.max_stable_lr(problem.mu, problem.L, **memory)
        path = run(problem.grad, start(4, 5), lr, 100, aggr, 1, 8, greedy)
        assert holds(problem.F(path), theory.rate(lr, problem.mu, problem.L, **memory), problem.F(path[0]))


def test_kappa_scales_the_memory_in_the_certificate_too():
    problem = PROBLEMS[1]
    for aggr in ("sum", "mean"):
        memory = {"aggr": aggr, "topC": 3, "tau": 8, "kappa": 0.4}
        lr = 0.95 * theory.max_stable_lr(problem.mu, problem.L, **memory)
        assert lr > 0.95 * theory.max_stable_lr(problem.mu, problem.L, aggr=aggr, topC=3, tau=8)
        path = run(problem.grad, start(4, 5), lr, 100, aggr, 3, 8, greedy, kappa=0.4)
        assert holds(problem.F(path), theory.rate(lr, problem.mu, problem.L, **memory), problem.F(path[0]))


def worst_for_one_curvature(a, tau, steps, kind, seed=0):
    """``|x|`` of runs along single curvatures, under a memory of one entry of any age."""
    x = torch.ones(len(a), 1, dtype=torch.float64)
    eta = a[:, None]
    return run(lambda x: eta * x, x, 1.0, steps, "sum", 1, tau, kind, seed=seed).squeeze(-1).abs()


@pytest.mark.parametrize("adversary", [oldest, at_random, greedy], ids=lambda adversary: adversary.__name__)
@pytest.mark.parametrize("tau", [1, 3, 8])
def test_theorem_w_holds_for_any_memory_on_quadratics(adversary, tau):
    # Curvatures over [mu, L] with lr * L up to just below 1.
    for top in (0.1, 0.5, 0.95):
        a = torch.linspace(0.05, top, 12, dtype=torch.float64)
        certificate = theory.rate(1.0, 0.05, top, aggr="sum", topC=1, tau=tau, method="window")
        sizes = worst_for_one_curvature(a, tau, 150, adversary)
        window = torch.stack([sizes[max(0, t - tau) : t + 1].amax(0) for t in range(len(sizes))])
        assert (window[1:] <= window[:-1] * (1 + ROUNDING)).all()
        assert holds(window, certificate, 1.0)


def test_theorem_w_holds_for_partial_memories_and_for_mean_of_one():
    for aggr, kappa, topC in [("sum", 0.5, 3), ("mid", 1.0, 3), ("mean", 1.0, 1), ("mean", 0.25, 4)]:
        for tau in (topC, topC + 4):
            memory = {"aggr": aggr, "topC": topC, "kappa": kappa, "tau": tau, "method": "window"}
            lr = 0.9 * theory.max_stable_lr(0.1, 1.0, **memory)
            certificate = theory.rate(lr, 0.1, 1.0, **memory)
            eta = torch.linspace(0.1, 1.0, 10, dtype=torch.float64)[:, None]
            path = run(lambda x, eta=eta: eta * x, torch.ones_like(eta), lr, 200, aggr, topC, tau, greedy, kappa=kappa)
            sizes = path.squeeze(-1).abs()
            window = torch.stack([sizes[max(0, t - tau) : t + 1].amax(0) for t in range(len(sizes))])
            assert holds(window, certificate, 1.0)


@pytest.mark.parametrize("topC, decay", [(1, 0.9), (5, 0.7), (5, 0.99)])
def test_sum_is_stable_on_quadratics_up_to_one_over_L_whatever_the_staleness(topC, decay):
    problem = quadratic(0.1, 1.0)
    path, _ = run_reference(problem.grad, start(1, 5)[0], 0.99, 300, topC=topC, decay=decay, aggr="sum")
    assert path.abs().max() <= path[0].abs().max() * (1 + ROUNDING)


def test_beyond_one_over_L_a_frozen_entry_diverges():
    a = torch.tensor([1.05], dtype=torch.float64)
    assert worst_for_one_curvature(a, 3, 600, oldest).max() > 100


def test_theorem_n_holds_for_hessians_that_do_not_commute():
    generator = torch.Generator().manual_seed(1)
    mu, L, d, runs = 0.3, 1.0, 3, 20
    for aggr, topC, tau in [("sum", 1, 3), ("mean", 3, 5), ("sum", 2, 4)]:
        memory = {"aggr": aggr, "topC": topC, "tau": tau, "method": "norm"}
        for share in (0.5, 0.95):
            lr = share * theory.max_stable_lr(mu, L, **memory)
            certificate = theory.rate(lr, mu, L, **memory)
            assert certificate.valid

            def grad(x):
                Q = torch.linalg.qr(torch.randn(runs, d, d, generator=generator, dtype=torch.float64))[0]
                eta = mu + (L - mu) * torch.rand(runs, 1, d, generator=generator, dtype=torch.float64).round()
                return ((Q * eta) @ Q.mT @ x[..., None]).squeeze(-1)

            for adversary in (oldest, at_random, greedy):
                path = run(grad, start(runs, d), lr, 100, aggr, topC, tau, adversary)
                assert holds((path**2).sum(-1), certificate, (path[0] ** 2).sum(-1))


@pytest.mark.parametrize("aggr, topC", [("sum", 5), ("mean", 5), ("sum", 1)])
@pytest.mark.parametrize("momentum", [0.0, 0.6])
def test_the_exact_rate_is_the_rate_of_a_moving_window(aggr, topC, momentum):
    memory = {"aggr": aggr, "topC": topC, "momentum": momentum, "method": "quadratic"}
    lr = 0.5 * theory.max_stable_lr(0.05, 1.0, **memory)
    certificate = theory.rate(lr, 0.05, 1.0, **memory)
    eta = torch.logspace(math.log10(0.05), 0, 40, dtype=torch.float64)[:, None]
    path = run(lambda x: eta * x, torch.ones_like(eta), lr, 400, aggr, topC, topC, oldest, momentum).squeeze(-1)
    # Complex roots beat: take the largest of a stretch.
    early, late = path[150:200].abs().amax(0), path[350:400].abs().amax(0)
    assert ((late / early) ** (1 / 200)).max().item() == pytest.approx(certificate.rate, rel=3e-3)


def test_a_memory_that_never_forgets_can_be_slower_than_plain_descent():
    problem = quadratic(0.1, 1.0)

    def rate_of(**options):
        path, _ = run_reference(problem.grad, torch.ones(5, dtype=torch.float64), 0.3, 400, **options)
        F = problem.F(path)
        return (F[400] / F[100]).item() ** (1 / 300)

    plain = (1 - 0.3 * 0.1) ** 2
    assert rate_of(topC=5, decay=0.99, aggr="sum") == pytest.approx(0.986, abs=2e-3)
    assert plain == pytest.approx(0.9409)
    assert rate_of(topC=5, decay=0.7, aggr="sum") == pytest.approx(0.870, abs=5e-3)
