"""The base optimizers over a leading model axis: each the twin of its torch class, with a column of every option.

Parameters are flat, ``theta [n, P]``; an option is a column ``[n, 1]``, one value for each model. A family names the
options that it follows; any other option must have its class's default.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

import critgrad

Options = Mapping[str, Any]


class Update(Protocol):
    """The update of some models of one family."""

    def __call__(self, theta: Tensor, d: Tensor, t: Tensor) -> None:
        """Move ``theta`` in place along the direction ``d``; ``t`` is the number of this step (from 1), float64."""


class _Columns:
    """Options of several models as columns in the dtype of their parameters."""

    def __init__(self, options: Sequence[Options], theta: Tensor) -> None:
        self.options = options
        self.like = theta

    def column(self, name: str, default: float = 0.0) -> Tensor:
        return self.made([options.get(name, default) for options in self.options], self.like.dtype)

    def wide(self, name: str) -> Tensor:
        """The same in float64: powers of a step's number are taken of it."""
        return self.made([options[name] for options in self.options], torch.float64)

    def made(self, values: Sequence[Any], dtype: torch.dtype) -> Tensor:
        return torch.tensor(values, dtype=dtype, device=self.like.device)[:, None]

    def any(self, name: str) -> bool:
        return any(options.get(name) for options in self.options)

    def zeros(self) -> Tensor:
        return torch.zeros_like(self.like)

    def penalty(self) -> Tensor | None:
        """The column of ``weight_decay``, or ``None`` where nobody has one."""
        return self.column("weight_decay") if self.any("weight_decay") else None


def _penalised(theta: Tensor, d: Tensor, penalty: Tensor | None) -> Tensor:
    """The direction with the L2 penalty's gradient."""
    return d if penalty is None else torch.addcmul(d, theta, penalty)


class _SGD:
    """``v = momentum * v + (1 - dampening) * d``; ``theta -= lr * v``, or with Nesterov's look ahead."""

    def __init__(self, options: Sequence[Options], theta: Tensor) -> None:
        columns = _Columns(options, theta)
        self.lr = columns.column("lr")
        self.penalty = columns.penalty()
        self.velocity: Tensor | None = None
        if not columns.any("momentum"):
            return
        self.velocity = columns.zeros()
        self.momentum = columns.column("momentum")
        # Without momentum the velocity is the gradient itself, which nothing dampens.
        self.share: Tensor | None = None
        if columns.any("dampening"):
            self.share = columns.made([1 - o["dampening"] if o["momentum"] else 1.0 for o in options], theta.dtype)
        looks_ahead = [bool(o["nesterov"]) for o in options]
        self.all_look_ahead, self.some_look_ahead = all(looks_ahead), any(looks_ahead)
        self.looks_ahead = columns.made(looks_ahead, torch.bool)

    def __call__(self, theta: Tensor, d: Tensor, t: Tensor) -> None:
        d = _penalised(theta, d, self.penalty)
        if self.velocity is not None:
            self.velocity.mul_(self.momentum)
            if self.share is None:
                self.velocity.add_(d)
            else:  # the first gradient goes in whole
                self.velocity.addcmul_(d, torch.where(t == 1, 1.0, self.share))
            velocity = self.velocity
            ahead = torch.addcmul(d, velocity, self.momentum) if self.some_look_ahead else velocity
            d = ahead if self.all_look_ahead else torch.where(self.looks_ahead, ahead, velocity)
        theta.addcmul_(d, self.lr, value=-1)


class _RMSprop:
    """``v = alpha * v + (1 - alpha) * d^2``; ``theta -= lr * d / (sqrt(v) + eps)``, with momentum if asked for."""

    def __init__(self, options: Sequence[Options], theta: Tensor) -> None:
        columns = _Columns(options, theta)
        self.lr, self.eps = columns.column("lr"), columns.column("eps")
        self.forget = (1 - columns.wide("alpha")).to(theta.dtype)
        self.penalty = columns.penalty()
        self.square = columns.zeros()
        self.momentum = columns.column("momentum")
        self.velocity = columns.zeros() if columns.any("momentum") else None

    def __call__(self, theta: Tensor, d: Tensor, t: Tensor) -> None:
        d = _penalised(theta, d, self.penalty)
        self.square.lerp_(d.square(), self.forget)
        d = d / self.square.sqrt().add_(self.eps)
        if self.velocity is not None:
            d = self.velocity.mul_(self.momentum).add_(d)
        theta.addcmul_(d, self.lr, value=-1)


