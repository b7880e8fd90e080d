"""Optimizers of other packages that keep a memory of past gradients, set as their papers have them.

Each function gives the arguments of a package's class, with the defaults that a fair comparison needs: decoupled weight
decay, one learning rate for all parameters, the groups' own weight decay. The packages
(``pip install "critgrad[family]"``) are imported where they are used.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import wraps
from typing import Any

import torch

from ..errors import MissingPackageError

Betas = tuple[float, ...]
Arguments = dict[str, Any]
Make = Callable[..., torch.optim.Optimizer]


def from_package(package: str, name: str) -> Callable[[Callable[..., Arguments]], Make]:
    """Make a function that gives arguments one that gives a package's optimizer, made with them.

    ``packages`` of it names the package: its version is part of what a result depends on.
    """

    def maker(arguments: Callable[..., Arguments]) -> Make:
        @wraps(arguments)
        def make(params: Any, **options: Any) -> torch.optim.Optimizer:
            try:
                made = getattr(importlib.import_module(package), name)
            except ImportError as error:
                raise MissingPackageError(f'{name} needs {package}: `pip install "critgrad[family]"`') from error
            return made(params, **arguments(params, **options))

        make.packages = (package,)  # type: ignore[attr-defined]
        return make

    return maker


@from_package("pytorch_optimizer", "AdEMAMix")
def ademamix(
    params: Any,
    lr: float = 1e-3,
    betas: Betas = (0.9, 0.999, 0.9999),
    alpha: float = 5.0,
    t_alpha_beta3: float | None = None,
    eps: float = 1e-8,
    weight_decay: float = 0.0,
) -> Arguments:
    """AdEMAMix (Pagliardini et al. 2024): a second, slow average of gradients, ``alpha`` times, added to the first.

    ``t_alpha_beta3``: so many steps in which ``alpha`` grows from 0 and the slow average from the fast one. Weight decay is
    decoupled, as in the paper; the package couples it by default.
    """
    own = {"alpha": alpha, "t_alpha_beta3": t_alpha_beta3, "weight_decouple": True}
    return {"lr": lr, "betas": tuple(betas), "eps": eps, "weight_decay": weight_decay, **own}


@from_package("pytorch_optimizer", "AdEMAMix")
def cautious(
    params: Any, lr: float = 1e-3, betas: Betas = (0.9, 0.999), eps: float = 1e-8, weight_decay: float = 0.0
) -> Arguments:
    """Cautious AdamW (Liang et al. 2024): only those entries of the step that agree in sign with the gradient, scaled up."""
    own = {"betas": (*betas, 0.0), "alpha": 0.0, "cautious": True, "weight_decouple": True}
    return {"lr": lr, "eps": eps, "weight_decay": weight_decay, **own}


@from_package("pytorch_optimizer", "MARS")
def mars(
    params: Any,
    lr: float = 3e-3,
    betas: Betas = (0.95, 0.99),
    gamma: float = 0.025,
    eps: float = 1e-8,
    weight_decay: float = 0.0,
    optimize_1d: bool = True,
) -> Arguments:
    """MARS-AdamW (Yuan et al. 2024): Adam of ``g + gamma * beta1 / (1 - beta1) * (g - g before)``; a tensor at most of norm 1.

    Vectors are treated as matrices are: the package's plain AdamW for them has a learning rate and a weight decay of its own,
    which no group can set.
    """
    own = {"gamma": gamma, "optimize_1d": optimize_1d, "lr_1d": lr, "weight_decay_1d": 0.0}
    return {"lr": lr, "betas": tuple(betas), "eps": eps, "weight_decay": weight_decay, **own}


@from_package("pytorch_optimizer", "GrokFastAdamW")
def grokfast(
    params: Any,
    lr: float = 1e-3,
    betas: Betas = (0.9, 0.999),
    alpha: float = 0.98,
    lamb: float = 2.0,
    eps: float = 1e-8,
    weight_decay: float = 0.0,
) -> Arguments:
    """GrokFast (Lee et al. 2024) before AdamW: ``lamb`` times a slow average of gradients (``alpha``) is added to each.

    The learning rate is as given; the package divides it by ``1 + lamb`` by default.
    """
    own = {"grokfast_alpha": alpha, "grokfast_lamb": lamb, "normalize_lr": False}
    return {"lr": lr, "betas": tuple(betas), "eps": eps, "weight_decay": weight_decay, **own}


@from_package("schedulefree", "AdamWScheduleFree")
def schedule_free(
    params: Any, lr: float = 2.5e-3, betas: Betas = (0.9, 0.999), eps: float = 1e-8, weight_decay: float = 0.0
) -> Arguments:
    """Schedule-free AdamW (Defazio et al. 2024) by its authors."""
    return {"lr": lr, "betas": tuple(betas), "eps": eps, "weight_decay": weight_decay}
