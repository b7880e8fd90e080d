"""What a certificate says: a rate, of which quantity, under which assumptions."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

METRICS = ("F-gap", "dist2", "window-max")


@dataclass(frozen=True)
class Certificate:
    """A bound that shrinks geometrically, or the statement that there is none.

    With ``r_t = theta_t - theta*`` and ``rho`` the rate, ``metric`` says what the bound is about:

    - ``"F-gap"``: ``F(theta_t) - F* <= constant * rho^t * (F(theta_0) - F*)``;
    - ``"dist2"``: ``|r_t|^2 <= constant * rho^(2t) * |r_0|^2``;
    - ``"window-max"``: ``max |r|`` over the last ``tau + 1`` steps is at most ``constant * rho^t * |r_0|``, in each
      eigen-coordinate.

    (``"lmi"`` and ``"pep"`` start at the step at which the memory is full, and ``|r_0|^2`` is the sum over the
    ``tau + 1`` steps up to it.) Rates of different metrics are not comparable; ``norm_rate`` brings them to one scale.

    Arguments:
        rate: ``rho`` in [0, 1), or ``inf`` without a certificate. A rate >= 1 is never passed off as convergence.
        metric: what the rate is a rate of.
        constant: the factor in front; ``None`` if the rate holds asymptotically, without a constant.
        valid: whether there is a certificate.
        assumptions: what was assumed of the function and of the memory.
        numerical: whether the numbers come from a floating-point search (a grid, eigenvalues, a semidefinite solver)
            instead of a closed form.
        method: which result it is.
        reason: why there is no certificate; empty if there is one.

    Example:
        >>> from critgrad import theory
        >>> certificate = theory.rate(0.1, mu=0.1, L=1.0, aggr="sum", topC=1, tau=2)
        >>> certificate.valid, round(certificate.rate, 4), certificate.metric
        (True, 0.98, 'F-gap')
        >>> theory.rate(0.5, mu=0.1, L=1.0, aggr="sum", topC=1, tau=2).rate
        inf

    Reference:
        ``docs/theory.md``.
    """

    rate: float
    metric: str
    constant: float | None = 1.0
    valid: bool = True
    assumptions: tuple[str, ...] = ()
    numerical: bool = False
    method: str = ""
    reason: str = field(default="", repr=False)

    def __post_init__(self) -> None:
        if self.metric not in METRICS:
            raise ValueError(f"Invalid metric: {self.metric!r}, expected one of {', '.join(METRICS)}")
        if self.valid and not 0 <= self.rate < 1:
            raise ValueError(f"Invalid rate: {self.rate!r}, expected 0 <= rate < 1 in a valid certificate")
        if not self.valid and self.rate != math.inf:
            raise ValueError(f"Invalid rate: {self.rate!r}, expected inf without a certificate")

    @property
    def norm_rate(self) -> float:
        """The rate per step of ``|r|``, the scale on which all metrics can be compared.

        >>> Certificate(rate=0.81, metric="F-gap").norm_rate
        0.9
        """
        return math.sqrt(self.rate) if self.metric == "F-gap" else self.rate

    def bound(self, t: int) -> float:
        """The factor on the metric's quantity after ``t`` steps; ``inf`` without a certificate or a constant.

        >>> round(Certificate(rate=0.9, metric="dist2", constant=2.0).bound(3), 6)
        1.062882
        """
        if not self.valid or self.constant is None:
            return math.inf
        return self.constant * self.rate ** (2 * t if self.metric == "dist2" else t)


def none_because(reason: str, method: str, metric: str, assumptions: tuple[str, ...] = ()) -> Certificate:
    """The certificate that says that there is none."""
    return Certificate(math.inf, metric, None, False, assumptions, False, method, reason)


def certify(
    rate: float,
    metric: str,
    constant: float | None,
    assumptions: tuple[str, ...],
    method: str,
    numerical: bool = False,
) -> Certificate:
    """A certificate if ``rate < 1``, else none."""
    if not rate < 1:
        return none_because("the bound does not shrink: its rate is not below 1", method, metric, assumptions)
    return Certificate(rate, metric, constant, True, assumptions, numerical, method)
