"""The paper's Theorem 1 as it is printed."""

from __future__ import annotations

import math

from .weights import check_problem


def theorem1_rate(lr: float, mu: float, L: float, K: int, matrix: str = "shift") -> float:
    """The ``q(lr, K)`` of the paper's Theorem 1, which is at least 1 for every ``K >= 2``: it certifies nothing there.

    The theorem bounds the error by powers of ``q = sup sigma_max(Lambda)`` and asks for ``q < 1``. The first row of
    ``Lambda`` is ``lambda_0 = 1 - lr eta_0, lambda_k = -lr w_k eta_k`` with ``eta`` in ``[mu, L]`` and ``w`` in [0, 1];
    the rows below are unit vectors, so ``sigma_max >= 1``. With ``s = sum_k lambda_k^2``, ``sigma_max^2 = ((1 + s) +
    sqrt((1 + s)^2 - 4 lambda^2)) / 2``, where ``lambda`` is ``lambda_{K-1}`` for the shift matrix that is meant and
    ``lambda_0`` for the matrix as printed. As ``lr -> 0`` it tends to ``sqrt(2)`` or to 1, from above. For ``K = 1`` it
    is SGD's ``max |1 - lr eta|``, and right. For what holds instead see ``rate``.

    Arguments:
        lr: the learning rate.
        mu, L: the curvatures lie in ``[mu, L]``.
        K: number of gradients in the recursion, ``tau + 1``.
        matrix: ``"shift"`` (meant) or ``"printed"``.

    Example:
        >>> round(theorem1_rate(0.1, mu=0.1, L=1.0, K=1), 4)
        0.99
        >>> all(theorem1_rate(lr, 0.1, 1.0, K) >= 1 for lr in (1e-3, 0.1, 1.0) for K in (2, 5, 20))
        True

    Reference:
        McRae, Parthasarathi, Assran, Chandar, "Memory Augmented Optimizers for Deep Learning", ICLR 2022, Theorem 1.
    """
    check_problem(mu, L, lr)
    if not isinstance(K, int) or K < 1:
        raise ValueError(f"Invalid K: {K!r}, expected an int >= 1")
    if matrix not in ("shift", "printed"):
        raise ValueError(f'Invalid matrix: {matrix!r}, expected "shift" or "printed"')
    # sigma_max depends on |lambda_k| alone and grows in each of them.
    first = max(abs(1 - lr * mu), abs(1 - lr * L))
    if K == 1:
        return first
    other = lr * L
    s = first**2 + (K - 1) * other**2
    last = other if matrix == "shift" else first
    return math.sqrt(((1 + s) + math.sqrt(max((1 + s) ** 2 - 4 * last**2, 0.0))) / 2)
