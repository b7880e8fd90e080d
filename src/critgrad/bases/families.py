"""The bases whose update an engine can make itself, in the same pass as the memory's: one record each.

Everything else, and these with an option that is not known here, step by themselves on the directions that they are given. A
kernel has a few lines of arithmetic for each family (native/core.c, triton/update_kernels.py); everything else is common.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any
from weakref import proxy

import torch
from torch import Tensor
from torch.optim import SGD, Adam, AdamW, NAdam, Optimizer, RMSprop

from ..memory.dtensors import local
from ..memory.layout import same_strides
from ..memory.store import Part, Store

if TYPE_CHECKING:
    from .optimizer import WithMemory

Group = dict[str, Any]

# Of any base: what a kernel is chosen by, beside the options of its family.
SWITCHES = ("fused", "foreach", "capturable", "differentiable", "maximize", "nesterov", "decoupled_weight_decay")


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


def _and_momentum(*names: str) -> Callable[[Group], tuple[str, ...]]:
    return lambda group: (*names, "momentum_buffer") if group["momentum"] != 0 else names


_MOMENTS = ("exp_avg", "exp_avg_sq")
_STEP = ("step", 0.0)
_OF_RMSPROP = ("alpha", "eps", "momentum", "weight_decay")
_OF_ADAM = ("betas", "eps", "weight_decay")

FAMILIES = (
    Family("sgd", (SGD,), _and_momentum(), ("momentum", "weight_decay"), must_be_off=("dampening",)),
    Family("rmsprop", (RMSprop,), _and_momentum("square_avg"), _OF_RMSPROP, (_STEP,), must_be_off=("centered",)),
    Family("adam", (Adam, AdamW), lambda group: _MOMENTS, _OF_ADAM, (_STEP,), must_be_off=("amsgrad",)),
    Family("nadam", (NAdam,), lambda group: _MOMENTS, (*_OF_ADAM, "momentum_decay"), (_STEP, ("mu_product", 1.0))),
)


def family_of(base: type[Optimizer]) -> Family | None:
    """The record of a base; a subclass of it may step in its own way, so only the class itself counts."""
    return next((family for family in FAMILIES if base in family.bases), None)


class Epilogue:
    """What an engine needs to know to make the update of an optimizer's base: options, state tensors, where they lie."""

    def __init__(self, optimizer: WithMemory) -> None:
        self.optimizer = proxy(optimizer)  # which has this: together only Python's collector would find them
        self.base = optimizer._critical_base
        self.base_name = "an optimizer that is wrapped" if self.base is Optimizer else self.base.__name__
        self.family = family_of(self.base)

    def groups(self, parts: Sequence[Part]) -> list[Group]:
        """The group of each part."""
        of = {p: group for group in self.optimizer.param_groups for p in group["params"]}
        return [of[part.param] for part in parts]

    def why_not(self, store: Store, known: Sequence[str], unknown: Sequence[str]) -> str | None:
        """What of the base an engine that has the ``known`` families, and not these switches, does not know; or ``None``."""
        if self.family is None or self.family.name not in known:
            return "there is no kernel for it"
        for group in {id(group): group for group in self.groups(store.parts)}.values():
            for name in (*self.family.must_be_off, "differentiable", "foreach", *unknown):
                if group.get(name):
                    return f"{name}={group[name]}"
            given = [group[name] for name in self.family.numbers]
            flat = [value for each in given for value in (each if isinstance(each, tuple | list) else [each])]
            if any(map(torch.is_tensor, flat)):
                return "an option is a tensor"
        return None

    def places(self, states: Sequence[dict[str, Any]]) -> Any:
        """Where everything of the base is that an engine keeps addresses of, and the options that it was chosen by.

        ``states`` are those of all parameters, in the order of the groups.
        """
        if self.family is None:
            return None
        options, tensors, rest = [], [], iter(states)
        for group in self.optimizer.param_groups:
            keys = (*self.family.buffers(group), *(key for key, _ in self.family.counters))
            switches = [group.get(name) for name in (*SWITCHES, *self.family.must_be_off)]
            options.append([keys, switches, [type(group[name]) for name in self.family.numbers]])
            tensors += [state.get(key) for state in islice(rest, len(group["params"])) for key in keys]
        self._held = tensors  # so that nothing else can have their ids
        return options, list(map(id, tensors)), [t.data_ptr() for t in tensors if type(t) is Tensor]

    def prepare(self, part: Part, group: Group) -> tuple[list[Tensor], list[Tensor]]:
        """``(buffers, counters)``, as the base would set them up in its first step with a gradient.

        Kernels read a parameter and its buffers side by side, so buffers in another order (of a checkpoint of a model that
        lay otherwise, say) or of another dtype are laid out anew. Counters are float32 on the parameter's device, as with
        fused=True or capturable=True in torch; the base, or a checkpoint of it, may have them elsewhere.
        """
        assert self.family is not None
        param, state = part.param, self.optimizer.state[part.param]
        buffers, counters = [], []
        for key in self.family.buffers(group):
            if state.get(key) is None:
                state[key] = torch.zeros_like(param, memory_format=torch.preserve_format)
            elif not _lies_alike(state[key], param):
                state[key] = torch.empty_like(param, memory_format=torch.preserve_format).detach().copy_(state[key])
            buffers.append(state[key])
        for key, first in self.family.counters:
            if key not in state:
                state[key] = torch.full((), first, dtype=torch.float32, device=part.device)
            elif (state[key].dtype, state[key].device) != (torch.float32, part.device):
                state[key] = state[key].to(part.device, torch.float32)
            counters.append(state[key])
        return [local(buffer) for buffer in buffers], counters

    def numbers(self, group: Group) -> dict[str, float]:
        """The numbers of a group's update by name, the learning rate apart (it may be a tensor)."""
        assert self.family is not None
        names = ("momentum", "weight_decay", "alpha", "eps", "momentum_decay")
        known = self.family.numbers  # a group may have those of another base beside them
        found = {name: float(group[name]) for name in names if name in known}
        beta1, beta2 = group["betas"] if "betas" in known else (0.0, found.get("alpha", 0.0))
        return {**dict.fromkeys(names, 0.0), **found, "beta1": beta1, "beta2": beta2}

    def decoupled(self, group: Group) -> bool:
        """Whether weights decay by themselves (AdamW, or NAdam if asked to) instead of through the gradient."""
        known = "decoupled_weight_decay" in self.optimizer.defaults
        return bool(group["decoupled_weight_decay"] if known else self.base is AdamW)


def _lies_alike(buffer: Tensor, param: Tensor) -> bool:
    same_kind = (buffer.dtype, buffer.device) == (param.dtype, param.device)
    return same_kind and same_strides(param.shape, buffer.stride(), param.stride())
