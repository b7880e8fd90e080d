"""What a user wants to know of a choice of ``topC``, ``decay`` and ``aggr``, on one screen."""

from __future__ import annotations

import math

from ..memory.aggregations import LINEAR
from ..memory.options import check_option
from .closed import damping_bounds
from .rates import max_stable_lr
from .staleness import staleness_bound
from .weights import check_momentum, effective_lr, matched_momentum

_MU = 1e-6  # the limits that are printed do not depend on it


def summary(
    topC: int = 5,
    decay: float = 0.7,
    aggr: str = "sum",
    kappa: float = 1.0,
    rho: float = 0.3,
    momentum: float = 0.0,
    max_age: int | None = None,
    norm_ratio: float = 10.0,
    norm_decay: float = 1.0,
) -> str:
    """Effective step, staleness bound, largest safe ``lr * L``, matched momentum; for ``"fisher"`` the damping's
    bounds.

    Arguments:
        topC, decay, aggr, kappa, rho, max_age: the options of the memory.
        momentum: of the base optimizer (SGD, without dampening).
        norm_ratio, norm_decay: what is assumed of gradient norms, as in ``staleness_bound``.

    Example:
        >>> print(summary(topC=5, decay=0.7, aggr="sum"))  # doctest: -NORMALIZE_WHITESPACE
        aggr="sum", topC=5, decay=0.7, kappa=1
          effective step       2 * lr
          staleness            at most 11 steps, if gradient norms stay within a factor of 10
          safe lr * L          0.0994 for smooth functions (PL), any memory this stale
                               1 for quadratics, any memory
                               2.233 for quadratics, moving window (decay=0 or policy="FIFO")
          matched momentum     beta=0.6 at 0.8 * lr, for the mean age 3 of a moving window

    Reference:
        ``docs/theory.md``.
    """
    check_option("aggr", aggr)
    check_option("kappa", kappa)
    check_momentum(momentum)
    tau = staleness_bound(topC, decay, norm_ratio, norm_decay, max_age)
    options = f'aggr="{aggr}", topC={topC}, decay={decay:g}, kappa={kappa:g}'
    if aggr == "fisher":
        rows = _damping(rho, kappa, momentum)
        options += f", rho={rho:g}"
    else:
        rows = _adding(topC, aggr, kappa, momentum, tau)
    options += f", momentum={momentum:g}" if momentum else ""
    options += f", max_age={max_age}" if max_age is not None else ""
    staleness = ("staleness", [_staleness(tau, topC, decay, norm_ratio, norm_decay, max_age)])
    lines = [options]
    for name, values in [rows[0], staleness, *rows[1:]]:
        for i, value in enumerate(values):
            lines.append(f"  {name if i == 0 else '':<20} {value}")
    return "\n".join(lines)


def _staleness(tau: float, topC: int, decay: float, norm_ratio: float, norm_decay: float, max_age: int | None) -> str:
    if tau == math.inf:
        why = "decay=1" if decay == 1 else f"norms that shrink by {norm_decay:g} per step outrun decay={decay:g}"
        return f"no bound: {why} (max_age would give one)"
    if topC == 0 or decay == 0 or tau == max_age:
        return f"at most {tau} steps"
    shrinking = f" of {norm_decay:g}^t" if norm_decay < 1 else ""
    return f"at most {tau} steps, if gradient norms stay within a factor of {norm_ratio:g}{shrinking}"


def _adding(topC: int, aggr: str, kappa: float, momentum: float, tau: float) -> list[tuple[str, list[str]]]:
    def limit(method: str, tau: float | None) -> float:
        return max_stable_lr(_MU, 1.0, aggr=aggr, topC=topC, tau=tau, momentum=momentum, kappa=kappa, method=method)

    smooth = limit("pl", tau)
    safe = [
        f"{smooth:.3g} for smooth functions (PL), any memory this stale"
        if smooth
        else "none for smooth functions: the staleness has no bound"
    ]
    any_memory = limit("window", None)
    if any_memory:
        safe.append(f"{any_memory:.4g} for quadratics, any memory")
    if aggr in LINEAR or topC <= 1:
        safe.append(f'{limit("quadratic", None):.4g} for quadratics, moving window (decay=0 or policy="FIFO")')
    rows = [("effective step", [f"{effective_lr(1.0, aggr, topC, momentum, kappa):.4g} * lr"]), ("safe lr * L", safe)]
    if not momentum:
        beta, lr_mult = matched_momentum(aggr=aggr, topC=topC, kappa=kappa)
        age = f"the mean age {(topC + 1) / 2:g} of a moving window" if topC else "an empty memory"
        rows.append(("matched momentum", [f"beta={beta:.3g} at {lr_mult:.3g} * lr, for {age}"]))
    return rows


def _damping(rho: float, kappa: float, momentum: float) -> list[tuple[str, list[str]]]:
    p, _ = damping_bounds(rho, kappa)
    safe = (
        ["1 for smooth functions, any memory, also with noise"]
        if not momentum
        else ["no certificate with momentum; without it 1 for smooth functions, any memory"]
    )
    return [
        ("effective step", [f"between {p:.4g} * lr along the memory and 1 * lr across it (Lemma P)"]),
        ("safe lr * L", safe),
        ("rate (PL)", [f"at worst 1 - {p:.4g} * lr * mu per step of F - F* (SGD: 1 - lr * mu)"]),
        ("noise floor", [f"at worst {1 / p:.4g} times SGD's bound lr * L * sigma^2 / (2 mu): no bias"]),
        ("matched momentum", ["none: damping delays nothing"]),
    ]
