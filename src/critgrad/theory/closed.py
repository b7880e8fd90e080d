"""The certificates in closed form: ``pl`` (Theorem C), ``window`` (W), ``norm`` (N), ``damped`` (D and Lemma P).

``docs/theory.md`` states them and says when to use which. Letters as in ``weights``.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from ..memory.options import check_option
from .certificate import Certificate, certify, none_because
from .weights import Kernel

BISECTIONS = 200  # to the last bit of a float64

PL = "F is L-smooth and |grad F|^2 >= 2 mu (F - F*)"
STRONG = "F is L-smooth and mu-strongly convex"
QUADRATIC = "F is a quadratic with curvatures in [mu, L]"
NO_NOISE = "gradients are exact"
WHEN_FULL = "t counts from the step at which the memory is full; |r_0|^2 is the sum over the tau + 1 steps up to it"


def smallest_where(holds: Callable[[float], bool], low: float, high: float) -> float:
    """The smallest float in (low, high] for which the monotone ``holds`` was seen to hold; ``holds(high)`` is given."""
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        if not low < middle < high:
            break
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high


# -- Theorem C: smooth + PL, any memory -----------------------------------------------------------------------------


def pl_rate(lr: float, mu: float, L: float, kernel: Kernel, slack: float = 0.0) -> float:
    """The smallest ``rho`` of Theorem C; inf if there is none.

    ``lr L S + (1 + slack) (lr L)^2 D sum_j cbar_j rho^-j <= 1`` for a ``rho`` in ``[1 - lr mu S, 1)``.
    """
    S, D = kernel.composite()
    if not math.isfinite(D):
        return math.inf
    x = lr * L

    def holds(rho: float) -> bool:
        delay = D * kernel.discounted_tails(rho) if D else 0.0
        return x * S + (1 + slack) * x * x * delay <= 1

    best = max(0.0, 1 - lr * mu * S)
    if x * S <= 1 and holds(best):
        return best
    last = math.nextafter(1.0, 0.0)
    return smallest_where(holds, best, last) if holds(last) else math.inf


def pl(lr: float, mu: float, L: float, kernel: Kernel) -> Certificate:
    """Theorem C. The smaller gains of the first steps (an empty memory, momentum that builds up) cost a constant."""
    said = (PL, NO_NOISE, *kernel.assumptions)
    rho = pl_rate(lr, mu, L, kernel)
    if not math.isfinite(rho):
        return none_because(f"lr * L = {lr * L:.4g} is too large for this delay", "pl", "F-gap", said)
    constant = kernel.starting_constant(lr, mu, rho) if rho else 1.0
    return certify(rho, "F-gap", constant, said, "pl")


def pl_max_lr(mu: float, L: float, kernel: Kernel) -> float:
    """``2 / (L (S + sqrt(S^2 + 4 D^2)))``: the condition of Theorem C as ``rho -> 1``."""
    S, D = kernel.composite()
    return 2 / (L * (S + math.sqrt(S * S + 4 * D * D))) if math.isfinite(D) else 0.0


# -- Theorem W: quadratics, any memory with W <= w_0 ----------------------------------------------------------------


def _window_refusal(kernel: Kernel) -> str:
    if kernel.momentum:
        return "the window theorem has no momentum"
    if kernel.w0 < kernel.W:
        return f"the memory outweighs the gradient: W = {kernel.W:.4g} > w0 = {kernel.w0:.4g}"
    if not kernel.full and kernel.aggr == "mean" and kernel.entries > 1:
        return "the gradient's weight is not constant in a mean over a memory that is not always full"
    return ""


def window(lr: float, mu: float, L: float, kernel: Kernel) -> Certificate:
    """Theorem W. ``a = lr w_0 eta < 1``, ``K = tau + 1``: the largest ``|x|`` of a window never grows, and in ``2K -
    1`` steps it shrinks by ``1 - delta(a)``, ``delta = 2 / ((1 - a)^-K + 1 / a)`` (``min(a, delta)`` if ``W < w_0``).
    """
    said = (QUADRATIC, NO_NOISE, *kernel.assumptions)
    reason = _window_refusal(kernel)
    low, high = lr * kernel.w0 * mu, lr * kernel.w0 * L
    if not reason and not high < 1:
        reason = f"lr * w0 * L = {high:.4g}, expected < 1"
    if not reason and not math.isfinite(kernel.tau):
        reason = "staleness is unbounded: the window's maximum does not grow, but need not shrink"
    if reason:
        return none_because(reason, "window", "window-max", said)
    if kernel.tau == 0:
        return certify(1 - low, "window-max", 1.0, said, "window")
    K = int(kernel.tau) + 1
    saturated = kernel.w0 == kernel.W and kernel.full

    def delta(a: float) -> float:
        # As (1 - a)^K / (1 + (1 - a)^K / a), which cannot overflow.
        power = (1 - a) ** K
        value = 2 * power / (1 + power / a)
        return value if saturated else min(a, value)

    # The minimum over [low, high] is at an end: 1 / delta is convex.
    smallest = min(delta(low), delta(high))
    rho = math.exp(math.log1p(-smallest) / (2 * K - 1))
    # From the step on at which the weights are final, and for t that are not multiples of 2K - 1.
    constant = rho ** -(2 * K - 2 + kernel.fill)
    return certify(rho, "window-max", constant, said, "window")


def window_max_lr(mu: float, L: float, kernel: Kernel) -> float:
    """``1 / (w_0 L)``, whatever the staleness."""
    return 0.0 if _window_refusal(kernel) else 1 / (kernel.w0 * L)


# -- Theorem N: the paper's linear system, repaired -----------------------------------------------------------------


def norm(lr: float, mu: float, L: float, kernel: Kernel) -> Certificate:
    """Theorem N. ``|r_{t+1}| <= p |r_t| + q max |r|`` over the last ``2 tau`` steps, ``p = 1 - lr S mu``, ``q = (lr
    L)^2 S D``; the rate is the root of ``rho = p + q rho^(-2 tau)``.
    """
    said = (STRONG, NO_NOISE, *kernel.assumptions)
    S, D = kernel.S, kernel.D
    p, q = 1 - lr * S * mu, (lr * L) ** 2 * S * D
    reason = ""
    if kernel.momentum:
        reason = "Theorem N has no momentum"
    elif lr * S > 2 / (L + mu) * (1 + 1e-15):
        reason = f"lr * S = {lr * S:.4g}, expected <= 2 / (L + mu) = {2 / (L + mu):.4g}"
    elif not p + q < 1:
        reason = f"p + q = {p + q:.6g}, expected < 1"
    if reason:
        return none_because(reason, "norm", "dist2", said)

    def holds(rho: float) -> bool:
        # Exponents of the logarithm: rho^(-2 tau) may be beyond the range of floats.
        power = -2 * kernel.tau * math.log(rho)
        return power < 700 and p + q * math.exp(power) <= rho

    rho = p if q == 0 else smallest_where(holds, max(p, 0.0), math.nextafter(1.0, 0.0))
    c = kernel.starting_constant(lr, mu, rho) if rho else 1.0
    return certify(rho, "dist2", c * c, said, "norm")


def norm_max_lr(mu: float, L: float, kernel: Kernel) -> float:
    """``min(2 / (S (L + mu)), mu / (L^2 D))``."""
    if kernel.momentum:
        return 0.0
    by_gain = 2 / (kernel.S * (L + mu))
    return by_gain if kernel.D == 0 else min(by_gain, mu / (L * L * kernel.D))


# -- Lemma P and Theorem D: the memory that damps -------------------------------------------------------------------


def damping_bounds(rho: float, kappa: float = 1.0) -> tuple[float, float]:
    """What the damping memory leaves of a direction, at least and at most: ``(p, 1.0)``.

    Lemma P: with ``G`` the stored gradients and ``lam = rho trace(G G')``, the matrix ``P = (I + G'G / lam)^-1`` that
    ``aggr="fisher"`` applies to the gradient has ``p I <= P <= I``, ``p = rho / (1 + rho)``; with ``kappa`` it is
    ``p = 1 - kappa / (1 + rho)``. One slot, or parallel ones, attain it.

    Arguments:
        rho: the damping's strength: small values damp more.
        kappa: the memory's share, at most 1.

    Example:
        >>> p, one = damping_bounds(0.25)
        >>> round(p, 6), one
        (0.2, 1.0)

    Reference:
        ``docs/theory.md``, "Damping". Relatives: GGT (Agarwal et al. 2019), M-FAC (Frantar, Kurtic, Alistarh 2021).
    """
    check_option("rho", rho)
    check_option("kappa", kappa)
    if kappa > 1:
        raise ValueError(f'Invalid kappa: {kappa!r}, expected 0 <= kappa <= 1 with aggr="fisher"')
    # rho / (1 + rho) loses nothing to rounding; 1 - kappa / (1 + rho) would.
    return (1 - kappa) + kappa * (rho / (1 + rho)), 1.0


def damped(lr: float, mu: float, L: float, rho: float, kappa: float, momentum: float = 0.0) -> Certificate:
    """Theorem D. ``lr L <= 1``: ``1 - lr mu p``, for any policy, ``topC``, ``decay`` and staleness."""
    said = (PL, NO_NOISE, "any policy, topC, decay and staleness")
    p, _ = damping_bounds(rho, kappa)
    if momentum:
        return none_because("Theorem D has no momentum", "damped", "F-gap", said)
    if not lr * L <= 1:
        return none_because(f"lr * L = {lr * L:.4g}, expected <= 1", "damped", "F-gap", said)
    return certify(1 - lr * mu * p, "F-gap", 1.0, said, "damped")
