"""Optimizers of the lab's own, to compare with: a step is a loop over the tensors that have a gradient. And how any
optimizer's model is evaluated.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor


@contextmanager
def learnt(optimizer: Any) -> Iterator[None]:
    """For an evaluation: the parameters are what was learnt. Optimizers that train at another point (schedule-free ones) have
    ``eval()`` and ``train()`` for that; others have no such methods, and need none.
    """
    if not (hasattr(optimizer, "eval") and hasattr(optimizer, "train")):
        yield
        return
    optimizer.eval()
    try:
        yield
    finally:
        optimizer.train()


class Plain(torch.optim.Optimizer, ABC):
    """An optimizer that moves each tensor by itself; checks what all of them take. Weight decay is decoupled."""

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
                if p.grad is None:
                    continue
                if group["weight_decay"]:
                    p.mul_(1 - group["lr"] * group["weight_decay"])
                self.move(p, p.grad, group, self.state[p])
        return loss


class Lion(Plain):
    """Lion (Chen et al. 2023, "Symbolic discovery of optimization algorithms"), as a base for the memory.

    ``c = beta1 * m + (1 - beta1) * g``; ``theta -= lr * sign(c)``; ``m = beta2 * m + (1 - beta2) * g``.
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
        p.add_(torch.lerp(m, g, 1 - beta1).sign_(), alpha=-group["lr"])
        m.lerp_(g, 1 - beta2)


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
    """Muon (Jordan et al. 2024), as a base for the memory: the momentum of a matrix is orthogonalised before the step.

    Matrices (convolutions as ``(out, the rest)``): ``m = momentum * m + g`` and
    ``theta -= lr * 0.2 * sqrt(max side) * orthogonalised(g + momentum * m)``. Vectors, and what is marked ``embedding``: Adam
    with ``betas`` and the same ``lr``.
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
        matrix = p.dim() >= 2 and not (group.get("embedding") or getattr(p, "embedding", False))
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
