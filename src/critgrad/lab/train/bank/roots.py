"""The square root of many small matrices, and damping by the inverse root: nothing here waits for the device."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

# NOTE [no eigh]: a graph cannot hold it. A coupled Newton-Schulz iteration is products of matrices alone. It raises an
# eigenvalue of 1e-6 (the smallest rho, on the scale of the trace) to 1 in about 17 rounds and then doubles the digits.
ROUNDS = 26
SMALLEST_RHO = 1e-6


def square_root(matrix: Tensor) -> Tensor:
    """The positive square root of symmetric matrices whose eigenvalues lie in ``[1e-6, 1]``, float64 ``(rows, C, C)``.

    >>> a = torch.tensor([[[0.25, 0.0], [0.0, 1e-6]]], dtype=torch.float64)
    >>> root = square_root(a)[0]
    >>> [round(x, 9) for x in root.diagonal().tolist()]
    [0.5, 0.001]
    """
    identity = torch.eye(matrix.shape[-1], dtype=matrix.dtype, device=matrix.device).expand_as(matrix)
    y, z = matrix, identity
    for _ in range(ROUNDS):
        half = torch.baddbmm(identity, z, y, beta=1.5, alpha=-0.5)
        y, z = torch.bmm(y, half), torch.bmm(half, z)
    return (y + y.mT) / 2  # what rounding has made unlike


def root_weights(gram: Tensor, dots: Tensor, rho: Any, kappa: Any, usable: Tensor) -> Tensor:
    """The weights of ``d = g - sum_i w_i G_i = (I + G'G / lam)^-1/2 g``, ``lam = rho * trace(K)``; shapes as in
    ``critgrad.aggregate.damping_weights``.

    With ``A = I + K / lam`` they are ``w = (A + A^1/2)^-1 G g / lam``: no division by an eigenvalue of ``K``, which may
    be 0. Here everything is divided by the trace, ``M = K / trace + rho * I``, and ``w = (M + sqrt(rho) M^1/2)^-1 ...``.
    """
    trace = gram.diagonal(dim1=-2, dim2=-1).sum(-1)
    use = usable & (trace > 0)
    size = torch.where(use, trace, 1.0)[..., None]
    identity = torch.eye(gram.shape[-1], dtype=gram.dtype, device=gram.device)
    shifted = torch.where(use[..., None, None], gram / size[..., None] + rho * identity, identity)
    largest = 1 + rho  # no eigenvalue exceeds the trace
    root = square_root(shifted / largest) * torch.sqrt(torch.as_tensor(largest))
    matrix = shifted + torch.sqrt(torch.as_tensor(rho)) * root
    rhs = torch.where(use[..., None], dots / size, 0.0)
    factor, _ = torch.linalg.cholesky_ex(matrix, check_errors=False)
    half = torch.linalg.solve_triangular(factor, rhs[..., None], upper=False)
    return kappa * torch.linalg.solve_triangular(factor.mT, half, upper=True).squeeze(-1)


def redundancy(gram: Tensor, live: Tensor) -> Tensor:
    """How much of each entry the other ones explain, in [0, 1]: ``1 - 1 / (K_ii (K^-1)_ii)``; -1 for free slots.

    Of two entries that are the same each is explained whole. Rounded, so that equals are equal.

    >>> gram = torch.tensor([[[1.0, 0.6], [0.6, 1.0]]], dtype=torch.float64)
    >>> redundancy(gram, torch.ones(1, 2, dtype=torch.bool)).tolist()  # the squared cosine
    [[0.36, 0.36]]
    """
    size = torch.where(live, gram.diagonal(dim1=-2, dim2=-1), 1.0).clamp(min=torch.finfo(gram.dtype).tiny).rsqrt()
    identity = torch.eye(gram.shape[-1], dtype=gram.dtype, device=gram.device)
    cosines = gram * size[..., :, None] * size[..., None, :]
    both = live[..., :, None] & live[..., None, :]
    cosines = torch.where(both, cosines, identity) + _RIDGE * identity
    factor, _ = torch.linalg.cholesky_ex(cosines, check_errors=False)
    inverse = torch.linalg.solve_triangular(factor, identity.expand_as(factor), upper=False)
    share = 1 - 1 / ((1 + _RIDGE) * inverse.square().sum(-2))
    return torch.where(live, (share.clamp(0, 1) * _STEPS).round() / _STEPS, -1.0)


_RIDGE = 1e-9  # keeps the factor real for entries that are the same
_STEPS = 1e6
