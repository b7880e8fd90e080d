"""The linear algebra of a memory that damps (``aggr="fisher"``): pure functions of its Gram matrix ``K = G G'``."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

# Of inner products that are summed in float32 within blocks: their relative error, and a rho that is well above it.
ROUNDING_OF_PRODUCTS = 1e-7
RHO_ABOVE_ROUNDING = 1e-6
_ROUNDING = {torch.float32: ROUNDING_OF_PRODUCTS, torch.float64: 1e-13}


def damping_weights(
    gram: Tensor, dots: Tensor, rho: Any, kappa: Any, usable: Tensor, dtype: torch.dtype = torch.float64
) -> Tensor:
    """``w = kappa * (K + rho * trace(K) * I)^-1 G g``, float64 ``(rows, C)``; 0 where there is nothing to damp.

    ``gram`` is ``K = G G'`` with zero rows for free slots, ``dots`` is ``G g``, both of products in ``dtype``.
    Everything is divided by ``trace(K)`` first, so that the matrix has a condition number of at most ``(1 + rho) / rho``
    whatever the gradients' size.

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
    noise = (pivots.square() < torch.maximum(_ROUNDING[dtype] * entries, least)).any(-1) | (failed != 0)
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
