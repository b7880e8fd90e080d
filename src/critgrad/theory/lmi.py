"""Quadratics with any memory: one quadratic Lyapunov function for everything that the memory can hold.

``P >= I`` with ``A_w(eta)' P A_w(eta) <= rho^2 P`` at all vertices. ``A`` is affine in ``(eta, eta w)``, so the ends of
a piece of ``[mu, L]`` and the extreme weights suffice for the whole piece; ``P`` may differ from piece to piece, as
curvatures are constant in time. The solver only proposes ``P``: rate and constant are recomputed from it.
"""

from __future__ import annotations

import itertools
import math
from typing import Any

from .certificate import Certificate, certify, none_because
from .closed import NO_NOISE, QUADRATIC, WHEN_FULL
from .solver import modules, solve
from .weights import Kernel

MAX_PATTERNS = 35
PIECE = 1.25  # ratio of the curvatures at the two ends of a piece
TOLERANCE = 1e-4  # of the bisection
LARGEST_P = 1e8

Array = Any  # numpy's, which is not imported here


def vertices(kernel: Kernel) -> list[tuple[float, ...]] | None:
    """Weights whose hull holds everything that the memory can be, in as few vertices as we know."""
    return kernel.patterns(MAX_PATTERNS) or kernel.single_ages()


def pieces(mu: float, L: float) -> list[tuple[float, float]]:
    """A cover of ``[mu, L]``."""
    n = max(1, math.ceil(math.log(L / mu) / math.log(PIECE)))
    ends = [mu * (L / mu) ** (i / n) for i in range(n)] + [L]
    return list(itertools.pairwise(ends))


def transition(lr: float, eta: float, w: tuple[float, ...]) -> Array:
    """``A`` on the state ``(x_t, .., x_{t-tau})``."""
    _, np = modules()
    A = np.eye(len(w), k=-1)
    A[0] = [-lr * eta * v for v in w]
    A[0, 0] += 1
    return A


def transition_of_gradients(lr: float, eta: float, w: tuple[float, ...]) -> Array:
    """``A`` on the state ``(x_t, g_{t-1}, .., g_{t-tau})``, to which fresh noise is added along ``B``."""
    _, np = modules()
    A = np.eye(len(w), k=-1)
    A[0] = [-lr * v for v in w]
    A[0, 0] = 1 - lr * w[0] * eta
    if len(w) > 1:
        A[1, 0] = eta
    return A


def contraction(P: Array, matrices: list[Array]) -> float:
    """The smallest ``rho`` with ``A' P A <= rho^2 P`` for all matrices; inf if ``P`` is not positive definite."""
    _, np = modules()
    try:
        factor = np.linalg.cholesky(P)
    except np.linalg.LinAlgError:
        return math.inf
    # |F' A F^-T|_2 with P = F F'
    return max(float(np.linalg.norm(np.linalg.solve(factor, A.T @ factor), 2)) for A in matrices)


class Piece:
    """The semidefinite program of one piece, built once and solved for many ``rho``."""

    def __init__(self, matrices: list[Array], objective: Array | None = None):
        cp, np = modules()
        self.matrices = matrices
        n = matrices[0].shape[0]
        self.P = cp.Variable((n, n), symmetric=True)
        self.rho2 = cp.Parameter(nonneg=True)
        if objective is None:  # P >= I, and as small as can be
            size = cp.Variable()
            constraints = [np.eye(n) << self.P, self.P << size * np.eye(n)]
            goal = size
        else:  # P >= e_1 e_1', and B'PB as small as can be
            corner = np.zeros((n, n))
            corner[0, 0] = 1
            constraints = [corner << self.P]
            goal = objective @ self.P @ objective
        constraints += [A.T @ self.P @ A << self.rho2 * self.P for A in matrices]
        self.problem = cp.Problem(cp.Minimize(goal), constraints)

    def solve(self, rho: float) -> Array | None:
        """``P`` for this ``rho``, or None."""
        self.rho2.value = rho * rho
        if not solve(self.problem):
            return None
        _, np = modules()
        P = (self.P.value + self.P.value.T) / 2
        return P if np.abs(P).max() < LARGEST_P else None

    def rate(self, rho: float) -> tuple[float, float]:
        """The verified ``(rho, cond(P))`` of the solution for this ``rho``; inf where there is none."""
        _, np = modules()
        P = self.solve(rho)
        return (math.inf, math.inf) if P is None else (contraction(P, self.matrices), float(np.linalg.cond(P)))


def _refusal(kernel: Kernel) -> str:
    if kernel.momentum:
        return "the Lyapunov function has no momentum"
    if not math.isfinite(kernel.tau):
        return "staleness is unbounded"
    if vertices(kernel) is None:
        return f"the memory can be in more than {MAX_PATTERNS} states"
    return ""


