"""Quadratics with fixed weights: the exact rate, step-size limit and noise floor.

Along one curvature ``eta``, with ``a = lr eta``, ``gamma`` the momentum and ``B(z) = sum_k w_k z^-k``, the iterates
follow the roots of ``(z - 1)(z - gamma) z^tau + a z^(tau + 1) B(z)``. Sound for a memory whose content is fixed
relative to the present (``decay=0``, ``policy="FIFO"``), not for one that varies.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from .certificate import Certificate, certify, none_because
from .closed import NO_NOISE, QUADRATIC
from .weights import Kernel

GRID = 129
REFINEMENTS = 4


def characteristic(a: Tensor, weights: Tensor, momentum: float) -> Tensor:
    """Coefficients of the polynomials, highest power first and monic, one row for each ``a``."""
    K = weights.numel()
    if momentum == 0:  # z^K - z^(K-1) + a sum_k w_k z^(K-1-k)
        fixed = torch.zeros(K + 1, dtype=torch.float64)
        fixed[0], fixed[1] = 1, -1
    else:  # one power more: z^(K-1) (z - 1)(z - gamma) + a sum_k w_k z^(K-k)
        fixed = torch.zeros(K + 2, dtype=torch.float64)
        fixed[0], fixed[1], fixed[2] = 1, -1 - momentum, momentum
    rows = fixed.repeat(a.numel(), 1)
    rows[:, 1 : K + 1] += a[:, None] * weights
    return rows


def spectral_radius(a: Tensor, weights: Tensor, momentum: float = 0.0) -> Tensor:
    """The largest root modulus for each ``a``."""
    p = characteristic(a, weights, momentum)
    n = p.shape[1] - 1
    companion = torch.zeros(p.shape[0], n, n, dtype=torch.float64)
    companion[:, 0] = -p[:, 1:]
    companion[:, torch.arange(1, n), torch.arange(n - 1)] = 1
    return torch.linalg.eigvals(companion).abs().amax(-1)


def _worst(f: Callable[[Tensor], Tensor], low: float, high: float) -> float:
    """The maximum of ``f`` over [low, high]: a grid, refined around its best point (it need not be at an end)."""
    grid = torch.logspace(math.log10(low), math.log10(high), GRID, dtype=torch.float64).clamp(low, high)
    best = -math.inf
    for _ in range(REFINEMENTS):
        values = f(grid)
        at = int(values.argmax())
        best = max(best, float(values[at]))
        left, right = float(grid[max(at - 1, 0)]), float(grid[min(at + 1, grid.numel() - 1)])
        grid = torch.linspace(left, right, 17, dtype=torch.float64)
    return best


def quadratic(lr: float, mu: float, L: float, kernel: Kernel) -> Certificate:
    """The largest root modulus over the curvatures in ``[mu, L]``."""
    said = (QUADRATIC, NO_NOISE, *kernel.assumptions)
    if kernel.fixed is None:
        return none_because("the weights are not fixed in time", "quadratic", "dist2", said)
    w = torch.tensor(kernel.fixed, dtype=torch.float64)
    rho = _worst(lambda eta: spectral_radius(lr * eta, w, kernel.momentum), mu, L)
    return certify(rho, "dist2", None, said, "quadratic", numerical=True)


def quadratic_max_lr(mu: float, L: float, kernel: Kernel) -> float:
    """``a* / L``: the smallest positive real ``a(z) = (1 - z)(1 - gamma / z) / B(z)`` on the unit circle."""
    if kernel.fixed is None:
        return 0.0
    w = torch.tensor(kernel.fixed, dtype=torch.float64)
    k = torch.arange(w.numel(), dtype=torch.float64)

    def numerator(omega: Tensor) -> Tensor:
        return (1 - torch.exp(1j * omega)) * (1 - kernel.momentum * torch.exp(-1j * omega))

    def denominator(omega: Tensor) -> Tensor:
        return (w * torch.exp(-1j * omega[:, None] * k)).sum(-1)

    n = 1 << max(13, (64 * w.numel()).bit_length())
    omega = torch.arange(1, n // 2 + 1, dtype=torch.float64) * (2 * math.pi / n)
    B = torch.fft.fft(w.to(torch.complex128), n)[1 : n // 2 + 1]
    # numerator * conj(B) is real where a is, and has no poles.
    imag = (numerator(omega) * B.conj()).imag
    change = (imag[:-1] * imag[1:] <= 0).nonzero().squeeze(-1)
    low, high = omega[change], omega[change + 1]
    for _ in range(60):
        middle = (low + high) / 2
        same = (numerator(middle) * denominator(middle).conj()).imag.sign() == imag[change].sign()
        low, high = torch.where(same, middle, low), torch.where(same, high, middle)
    at = torch.cat([low, high, torch.tensor([math.pi], dtype=torch.float64)])
    a = numerator(at) / denominator(at)
    real = (a.real > 0) & (a.imag.abs() <= 1e-6 * a.abs())  # a pole is no real value
    return float(a.real[real].min()) / L


def quadratic_floor(lr: float, mu: float, L: float, sigma2: float, kernel: Kernel) -> float:
    """``limsup E F - F*`` for noise that the weights do not depend on: the worst way to spread it over the curvatures.

    State ``(x_t, g_{t-1}, .., g_{t-tau})``, ``g_t = eta x_t + zeta_t``; the covariance solves ``P = A P A' + B B'``.
    """
    if kernel.fixed is None or kernel.momentum or not quadratic(lr, mu, L, kernel).valid:
        return math.inf
    w = torch.tensor(kernel.fixed, dtype=torch.float64)
    return sigma2 * _worst(lambda eta: eta / 2 * _stationary(lr, eta, w), mu, L)


def _stationary(lr: float, eta: Tensor, w: Tensor) -> Tensor:
    """``E x^2`` for unit noise, one for each curvature, by doubling: ``P <- P + A^(2^i) P A^(2^i)'``."""
    K = w.numel()
    A = torch.zeros(eta.numel(), K, K, dtype=torch.float64)
    A[:, 0, 0] = 1 - lr * w[0] * eta
    A[:, 0, 1:] = -lr * w[1:]
    B = torch.zeros(K, dtype=torch.float64)
    B[0] = -lr * w[0]
    if K > 1:
        A[:, 1, 0] = eta
        A[:, torch.arange(2, K), torch.arange(1, K - 1)] = 1
        B[1] = 1
    P = torch.outer(B, B).repeat(eta.numel(), 1, 1)
    for _ in range(64):
        added = A @ P @ A.mT
        P = P + added
        A = A @ A
        if float(A.abs().amax()) < 1e-30:
            break
    return P[:, 0, 0]
