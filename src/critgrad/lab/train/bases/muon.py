"""Muon (Jordan et al. 2024), as a base for the memory: the momentum of a matrix is orthogonalised before the step."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .plain import Plain

ITERATION = (3.4445, -4.7750, 2.0315)  # of the published polynomial: singular values end between about 0.7 and 1.2
ITERATIONS = 5
RMS = 0.2  # of an update's entries, about that of Adam (Liu et al. 2025): one learning rate serves matrices and vectors


def orthogonalised(matrix: Tensor) -> Tensor:
    """The matrix with all its singular values near 1, by five Newton-Schulz iterations."""
    a, b, c = ITERATION
    x = matrix.t() if matrix.shape[0] > matrix.shape[1] else matrix
    x = x / x.norm().clamp_min(1e-7)
    for _ in range(ITERATIONS):
        gram = x @ x.t()
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.t() if matrix.shape[0] > matrix.shape[1] else x


class Muon(Plain):
    """Matrices (convolutions as ``(out, the rest)``): ``m = momentum * m + g`` and
    ``theta -= lr * 0.2 * sqrt(max side) * orthogonalised(g + momentum * m)``. Vectors, and groups marked ``embedding``: Adam
    with ``betas`` and the same ``lr``.

    Weight decay is decoupled.
    """

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        momentum: float = 0.95,
        betas: tuple[float, float] = (0.9, 0.95),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
    ) -> None:
        if not 0 <= momentum < 1:
            raise ValueError(f"Invalid momentum: {momentum!r}, expected 0 <= momentum < 1")
        super().__init__(
            params, {"lr": lr, "momentum": momentum, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        )

    def move(self, p: Tensor, g: Tensor, group: dict[str, Any], state: dict[str, Any]) -> None:
        """Of one tensor."""
        if group["weight_decay"]:
            p.mul_(1 - group["lr"] * group["weight_decay"])
        matrix = p.dim() >= 2 and not group.get("embedding")
        (self._matrix if matrix else self._vector)(p, g, group, state)

    def _matrix(self, p: Tensor, g: Tensor, group: dict[str, Any], state: dict[str, Any]) -> None:
        if not state:
            state["m"] = torch.zeros_like(p)
        m = state["m"].mul_(group["momentum"]).add_(g)
        update = orthogonalised(g.add(m, alpha=group["momentum"]).flatten(1))
        p.add_(update.reshape(p.shape), alpha=-group["lr"] * RMS * max(update.shape) ** 0.5)

    def _vector(self, p: Tensor, g: Tensor, group: dict[str, Any], state: dict[str, Any]) -> None:
        if not state:
            state["step"] = torch.zeros((), device=p.device)  # a tensor: a step can then be captured
            state["m"], state["v"] = torch.zeros_like(p), torch.zeros_like(p)
        beta1, beta2 = group["betas"]
        step = state["step"].add_(1)
        m, v = state["m"].lerp_(g, 1 - beta1), state["v"].lerp_(g.square(), 1 - beta2)
        scale = (v / (1 - beta2**step)).sqrt_().add_(group["eps"])
        p.sub_(group["lr"] * (m / (1 - beta1**step)) / scale)
