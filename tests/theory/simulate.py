"""Functions with known constants, and memories as bad as they are allowed to be. Batched: ``x`` is (runs, d)."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from critgrad import theory
from critgrad.reference import ReferenceMemory


@dataclass
class Problem:
    name: str
    mu: float
    L: float
    F: Callable[[Tensor], Tensor]  # of rows; F* = 0 at the origin
    grad: Callable[[Tensor], Tensor]


def rotation(d: int) -> Tensor:
    return torch.linalg.qr(torch.randn(d, d, generator=torch.Generator().manual_seed(5), dtype=torch.float64))[0]


def quadratic(mu: float, L: float, d: int = 5) -> Problem:
    eta = torch.logspace(math.log10(mu), math.log10(L), d, dtype=torch.float64)
    return Problem("quadratic", mu, L, lambda x: (eta * x * x).sum(-1) / 2, lambda x: eta * x)


def one_sided(mu: float, L: float, d: int = 5) -> Problem:
    """Curvature L on one side of the optimum and mu on the other, in rotated coordinates."""
    Q = rotation(d)

    def curvature(y: Tensor) -> Tensor:
        return torch.where(y > 0, L, mu)

    return Problem(
        "one-sided",
        mu,
        L,
        lambda x: (curvature(x @ Q) * (x @ Q) ** 2).sum(-1) / 2,
        lambda x: (curvature(x @ Q) * (x @ Q)) @ Q.T,
    )


def logistic(mu: float, d: int = 5) -> Problem:
    """``log cosh(y) + mu y^2 / 2`` in rotated coordinates."""
    Q = rotation(d)

    def log_cosh(y: Tensor) -> Tensor:
        return y.abs() + torch.log1p(torch.exp(-2 * y.abs())) - math.log(2)

    return Problem(
        "logistic",
        mu,
        1 + mu,
        lambda x: (log_cosh(x @ Q) + mu * (x @ Q) ** 2 / 2).sum(-1),
        lambda x: (torch.tanh(x @ Q) + mu * (x @ Q)) @ Q.T,
    )


def not_convex() -> Problem:
    """``x^2 + 3 sin(x)^2``: PL with mu = 1/32, L = 8."""
    return Problem(
        "not convex",
        1 / 32,
        8.0,
        lambda x: (x * x + 3 * torch.sin(x) ** 2).sum(-1),
        lambda x: 2 * x + 3 * torch.sin(2 * x),
    )


PROBLEMS = [quadratic(0.1, 1.0), one_sided(0.1, 1.0), logistic(0.1), not_convex()]


# -- adversaries: which ages a full memory holds ----------------------------------------------------------------------


def newest(scores: Tensor, generator: torch.Generator) -> Tensor:
    return -torch.arange(scores.shape[1], dtype=torch.float64).expand_as(scores)


def oldest(scores: Tensor, generator: torch.Generator) -> Tensor:
    return torch.arange(scores.shape[1], dtype=torch.float64).expand_as(scores)


def at_random(scores: Tensor, generator: torch.Generator) -> Tensor:
    return torch.rand(scores.shape, generator=generator, dtype=torch.float64)


def greedy(scores: Tensor, generator: torch.Generator) -> Tensor:
    return scores


ADVERSARIES = [newest, oldest, at_random, greedy]


def run(grad, x, lr, steps, aggr, topC, tau, adversary, momentum=0.0, kappa=1.0, seed=0):
    """The iterates, (steps + 1, runs, d). The memory fills from the first step on; then it holds what the adversary
    likes best: for ``greedy`` the gradients that point most against the current one."""
    generator = torch.Generator().manual_seed(seed)
    past: list[Tensor] = []  # newest first
    path, velocity = [x], torch.zeros_like(x)
    for t in range(steps):
        g = grad(x)
        n = min(topC, tau, t)
        _, W, w0 = theory.gains(aggr, n, kappa)
        d = w0 * g
        if n:
            G = torch.stack(past, 1)  # (runs, ages, d)
            scores = adversary(-(G * g[:, None]).sum(-1), generator)
            chosen = scores.topk(n, dim=1).indices
            d = d + W / n * G.gather(1, chosen[..., None].expand(-1, -1, x.shape[1])).sum(1)
        velocity = momentum * velocity + d
        x = x - lr * velocity
        path.append(x)
        past = [g, *past[: tau - 1]]
    return torch.stack(path)


def run_reference(grad, x, lr, steps, **options):
    """The iterates of SGD with the reference memory, (steps + 1, d), and the largest age that was aggregated."""
    memory = ReferenceMemory(**options)
    path, age = [x], 0
    for _ in range(steps):
        g = grad(x[None])[0]
        age = max([age] + [memory.t + 1 - entry.born for entry in memory.live])
        x = x - lr * memory.direction(g)
        memory.insert(g)
        path.append(x)
    return torch.stack(path), age


def start(runs: int, d: int, seed: int = 0) -> Tensor:
    return 3 * torch.randn(runs, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
