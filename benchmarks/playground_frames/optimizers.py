"""The optimizers of the playground: three bases, each alone, with the paper's memory and with one that damps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

import critgrad

Hook = Callable[[torch.optim.Optimizer, Any, Any], None]

TOPCS = (2, 5, 10, 20)
DECAYS = (0.7, 0.9, 0.99)


@dataclass(frozen=True)
class PlaygroundOptimizer:
    """One choice of the page: a base optimizer and, unless ``memory`` is None, the options of the memory before it.

    Colours are those of Okabe and Ito, which people with any of the common colour-vision deficiencies tell apart.
    """

    name: str
    family: str  # whose learning rates it takes (Surface.lrs)
    note: str
    color: str
    base: Callable[..., torch.optim.Optimizer]
    settings: dict[str, Any] = field(default_factory=dict)
    memory: dict[str, Any] | None = None

    def make(self, param: Tensor, lr: float, topC: int, decay: float, on_base_step: Hook) -> torch.optim.Optimizer:
        """The optimizer of ``param``; ``on_base_step`` is called with the direction standing in ``param.grad``.

        An instance is wrapped, instead of taking ``critgrad.SGD_C`` and its like, because the base then makes its step
        itself and its hooks see what the memory hands it. The numbers are the same; the tests compare them.
        """
        base = self.base([param], lr=lr, **self.settings)
        base.register_step_pre_hook(on_base_step)
        if self.memory is None:
            return base
        return critgrad.CriticalGradients(base, topC=topC, decay=decay, **self.memory)


_MOMENTUM = {"momentum": 0.9}
_SGD, _ADAM = torch.optim.SGD, torch.optim.Adam

OPTIMIZERS: tuple[PlaygroundOptimizer, ...] = (
    PlaygroundOptimizer("SGD", "SGD", "plain gradient descent", "#000000", _SGD),
    PlaygroundOptimizer("SGDM", "SGDM", "SGD with momentum 0.9", "#999999", _SGD, _MOMENTUM),
    PlaygroundOptimizer("Adam", "Adam", "Adam with torch's betas", "#F0E442", _ADAM),
    PlaygroundOptimizer("SGD_C", "SGD", "g + the memory's mean (aggr=sum)", "#0072B2", _SGD, {}, {"aggr": "sum"}),
    PlaygroundOptimizer(
        "SGDM_C", "SGDM", "g + the memory's mean (aggr=sum), momentum", "#56B4E9", _SGD, _MOMENTUM, {"aggr": "sum"}
    ),
    PlaygroundOptimizer(
        "Adam_C", "Adam", "mean of g and the memory (aggr=mean), Adam", "#009E73", _ADAM, {}, {"aggr": "mean"}
    ),
    PlaygroundOptimizer(
        "SGD_F", "SGD", "memory's directions damped (aggr=fisher)", "#D55E00", _SGD, {}, {"aggr": "fisher"}
    ),
    PlaygroundOptimizer(
        "SGDM_F",
        "SGDM",
        "memory's directions damped (aggr=fisher), momentum",
        "#E69F00",
        _SGD,
        _MOMENTUM,
        {"aggr": "fisher"},
    ),
    PlaygroundOptimizer(
        "Adam_F",
        "Adam",
        "memory's directions damped (aggr=fisher), Adam",
        "#CC79A7",
        _ADAM,
        {},
        {"aggr": "fisher"},
    ),
)
