"""Where stochastic gradients leave the iterates: bounds of ``limsup E F(theta_t) - F*``."""

from __future__ import annotations

import math
from collections.abc import Sequence

from . import lmi
from .closed import damping_bounds
from .quadratic import quadratic_floor
from .weights import Kernel, check_problem, memory_kernel

SELECTIONS = ("oblivious", "norm")
METHODS = ("auto", "quadratic", "pl", "lmi", "damped")


def noise_floor(
    lr: float,
    mu: float,
    L: float,
    sigma2: float,
    *,
    aggr: str = "sum",
    topC: int = 5,
    tau: float | None = None,
    weights: Sequence[float] | None = None,
    kappa: float = 1.0,
    rho: float = 0.3,
    full: bool = True,
    selection: str = "norm",
    noise_bound: float | None = None,
    quadratic: bool = False,
    method: str = "auto",
) -> float:
    """A bound of ``limsup E F(theta_t) - F*`` under gradient noise; ``inf`` if there is no certificate.

    The noise has mean 0 given the past and variance ``E |zeta|^2 <= sigma2``. How entries are selected decides:

    - ``"oblivious"``: weights do not depend on the noise (FIFO, random, replayed). The floor is of the order of SGD's
      at the effective step, ``lr S L sigma2 / (2 mu)``, and vanishes with ``lr``.
    - ``"norm"``: entries are selected by their norms, hence by their noise, and the memory is biased. The floor tends
      to ``M2 / (2 mu S^2)`` as ``lr -> 0``, where ``M2 <= W^2 min(sigma2 tau / C, noise_bound^2)``; it does not vanish.
    - ``aggr="fisher"``: ``lr L sigma2 / (2 mu p)``, whatever the selection: a memory that damps has no bias (Theorem
      D).

    Arguments:
        lr, mu, L, aggr, topC, tau, weights, kappa, rho, full, quadratic: as in ``rate``.
        sigma2: variance of the noise.
        selection: ``"norm"`` (``policy="KotH"`` and all others that look at the gradient) or ``"oblivious"``.
        noise_bound: ``|zeta| <= noise_bound`` always, if known.
        method: ``"quadratic"`` (fixed weights, oblivious; exact), ``"pl"``, ``"lmi"`` (quadratics, any selection),
            ``"damped"``; ``"auto"`` is ``"pl"``, ``"damped"`` for ``aggr="fisher"``, and for ``quadratic=True`` the
            smaller of ``"quadratic"`` and ``"pl"``.

    Example:
        >>> round(noise_floor(0.01, 1.0, 1.0, 1.0, topC=0), 4)  # SGD: lr L sigma2 / (2 mu)
        0.005
        >>> small = noise_floor(1e-6, 1.0, 1.0, 1.0, aggr="sum", topC=5, tau=11, selection="norm")
        >>> round(small, 2)  # M2 / (2 mu S^2) = (11 / 5) / 8, at any small lr
        0.28
        >>> round(noise_floor(0.01, 1.0, 1.0, 1.0, aggr="fisher", rho=0.25), 4)
        0.025

    Reference:
        ``docs/theory.md``, "Noise". Virtual iterates: Stich & Karimireddy (2020).
    """
    check_problem(mu, L, lr)
    if not 0 <= sigma2 < math.inf:
        raise ValueError(f"Invalid sigma2: {sigma2!r}, expected a finite number >= 0")
    if selection not in SELECTIONS:
        raise ValueError(f"Invalid selection: {selection!r}, expected one of {', '.join(SELECTIONS)}")
    if method not in METHODS:
        raise ValueError(f"Invalid method: {method!r}, expected one of {', '.join(METHODS)}")
    damps = aggr == "fisher" and weights is None
    if method != "auto" and (method == "damped") != damps:
        raise ValueError(
            f'Invalid method: {method!r} with aggr="{aggr}", expected "damped" with "fisher" and only there'
        )
    if damps:
        p, _ = damping_bounds(rho, kappa)
        return lr * L * sigma2 / (2 * mu * p) if lr * L <= 1 else math.inf
    kernel = memory_kernel(
        aggr=aggr,
        topC=topC,
        tau=tau,
        weights=weights,
        momentum=0.0,
        kappa=kappa,
        full=full,
        window=method == "quadratic",
    )
    # Fixed weights cannot depend on the noise.
    oblivious = selection == "oblivious" or kernel.fixed is not None
    floors = []
    if oblivious and (method == "quadratic" or (method == "auto" and quadratic)):
        floors.append(quadratic_floor(lr, mu, L, sigma2, kernel))
    if method == "lmi":
        floors.append(lmi.lmi_floor(lr, mu, L, sigma2, kernel))
    if method in ("pl", "auto"):
        floors.append(_pl_floor(lr, mu, L, sigma2, kernel, oblivious, noise_bound))
    return min(floors, default=math.inf)