class _Moments:
    """What Adam and NAdam share: ``m``, ``v`` and the two ways of weight decay."""

    def __init__(self, options: Sequence[Options], theta: Tensor) -> None:
        columns = _Columns(options, theta)
        self.lr, self.eps = columns.wide("lr"), columns.column("eps")
        self.beta1, self.beta2 = (columns.made([o["betas"][i] for o in options], torch.float64) for i in range(2))
        self.forget1, self.forget2 = (1 - self.beta1).to(theta.dtype), (1 - self.beta2).to(theta.dtype)
        self.m, self.v = columns.zeros(), columns.zeros()
        decays = [(o["weight_decay"], bool(o.get("decoupled_weight_decay"))) for o in options]
        coupled = [0.0 if decoupled else decay for decay, decoupled in decays]
        shrink = [1 - o["lr"] * decay if decoupled else 1.0 for o, (decay, decoupled) in zip(options, decays)]
        self.penalty = columns.made(coupled, theta.dtype) if any(coupled) else None
        self.shrink = columns.made(shrink, theta.dtype) if any(factor != 1 for factor in shrink) else None

    def follow(self, theta: Tensor, d: Tensor) -> Tensor:
        """Weight decay, then the moments; returns what they were moved by."""
        d = _penalised(theta, d, self.penalty)
        if self.shrink is not None:
            theta.mul_(self.shrink)
        self.m.lerp_(d, self.forget1)
        self.v.lerp_(d.square(), self.forget2)
        return d


class _Adam(_Moments):
    """``theta -= lr * m / (1 - beta1^t) / (sqrt(v / (1 - beta2^t)) + eps)``; AdamW is the one with decoupled decay."""

    def __call__(self, theta: Tensor, d: Tensor, t: Tensor) -> None:
        self.follow(theta, d)
        step_size = (self.lr / (1 - self.beta1**t)).to(theta.dtype)
        correction = (1 - self.beta2**t).sqrt().to(self.v.dtype)
        theta.addcdiv_(self.m * step_size, (self.v.sqrt() / correction).add_(self.eps), value=-1)


class _NAdam(_Moments):
    """Adam with Nesterov's momentum, whose factor ``mu`` warms up by ``momentum_decay``."""

    def __init__(self, options: Sequence[Options], theta: Tensor) -> None:
        super().__init__(options, theta)
        self.warm_up = _Columns(options, theta).wide("momentum_decay")
        self.mu_product = torch.ones_like(self.lr)

    def __call__(self, theta: Tensor, d: Tensor, t: Tensor) -> None:
        d = self.follow(theta, d)
        mu, mu_next = (self.beta1 * (1 - 0.5 * 0.96 ** (at * self.warm_up)) for at in (t, t + 1))
        self.mu_product.mul_(mu)
        of_d = self.lr * (1 - mu) / (1 - self.mu_product)
        of_m = self.lr * mu_next / (1 - self.mu_product * mu_next)
        numerator = torch.addcmul(d * of_d.to(theta.dtype), self.m, of_m.to(theta.dtype))
        denominator = (self.v / (1 - self.beta2**t).to(self.v.dtype)).sqrt_().add_(self.eps)
        theta.addcdiv_(numerator, denominator, value=-1)


class _AggMo:
    """``v_i = beta_i * v_i + d`` for each ``beta_i``; ``theta -= lr * mean of v_i``."""

    def __init__(self, options: Sequence[Options], theta: Tensor) -> None:
        columns = _Columns(options, theta)
        self.penalty = columns.penalty()
        count = len(options[0]["betas"])
        self.betas = [columns.made([o["betas"][i] for o in options], theta.dtype) for i in range(count)]
        self.velocities = [columns.zeros() for _ in range(count)]
        self.lr = columns.made([o["lr"] / count for o in options], theta.dtype)

    def __call__(self, theta: Tensor, d: Tensor, t: Tensor) -> None:
        d = _penalised(theta, d, self.penalty)
        total: Tensor | None = None
        for beta, velocity in zip(self.betas, self.velocities):
            velocity.mul_(beta).add_(d)
            total = velocity if total is None else total + velocity
        assert total is not None
        theta.addcmul_(total, self.lr, value=-1)


@dataclass(frozen=True)
class BankFamily:
    """A base optimizer that a bank can run."""

    name: str
    follows: frozenset[str]  # its options that have an effect here
    make: Callable[[Sequence[Options], Tensor], Update]
    shape: Callable[[Options], Hashable] = lambda options: (
        None
    )  # models whose shapes differ are not updated in one call


_ADAM = frozenset({"lr", "betas", "eps", "weight_decay", "decoupled_weight_decay"})
_adam = BankFamily("Adam", _ADAM, _Adam)

FAMILIES: dict[type[torch.optim.Optimizer], BankFamily] = {
    torch.optim.SGD: BankFamily("SGD", frozenset({"lr", "momentum", "dampening", "weight_decay", "nesterov"}), _SGD),
    torch.optim.RMSprop: BankFamily("RMSprop", frozenset({"lr", "alpha", "eps", "weight_decay", "momentum"}), _RMSprop),
    torch.optim.Adam: _adam,
    torch.optim.AdamW: _adam,
    torch.optim.NAdam: BankFamily("NAdam", _ADAM | {"momentum_decay"}, _NAdam),
    critgrad.AggMo: BankFamily(
        "AggMo", frozenset({"lr", "betas", "weight_decay"}), _AggMo, shape=lambda options: len(options["betas"])
    ),
}
