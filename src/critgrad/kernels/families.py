"""The base optimizers that have a fused path: which they are, what they keep, and what their update depends on.

A fused path does a base's whole update itself, on the direction it has just made. One record per base here, a few lines of
arithmetic per base in each kernel; everything else is common.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import is_
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from ..layout import local, same_strides

if TYPE_CHECKING:
    from ..critical import Critical

Group = dict[str, Any]


@dataclass(frozen=True)
class Family:
    """A base with a fused path.

    ``buffers`` are its state tensors of the parameter's shape, in the order the kernels take them; ``scalars`` gives, for
    a parameter group, the numbers its update uses (learning rate apart, which may be a tensor). ``counters`` are its state of
    one number, the same whatever the gradients are: their names, each with its value before the first step.
    """

    name: str
    bases: tuple[type[Optimizer], ...]
    buffers: Callable[[Group], tuple[str, ...]]
    scalars: Callable[[Group], dict[str, float]]
    flags: Callable[[Group], dict[str, bool]]
    counters: tuple[tuple[str, float], ...]
    supports: Callable[[Group], bool]


def _plain_numbers(group: Group, *names: str) -> bool:
    return not any(torch.is_tensor(value) for name in names for value in _as_tuple(group[name]))


def _as_tuple(value: Any) -> tuple[Any, ...]:
    return tuple(value) if isinstance(value, (tuple, list)) else (value,)


def _common(group: Group) -> bool:
    return not group.get("differentiable") and not group.get("foreach") and group.get("fused") is not False


FAMILIES = (
    Family(
        name="sgd",
        bases=(torch.optim.SGD,),
        buffers=lambda group: ("momentum_buffer",) if group["momentum"] != 0 else (),
        scalars=lambda group: {
            "momentum": group["momentum"],
            "dampening": group["dampening"],
            "weight_decay": group["weight_decay"],
        },
        flags=lambda group: {"nesterov": bool(group["nesterov"]), "maximize": bool(group["maximize"])},
        counters=(),
        supports=lambda group: _common(group) and _plain_numbers(group, "momentum", "dampening", "weight_decay"),
    ),
    Family(
        name="rmsprop",
        bases=(torch.optim.RMSprop,),
        buffers=lambda group: ("square_avg", "momentum_buffer") if group["momentum"] > 0 else ("square_avg",),
        scalars=lambda group: {
            "alpha": group["alpha"],
            "eps": group["eps"],
            "momentum": group["momentum"],
            "weight_decay": group["weight_decay"],
        },
        flags=lambda group: {"maximize": bool(group["maximize"])},
        counters=(("step", 0.0),),
        supports=lambda group: (
            _common(group)
            and not group["centered"]
            and _plain_numbers(group, "alpha", "eps", "momentum", "weight_decay")
        ),
    ),
    Family(
        name="adam",
        bases=(torch.optim.Adam, torch.optim.AdamW),
        buffers=lambda group: ("exp_avg", "exp_avg_sq"),
        scalars=lambda group: {
            "beta1": group["betas"][0],
            "beta2": group["betas"][1],
            "eps": group["eps"],
            "weight_decay": group["weight_decay"],
        },
        flags=lambda group: {"maximize": bool(group["maximize"])},
        counters=(("step", 0.0),),
        supports=lambda group: (
            _common(group) and not group["amsgrad"] and _plain_numbers(group, "betas", "eps", "weight_decay")
        ),
    ),
    Family(
        name="nadam",
        bases=(torch.optim.NAdam,),
        buffers=lambda group: ("exp_avg", "exp_avg_sq"),
        scalars=lambda group: {
            "beta1": group["betas"][0],
            "beta2": group["betas"][1],
            "eps": group["eps"],
            "weight_decay": group["weight_decay"],
            "momentum_decay": group["momentum_decay"],
        },
        flags=lambda group: {"maximize": bool(group["maximize"])},
        counters=(("step", 0.0), ("mu_product", 1.0)),
        supports=lambda group: (
            _common(group) and _plain_numbers(group, "betas", "eps", "weight_decay", "momentum_decay")
        ),
    ),
)


def family_of(base: type[Optimizer]) -> Family | None:
    """The record of a base; a subclass of it may step in its own way, so only the class itself counts."""
    for family in FAMILIES:
        if base in family.bases:
            return family
    return None


def decoupled_weight_decay(base: type[Optimizer], group: Group) -> bool:
    """Whether weights decay by themselves (AdamW, or NAdam if asked to) instead of through the gradient."""
    return bool(group.get("decoupled_weight_decay", base is torch.optim.AdamW))


def kernel_scalars(family: Family, numbers: dict[str, float]) -> tuple[float, ...]:
    """``s0`` to ``s5`` of ``base_update``. One minus a beta is taken here, in double precision."""
    decay = float(numbers["weight_decay"])
    if family.name in ("adam", "nadam"):
        beta1, beta2 = numbers["beta1"], numbers["beta2"]
        return decay, beta1, 1 - beta1, beta2, 1 - beta2, numbers["eps"]
    if family.name == "rmsprop":
        return decay, numbers["alpha"], 1 - numbers["alpha"], numbers["eps"], float(numbers["momentum"]), 0.0
    return decay, float(numbers["momentum"]), 0.0, 0.0, 0.0, 0.0


def prepare_state(state: dict[str, Any], param: Tensor, group: Group, family: Family) -> None:
    """What the base would set up in its first step with a gradient; nothing, once that is done.

    Kernels read a parameter and its buffers side by side, so buffers in another order (of a checkpoint of a model that lay
    otherwise, say) or of another dtype are laid out anew.
    Counters are float32 on the parameter's device, as with fused=True or capturable=True in torch; those that the base
    has made, or a checkpoint of it, may be elsewhere (on the host) and of another dtype (the parameter's, once loaded).
    """
    for key in family.buffers(group):
        if state.get(key) is None:
            state[key] = torch.zeros_like(param, memory_format=torch.preserve_format)
        elif not _lies_alike(state[key], param):
            state[key] = torch.empty_like(param, memory_format=torch.preserve_format).detach().copy_(state[key])
    device = local(param).device
    for key, first in family.counters:
        if key not in state:
            state[key] = torch.full((), first, dtype=torch.float32, device=device)
        elif (state[key].dtype, state[key].device) != (torch.float32, device):
            state[key] = state[key].to(device, torch.float32)


def _lies_alike(buffer: Tensor, param: Tensor) -> bool:
    return (buffer.dtype, buffer.device) == (param.dtype, param.device) and same_strides(
        param.shape, buffer.stride(), param.stride()
    )


class BaseState:
    """The base's state tensors as a kernel has found them, to notice when they are others or lie elsewhere."""

    def __init__(
        self, optimizer: Critical, params: Sequence[Tensor], groups: Mapping[Tensor, Group], family: Family
    ) -> None:
        counters = [key for key, _ in family.counters]
        self.optimizer = optimizer
        self.version = optimizer._critical_plan.version  # type: ignore[union-attr]
        found = [(optimizer.state[p], key) for p in params for key in (*family.buffers(groups[p]), *counters)]
        self.states, self.keys = [state for state, _ in found], [key for _, key in found]
        self.tensors = [state[key] for state, key in found]
        self.addresses = list(map(Tensor.data_ptr, self.tensors))

    def unchanged(self) -> bool:
        """Whether they are still the same, and lie where they lay."""
        plan = self.optimizer._critical_plan
        return (
            plan is not None
            and plan.version == self.version
            and all(map(is_, map(dict.get, self.states, self.keys), self.tensors))
            and list(map(Tensor.data_ptr, self.tensors)) == self.addresses
        )
