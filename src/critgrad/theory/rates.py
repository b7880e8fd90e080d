"""Rates and step-size limits: one door to all certificates."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from . import closed, lmi, pep
from . import quadratic as exact
from .certificate import Certificate
from .closed import damping_bounds
from .weights import Kernel, check_momentum, check_problem, memory_kernel

# method -> (its certificate, its step-size limit); "damped" stands beside them, as it has no weights.
METHODS: dict[str, tuple[Callable[..., Certificate], Callable[..., float]]] = {
    "quadratic": (exact.quadratic, exact.quadratic_max_lr),
    "window": (closed.window, closed.window_max_lr),
    "pl": (closed.pl, closed.pl_max_lr),
    "norm": (closed.norm, closed.norm_max_lr),
    "lmi": (lmi.lmi, lmi.lmi_max_lr),
    "pep": (pep.pep, pep.pep_max_lr),
}


def choose_methods(method: str, aggr: str, quadratic: bool, weights: Sequence[float] | None) -> tuple[str, ...]:
    """The methods to try, or ``ValueError``."""
    known = ("auto", *METHODS, "damped")
    if method not in known:
        raise ValueError(f"Invalid method: {method!r}, expected one of {', '.join(known)}")
    damps = aggr == "fisher" and weights is None
    if method != "auto" and (method == "damped") != damps:
        raise ValueError(
            f'Invalid method: {method!r} with aggr="{aggr}", expected "damped" with "fisher" and only there'
        )
    if damps:
        return ("damped",)
    if method != "auto":
        return (method,)
    return ("quadratic", "window", "pl") if quadratic else ("pl",)


def rate(
    lr: float,
    mu: float,
    L: float,
    *,
    aggr: str = "sum",
    topC: int = 5,
    tau: float | None = None,
    weights: Sequence[float] | None = None,
    momentum: float = 0.0,
    kappa: float = 1.0,
    rho: float = 0.3,
    full: bool = True,
    quadratic: bool = False,
    method: str = "auto",
) -> Certificate:
    """A certified rate of convergence, for SGD with a memory of bounded staleness.

    ================ =========================================== ================================================
    method           function, memory                            rate
    ================ =========================================== ================================================
    ``"pl"``         smooth + PL, any (Theorem C)                ``1 - lr mu S`` (F-gap) for small ``lr``
    ``"quadratic"``  quadratic, fixed weights                    largest root modulus, exact
    ``"window"``     quadratic, any with ``W <= w_0`` (W)        for every ``lr L < 1``, slow where it is large
    ``"norm"``       smooth, strongly convex, any (N)            the paper's theorem repaired; weaker than "pl"
    ``"lmi"``        quadratic, any                              common Lyapunov function (semidefinite program)
    ``"pep"``        smooth, strongly convex, any, ``tau <= 6``  nearly tight (semidefinite program)
    ``"damped"``     smooth + PL, ``aggr="fisher"`` (D)          ``1 - lr mu p``, noise allowed (``noise_floor``)
    ================ =========================================== ================================================

    ``"auto"`` is ``"pl"`` (``"damped"`` for ``aggr="fisher"``), and for ``quadratic=True`` the best of ``"quadratic"``
    (where weights are fixed), ``"window"`` and ``"pl"``. Momentum is covered by ``"pl"`` and ``"quadratic"``. Adaptive
    bases (Adam, RMSprop) have no certificate.

    Arguments:
        lr: the learning rate.
        mu, L: constants of the function: PL (or strong convexity) and smoothness.
        aggr, topC, kappa: as in ``gains``.
        tau: largest age of an entry: ``staleness_bound(...)``, or ``max_age``, or ``topC`` for a moving window
            (``decay=0``, ``policy="FIFO"``), which ``method="quadratic"`` takes for granted without it.
        weights: fixed weights ``w_0, w_1, ...`` in the place of ``aggr``, ``topC`` and ``tau``.
        momentum: of the base optimizer, without dampening.
        rho: of ``aggr="fisher"``.
        full: as in ``tail_weights``.
        quadratic: whether the function is known to be a quadratic (for ``"auto"``).
        method: which certificate.

    Returns:
        A ``Certificate``; without a valid one its rate is ``inf`` and ``reason`` says why.

    Example:
        >>> rate(0.1, mu=0.1, L=1.0, topC=0).rate  # SGD: 1 - lr mu
        0.99
        >>> from critgrad.theory import staleness_bound
        >>> tau = staleness_bound(5, 0.7, norm_ratio=10)
        >>> round(rate(0.05, mu=0.1, L=1.0, aggr="sum", topC=5, tau=tau).rate, 6)  # SGD at twice the lr: 1 - 2 lr mu
        0.99
        >>> round(rate(1.0, mu=0.1, L=1.0, aggr="fisher", rho=0.25).rate, 6)
        0.98

    Reference:
        ``docs/theory.md``. "pl": virtual iterates as in Stich & Karimireddy (2020); "norm": Gurbuzbalaban, Ozdaglar,
        Parrilo (2017), Feyzmahdavian, Aytekin, Johansson (2014); "pep": Taylor, Van Scoy, Lessard (2018).
    """
    check_problem(mu, L, lr)
    methods = choose_methods(method, aggr, quadratic, weights)
    if methods == ("damped",):
        check_momentum(momentum)
        return closed.damped(lr, mu, L, rho, kappa, momentum)
    kernel = memory_kernel(
        aggr=aggr,
        topC=topC,
        tau=tau,
        weights=weights,
        momentum=momentum,
        kappa=kappa,
        full=full,
        window=methods == ("quadratic",),
    )
    found = [METHODS[name][0](lr, mu, L, kernel) for name in methods]
    valid = [certificate for certificate in found if certificate.valid]
    return min(valid, key=lambda certificate: certificate.norm_rate) if valid else found[-1]


def max_stable_lr(
    mu: float,
    L: float,
    *,
    aggr: str = "sum",
    topC: int = 5,
    tau: float | None = None,
    weights: Sequence[float] | None = None,
    momentum: float = 0.0,
    kappa: float = 1.0,
    rho: float = 0.3,
    full: bool = True,
    quadratic: bool = False,
    method: str = "auto",
) -> float:
    """The learning rate below which a method certifies convergence; 0 if it certifies none.

    ``"quadratic"``: ``a* / L``, exact; ``"window"``: ``1 / (w_0 L)``; ``"pl"``: ``2 / (L (S + sqrt(S^2 + 4 D^2)))``;
    ``"norm"``: ``min(2 / (S (L + mu)), mu / (L^2 D))``; ``"damped"``: ``1 / L``; ``"lmi"`` and ``"pep"`` by bisection.
    Convergence gets slow close to the limit. ``"window"`` does not need ``tau``.

    Arguments:
        mu, L, aggr, topC, tau, weights, momentum, kappa, rho, full, quadratic, method: as in ``rate``.

    Example:
        >>> round(max_stable_lr(0.1, 1.0, aggr="mean", topC=5, method="quadratic"), 4)  # a moving window
        0.8038
        >>> max_stable_lr(0.1, 1.0, aggr="sum", topC=5, method="window")  # any memory, on a quadratic
        1.0
        >>> round(max_stable_lr(0.1, 1.0, aggr="sum", topC=1, tau=1), 5)  # any memory, smooth + PL
        0.41421

    Reference:
        ``docs/theory.md``, "Step sizes".
    """
    check_problem(mu, L)
    methods = choose_methods(method, aggr, quadratic, weights)
    if methods == ("damped",):
        check_momentum(momentum)
        damping_bounds(rho, kappa)  # checks its arguments
        return 0.0 if momentum else 1 / L
    kernel = _kernel_for_limit(methods, aggr, topC, tau, weights, momentum, kappa, full)
    return max(METHODS[name][1](mu, L, kernel) for name in methods)


def _kernel_for_limit(
    methods: tuple[str, ...],
    aggr: str,
    topC: int,
    tau: float | None,
    weights: Sequence[float] | None,
    momentum: float,
    kappa: float,
    full: bool,
) -> Kernel:
    if tau is None and methods == ("window",):
        tau = math.inf
    return memory_kernel(
        aggr=aggr,
        topC=topC,
        tau=tau,
        weights=weights,
        momentum=momentum,
        kappa=kappa,
        full=full,
        window=methods == ("quadratic",),
    )
