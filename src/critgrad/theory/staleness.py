"""How old an entry can get."""

from __future__ import annotations

import math

from ..memory.options import check_option

# Quotients of logarithms are rounded up by this much: at exact powers of the decay the larger bound is the right one.
_SLACK = 1e-9


def staleness_bound(
    topC: int,
    decay: float,
    norm_ratio: float | None = None,
    norm_decay: float = 1.0,
    max_age: int | None = None,
) -> float:
    """The largest age ``tau`` at which an entry can still be aggregated, an ``int`` or ``math.inf``.

    Lemma S: if an entry has norm ``n`` and all later gradients have norms ``>= m``, its age when it is aggregated for
    the last time is at most ``topC + floor(log(max(n / m, 1)) / log(1 / decay))``, and this is attained. From the age
    on at which its priority ``n decay^j`` is below ``m`` every arrival evicts the lowest priority, and at most ``topC -
    1`` entries lie below this one. If later norms are only ``>= m r^j`` after ``j`` steps, ``log(r / decay)`` stands in
    the place of ``log(1 / decay)``: no bound exists unless ``r > decay``. ``max_age`` bounds the age by construction.

    For ``policy="KotH"`` and gradients that are finite and not zero; ``policy="FIFO"`` is ``decay=0``.

    Arguments:
        topC: entries in the memory.
        decay: what priorities are multiplied with at each step.
        norm_ratio: ``n / m``, the largest over the smallest gradient norm; ``None`` if nothing is known of it.
        norm_decay: ``r``, by which norms shrink per step.
        max_age: the option of the same name.

    Example:
        >>> staleness_bound(5, 0.7, norm_ratio=10)
        11
        >>> staleness_bound(5, 0.7, norm_ratio=10, norm_decay=0.69)  # norms shrink faster than priorities
        inf
        >>> staleness_bound(5, 0.7, norm_ratio=10, norm_decay=0.69, max_age=30)
        30

    Reference:
        ``docs/theory.md``, "Staleness".
    """
    check_option("topC", topC)
    check_option("decay", decay)
    check_option("max_age", max_age)
    if norm_ratio is not None and not norm_ratio > 0:
        raise ValueError(f"Invalid norm_ratio: {norm_ratio!r}, expected a number > 0 or None")
    if not 0 < norm_decay <= 1:
        raise ValueError(f"Invalid norm_decay: {norm_decay!r}, expected 0 < norm_decay <= 1")
    by_norm: float = math.inf
    if topC == 0:
        by_norm = 0
    elif decay == 0:
        by_norm = topC
    elif norm_ratio is not None and norm_decay > decay and math.isfinite(norm_ratio):
        steps = math.log(max(norm_ratio, 1.0)) / math.log(norm_decay / decay)
        by_norm = topC + math.floor(steps * (1 + _SLACK) + _SLACK)
    return by_norm if max_age is None else min(by_norm, max_age)
