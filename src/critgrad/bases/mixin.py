"""The mixin in front of every base, and the order of a step: the memory first, then the base's own step.

This file knows PyTorch's rules and no mathematics: what a base optimizer may see, when its hooks fire.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor

from ..memory.keys import KEYS, SLOTS
from ..memory.prepared import COMPILED, Prepared, run
from ..memory.store import Store
from .families import Epilogue
from .optimizer import WithMemory


class Critical(WithMemory):
    """What an optimizer with a memory does beside its base; stands before the base in the class's bases."""

    def _critical_memory(self, looking: bool = False) -> Prepared:
        """The memory in front of the base, over groups and state as they are now; ``looking``: as the last step had it."""
        if self._critical_prepared is None:
            memory = Prepared(self.param_groups, self.state, self._critical_keys(), self._critical_process_group)
            memory.lost_group, memory.epilogue, memory.usual = self._critical_lost_group, Epilogue(self), self.defaults
            self._critical_prepared = memory
        memory = self._critical_prepared
        memory.groups, memory.state = self.param_groups, self.state
        plain = "differentiable=True" if self.defaults.get("differentiable") else ""
        if any(group.get("fused") is False for group in self.param_groups):
            plain = "fused=False"
        memory.ready(plain or (COMPILED if looking and memory.only_torch == COMPILED else ""))
        return memory

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Perform one step: the base's own, on the gradient combined with the memory.

        Args:
            closure: as in torch; evaluated once, before anything is read.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        memory = self._critical_memory()
        grads = memory.vectors([param.grad for param in memory.params()])
        stores = memory.ready_stores
        if not stores:  # topC=0 is the base, bit for bit
            self._critical_base_step(None)
            return loss
        with nullcontext() if self.defaults.get("differentiable") else torch.no_grad():
            found = [run(store, vectors) for store, vectors in zip(stores, grads)]
        if all(store.engine.stepped for store in stores):
            self._critical_base_step(memory.outside)
        else:
            updated = {part.param for store in stores if store.engine.stepped for part in store.parts}
            with self._critical_swapped(stores, found):
                self._critical_base_step({*memory.params()} - updated if updated else None)
        memory.attach()
        return loss

    def _critical_base_step(self, rest: set[Tensor] | None) -> None:
        """The base's own step: of everything, or of those parameters alone that no engine has updated."""
        # NOTE [hooks once]: torch wraps a class's step with its hooks when the first instance is made. Ours has them
        # already, so the base's must be called bare, or they fire twice as soon as anybody makes a plain one.
        step = super().step.__func__  # type: ignore[attr-defined]
        while getattr(step, "hooked", False):
            step = step.__wrapped__
        if rest is None:
            step(self)
        elif any(p.grad is not None for p in rest):
            everything = self.param_groups
            some = [[p for p in group["params"] if p in rest and p.grad is not None] for group in everything]
            self.param_groups = [{**group, "params": params} for group, params in zip(everything, some) if params]
            try:
                step(self)
            finally:
                self.param_groups = everything

    @contextmanager
    def _critical_swapped(self, stores: Sequence[Store], found: Iterable[Sequence[Tensor | None]]) -> Iterator[None]:
        """While the base steps: directions stand in ``p.grad``, and state that is only ours is out of sight."""
        grads: list[tuple[Tensor, Tensor]] = []
        hidden: list[tuple[Tensor, dict[str, Any]]] = []
        for store, directions in zip(stores, found):
            if store.engine.stepped:
                continue
            for part, d in zip(store.parts, directions):
                g = part.param.grad
                if g is not None:
                    # NOTE [p.grad is not written]: SGD's foreach loop with nesterov adds to it, so where the direction
                    # is the gradient itself (an empty memory), the base gets a copy.
                    grads.append((part.param, g))
                    part.param.grad = part.layout.copy(g) if d is None else d
        for param, state in list(self.state.items()):
            # NOTE [only ours]: Adam and others set their state up only when they find none at all.
            # (Under other keys than parameters a base may keep what it likes: a count of its steps, say.)
            if torch.is_tensor(param) and next(iter(state), SLOTS) in KEYS and all(key in KEYS for key in state):
                hidden.append((param, self.state.pop(param)))
        try:
            yield
        finally:
            for param, state in hidden:  # the same dictionaries: Memory looks at who they are
                state.update(self.state.get(param, {}))
                self.state[param] = state
            for param, grad in grads:
                param.grad = grad
