"""Following the loading of an optimizer that is built on a ``Memory``."""

from __future__ import annotations

from typing import Any

from torch.optim import Optimizer

from .keys import copies, put
from .options import OBJECTS, saved_form
from .store import State


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
        taken[:] = [copies(state_dict["state"].get(i, {})) for i in ids]
        groups = [dict(group) for group in state_dict["param_groups"]]
        for group, mine in zip(groups, optimizer.param_groups):
            for name in OBJECTS:
                if saved_form(mine.get(name)) == group.get(name):
                    group[name] = mine[name]
        return {**state_dict, "param_groups": groups}

    def after(optimizer: Optimizer) -> None:
        params = [param for group in optimizer.param_groups for param in group["params"]]
        for param, mine in zip(params, taken):
            put(optimizer.state, param, mine)
        taken.clear()

    def saved(optimizer: Optimizer, state_dict: dict[str, Any]) -> None:
        for group in state_dict["param_groups"]:
            group.update({name: saved_form(group[name]) for name in OBJECTS if name in group})

    optimizer.register_load_state_dict_pre_hook(before)
    optimizer.register_load_state_dict_post_hook(after)
    optimizer.register_state_dict_post_hook(saved)
