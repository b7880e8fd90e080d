"""Lion (Chen et al. 2023, "Symbolic discovery of optimization algorithms"), as a base for the memory."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .plain import Plain


class Lion(Plain):
    """``c = beta1 * m + (1 - beta1) * g``; ``theta -= lr * sign(c)``; ``m = beta2 * m + (1 - beta2) * g``.

    Weight decay is decoupled.
    """

    def __init__(
        self, params: Any, lr: float = 1e-4, betas: tuple[float, float] = (0.9, 0.99), weight_decay: float = 0.0
    ) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    def move(self, p: Tensor, g: Tensor, group: dict[str, Any], state: dict[str, Any]) -> None:
        """Of one tensor."""
        beta1, beta2 = group["betas"]
        if not state:
            state["m"] = torch.zeros_like(p)
        m = state["m"]
        if group["weight_decay"]:
            p.mul_(1 - group["lr"] * group["weight_decay"])
        p.add_(torch.lerp(m, g, 1 - beta1).sign_(), alpha=-group["lr"])
        m.lerp_(g, 1 - beta2)
