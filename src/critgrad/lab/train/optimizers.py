"""The optimizers of the lab, as a registry of records: what ``critgrad optimizers`` lists and a trial names."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from inspect import signature
from typing import Any

import torch
from torch import nn

import critgrad

from ..errors import LabError
from ..run.spec import Trial
from . import family
from .bases import Lion, Muon


@dataclass(frozen=True)
class Recipe:
    """One optimizer: a class, its family, and arguments that differ from the class's own defaults."""

    name: str
    make: Callable[..., torch.optim.Optimizer]
    family: str  # the base that it is compared with
    role: str  # "base", "rival", "C" (adds its memory) or "F" (damps with it)
    defaults: Mapping[str, Any] = field(default_factory=dict)
    summary: str = ""

    @property
    def has_memory(self) -> bool:
        """Whether it takes the options of a memory (``topC``, ``decay``, ...)."""
        return self.role in ("C", "F")


_MOMENTUM = {"momentum": 0.9}
_NESTEROV = {"momentum": 0.9, "nesterov": True}
# The registry's damping memory: PROTOCOL's range for rho is wide, its middle is a start, not advice.
_DAMPER = {"topC": 10, "decay": 0.99}
_DECOUPLED = {"decoupled_weight_decay": True}
# torch's momentum decay makes beta1 grow over the steps; with so large a one it is beta1 from the first.
_CONSTANT = {**_DECOUPLED, "momentum_decay": 1e4}

_RECIPES = (
    Recipe("SGD", torch.optim.SGD, "SGD", "base", {}, "stochastic gradient descent"),
    Recipe("SGD_C", critgrad.SGD_C, "SGD", "C", {}, "SGD, memory added (sum)"),
    Recipe("SGD_F", critgrad.SGD_F, "SGD", "F", _DAMPER, "SGD, memory damps"),
    Recipe("SGDM", torch.optim.SGD, "SGDM", "base", _MOMENTUM, "SGD with heavy-ball momentum"),
    Recipe("SGDM_C", critgrad.SGD_C, "SGDM", "C", _MOMENTUM, "SGDM, memory added (sum)"),
    Recipe("SGDM_F", critgrad.SGD_F, "SGDM", "F", {**_MOMENTUM, **_DAMPER}, "SGDM, memory damps"),
    Recipe("Nesterov", torch.optim.SGD, "SGDM", "rival", _NESTEROV, "SGD with Nesterov's momentum"),
    Recipe("Nesterov_C", critgrad.SGD_C, "SGDM", "C", _NESTEROV, "Nesterov, memory added (sum)"),
    Recipe("Nesterov_F", critgrad.SGD_F, "SGDM", "F", {**_NESTEROV, **_DAMPER}, "Nesterov, memory damps"),
    Recipe("RMSprop", torch.optim.RMSprop, "RMSprop", "base", {}, "RMSprop"),
    Recipe("RMSprop_C", critgrad.RMSprop_C, "RMSprop", "C", {}, "RMSprop, memory added (mean)"),
    Recipe("RMSprop_F", critgrad.RMSprop_F, "RMSprop", "F", _DAMPER, "RMSprop, memory damps"),
    Recipe("Adam", torch.optim.Adam, "Adam", "base", {}, "Adam"),
    Recipe("Adam_C", critgrad.Adam_C, "Adam", "C", {}, "Adam, memory added (mean)"),
    Recipe("Adam_F", critgrad.Adam_F, "Adam", "F", _DAMPER, "Adam, memory damps"),
    Recipe("NAdam", torch.optim.NAdam, "Adam", "rival", {}, "Adam with Nesterov's momentum"),
    Recipe("NAdam_C", critgrad.NAdam_C, "Adam", "C", {}, "NAdam, memory added (mean)"),
    Recipe("NAdam_F", critgrad.NAdam_F, "Adam", "F", _DAMPER, "NAdam, memory damps"),
    Recipe("AdamW", torch.optim.AdamW, "AdamW", "base", {}, "Adam with decoupled weight decay"),
    Recipe("AdamW_C", critgrad.AdamW_C, "AdamW", "C", {}, "AdamW, memory added (mean)"),
    Recipe("AdamW_F", critgrad.AdamW_F, "AdamW", "F", _DAMPER, "AdamW, memory damps"),
    Recipe("AggMo", critgrad.AggMo, "SGDM", "rival", {}, "aggregated momentum: several decays at once"),
    Recipe("AggMo_C", critgrad.AggMo_C, "SGDM", "C", {}, "AggMo, memory added"),
)
OPTIMIZERS: dict[str, Recipe] = {recipe.name: recipe for recipe in _RECIPES}

