"""How memory and gradient become a direction: pure functions on the memory's small tables.

Two ways. *Adding* (the paper): ``d = scale * (g + share * X)``, with ``X`` the memory's running sum, or the one stored
gradient that ``pick`` names. *Damping* (``"fisher"``): ``d = g - sum_i w_i G_i``, with ``w`` from ``damping_weights``.
Both give ``d = g`` for an empty memory and for a gradient that is not finite. Shapes as in ``policies``.
"""

from __future__ import annotations

import torch
from torch import Tensor

LINEAR = ("mean", "sum", "mid")  # of the memory's sum
PICKS = ("min", "median", "max")  # of the stored norms

_NEVER = torch.iinfo(torch.int64).max


def adding_weights(aggr: str, kappa: float, n: Tensor, usable: Tensor) -> tuple[Tensor, Tensor]:
    """``(scale, share)`` in float64, for ``n`` live entries; ``(1, 0)`` where the memory is empty or not ``usable``.

    >>> scale, share = adding_weights("mean", 1.0, torch.tensor([4]), torch.tensor([True]))
    >>> scale.item(), share.item()
    (0.2, 1.0)
    """
    use = usable & (n > 0)
    count = n.to(torch.float64).clamp(min=1)
    one = torch.ones_like(count)
    if aggr == "mean":  # (g + kappa * sum of M) / (1 + kappa * n)
        scale, share = 1 / (1 + kappa * count), one * kappa
    elif aggr == "sum":  # g + kappa * (sum of M) / n
        scale, share = one, kappa / count
    elif aggr == "mid":  # (g + kappa * mean of M) / (1 + kappa)
        scale, share = one / (1 + kappa), kappa / count
    elif aggr in PICKS:  # g + kappa * the picked gradient
        scale, share = one, one * kappa
    else:
        raise ValueError(f"Invalid aggr: {aggr!r}, expected one that adds: {', '.join(LINEAR + PICKS)}")
    return torch.where(use, scale, 1.0), torch.where(use, share, 0.0)


def pick(aggr: str, norm: Tensor, born: Tensor) -> Tensor:
    """The slot whose stored norm is the smallest, the (lower) median or the largest; of equal norms the oldest."""
    live = born > 0
    # Sort by (norm, born): by the minor key first, then stably by the major one.
    by_age = torch.where(live, born, _NEVER).argsort(dim=-1, stable=True)
    key = torch.where(live, norm, torch.inf).gather(-1, by_age)
    order = by_age.gather(-1, key.argsort(dim=-1, stable=True))
    n = live.sum(-1)
    if aggr == "min":
        return order[..., 0]
    rank = (n - 1).clamp(min=0)
    if aggr == "median":
        return order.gather(-1, (rank // 2)[..., None]).squeeze(-1)
    assert aggr == "max", aggr
    # The largest norm: among equals the oldest, which in this order is the first of its run.
    largest = torch.where(live, norm, -torch.inf).amax(-1, keepdim=True)
    return torch.where(live & (norm == largest), born, _NEVER).argmin(-1)


RHO_ABOVE_ROUNDING = 1e-6  # inner products are summed in float32 within blocks


def damping_weights(gram: Tensor, dots: Tensor, rho: float, kappa: float, usable: Tensor) -> Tensor:
    """``w = kappa * (K + rho * trace(K) * I)^-1 G g``, float64 ``(rows, C)``; 0 where there is nothing to damp.

    ``gram`` is ``K = G G'`` with zero rows for free slots, ``dots`` is ``G g``. Everything is divided by ``trace(K)``
    first, so that the matrix has a condition number of at most ``(1 + rho) / rho`` whatever the gradients' size.

    >>> gram, dots = torch.eye(1, dtype=torch.float64)[None], torch.ones(1, 1, dtype=torch.float64)
    >>> w = damping_weights(gram, dots, rho=0.1, kappa=1.0, usable=torch.tensor([True]))
    >>> round(1 - w.item(), 6)  # what is left of a unit gradient along the one slot: rho / (1 + rho)
    0.090909
    """
    trace = gram.diagonal(dim1=-2, dim2=-1).sum(-1)
    use = usable & (trace > 0)
    size = torch.where(use, trace, 1.0)[..., None]
    identity = torch.eye(gram.shape[-1], dtype=gram.dtype, device=gram.device)
    shifted = torch.where(use[..., None, None], gram / size[..., None] + rho * identity, identity)
    rhs = torch.where(use[..., None], dots / size, 0.0)
    # check_errors=False: the check would wait for the device.
    factor, failed = torch.linalg.cholesky_ex(shifted, check_errors=False)
    # NOTE [lost in rounding]: exactly, no pivot is smaller than rho. Where gradients are nearly parallel and rho is tiny,
    # rounding may leave less, or nothing that is positive: what is found then is noise, and a rho above the noise is taken.
    pivots, entries, least = (m.diagonal(dim1=-2, dim2=-1) for m in (factor, shifted, rho / 2 * identity))
    noise = (pivots.square() < torch.maximum(1e-13 * entries, least)).any(-1) | (failed != 0)
    safe, _ = torch.linalg.cholesky_ex(shifted + RHO_ABOVE_ROUNDING * identity, check_errors=False)
    factor = torch.where(noise[..., None, None], safe, factor)
    # NOTE [no cholesky_solve]: for several rows on CUDA it allocates, which a CUDA graph forbids; these two do not.
    half = torch.linalg.solve_triangular(factor, rhs[..., None], upper=False)
    return kappa * torch.linalg.solve_triangular(factor.mT, half, upper=True).squeeze(-1)


def insert_in_gram(gram: Tensor, row: Tensor, square: Tensor, accept: Tensor, slot: Tensor) -> Tensor:
    """``K`` after the entry with inner products ``row`` and squared norm ``square`` took ``slot``."""
    slots = torch.arange(gram.shape[-1], device=gram.device)
    hit = (slots == slot[..., None]) & accept[..., None]
    row = torch.where(hit, square[..., None], row)
    gram = torch.where(hit[..., :, None], row[..., None, :], gram)
    return torch.where(hit[..., None, :], row[..., :, None], gram)
