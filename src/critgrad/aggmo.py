"""Aggregated momentum (Lucas, Sun, Zemel, Grosse: "Aggregated Momentum: Stability Through Passive Damping", ICLR 2019).

torch has none. Several velocities, each with a damping factor of its own, are averaged::

    v_i = beta_i * v_i + g            for each beta_i
    theta = theta - lr * mean_i v_i
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import Optimizer, ParamsT, _use_grad_for_differentiable


class AggMo(Optimizer):
    """Aggregated momentum.

    Args:
        params: parameters or groups, as everywhere in torch.
        lr: learning rate.
        betas: one damping factor per velocity; ``(0, 0.9, 0.99)`` is the paper's default.
        weight_decay: L2 penalty, added to the gradient.
        maximize: maximize the objective.
        foreach: work on lists of tensors (default: on CUDA).
        differentiable: let autograd follow the step.

    >>> weight = torch.nn.Parameter(torch.tensor([1.0]))
    >>> opt = AggMo([weight], lr=0.1)
    >>> (weight**2).sum().backward()
    >>> opt.step()
    >>> round(weight.item(), 4)
    0.8
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 0.1,
        betas: Sequence[float] = (0.0, 0.9, 0.99),
        weight_decay: float = 0.0,
        *,
        maximize: bool = False,
        foreach: bool | None = None,
        differentiable: bool = False,
    ) -> None:
        if not lr >= 0.0:
            raise ValueError(f"Invalid learning rate: {lr}, expected lr >= 0")
        if not betas or not all(0.0 <= beta < 1.0 for beta in betas):
            raise ValueError(f"Invalid betas: {betas!r}, expected at least one, each 0 <= beta < 1")
        if not weight_decay >= 0.0:
            raise ValueError(f"Invalid weight_decay: {weight_decay}, expected weight_decay >= 0")
        defaults = {
            "lr": lr,
            "betas": tuple(betas),
            "weight_decay": weight_decay,
            "maximize": maximize,
            "foreach": foreach,
            "differentiable": differentiable,
        }
        super().__init__(params, defaults)

    @_use_grad_for_differentiable
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Perform one step."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            params = [p for p in group["params"] if p.grad is not None]
            if any(p.grad.is_sparse for p in params):
                raise RuntimeError("AggMo does not support sparse gradients")
            velocities: list[list[Tensor]] = [[] for _ in group["betas"]]
            for p in params:
                state = self.state[p]
                for i, velocity in enumerate(velocities):
                    # NOTE [flat state]: one tensor per key, so that distributed checkpoints can hold it.
                    key = f"momentum_buffer_{i}"
                    if key not in state:
                        state[key] = torch.zeros_like(p, memory_format=torch.preserve_format)
                    velocity.append(state[key])
            grads = [p.grad for p in params]
            foreach = group["foreach"]
            if foreach is None:
                foreach = bool(params) and all(p.is_cuda for p in params) and not group["differentiable"]
            if foreach and params:
                _aggmo(params, grads, velocities, group)
            else:
                for j, (p, g) in enumerate(zip(params, grads)):
                    _aggmo([p], [g], [[each[j]] for each in velocities], group)
        return loss


def _aggmo(params: list[Tensor], grads: list[Tensor], velocities: list[list[Tensor]], group: dict[str, Any]) -> None:
    if group["maximize"]:
        grads = list(torch._foreach_neg(grads))
    if group["weight_decay"] != 0:
        grads = list(torch._foreach_add(grads, params, alpha=group["weight_decay"]))
    mean = [torch.zeros_like(p) for p in params]
    for beta, velocity in zip(group["betas"], velocities):
        torch._foreach_mul_(velocity, beta)
        torch._foreach_add_(velocity, grads)
        torch._foreach_add_(mean, velocity)
    torch._foreach_mul_(mean, -group["lr"] / len(group["betas"]))
    torch._foreach_add_(params, mean)