def _pl_floor(
    lr: float, mu: float, L: float, sigma2: float, kernel: Kernel, oblivious: bool, noise_bound: float | None
) -> float:
    """The floors of Theorem C: per step the noise adds ``direct + (1 + 1 / b) amplified``, the rest shrinks by ``rho``.

    Every ``rho`` that leaves room for a ``b > 0`` in the theorem's condition gives a bound; the best of a grid counts.
    """
    x, S = lr * L, kernel.S
    if not math.isfinite(kernel.tau) or x * S > 1:
        return math.inf
    if kernel.tau == 0:
        return x * S * sigma2 / (2 * mu)
    terms = _oblivious(lr, L, sigma2, kernel) if oblivious else _selected(lr, L, sigma2, kernel, noise_bound)
    direct, amplified, scale, offset = terms
    floor = math.inf
    for i in range(200):
        rho = 1 - min(1.0, lr * mu * S) * 0.95**i
        room = x * x * kernel.D * kernel.discounted_tails(rho)
        b = (1 - x * S) / room - 1 if room else math.inf
        if b > 0 and rho < 1:
            floor = min(floor, scale * (direct + (1 + 1 / b) * amplified) / (1 - rho) + offset)
    return floor


def _oblivious(lr: float, L: float, sigma2: float, kernel: Kernel) -> tuple[float, float, float, float]:
    """At the virtual iterate ``y_t = theta_t - lr sum_s R_{s,t} zeta_s``, whose noise is a martingale; then
    ``F(theta) - F* <= 2 (F(y) - F*) + L |theta - y|^2``.
    """
    u, Pi2 = usage(kernel)
    unit = lr * lr * L * sigma2
    return unit * u * u / 2, unit * lr * L * (kernel.S * Pi2 + kernel.D * u * u) / 2, 2.0, unit * Pi2


def _selected(
    lr: float, L: float, sigma2: float, kernel: Kernel, noise_bound: float | None
) -> tuple[float, float, float, float]:
    """The memory's noise ``m_t`` acts as a bias; only the fresh noise is a martingale difference."""
    W, w0 = kernel.W, kernel.largest_w0
    spread = kernel.tau / kernel.entries if kernel.full else kernel.tau
    M2 = W * W * min(spread * sigma2, math.inf if noise_bound is None else noise_bound**2)
    drift = lr * L * kernel.D * w0 * math.sqrt(sigma2)
    bias = (math.sqrt(M2) + drift) ** 2  # the minimum over e of (1 + e) M2 + (1 + 1 / e) drift^2
    return lr * lr * L * w0 * w0 * sigma2 / 2, lr / (2 * kernel.S) * bias, 1.0, 0.0


def usage(kernel: Kernel) -> tuple[float, float]:
    """``(u, Pi2)``: bounds of the total weight that one gradient gets, and of the sum of squared remaining usages."""
    if kernel.fixed is not None:
        return kernel.S, sum(c * c for c in kernel.tails)
    tau = int(kernel.tau)
    if not kernel.full:
        return kernel.largest_w0 + tau * kernel.W, (kernel.W * tau) ** 2
    each = kernel.W / kernel.entries
    return kernel.w0 + tau * each, each * each * sum((tau - k) ** 2 for k in range(kernel.entries))
