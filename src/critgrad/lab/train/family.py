"""Optimizers of other packages that keep a memory of past gradients, set as their papers have them.

Each function is a package's class with the defaults that a fair comparison needs: decoupled weight decay, one learning rate
for all parameters, the groups' own weight decay. The packages (``pip install "critgrad[family]"``) are imported where they are
used.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any, TypeVar

import torch

from ..errors import MissingPackageError

Betas = tuple[float, ...]


def of_package(module: str, name: str) -> Callable[..., torch.optim.Optimizer]:
    """A class of another package, or an error that says how to get it."""
    try:
        made: Callable[..., torch.optim.Optimizer] = getattr(importlib.import_module(module), name)
        return made
    except ImportError as error:
        raise MissingPackageError(f'{name} needs {module}: `pip install "critgrad[family]"`') from error


Made = TypeVar("Made", bound=Callable[..., torch.optim.Optimizer])


def from_package(name: str) -> Callable[[Made], Made]:
    """Say which package a function's optimizer is of: its version is part of what a result depends on."""

    def mark(make: Made) -> Made:
        make.packages = (name,)  # type: ignore[attr-defined]
        return make

    return mark


@from_package("pytorch_optimizer")
def ademamix(
    params: Any,
    lr: float = 1e-3,
    betas: Betas = (0.9, 0.999, 0.9999),
    alpha: float = 5.0,
    t_alpha_beta3: float | None = None,
    eps: float = 1e-8,
    weight_decay: float = 0.0,
) -> torch.optim.Optimizer:
    """AdEMAMix (Pagliardini et al. 2024): a second, slow average of gradients, ``alpha`` times, added to the first.

    ``t_alpha_beta3``: so many steps in which ``alpha`` grows from 0 and the slow average from the fast one. Weight decay is
    decoupled, as in the paper; the package couples it by default.
    """
    make = of_package("pytorch_optimizer", "AdEMAMix")
    options = {"alpha": alpha, "t_alpha_beta3": t_alpha_beta3, "eps": eps, "weight_decay": weight_decay}
    return make(params, lr=lr, betas=tuple(betas), weight_decouple=True, **options)


@from_package("pytorch_optimizer")
def cautious(
    params: Any, lr: float = 1e-3, betas: Betas = (0.9, 0.999), eps: float = 1e-8, weight_decay: float = 0.0
) -> torch.optim.Optimizer:
    """Cautious AdamW (Liang et al. 2024): only those entries of the step that agree in sign with the gradient, scaled up."""
    make = of_package("pytorch_optimizer", "AdEMAMix")
    options = {"alpha": 0.0, "cautious": True, "eps": eps, "weight_decay": weight_decay, "weight_decouple": True}
    return make(params, lr=lr, betas=(*betas, 0.0), **options)


@from_package("pytorch_optimizer")
def mars(
    params: Any,
    lr: float = 3e-3,
    betas: Betas = (0.95, 0.99),
    gamma: float = 0.025,
    eps: float = 1e-8,
    weight_decay: float = 0.0,
    optimize_1d: bool = True,
) -> torch.optim.Optimizer:
    """MARS-AdamW (Yuan et al. 2024): Adam of ``g + gamma * beta1 / (1 - beta1) * (g - g before)``; a tensor at most of norm 1.

    Vectors are treated as matrices are: the package's plain AdamW for them has a learning rate and a weight decay of its own,
    which no group can set.
    """
    make = of_package("pytorch_optimizer", "MARS")
    options = {"gamma": gamma, "eps": eps, "weight_decay": weight_decay, "optimize_1d": optimize_1d}
    return make(params, lr=lr, lr_1d=lr, betas=tuple(betas), weight_decay_1d=0.0, **options)


@from_package("pytorch_optimizer")
def grokfast(
    params: Any,
    lr: float = 1e-3,
    betas: Betas = (0.9, 0.999),
    alpha: float = 0.98,
    lamb: float = 2.0,
    eps: float = 1e-8,
    weight_decay: float = 0.0,
) -> torch.optim.Optimizer:
    """GrokFast (Lee et al. 2024) before AdamW: ``lamb`` times a slow average of gradients (``alpha``) is added to each.

    The learning rate is as given; the package divides it by ``1 + lamb`` by default.
    """
    make = of_package("pytorch_optimizer", "GrokFastAdamW")
    options = {"grokfast_alpha": alpha, "grokfast_lamb": lamb, "eps": eps, "weight_decay": weight_decay}
    return make(params, lr=lr, betas=tuple(betas), normalize_lr=False, **options)


@from_package("schedulefree")
def schedule_free(
    params: Any, lr: float = 2.5e-3, betas: Betas = (0.9, 0.999), eps: float = 1e-8, weight_decay: float = 0.0
) -> torch.optim.Optimizer:
    """Schedule-free AdamW (Defazio et al. 2024) by its authors."""
    make = of_package("schedulefree", "AdamWScheduleFree")
    return make(params, lr=lr, betas=tuple(betas), eps=eps, weight_decay=weight_decay)
