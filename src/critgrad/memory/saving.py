"""Saving and loading a ``Memory`` without an optimizer in front, and following the loading of one that is built on it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from torch import Tensor
from torch.optim import Optimizer

from .keys import KEYS
from .options import OBJECTS, saved_form
from .store import State
from .takeover import check_state

if TYPE_CHECKING:
    from .prepared import Prepared


def ours(state: Mapping[str, Any]) -> State:
    """Copies of what a parameter's state holds of a memory."""
    return {key: value.detach().clone() for key, value in state.items() if key in KEYS}


def put(state: Any, param: Tensor, mine: Mapping[str, Any]) -> None:
    """What a parameter's state holds of a memory becomes a copy of ``mine``; nothing else in it is touched."""
    for key in KEYS:
        state.get(param, {}).pop(key, None)
    if taken := ours(mine):
        state.setdefault(param, {}).update(taken)


def state_dict(memory: Prepared) -> dict[str, Any]:
    """What is held, by the number of the parameter."""
    return {"state": {i: ours(memory.state.get(param, {})) for i, param in enumerate(memory.params())}}


def load_state_dict(memory: Prepared, state_dict: dict[str, Any]) -> None:
    """Bring it into the state, where the memory finds it; raises before anything is changed if it does not fit."""
    params, saved = memory.params(), state_dict["state"]
    if sorted(saved) != list(range(len(params))):
        raise ValueError(f"Invalid state_dict: {len(saved)} parameters, expected {len(params)}")
    for i, param in enumerate(params):
        check_state(param, saved[i])
    for i, param in enumerate(params):
        put(memory.state, param, saved[i])


def follow_loading(optimizer: Optimizer) -> None:
    """Let ``load_state_dict`` of an optimizer that is built on a memory bring back our tensors as they were saved.

    torch casts every tensor to the parameter's dtype, integers too. Objects among the options are saved by their names.
    """
    if optimizer.__dict__.get("_follows_loading"):
        return
    optimizer._follows_loading = True  # type: ignore[attr-defined]
    taken: list[State] = []  # of each parameter

    def before(optimizer: Optimizer, state_dict: dict[str, Any]) -> dict[str, Any]:
        ids = [i for group in state_dict["param_groups"] for i in group["params"]]  # numbers, or what others put there
        taken[:] = [ours(state_dict["state"].get(i, {})) for i in ids]
        groups = [dict(group) for group in state_dict["param_groups"]]
        for group, mine in zip(groups, optimizer.param_groups):
            for name in OBJECTS:
                if saved_form(mine.get(name)) == group.get(name):
                    group[name] = mine[name]
        return {**state_dict, "param_groups": groups}

    def after(optimizer: Optimizer) -> None:
        params = [param for group in optimizer.param_groups for param in group["params"]]
        for param, mine in zip(params, taken):
            if mine:
                optimizer.state[param].update(mine)
        taken.clear()

    def saved(optimizer: Optimizer, state_dict: dict[str, Any]) -> None:
        for group in state_dict["param_groups"]:
            group.update({name: saved_form(group[name]) for name in OBJECTS if name in group})

    optimizer.register_load_state_dict_pre_hook(before)
    optimizer.register_load_state_dict_post_hook(after)
    optimizer.register_state_dict_post_hook(saved)
