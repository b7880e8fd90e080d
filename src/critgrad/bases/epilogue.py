"""What an engine needs to know to make a base's update in the same pass as the memory's (families.py says of which bases)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from ..memory.dtensors import local
from ..memory.layout import same_strides
from ..memory.store import Part, Store
from .families import Group, family_of

if TYPE_CHECKING:
    from .optimizer import WithMemory

# Of any base: what a kernel is chosen by, beside the options above.
SWITCHES = ("fused", "foreach", "capturable", "differentiable", "maximize", "nesterov", "decoupled_weight_decay")


class Epilogue:
    """What an engine needs to know to make a base's update: options, state tensors, and whether they are what they were."""

    def __init__(self, optimizer: WithMemory) -> None:
        self.optimizer = optimizer
        self.base = optimizer._critical_base
        self.base_name = "an optimizer that is wrapped" if self.base is Optimizer else self.base.__name__
        self.family = family_of(self.base)

    def groups(self, parts: Sequence[Part]) -> list[Group]:
        """The group of each part."""
        of = {p: group for group in self.optimizer.param_groups for p in group["params"]}
        return [of[part.param] for part in parts]

    def why_not(self, store: Store, known: Sequence[str]) -> str | None:
        """What of the base an engine that has the ``known`` families does not know, or ``None``."""
        if self.family is None or self.family.name not in known:
            return "there is no kernel for it"
        seen: list[Group] = []
        for group in self.groups(store.parts):
            if any(group is known for known in seen):
                continue
            seen.append(group)
            for name in (*self.family.must_be_off, "differentiable", "foreach"):
                if group.get(name):
                    return f"{name}={group[name]}"
            values = [value for name in self.family.numbers for value in _as_tuple(group[name])]
            if any(torch.is_tensor(value) for value in values):
                return "an option is a tensor"
        return None

    def places(self, states: Sequence[dict[str, Any]]) -> Any:
        """Where everything of the base is that an engine keeps addresses of, and the options that it was chosen by.

        ``states`` are those of all parameters, in the order of the groups.
        """
        if self.family is None:
            return None
        groups, first, tensors = self.optimizer.param_groups, 0, []
        switches = (*SWITCHES, *self.family.must_be_off)
        options = [[group.get(name) for name in switches] for group in groups]
        kinds = [[type(group[name]) for name in self.family.numbers] for group in groups]
        keys = [self.keys(group) for group in groups]
        for group, mine in zip(groups, keys):
            last = first + len(group["params"])
            tensors += [state.get(key) for state in states[first:last] for key in mine]
            first = last
        self._held = tensors  # so that nothing else can have their ids
        return options, kinds, keys, list(map(id, tensors)), [t.data_ptr() for t in tensors if type(t) is Tensor]

    def keys(self, group: Group) -> tuple[str, ...]:
        """Of the base's state, buffers first."""
        assert self.family is not None
        return (*self.family.buffers(group), *(key for key, _ in self.family.counters))

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
        names = ("momentum", "weight_decay", "alpha", "eps", "momentum_decay")
        found = {name: float(group[name]) for name in names if name in group}
        beta1, beta2 = group.get("betas", (0.0, found.get("alpha", 0.0)))
        return {"momentum": 0.0, "eps": 0.0, "momentum_decay": 0.0, **found, "beta1": beta1, "beta2": beta2}

    def decoupled(self, group: Group) -> bool:
        """Whether weights decay by themselves (AdamW, or NAdam if asked to) instead of through the gradient."""
        return bool(group.get("decoupled_weight_decay", self.base is torch.optim.AdamW))


def _as_tuple(value: Any) -> tuple[Any, ...]:
    return tuple(value) if isinstance(value, (tuple, list)) else (value,)


def _lies_alike(buffer: Tensor, param: Tensor) -> bool:
    return (buffer.dtype, buffer.device) == (param.dtype, param.device) and same_strides(
        param.shape, buffer.stride(), param.stride()
    )
