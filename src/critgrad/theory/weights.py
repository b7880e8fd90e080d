"""A memory as weights on past gradients: ``theta_{t+1} = theta_t - lr * sum_k w_{t,k} g_{t-k}``.

Letters: ``S = sum_k w_k`` the total gain, ``W = sum_{k>=1} w_k`` the memory's share of it, ``tau`` the largest age,
``c_j = sum_{k>=j} w_k`` the tails, ``D = sum_j c_j = sum_k k w_k`` the weighted delay. ``cbar_j`` bounds ``c_j``
whatever the memory holds.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch

from ..memory.aggregations import LINEAR, PICKS, adding_weights
from ..memory.options import check_option


class Gains(NamedTuple):
    """Total gain, the memory's share of it, the weight of the fresh gradient."""

    S: float
    W: float
    w0: float


def gains(aggr: str, topC: int, kappa: float = 1.0) -> Gains:
    """The gains ``(S, W, w0)`` of a full memory.

    With ``C`` live entries: ``sum`` is ``w_0 = 1`` and ``kappa / C`` each; ``mean`` is ``1 / (1 + kappa C)`` and
    ``kappa`` times that each; ``mid`` is ``1 / (1 + kappa)`` and ``kappa / (C (1 + kappa))`` each; ``min``, ``median``
    and ``max`` give one entry the weight ``kappa``.

    Arguments:
        aggr: ``"sum"``, ``"mean"``, ``"mid"``, ``"min"``, ``"median"`` or ``"max"``.
        topC: entries in the memory; 0 is the base optimizer.
        kappa: scale of the memory's share.

    Example:
        >>> gains("sum", 5)
        Gains(S=2.0, W=1.0, w0=1.0)
        >>> gains("mean", 4)
        Gains(S=1.0, W=0.8, w0=0.2)

    Reference:
        Algorithm 1 of McRae et al. (2022): it aggregates first and inserts afterwards, so ``g_t`` is never in the
        memory that it is aggregated with.
    """
    check_option("aggr", aggr)
    check_option("topC", topC)
    check_option("kappa", kappa)
    if aggr == "fisher":
        raise ValueError('Invalid aggr: "fisher" damps and has no weights; see damping_bounds and method="damped"')
    if topC == 0:
        return Gains(1.0, 0.0, 1.0)
    scale, share = (float(w) for w in adding_weights(aggr, kappa, torch.tensor(topC), torch.tensor(True)))
    memory = share * (1 if aggr in PICKS else topC)
    return Gains(scale * (1 + memory), scale * memory, scale)


def window_weights(aggr: str, topC: int, kappa: float = 1.0) -> list[float]:
    """The weights ``w_0 .. w_C`` of a moving window, which is what ``decay=0`` and ``policy="FIFO"`` are.

    Arguments:
        aggr: ``"sum"``, ``"mean"`` or ``"mid"`` (the picks too if ``topC <= 1``).
        topC: length of the window.
        kappa: scale of the memory's share.

    Example:
        >>> window_weights("sum", 4)
        [1.0, 0.25, 0.25, 0.25, 0.25]

    Reference:
        McRae et al. (2022), ablation "FIFO".
    """
    _, W, w0 = gains(aggr, topC, kappa)
    if aggr in PICKS and topC > 1:
        raise ValueError(f'Invalid aggr: "{aggr}" takes one entry of any age, expected one of {", ".join(LINEAR)}')
    return [w0] + [W / max(topC, 1)] * topC


def tail_weights(aggr: str, topC: int, tau: int, full: bool = True, kappa: float = 1.0) -> list[float]:
    """Bounds ``cbar_1 .. cbar_tau`` of the tails of a memory with staleness at most ``tau``.

    ``cbar_j = W min(1, (tau - j + 1) / C)``, as ages are distinct: at most ``tau - j + 1`` entries are that old. Valid
    while the memory fills, too. ``sum_j cbar_j = W (tau - (C - 1) / 2)``.

    Arguments:
        aggr: as in ``gains``.
        topC: entries in the memory.
        tau: largest age of an entry when it is aggregated.
        full: whether the memory fills from the first step on and then stays full. ``False`` allows one with fewer
            entries (at least one), as ``policy="random"`` and ``"sparse"`` have for a while: ``cbar_j = W``.
        kappa: scale of the memory's share.

    Example:
        >>> tail_weights("sum", 2, 4)
        [1.0, 1.0, 1.0, 0.5]
        >>> tail_weights("sum", 2, 4, full=False)
        [1.0, 1.0, 1.0, 1.0]

    Reference:
        Tails as in the analysis of delayed gradients: Stich & Karimireddy (2020), Feyzmahdavian & Johansson (2021).
    """
    if not isinstance(tau, int) or tau < 0:
        raise ValueError(f"Invalid tau: {tau!r}, expected an int >= 0")
    W = gains(aggr, topC, kappa).W
    if not full or aggr in PICKS:
        return [W] * tau
    C = min(topC, tau)  # entries have distinct ages, so there are no more than tau of them
    W = gains(aggr, C, kappa).W
    return [W * min(1.0, (tau - j + 1) / C) for j in range(1, tau + 1)]


