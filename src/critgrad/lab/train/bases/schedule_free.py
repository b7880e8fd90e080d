"""Schedule-free Adam (Defazio et al. 2024), as a base for the memory: an average of the iterates takes the schedule's place."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from .plain import Plain


class ScheduleFree(Plain):
    """``z`` takes Adam's steps without momentum, ``x`` is the mean of all ``z``, and gradients are asked for at
    ``y = (1 - beta1) z + beta1 x``.

    In training the parameters are ``y``; ``x`` is what was learnt: ``eval()`` puts it in their place, ``train()`` puts ``y``
    back.
    """

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})

    def move(self, p: Tensor, g: Tensor, group: dict[str, Any], state: dict[str, Any]) -> None:
        """Of one tensor."""
        beta1, beta2 = group["betas"]
        if not state:
            state["step"] = torch.zeros((), device=p.device)  # a tensor: a step can then be captured
            state["z"], state["x"], state["v"] = p.clone(), p.clone(), torch.zeros_like(p)
        z, x = state["z"], state["x"]
        step = state["step"].add_(1)
        v = state["v"].lerp_(g.square(), 1 - beta2)
        scale = (v / (1 - beta2**step)).sqrt_().add_(group["eps"])
        z.sub_(group["lr"] * (g / scale + group["weight_decay"] * p))
        x.lerp_(z, 1 / step)
        p.copy_(z.lerp(x, beta1))

    @torch.no_grad()
    def eval(self) -> None:
        """Put what was learnt into the parameters."""
        for group in self.param_groups:
            for p in group["params"]:
                if "x" in self.state[p]:
                    p.copy_(self.state[p]["x"])

    @torch.no_grad()
    def train(self) -> None:
        """Put the point back at which gradients are asked for."""
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                if "x" in state:
                    p.copy_(state["z"].lerp(state["x"], group["betas"][0]))


@contextmanager
def learnt(optimizer: torch.optim.Optimizer) -> Iterator[None]:
    """For an evaluation: the parameters are what was learnt, for optimizers that train at another point."""
    before, after = (getattr(optimizer, name, None) for name in ("eval", "train"))
    if not callable(before) or not callable(after):
        yield
        return
    before()
    try:
        yield
    finally:
        after()
