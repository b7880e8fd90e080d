"""What the memories of an optimizer were made for, and whether that still holds.

Users replace parameters, groups and state between steps: a layer is made anew, one parameter's state is reset, state is
moved. As soon as something is not what it was, the memories are made anew from what the state holds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import is_
from typing import Any

from torch import Tensor

from .memory import SLOTS, Memory, Part

Group = dict[str, Any]
_address = Tensor.data_ptr


class Plan:
    """The memories of all groups, with what they were made for."""

    def __init__(self, signature: list[Any], memories: list[Memory], groups: Sequence[Group]) -> None:
        self.signature = signature  # state, options, what is frozen: compared by value
        self.memories = memories
        self.groups = [(group, list(group["params"])) for group in groups]  # compared by identity
        inside = {part.param for memory in memories for part in memory.parts}
        self.outside = [(group, rest) for group, all_ in self.groups if (rest := [p for p in all_ if p not in inside])]
        self.watched: _Watched | None = None
        self.version = 0  # of the states: what looks at their tensors must look again when it changes

    def fits(self, groups: Sequence[Group], state: Mapping[Tensor, dict[str, Any]]) -> bool:
        """Whether groups, parameters and the memory's part of the state are still those."""
        if not self._same_tensors(groups):
            return False
        if self.watched is not None and self.watched.unchanged(state):
            return True
        parts = [(part, memory.attached) for memory in self.memories for part in memory.parts]
        if not all(holds(part, state.get(part.param, {}), attached) for part, attached in parts):
            return False
        if all(attached for _, attached in parts):
            self.version += self.watched is not None
            self.watched = _Watched([part for part, _ in parts], state)
        return True

    def _same_tensors(self, groups: Sequence[Group]) -> bool:
        return len(groups) == len(self.groups) and all(
            group is known and len(group["params"]) == len(params) and all(map(is_, group["params"], params))
            for group, (known, params) in zip(groups, self.groups)
        )

    def stepped_by_the_base(self) -> list[Group]:
        """Groups of what has a gradient and no place in a memory: as in torch, whatever has a gradient is updated."""
        return [
            {**group, "params": mine}
            for group, params in self.outside
            if (mine := [param for param in params if param.grad is not None])
        ]


def holds(part: Part, state: Mapping[str, Any], attached: bool) -> bool:
    """Whether a parameter's state has the slots that its part looks at."""
    slots = state.get(SLOTS)
    if slots is None:
        return not attached
    return slots is part.tensors[SLOTS] and (part.sharded or slots.data_ptr() == part.slots.values.data_ptr())


class _Watched:
    """The same in a few passes over flat lists, since it is asked in every step."""

    def __init__(self, parts: list[Part], state: Mapping[Tensor, dict[str, Any]]) -> None:
        self.all = list(state.values())  # kept, so that no other dictionary has the id of one of these
        self.ids = list(map(id, self.all))
        self.states = [state[part.param] for part in parts]
        self.slots = [part.tensors[SLOTS] for part in parts]
        self.plain = [part.tensors[SLOTS] for part in parts if not part.sharded]
        self.addresses = list(map(_address, self.plain))

    def unchanged(self, state: Mapping[Tensor, dict[str, Any]]) -> bool:
        return (
            list(map(id, state.values())) == self.ids
            and all(map(is_, [mine.get(SLOTS) for mine in self.states], self.slots))
            and list(map(_address, self.plain)) == self.addresses
        )
