"""Lemma P and Theorem D: the memory that damps has bounds, no delay and no bias."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from simulate import one_sided, quadratic, run_reference, start
from test_theory_noise import reference_gap

from critgrad import theory
from critgrad.reference import Entry, ReferenceMemory


def memory_of(slots, rho, kappa=1.0):
    memory = ReferenceMemory(topC=len(slots), aggr="fisher", rho=rho, kappa=kappa)
    memory.entries = [Entry(1.0, 1.0, i + 1, torch.tensor(s, dtype=torch.float64)) for i, s in enumerate(slots)]
    return memory


@pytest.mark.parametrize(
    "slots, rho, g, expected",
    [
        ([[1, 0]], 0.1, [1, 1], [1 / 11, 1]),
        ([[1, 0, 0], [0, 1, 0]], 0.1, [1, 1, 1], [1 / 6, 1 / 6, 1]),
        ([[2, 0], [1, 1]], 0.25, [1, 1], [0.147541, 0.540984]),
    ],
)
def test_values(slots, rho, g, expected):
    d = memory_of(slots, rho).direction(torch.tensor(g, dtype=torch.float64))
    assert d.tolist() == pytest.approx(expected, abs=1e-6)


numbers = st.floats(-10, 10, allow_subnormal=False)


@settings(deadline=None, max_examples=80)
@given(
    slots=st.lists(st.lists(numbers, min_size=4, max_size=4), min_size=1, max_size=5),
    rho=st.floats(1e-4, 10.0),
    kappa=st.floats(0.0, 1.0),
)
def test_lemma_p_bounds_the_eigenvalues_for_any_memory(slots, rho, kappa):
    memory = memory_of(slots, rho, kappa)
    P = torch.stack([memory.direction(e) for e in torch.eye(4, dtype=torch.float64)])
    values = torch.linalg.eigvalsh((P + P.T) / 2)
    low, high = theory.damping_bounds(rho, kappa)
    assert values.min().item() >= low - 1e-9
    assert values.max().item() <= high + 1e-9


@pytest.mark.parametrize("rho", [1e-5, 0.3, 2.0])
@pytest.mark.parametrize("kappa", [1.0, 0.5])
def test_lemma_p_is_attained_by_parallel_slots(rho, kappa):
    memory = memory_of([[3, 4], [-6, -8]], rho, kappa)
    along = torch.tensor([3, 4], dtype=torch.float64)
    ratio = (memory.direction(along) / along).mean().item()
    assert ratio == pytest.approx(theory.damping_bounds(rho, kappa)[0], rel=1e-9)


def test_bounds_of_the_limits():
    assert theory.damping_bounds(0.3, kappa=0.0) == (1.0, 1.0)
    assert theory.damping_bounds(1e9)[0] == pytest.approx(1.0)
    assert theory.damping_bounds(1e-5)[0] == pytest.approx(1e-5, rel=1e-4)


@pytest.mark.parametrize("topC, decay, policy", [(1, 0.9, "KotH"), (5, 0.99, "KotH"), (5, 1.0, "KotH"), (3, 0.7, "RR")])
@pytest.mark.parametrize("lr", [0.3, 1.0])
def test_theorem_d_holds_for_any_memory_without_a_bound_on_staleness(topC, decay, policy, lr):
    for problem in (quadratic(0.1, 1.0), one_sided(0.1, 1.0)):
        for rho in (0.03, 0.3):
            certificate = theory.rate(lr, problem.mu, problem.L, aggr="fisher", rho=rho)
            p, _ = theory.damping_bounds(rho)
            assert certificate.rate == pytest.approx(1 - lr * problem.mu * p)
            path, _ = run_reference(
                problem.grad, start(1, 5)[0], lr, 40, topC=topC, decay=decay, policy=policy, aggr="fisher", rho=rho
            )
            F = problem.F(path)
            bounds = torch.tensor([certificate.bound(t) for t in range(len(F))], dtype=torch.float64)
            assert (bounds * F[0] * (1 + 1e-9) >= F).all()


def two_dimensions(lr, steps, **options):
    """``|x|^2 / 2`` with one outlier in ten samples, in a direction of its own: the settled F-gap and the mean of x."""
    generator = torch.Generator().manual_seed(7)
    rare = torch.tensor([3.0, 3.0], dtype=torch.float64)
    memory = ReferenceMemory(**options)
    x, seen = torch.zeros(2, dtype=torch.float64), []
    for _ in range(steps):
        hit = torch.rand((), generator=generator) < 0.1
        common = 0.5 * torch.randn(2, generator=generator, dtype=torch.float64) - rare / 9
        g = x + (rare if hit else common)
        x = x - lr * memory.direction(g)
        memory.insert(g)
        seen.append(x)
    half = torch.stack(seen)[steps // 2 :]
    return (half**2).sum(-1).mean().item() / 2, half.mean(0)


def test_damping_has_no_bias_where_adding_has_one():
    options = {"topC": 5, "decay": 0.99}
    damped, where = two_dimensions(0.03, 2500, aggr="fisher", rho=0.1, **options)
    added, away = two_dimensions(0.03, 2500, aggr="sum", **options)
    assert where.norm() < 0.1
    assert away.norm() > 0.5
    sigma2 = 0.1 * 18 + 0.9 * (18 / 81 + 0.5)
    assert damped <= theory.noise_floor(0.03, 1.0, 1.0, sigma2, aggr="fisher", rho=0.1)
    assert damped < added / 10


def test_the_outlier_problem_in_one_dimension():
    for lr in (0.1, 0.01):
        gap, where = reference_gap(lr, 3000, topC=5, decay=0.99, aggr="fisher", rho=0.1)
        assert abs(where) < 0.05
        assert gap <= theory.noise_floor(lr, 1.0, 1.0, 1.0, aggr="fisher", rho=0.1)
        assert gap <= theory.noise_floor(lr, 1.0, 1.0, 1.0, topC=0, method="quadratic")
    assert reference_gap(0.01, 3000, topC=5, decay=0.99, aggr="sum")[0] > 0.3