def lmi(lr: float, mu: float, L: float, kernel: Kernel) -> Certificate:
    """The smallest common ``rho`` over all pieces, by bisection. The constant refers to the sum of ``|r|^2`` over the
    first ``tau + 1`` steps with a filled memory.
    """
    modules()
    said = (QUADRATIC, NO_NOISE, *kernel.assumptions, WHEN_FULL)
    reason = _refusal(kernel)
    if reason:
        return none_because(reason, "lmi", "dist2", said)
    extreme = vertices(kernel) or []
    rho, constant = 0.0, 1.0
    for low, high in pieces(mu, L):
        ends = {low, high}
        piece = Piece([transition(lr, eta, w) for eta in ends for w in extreme])
        # What the pieces before need anyway is enough for this one, too.
        found, cond = _bisect(piece, rho)
        rho, constant = max(rho, found), max(constant, cond)
        if not rho < 1:
            return none_because("no common quadratic Lyapunov function was found", "lmi", "dist2", said)
    return certify(rho, "dist2", constant, said, "lmi", numerical=True)


def _bisect(piece: Piece, enough: float) -> tuple[float, float]:
    _, np = modules()
    radius = max(float(np.abs(np.linalg.eigvals(A)).max()) for A in piece.matrices)
    low = max(enough, radius)  # no rho below the largest spectral radius can do
    if low >= 1:
        return math.inf, math.inf
    if enough >= radius:
        best = piece.rate(enough)
        if best[0] <= enough * (1 + 1e-9):
            return best
    best = piece.rate(1 - 1e-6)
    if not best[0] < 1:
        return math.inf, math.inf
    high = best[0]
    while high - low > TOLERANCE:
        middle = (low + high) / 2
        tried = piece.rate(middle)
        if tried[0] < high:
            best, high = tried, tried[0]
        else:
            low = middle
    return best


def lmi_max_lr(mu: float, L: float, kernel: Kernel) -> float:
    """By bisection on ``lr`` below ``2 / (L w_0)``."""
    modules()
    if _refusal(kernel):
        return 0.0
    low, high = 0.0, 2 / (L * (kernel.w0 or kernel.S))
    while high - low > 1e-3 / L:
        middle = (low + high) / 2
        low, high = (middle, high) if _stable(middle, mu, L, kernel) else (low, middle)
    return low


def _stable(lr: float, mu: float, L: float, kernel: Kernel) -> bool:
    extreme = vertices(kernel) or []
    # The sharpest curvatures fail first.
    for low, high in reversed(pieces(mu, L)):
        piece = Piece([transition(lr, eta, w) for eta in {low, high} for w in extreme])
        if not piece.rate(1 - 1e-6)[0] < 1:
            return False
    return True


def lmi_floor(lr: float, mu: float, L: float, sigma2: float, kernel: Kernel) -> float:
    """``limsup E F - F*`` for any selection, by the noise too: weights depend on the past, and ``zeta_t`` is fresh.

    ``E V_{t+1} <= rho^2 V_t + sigma2 B'PB`` with ``P >= e_1 e_1'``: ``E x^2 <= sigma2 B'PB / (1 - rho^2)``.
    """
    _, np = modules()
    if _refusal(kernel):
        return math.inf
    extreme = vertices(kernel) or []
    B = np.zeros(len(extreme[0]))
    B[0] = -lr * kernel.w0
    if len(B) > 1:
        B[1] = 1
    if any(w[0] != kernel.w0 for w in extreme):
        return math.inf  # B would vary
    worst = 0.0
    for low, high in pieces(mu, L):
        matrices = [transition_of_gradients(lr, eta, w) for eta in {low, high} for w in extreme]
        piece = Piece(matrices, objective=B)
        worst = max(worst, high / 2 * _smallest_floor(piece, B))
        if not math.isfinite(worst):
            break
    return sigma2 * worst


def _smallest_floor(piece: Piece, B: Array) -> float:
    """The best ``rho``: every one gives a bound; a grid in ``1 - rho``, then a finer one around its best point."""
    _, np = modules()
    radius = max(float(np.abs(np.linalg.eigvals(A)).max()) for A in piece.matrices)
    if radius >= 1:
        return math.inf

    def floor(gap: float) -> float:
        P = piece.solve(1 - gap)
        if P is None:
            return math.inf
        rho = contraction(P, piece.matrices)
        if not rho < 1:
            return math.inf
        scale = float(np.linalg.inv(P)[0, 0])  # P * scale >= e_1 e_1'
        return float(B @ P @ B) * scale / (1 - rho * rho)

    step = 2.0
    gaps = [(1 - radius) * step**-i for i in range(8)]
    values = {gap: floor(gap) for gap in gaps}
    for _ in range(3):
        best = min(values, key=lambda gap: values[gap])
        step = math.sqrt(step)
        for gap in (best * step, best / step):
            if gap < 1 - radius:
                values.setdefault(gap, floor(gap))
    return min(values.values())
