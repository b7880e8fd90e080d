"""The bases whose update an engine can make itself, in the same pass as the memory's: one record each.

Everything else, and these with an option that is not known here, step by themselves on the directions that they are given. A
kernel has a few lines of arithmetic for each family (native/core.c, triton/update_kernels.py); everything else is common.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.optim import Optimizer

Group = dict[str, Any]


@dataclass(frozen=True)
class Family:
    """Bases with one update rule.

    ``buffers`` are the names of its state tensors of the parameter's shape, in the order the kernels take them; ``numbers``
    the options that its update uses, all of which must be plain numbers; ``counters`` its state of one number, the same
    whatever the gradients are, each with its value before the first step; ``must_be_off`` options that no kernel knows.
    """

    name: str
    bases: tuple[type[Optimizer], ...]
    buffers: Callable[[Group], tuple[str, ...]]
    numbers: tuple[str, ...]
    counters: tuple[tuple[str, float], ...] = ()
    must_be_off: tuple[str, ...] = ()


FAMILIES = (
    Family(
        "sgd",
        (torch.optim.SGD,),
        lambda group: ("momentum_buffer",) if group["momentum"] != 0 else (),
        ("momentum", "weight_decay"),
        must_be_off=("dampening",),
    ),
    Family(
        "rmsprop",
        (torch.optim.RMSprop,),
        lambda group: ("square_avg", "momentum_buffer") if group["momentum"] > 0 else ("square_avg",),
        ("alpha", "eps", "momentum", "weight_decay"),
        (("step", 0.0),),
        must_be_off=("centered",),
    ),
    Family(
        "adam",
        (torch.optim.Adam, torch.optim.AdamW),
        lambda group: ("exp_avg", "exp_avg_sq"),
        ("betas", "eps", "weight_decay"),
        (("step", 0.0),),
        must_be_off=("amsgrad",),
    ),
    Family(
        "nadam",
        (torch.optim.NAdam,),
        lambda group: ("exp_avg", "exp_avg_sq"),
        ("betas", "eps", "weight_decay", "momentum_decay"),
        (("step", 0.0), ("mu_product", 1.0)),
    ),
)


def family_of(base: type[Optimizer]) -> Family | None:
    """The record of a base; a subclass of it may step in its own way, so only the class itself counts."""
    return next((family for family in FAMILIES if base in family.bases), None)