def effective_lr(lr: float, aggr: str = "sum", topC: int = 5, momentum: float = 0.0, kappa: float = 1.0) -> float:
    """The step on gradients that change slowly: ``lr * S / (1 - momentum)``.

    ``sum`` doubles the learning rate (``S = 1 + kappa``), ``mean`` keeps it. Compare runs at equal effective steps.

    Arguments:
        lr: the learning rate.
        aggr, topC, kappa: as in ``gains``.
        momentum: of the base optimizer, without dampening.

    Example:
        >>> effective_lr(0.1, "sum", topC=5)
        0.2
        >>> round(effective_lr(0.1, "mean", topC=5, momentum=0.9), 6)
        1.0

    Reference:
        ``docs/theory.md``, "Effective step".
    """
    check_momentum(momentum)
    return lr * gains(aggr, topC, kappa).S / (1 - momentum)


def matched_momentum(
    weights: Sequence[float] | None = None,
    *,
    ages: Sequence[float] | None = None,
    aggr: str = "sum",
    topC: int = 5,
    kappa: float = 1.0,
) -> tuple[float, float]:
    """Heavy-ball momentum with the gain and the mean delay of a memory: ``(beta, lr_mult)``.

    With ``dl = D / S``: ``beta = dl / (1 + dl)`` and ``lr_mult = S (1 - beta)``. ``SGD(lr * lr_mult, momentum=beta)``
    is the control for how much of a gain is delay and step size alone.

    Arguments:
        weights: ``w_0, w_1, ...``; without them those of the moving window of ``aggr`` and ``topC``.
        ages: instead, ages of the entries as logged in a run (``critgrad.inspect``); their mean is taken.
        aggr, topC, kappa: as in ``gains``.

    Example:
        >>> beta, lr_mult = matched_momentum(aggr="sum", topC=5)
        >>> round(beta, 6), round(lr_mult, 6)
        (0.6, 0.8)
        >>> beta, lr_mult = matched_momentum(ages=[1, 4, 9, 2, 4], aggr="sum", topC=5)  # mean age 4
        >>> round(beta, 6), round(lr_mult, 6)
        (0.666667, 0.666667)

    Reference:
        ``docs/theory.md``, "Matched momentum".
    """
    if weights is not None and ages is not None:
        raise ValueError("Give weights or ages, not both")
    if weights is not None:
        S, D = sum(check_weights(weights)), sum(k * w for k, w in enumerate(weights))
    else:
        S, W, _ = gains(aggr, topC, kappa)
        mean_age = sum(ages) / len(ages) if ages else (topC + 1) / 2
        D = W * mean_age
    delay = D / S
    beta = delay / (1 + delay)
    return beta, S * (1 - beta)


@dataclass(frozen=True)
class Kernel:
    """What a certificate needs to know of a memory, momentum of the base included."""

    S: float
    W: float
    w0: float
    tau: float  # inf: unbounded
    tails: tuple[float, ...]  # cbar_1 .. cbar_tau; empty if tau is infinite
    start: tuple[float, ...]  # the gains of the first steps, after which the gain is S
    fill: int  # steps after which the weights have their final size
    fixed: tuple[float, ...] | None  # w_0 .. w_tau if they are the same at every step
    entries: int  # in a full memory; 1 if a single entry may have all of W
    aggr: str = "sum"
    kappa: float = 1.0
    full: bool = True
    momentum: float = 0.0
    assumptions: tuple[str, ...] = ()

    @property
    def D(self) -> float:
        """The weighted delay, without momentum."""
        return sum(self.tails) if math.isfinite(self.tau) else math.inf

    @property
    def largest_w0(self) -> float:
        """Of the fresh gradient, once the memory is filled; a mean over fewer entries gives it more."""
        return gains(self.aggr, 1, self.kappa).w0 if self.aggr == "mean" and not self.full else self.w0

    def composite(self) -> tuple[float, float]:
        """``(S', D')`` of the weights convolved with ``momentum^k``."""
        gamma = self.momentum
        S = self.S / (1 - gamma)
        return S, self.D / (1 - gamma) + S * gamma / (1 - gamma)

    def discounted_tails(self, rho: float) -> float:
        """``sum_j cbar_j rho^-j`` of the composite weights; inf where it diverges."""
        gamma = self.momentum
        if gamma == 0 and not self.tails:
            return 0.0
        if rho <= gamma or rho <= 0 or not math.isfinite(self.tau):
            return math.inf
        total = 0.0
        for c in reversed(self.tails):
            total = (total + c) / rho
        share = gamma / rho
        return total / (1 - share) + self.S / (1 - gamma) * share / (1 - share)

    def starting_constant(self, lr: float, mu: float, rho: float) -> float:
        """``prod_i max(1, (1 - lr mu S_i) / rho)``: what the smaller gains of the first steps cost."""
        gamma, limit = self.momentum, self.S / (1 - self.momentum)
        constant, gain = 1.0, 0.0
        for i in itertools.count():
            if i >= len(self.start) and limit - gain <= 1e-15 * limit:
                return constant
            gain = gamma * gain + (self.start[i] if i < len(self.start) else self.S)
            if 1 - lr * mu * gain > rho:
                constant *= (1 - lr * mu * gain) / rho
        raise AssertionError("unreachable")

    def patterns(self, limit: int) -> list[tuple[float, ...]] | None:
        """All weights ``w_0 .. w_tau`` that a filled memory can have; ``None`` if there are more than ``limit``."""
        if self.fixed is not None:
            return [self.fixed]
        tau = int(self.tau)
        sizes = [self.entries] if self.full else list(range(1, self.entries + 1))
        if sum(math.comb(tau, n) for n in sizes) > limit:
            return None
        return [pattern for n in sizes for pattern in self._subsets(n, tau)]

    def single_ages(self) -> list[tuple[float, ...]] | None:
        """Weights whose hull holds every memory of constant ``w_0`` and ``W``; ``None`` where these vary."""
        if not self.full and self.aggr == "mean":
            return None
        tau = int(self.tau)
        return [(self.w0, *(self.W if k == age else 0.0 for k in range(1, tau + 1))) for age in range(1, tau + 1)]

    def _subsets(self, n: int, tau: int) -> Iterator[tuple[float, ...]]:
        _, W, w0 = gains(self.aggr, n, self.kappa)
        for ages in itertools.combinations(range(1, tau + 1), n):
            yield (w0, *(W / n if k in ages else 0.0 for k in range(1, tau + 1)))


