"""Lion (Chen et al. 2023, "Symbolic discovery of optimization algorithms"), as a base for the memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


class Lion(torch.optim.Optimizer):
    """``c = beta1 * m + (1 - beta1) * g``; ``theta -= lr * sign(c)``; ``m = beta2 * m + (1 - beta2) * g``.

    Weight decay is decoupled. Plain: one loop over the tensors, no fused path.
    """

    def __init__(
        self, params: Any, lr: float = 1e-4, betas: tuple[float, float] = (0.9, 0.99), weight_decay: float = 0.0
    ) -> None:
        if not lr >= 0:
            raise ValueError(f"Invalid lr: {lr!r}, expected a number >= 0")
        for beta in betas:
            if not 0 <= beta < 1:
                raise ValueError(f"Invalid betas: {betas!r}, expected 0 <= beta < 1")
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One step; returns the closure's loss."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if not state:
                    state["m"] = torch.zeros_like(p)
                m = state["m"]
                if group["weight_decay"]:
                    p.mul_(1 - group["lr"] * group["weight_decay"])
                p.add_(torch.lerp(m, p.grad, 1 - beta1).sign_(), alpha=-group["lr"])
                m.lerp_(p.grad, 1 - beta2)
        return loss