# To compare with, beside what is offered: known optimizers that keep a memory of gradients, and some that keep none.
_RESEARCH = (
    Recipe("Lion", Lion, "Lion", "base", {}, "sign of a momentum"),
    Recipe("Muon", Muon, "Muon", "base", {}, "orthogonalised momentum"),
    Recipe("Muon_F", critgrad.critical(Muon, aggr="fisher"), "Muon", "F", _DAMPER, "Muon, memory damps"),
    Recipe("NAdamW", torch.optim.NAdam, "AdamW", "rival", _DECOUPLED, "NAdam with decoupled weight decay"),
    Recipe("NesterovAdamW", torch.optim.NAdam, "AdamW", "rival", _CONSTANT, "AdamW with Nesterov's numerator"),
    Recipe("Adam_CM", critgrad.Adam_CM, "AdamW", "C", {}, "Adam, memory of momenta; topC=0 is its control"),
    Recipe("AdEMAMix", family.ademamix, "AdamW", "rival", {}, "AdamW with a second, slow average"),
    Recipe("MARS", family.mars, "AdamW", "rival", {}, "AdamW of gradients corrected by the last one"),
    Recipe("Cautious", family.cautious, "AdamW", "rival", {}, "AdamW where it agrees with the gradient"),
    Recipe("GrokFast", family.grokfast, "AdamW", "rival", {}, "AdamW, a slow average added to the gradient"),
    Recipe("AdamWScheduleFree", family.schedule_free, "AdamW", "rival", {}, "schedule-free AdamW by its authors"),
)
RESEARCH: dict[str, Recipe] = {recipe.name: recipe for recipe in _RESEARCH}
# What ``critgrad train`` takes.
TRAINED: dict[str, Recipe] = {**OPTIMIZERS, **RESEARCH}

# By family, where nobody has tuned: a start for a first run, not advice.
STARTING_LR = {"SGD": 0.1, "SGDM": 0.01, "RMSprop": 0.001, "Adam": 0.001, "AdamW": 0.001, "Lion": 0.0003, "Muon": 0.001}


class UnknownOptimizerError(LabError):
    """A name that no optimizer has: it ends as an option that does not exist, with the code of a wrong command line."""

    exit_code = 2


def recipe_of(name: str) -> Recipe:
    """The record of a name, or an error that lists the names there are and the nearest of them."""
    try:
        return TRAINED[name]
    except KeyError:
        spelt = {known.lower(): known for known in TRAINED}
        near = [spelt[low] for low in get_close_matches(name.lower(), spelt)]
        hint = f"; did you mean {' or '.join(near)}?" if near else ""
        raise UnknownOptimizerError(
            f"Invalid optimizer: {name!r}, expected one of {', '.join(TRAINED)}{hint}"
        ) from None


def build(
    trial: Trial, params: Iterable[nn.Parameter], weight_decay: float = 0.0, policy: critgrad.Policy | None = None
) -> torch.optim.Optimizer:
    """The optimizer of a trial. ``policy`` replaces the memory's (a ``Replay`` for the yoked control).

    A trial's ``hyper`` spells Adam's moments ``beta1`` and ``beta2``: each is tuned on its own.
    """
    recipe = recipe_of(trial.optimizer)
    return settled(recipe, trial.hyper, params, weight_decay, policy)


def donor_of(trial: Trial) -> Trial:
    """The trial whose decisions a trial takes: itself, or for a yoked one itself with the donor's seed."""
    if "donor_seed" not in trial.hyper:
        return trial
    hyper = {name: value for name, value in trial.hyper.items() if name != "donor_seed"}
    return trial.replace(hyper=hyper, seed=trial.hyper["donor_seed"], probe=())


def settled(
    recipe: Recipe,
    hyper: Mapping[str, Any],
    params: Iterable[nn.Parameter],
    weight_decay: float = 0.0,
    policy: critgrad.Policy | None = None,
) -> torch.optim.Optimizer:
    """An optimizer of a recipe's class, its options settled by its own constructor."""
    arguments = {**recipe.defaults, **hyper}
    arguments.pop("donor_seed", None)
    if "beta1" in arguments or "beta2" in arguments:
        own = signature(recipe.make).parameters.get("betas")
        known = arguments.get("betas") or (own.default if own else (0.9, 0.999))
        arguments["betas"] = (arguments.pop("beta1", known[0]), arguments.pop("beta2", known[1]), *known[2:])
    elif "betas" in arguments:
        arguments["betas"] = tuple(arguments["betas"])
    if weight_decay and "weight_decay" not in arguments:
        arguments["weight_decay"] = weight_decay
    if policy is not None:
        arguments["policy"] = policy
    if recipe.make in _FUSED:
        # Ours choose their fast path by themselves; torch's must be asked for theirs, or step times would flatter us.
        arguments.setdefault("fused", True)
    try:
        return recipe.make(params, **arguments)
    except (TypeError, ValueError) as error:  # an argument that it does not have, a value that it does not take
        raise LabError(f"{recipe.name}: {error}") from error


_FUSED = (torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW)