def memory_kernel(
    *,
    aggr: str,
    topC: int,
    tau: float | None,
    weights: Sequence[float] | None,
    momentum: float,
    kappa: float,
    full: bool,
    window: bool = False,
) -> Kernel:
    """The kernel of fixed ``weights``, or of a memory; ``window`` says that no ``tau`` means a moving window."""
    check_momentum(momentum)
    if weights is not None:
        w = check_weights(weights)
        tails = tuple(itertools.accumulate(reversed(w[1:])))[::-1]
        start = tuple(itertools.accumulate(w))[:-1]
        W = sum(w[1:])
        return Kernel(
            sum(w),
            W,
            w[0],
            len(w) - 1,
            tails,
            start,
            len(w) - 1,
            tuple(w),
            0,
            momentum=momentum,
            assumptions=(f"weights fixed in time, tau = {len(w) - 1}",),
        )
    gains(aggr, topC, kappa)  # checks the arguments
    if topC == 0:
        tau = 0
    if tau is None and window:
        tau = topC
    if tau is None:
        raise ValueError(
            "tau is needed, the largest age of an entry: staleness_bound(...), or max_age, or topC for FIFO and decay=0"
        )
    if tau != math.inf and (not isinstance(tau, int) or tau < 0):
        raise ValueError(f"Invalid tau: {tau!r}, expected an int >= 0 or inf")
    C = min(topC, tau)  # ages are distinct
    entries = int(C)
    S, W, w0 = gains(aggr, entries, kappa)
    tails = tuple(tail_weights(aggr, topC, int(tau), full, kappa)) if tau < math.inf else ()
    one = aggr in PICKS or not full
    fixed = tuple(window_weights(aggr, entries, kappa)) if tau <= topC and (not one or entries <= 1) else None
    said = ["staleness is unbounded" if tau == math.inf else f"staleness <= {tau}"]
    if tau:
        filling = "the memory fills from the first step on and stays full"
        said.append(filling if full else "from the second step on the memory holds at least one entry")
    if tau and fixed is not None:
        said.append("it is a moving window")
    return Kernel(
        S,
        W,
        w0,
        tau,
        tails,
        (1.0,) if tau else (),
        (entries if aggr == "mean" else 1) if tau else 0,
        fixed,
        1 if aggr in PICKS and entries else entries,
        aggr,
        float(kappa),
        full,
        momentum,
        tuple(said),
    )


def check_weights(weights: Sequence[float]) -> list[float]:
    """The weights as floats, or ``ValueError``."""
    w = [float(x) for x in weights]
    if not w or not all(math.isfinite(x) and x >= 0 for x in w) or sum(w) == 0:
        raise ValueError(f"Invalid weights: {list(weights)!r}, expected finite numbers >= 0, not all of them 0")
    return w


def check_momentum(momentum: float) -> None:
    """``ValueError`` unless ``0 <= momentum < 1``."""
    if not 0 <= momentum < 1:
        raise ValueError(f"Invalid momentum: {momentum!r}, expected 0 <= momentum < 1")


def check_problem(mu: float, L: float, lr: float = 1.0) -> None:
    """``ValueError`` unless ``0 < mu <= L`` and ``lr > 0``."""
    if not (0 < mu <= L < math.inf):
        raise ValueError(f"Invalid mu, L: {mu!r}, {L!r}, expected 0 < mu <= L")
    if not 0 < lr < math.inf:
        raise ValueError(f"Invalid lr: {lr!r}, expected a finite number > 0")
