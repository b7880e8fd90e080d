"""What the paper's Theorem 1 gives, and that spectral radii do not repair it."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from critgrad import theory


@given(
    lr=st.floats(1e-4, 10.0),
    mu=st.floats(1e-3, 1.0),
    K=st.integers(2, 50),
    matrix=st.sampled_from(["shift", "printed"]),
)
def test_q_is_at_least_one_for_every_step_size_as_soon_as_there_is_a_memory(lr, mu, K, matrix):
    assert theory.theorem1_rate(lr, mu, 1.0, K, matrix) >= 1 - 1e-12


def test_without_memory_it_is_the_bound_of_sgd():
    for lr in (0.1, 1.0, 1.9):
        assert theory.theorem1_rate(lr, 0.1, 1.0, 1) == max(abs(1 - lr * 0.1), abs(1 - lr))


@pytest.mark.parametrize("matrix", ["shift", "printed"])
@pytest.mark.parametrize("K", [2, 3, 6])
def test_the_closed_form_is_the_largest_singular_value(K, matrix):
    lr, mu, L = 0.7, 0.2, 1.0
    Lambda = torch.zeros(K, K, dtype=torch.float64)
    Lambda[0] = -lr * L
    Lambda[0, 0] = 1 - lr * mu
    for row in range(1, K):
        Lambda[row, row - 1 if matrix == "shift" else row] = 1
    largest = torch.linalg.matrix_norm(Lambda, 2).item()
    assert theory.theorem1_rate(lr, mu, L, K, matrix) == pytest.approx(largest)


def test_smallest_q_over_all_step_sizes():
    steps = [i / 1000 for i in range(1, 2000)]

    def smallest(mu, K, matrix="shift"):
        return min(theory.theorem1_rate(lr, mu, 1.0, K, matrix) for lr in steps)

    assert [smallest(0.1, K) for K in (2, 3, 5, 10)] == pytest.approx([1.4072, 1.4119, 1.4132, 1.4138], abs=1e-4)
    assert [smallest(1.0, K) for K in (2, 3, 5, 10)] == pytest.approx([1.0, 1.256, 1.332, 1.376], abs=1e-3)
    assert theory.theorem1_rate(1e-6, 0.1, 1.0, 5) == pytest.approx(math.sqrt(2), abs=1e-5)
    assert 1 < theory.theorem1_rate(1e-4, 0.1, 1.0, 5, "printed") < 1.001


def test_bad_arguments_are_named():
    with pytest.raises(ValueError, match="K"):
        theory.theorem1_rate(0.1, 0.1, 1.0, 0)
    with pytest.raises(ValueError, match="matrix"):
        theory.theorem1_rate(0.1, 0.1, 1.0, 2, "other")


# One curvature with lr * eta = 0.27 and memory weights in this cycle.
CYCLE = [(0, 0, 0), (1, 1, 1), (1, 1, 1), (0, 1, 1), (0, 0, 1)]


def companion(a, w):
    A = torch.zeros(4, 4, dtype=torch.float64)
    A[0] = -a * torch.tensor([1.0, *w], dtype=torch.float64)
    A[0, 0] += 1
    A[torch.arange(1, 4), torch.arange(3)] = 1
    return A


def test_weights_that_vary_diverge_although_every_spectral_radius_is_below_one():
    grid = [i / 8 for i in range(9)]
    radii = [
        torch.linalg.eigvals(companion(0.27, (u, v, w))).abs().max().item() for u in grid for v in grid for w in grid
    ]
    assert max(radii) == pytest.approx(0.9835, abs=1e-4)
    product = torch.eye(4, dtype=torch.float64)
    for w in CYCLE:
        product = companion(0.27, w) @ product
    growth = torch.linalg.eigvals(product).abs().max().item() ** (1 / len(CYCLE))
    assert growth == pytest.approx(1.0116, abs=1e-4)
    # From x_0 = 1 with an empty history.
    x = torch.tensor([1.0, 0, 0, 0], dtype=torch.float64)
    sizes = []
    for t in range(2000):
        x = companion(0.27, CYCLE[t % len(CYCLE)]) @ x
        sizes.append(abs(x[0].item()))
    assert max(sizes[490:500]) > 100
    assert max(sizes) > 1e9
