"""What these optimizers share: a step is a loop over the tensors that have a gradient."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


class Plain(torch.optim.Optimizer, ABC):
    """An optimizer that moves each tensor by itself; checks what all of them take."""

    def __init__(self, params: Any, defaults: dict[str, Any]) -> None:
        if not defaults["lr"] >= 0:
            raise ValueError(f"Invalid lr: {defaults['lr']!r}, expected a number >= 0")
        for beta in defaults["betas"]:
            if not 0 <= beta < 1:
                raise ValueError(f"Invalid betas: {defaults['betas']!r}, expected 0 <= beta < 1")
        super().__init__(params, defaults)

    @abstractmethod
    def move(self, p: Tensor, g: Tensor, group: dict[str, Any], state: dict[str, Any]) -> None:
        """Move ``p`` in place; ``state`` is empty the first time."""

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One step; returns the closure's loss."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    self.move(p, p.grad, group, self.state[p])
        return loss
