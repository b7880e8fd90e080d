"""Smooth strongly convex functions with any memory: a Lyapunov function from performance estimation.

``V_t`` is a quadratic form in the iterates and gradients of a window plus a linear form in the function values, with
``V_t >= |x_t - x*|^2`` and ``V_{t+1} <= rho^2 V_t`` for everything that the memory can hold. Both follow from the
interpolation inequalities of the class, each with multipliers of its own. In units with ``L = 1``; ``x* = 0``, ``F* =
0``.
"""

from __future__ import annotations

import math
from typing import Any

from .certificate import Certificate, certify, none_because
from .closed import NO_NOISE, STRONG, WHEN_FULL
from .solver import modules, solve
from .weights import Kernel

MAX_PATTERNS = 20
MAX_TAU = 6
TOLERANCE = 2e-4  # of the bisections
NEARLY_ONE = 1 - 1e-4
ACCURACY = 1e-6  # how far the solver's matrices may be from what they should be, relative to their size

Array = Any  # numpy's, which is not imported here


class Pep:
    """The semidefinite program, built once for a step size and solved for many ``rho``."""

    def __init__(self, lr: float, mu: float, patterns: list[tuple[float, ...]]):
        cp, np = modules()
        tau = len(patterns[0]) - 1
        self.points = n = tau + 1  # of a window; the coming point makes one more
        size = 2 * n + 1  # x_{t-tau} .. x_t, g_{t-tau} .. g_{t+1}
        basis = np.eye(size)
        g = [basis[n + i] for i in range(n + 1)]

        self.P = cp.Variable((2 * n, 2 * n), symmetric=True)
        self.p = cp.Variable(n)
        self.rho2 = cp.Parameter(nonneg=True)
        bound = cp.Variable()
        self.slacks: list[tuple[Any, Any]] = []
        constraints = [self.P << bound * np.eye(2 * n), self.p <= bound]

        here = np.stack([basis[i] for i in range(n)] + g[:n])
        f_here = np.eye(n, n + 1)
        f_next = np.eye(n, n + 1, k=1)

        def follows(quadratic: Any, linear: Any, x: list[Array], count: int) -> None:
            """The form is >= 0 for every function of the class: a positive combination of inequalities and squares."""
            forms, values = interpolation(mu, x[:count], g[:count], n + 1)
            multipliers = cp.Variable(len(forms), nonneg=True)
            combined = cp.reshape(np.stack([q.ravel() for q in forms], 1) @ multipliers, (size, size), order="C")
            slack, rest = quadratic - combined, linear - np.stack(values, 1) @ multipliers
            self.slacks.append((slack, rest))
            constraints.extend([slack >> 0, rest == 0])

        now = here.T @ self.P @ here
        old = [basis[i] for i in range(n)]
        follows(now - np.outer(basis[tau], basis[tau]), f_here.T @ self.p, old, n)
        for w in patterns:
            coming = basis[tau] - lr * sum(w[k] * g[tau - k] for k in range(n))
            x = [*old, coming]
            there = np.stack(x[1:] + g[1:])
            follows(
                self.rho2 * now - there.T @ self.P @ there,
                self.rho2 * (f_here.T @ self.p) - f_next.T @ self.p,
                x,
                n + 1,
            )
        self.problem = cp.Problem(cp.Minimize(bound), constraints)

    def constant(self, rho: float) -> float:
        """``c`` with ``|x_t|^2 <= c rho^(2t) * (sum of |x|^2 over the first window)``; inf if there is none."""
        _, np = modules()
        self.rho2.value = rho * rho
        if not solve(self.problem):
            return math.inf
        for slack, rest in self.slacks:
            matrix = (slack.value + slack.value.T) / 2
            scale = max(1.0, float(np.abs(matrix).max()))
            if np.linalg.eigvalsh(matrix)[0] < -ACCURACY * scale or np.abs(rest.value).max() > ACCURACY * scale:
                return math.inf
        # |g| <= |x| and F <= |x|^2 / 2 at each point of the window.
        largest = max(0.0, float(np.linalg.eigvalsh(self.P.value)[-1]))
        return 2 * largest + max(0.0, float(self.p.value.max())) / 2


def interpolation(mu: float, x: list[Array], g: list[Array], values: int) -> tuple[list[Array], list[Array]]:
    """What holds between any two points of a 1-smooth ``mu``-strongly convex function, the optimum included."""
    _, np = modules()
    zero = np.zeros_like(g[0])
    f = list(np.eye(values)[: len(x)])
    x, g, f = [*x, zero], [*g, zero], [*f, np.zeros(values)]

    def inner(a: Array, b: Array) -> Array:
        return (np.outer(a, b) + np.outer(b, a)) / 2

    forms, linear = [], []
    for i in range(len(x)):
        for j in range(len(x)):
            if i != j:
                dx, dg = x[i] - x[j], g[i] - g[j]
                square = inner(dg, dg) + mu * inner(dx, dx) - 2 * mu * inner(dg, dx)
                forms.append(-inner(g[j], dx) - square / (2 * (1 - mu)))
                linear.append(f[i] - f[j])
    return forms, linear


def _refusal(mu: float, L: float, kernel: Kernel) -> str:
    if kernel.momentum:
        return "the Lyapunov function has no momentum"
    if mu == L:
        return "mu = L leaves one quadratic: use another method"
    if not kernel.tau <= MAX_TAU:
        return f"tau = {kernel.tau}, expected <= {MAX_TAU}"
    if kernel.patterns(MAX_PATTERNS) is None:
        return f"the memory can be in more than {MAX_PATTERNS} states"
    return ""


def pep(lr: float, mu: float, L: float, kernel: Kernel) -> Certificate:
    """The smallest ``rho``, by bisection. The constant refers to the sum of ``|r|^2`` over the first ``tau + 1`` steps
    with a filled memory.
    """
    modules()
    said = (STRONG, NO_NOISE, *kernel.assumptions, WHEN_FULL)
    reason = _refusal(mu, L, kernel)
    if reason:
        return none_because(reason, "pep", "dist2", said)
    program = Pep(lr * L, mu / L, kernel.patterns(MAX_PATTERNS) or [])
    low, high = 0.0, NEARLY_ONE
    constant = program.constant(high)
    if not math.isfinite(constant):
        return none_because(f"no Lyapunov function was found for a rate of {NEARLY_ONE}", "pep", "dist2", said)
    while high - low > TOLERANCE:
        middle = (low + high) / 2
        found = program.constant(middle)
        if math.isfinite(found):
            high, constant = middle, found
        else:
            low = middle
    return certify(high, "dist2", constant, said, "pep", numerical=True)


def pep_max_lr(mu: float, L: float, kernel: Kernel) -> float:
    """By bisection on ``lr`` below ``2 / (L w_0)``."""
    modules()
    if _refusal(mu, L, kernel):
        return 0.0
    patterns = kernel.patterns(MAX_PATTERNS) or []
    low, high = 0.0, 2 / (kernel.w0 or kernel.S)
    while high - low > 1e-3:
        middle = (low + high) / 2
        found = math.isfinite(Pep(middle, mu / L, patterns).constant(NEARLY_ONE))
        low, high = (middle, high) if found else (low, middle)
    return low / L
