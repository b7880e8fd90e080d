"""Saving and loading: what a checkpoint holds of a memory, and what loading takes from it.

torch's ``load_state_dict`` casts every tensor to the parameter's dtype, integers too, and lossily. So ours are taken
out of the incoming dictionary first, and go into the state as they are, once the base has loaded the rest.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..memory.keys import KEYS, SCALE, SLOTS, SUM, copies, ours, put
from ..memory.options import saved_form
from ..memory.takeover import incoming

if TYPE_CHECKING:
    from .optimizer import WithMemory


def saved(optimizer: WithMemory, state_dict: dict[str, Any]) -> dict[str, Any]:
    """``state_dict`` with what only Python can hold replaced by its name."""
    for group in state_dict["param_groups"]:
        group.update({key: saved_form(group[key]) for key in optimizer._critical_keys().values() if key in group})
    state_dict["state"] = in_tensors_of_their_own(state_dict["state"])
    held = [state[SLOTS] for state in state_dict["state"].values() if isinstance(state, dict) and SLOTS in state]
    if torch.cuda.is_available() and any(slots.is_pinned() for slots in held):
        torch.cuda.synchronize()  # slots in host memory are written behind our back
    return state_dict


def in_tensors_of_their_own(everything: Mapping[Any, Any]) -> dict[Any, Any]:
    """The same state, with copies of what is a view of a buffer of many parameters: each would be saved with all of it."""
    out = dict(everything)
    for i, state in everything.items():
        pieces = [key for key in (SLOTS, SCALE, SUM) if isinstance(state, dict) and _is_a_piece(state.get(key))]
        if pieces:
            out[i] = {**state, **{key: state[key].clone() for key in pieces}}
    return out


def _is_a_piece(tensor: Any) -> bool:
    return type(tensor) is Tensor and tensor.untyped_storage().nbytes() > tensor.numel() * tensor.element_size()


def split_state(everything: Mapping[Any, Any]) -> tuple[dict[Any, dict[str, Any]], dict[Any, Any]]:
    """``(ours, rest)``: the state of each parameter in two parts; what would be empty is left out."""
    kept: dict[Any, dict[str, Any]] = {}
    rest: dict[Any, Any] = {}
    for i, state in everything.items():
        mine = ours(state) if isinstance(state, dict) else {}
        if mine:
            kept[i] = mine
            state = {key: value for key, value in state.items() if key not in KEYS}
        if state or not mine:
            rest[i] = state
    return kept, rest


def load(optimizer: WithMemory, state_dict: dict[str, Any]) -> None:
    """Load a checkpoint, ours or the base's. Raises before anything is changed if the memory does not fit."""
    if not (isinstance(state_dict, Mapping) and {"param_groups", "state"} <= state_dict.keys()):
        found = list(state_dict) if isinstance(state_dict, Mapping) else type(state_dict).__name__
        raise ValueError(f"Invalid state_dict: {found!r}, expected an optimizer's, with 'state' and 'param_groups'")
    # NOTE [load hooks]: they may change what is loaded (map renamed parameters, say), so they come before we take our
    # keys out of it, and not within the base's loading.
    state_dict = dict(state_dict)
    for before in optimizer._optimizer_load_state_dict_pre_hooks.values():
        changed = before(optimizer, state_dict)
        state_dict = state_dict if changed is None else changed
    keys = optimizer._critical_keys()
    brought = incoming(optimizer, state_dict, keys)
    optimizer._critical_load_base({**state_dict, "state": split_state(state_dict["state"])[1]})
    for group, (options, states) in zip(optimizer.param_groups, brought):
        group.update({keys[name]: value for name, value in options.items()})
        for param, state in zip(group["params"], states):
            put(optimizer.state, param, copies(state))
    optimizer._critical_prepared = None
    memory = optimizer._critical_memory()
    if len(optimizer.state) > 0:
        memory.attach()
    for after in optimizer._optimizer_load_state_dict_post_hooks.values():
        after(optimizer)
