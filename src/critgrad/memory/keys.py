"""The keys of a memory in an optimizer's state, once, and the way into that state and out of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# State keys: flat tensors of fixed shape under every parameter, from the first step on.
SLOTS = "critical_slots"  # (C, *shape): the stored gradients
SCALE = "critical_scale"  # (C, blocks): with 8-bit slots, what their codes are multiplied with
SUM = "critical_sum"  # (*shape): the sum of the stored gradients, fp32 or wider; not with aggr="fisher"
PRIORITY = "critical_priority"  # (C,): norm * decay ** age
NORM = "critical_norm"  # (C,): norm when stored
BORN = "critical_born"  # (C,): number of the step that stored it; 0 = free
CLOCK = "critical_clock"  # (): steps seen, not counting those with a gradient that was not finite
INSERTED = "critical_inserted"  # (): gradients stored so far
GRAM = "critical_gram"  # (C, C): inner products of the stored gradients; with aggr="fisher" only

# NOTE [pending]: an entry that a kernel has rounded has inner products that only the next step's pass over the slots
# finds; until then its row and column of the Gram matrix are NaN. A checkpoint keeps them so, and the resumed run finds
# the same bits; whatever else goes on from there settles them first (gram.settle).
TABLE_KEYS = (PRIORITY, NORM, BORN, CLOCK, INSERTED)
KEYS = (SLOTS, SCALE, SUM, *TABLE_KEYS, GRAM)


def ours(state: Mapping[str, Any]) -> dict[str, Any]:
    """What a parameter's state holds of a memory."""
    return {key: state[key] for key in KEYS if key in state}


def copies(state: Mapping[str, Any]) -> dict[str, Any]:
    """The same, in tensors of their own."""
    return {key: value.detach().clone() for key, value in ours(state).items()}


def put(state: Any, param: Any, mine: Mapping[str, Any]) -> None:
    """What the state of ``param`` holds of a memory becomes ``mine``; nothing else in it is touched."""
    held = state.get(param, {})
    gone = [held.pop(key) for key in KEYS if key in held and key not in mine]
    if mine:
        state.setdefault(param, {}).update(mine)
    elif gone and not held:
        del state[param]
