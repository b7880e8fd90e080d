"""What an optimizer with a memory does beside its base: the mixin in front of every base, and the order of a step.

This file knows PyTorch's rules and no mathematics: where state may stand, what a base optimizer may see, when its hooks fire.
"""

from __future__ import annotations

import inspect as python_inspect
import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch import Tensor
from torch.optim import Optimizer

from ..memory.memory import Memory, MisfitError, run
from ..memory.options import (
    DEFAULTS,
    check_agreement,
    idle_options,
    misspelt_keys,
    normalize_options,
    option_keys,
    unexpected,
)
from ..memory.ranks import all_reduce_
from ..memory.store import KEYS, SLOTS, Store
from . import checkpoint
from .families import Epilogue, family_of


class CriticalMeta(type):
    """Lets classes made by ``critical()`` be pickled: they stand in no module, but can be made again."""


class Critical(Optimizer, metaclass=CriticalMeta):
    """What an optimizer with a memory does beside its base; stands before the base in the class's bases."""

    _critical_base: type[Optimizer] = Optimizer
    _critical_defaults: dict[str, Any] = DEFAULTS
    # Made again when missing: pickle and deepcopy drop attributes.
    _critical_parts: tuple[Memory, Epilogue] | None = None
    _critical_process_group: Any = None
    _critical_lost_group = False  # had a process group, and came without it from pickle or deepcopy

    def __init__(self, params: Any, *args: Any, process_group: Any = None, **kwargs: Any) -> None:
        keys = option_keys(self._critical_base_names())
        ours = {name: kwargs.pop(key) for name, key in keys.items() if key in kwargs}
        # NOTE [fused]: RMSprop and NAdam have no such option in torch, but kernels here, which can be turned off.
        base_lacks_fused = "fused" not in self._critical_base_names() and family_of(self._critical_base) is not None
        fused = kwargs.pop("fused", None) if base_lacks_fused else None
        try:
            super().__init__(params, *args, **kwargs)
        except TypeError:
            takes = python_inspect.signature(super().__init__).parameters
            unknown = [name for name in kwargs if name not in takes]
            if not unknown or any(p.kind is p.VAR_KEYWORD for p in takes.values()):
                raise
            known = [name for name in takes if name != "params"] + [*keys.values(), "process_group"]
            raise unexpected(type(self).__name__, unknown[0], known) from None
        if base_lacks_fused:
            self.defaults["fused"] = fused
            for group in self.param_groups:
                group.setdefault("fused", fused)
        self._critical_process_group = process_group
        self._critical_set_up({**self._critical_defaults, **ours}, keys)

    @classmethod
    def _critical_base_names(cls) -> set[str]:
        return set(python_inspect.signature(cls._critical_base).parameters)

    def _critical_set_up(self, options: dict[str, Any], keys: dict[str, str]) -> None:
        """Bring our options into ``defaults`` and every group; allocate now if the base has (Adagrad)."""
        normalize_options(options)
        self.defaults.update({keys[name]: value for name, value in options.items()})
        for group in self.param_groups:
            for name, key in keys.items():
                group.setdefault(key, options[name])
            self._critical_write(group, self._critical_options(group))
        self._critical_warn(self.param_groups, self._critical_check_groups(), self._critical_defaults, stacklevel=4)
        if len(self.state) > 0:
            # NOTE [state at construction]: DCP makes its dummy step only for an optimizer without any state.
            self._critical_memory().attach()

    # -- options -------------------------------------------------------------------------------------------------------

    def _critical_key(self, name: str) -> str:
        """The key of one of our options: its name, or ``critical_<name>`` where the base has one of that name."""
        longer = "critical_" + name
        return longer if longer in self.defaults else name

    def _critical_options(self, group: dict[str, Any]) -> dict[str, Any]:
        """The options of a group by their plain names, in their saved form; raises ``ValueError`` for a wrong one."""
        options = {name: group[self._critical_key(name)] for name in DEFAULTS}
        normalize_options(options)
        return options

    def _critical_write(self, group: dict[str, Any], options: dict[str, Any]) -> None:
        group.update({self._critical_key(name): value for name, value in options.items()})

    def _critical_warn(self, groups: list[Any], options: list[Any], usual: dict[str, Any], stacklevel: int) -> None:
        """Warn of what the user has given and nothing looks at; ``usual`` are the options that were not given."""
        keys = {name: self._critical_key(name) for name in DEFAULTS}
        said = [text for group in groups for text in misspelt_keys(group, self.defaults, keys)]
        for text in dict.fromkeys([*said, *idle_options(options, usual, keys)]):
            warnings.warn(text, stacklevel=stacklevel)

    def _critical_check_groups(self) -> list[dict[str, Any]]:
        options = [self._critical_options(group) for group in self.param_groups]
        together = [o for o in options if o["topC"] > 0 and o["scope"] == "global"]
        if together:
            check_agreement(together)
        return options

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """As in torch; a group may bring its own ``topC, decay, aggr, ...``."""
        if "memory_device" not in self.__dict__.get("defaults", {}):  # the base's constructor: there are no options yet
            super().add_param_group(param_group)
            return
        usual = {name: self.defaults[self._critical_key(name)] for name in DEFAULTS}
        given = {n: param_group[k] for n in DEFAULTS if (k := self._critical_key(n)) in param_group}
        options = {**usual, **given}
        normalize_options(options)
        self._critical_warn([param_group], [options], usual, stacklevel=3)
        self._critical_add_to_base(param_group)
        self._critical_write(self.param_groups[-1], options)
        try:
            self._critical_check_groups()
        except ValueError:
            self.param_groups.pop()
            raise

    def _critical_add_to_base(self, param_group: dict[str, Any]) -> None:
        super().add_param_group(param_group)

    # -- the step ------------------------------------------------------------------------------------------------------

    def _critical_memory(self) -> Memory:
        """The memory in front of the base, over groups and state as they are now."""
        if self._critical_parts is None:
            memory = Memory.__new__(Memory)
            keys = {name: self._critical_key(name) for name in DEFAULTS}
            memory.set_up(self.param_groups, self.state, keys, self._critical_process_group)
            memory.lost_group = self._critical_lost_group
            self._critical_parts = memory, Epilogue(self)
        memory, epilogue = self._critical_parts
        memory.groups, memory.state = self.param_groups, self.state
        plain = any(group.get("fused") is False for group in self.param_groups) or self.defaults.get("differentiable")
        memory.ready(epilogue if not plain else None, only_torch=bool(plain))
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
        stores = memory.ready_stores
        if not stores:  # topC=0 is the base, bit for bit
            self._critical_base_step(None)
            return loss
        step = _differentiable if self.defaults.get("differentiable") else _directions
        try:
            grads = self._critical_gradients(memory)
        except MisfitError:
            memory.look_again()
            stores = self._critical_memory().ready_stores
            grads = self._critical_gradients(memory)
        found = [step(store, vectors) for store, vectors in zip(stores, grads)]
        stepped = [store.engine.stepped for store in stores]
        if all(stepped):
            self._critical_base_step(memory.outside)
        else:
            with self._critical_swapped(stores, found):
                self._critical_base_step(self._critical_rest(stores) if any(stepped) else None)
        del found
        for store in stores:
            store.engine.forget_what_is_kept()
        memory.attach()
        return loss

    def _critical_gradients(self, memory: Memory) -> list[list[Tensor | None]]:
        """``p.grad`` of the parts of each store."""
        grads = [param.grad for group in self.param_groups for param in group["params"]]
        return [memory.vectors_of(store, grads) for store in memory.ready_stores]

    def _critical_rest(self, stores: Sequence[Store]) -> list[tuple[dict[str, Any], list[Tensor]]]:
        """Groups without the parameters that an engine has updated."""
        updated = {part.param for store in stores if store.engine.stepped for part in store.parts}
        return [(group, [p for p in group["params"] if p not in updated]) for group in self.param_groups]

    def _critical_base_step(self, rest: list[tuple[dict[str, Any], list[Tensor]]] | None) -> None:
        """The base's own step: of everything, or of those parameters alone that no engine has updated."""
        # NOTE [hooks once]: torch wraps a class's step with its hooks when the first instance is made. Ours has them
        # already, so the base's must be called bare, or they fire twice as soon as anybody makes a plain one.
        step = super().step.__func__  # type: ignore[attr-defined]
        while getattr(step, "hooked", False):
            step = step.__wrapped__
        if rest is None:
            step(self)
            return
        left = [
            {**group, "params": some} for group, params in rest if (some := [p for p in params if p.grad is not None])
        ]
        if left:
            everything, self.param_groups = self.param_groups, left
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
            if next(iter(state), SLOTS) in KEYS and torch.is_tensor(param) and all(key in KEYS for key in state):
                hidden.append((param, self.state.pop(param)))
        try:
            yield
        finally:
            for param, state in hidden:  # the same dictionaries: Memory looks at who they are
                state.update(self.state.get(param, {}))
                self.state[param] = state
            for param, grad in grads:
                param.grad = grad

    @property
    def _step_supports_amp_scaling(self) -> bool:
        # NOTE [GradScaler]: otherwise, with fused=True, it would hand over scaled and even infinite gradients.
        return False

    @_step_supports_amp_scaling.setter
    def _step_supports_amp_scaling(self, value: bool) -> None:
        """Adam sets it on the instance when ``fused``; not for us."""

    # -- saving and loading --------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """As in torch: tensors under each parameter, options in the groups (a ``Policy`` by its name)."""
        return checkpoint.saved(self, self._critical_base_state_dict())

    def _critical_base_state_dict(self) -> dict[str, Any]:
        return super().state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """As in torch, with the memory. A checkpoint of the base alone loads with an empty one.

        ``topC, scope, memory_dtype`` and ``memory_device`` stay as constructed, and what the checkpoint holds is
        brought to them; the other options come from the checkpoint. To change one, set it in ``param_groups`` after
        loading.
        """
        checkpoint.load(self, state_dict)

    def _critical_load_base(self, state_dict: dict[str, Any]) -> None:
        hooks = self._optimizer_load_state_dict_pre_hooks, self._optimizer_load_state_dict_post_hooks
        self._optimizer_load_state_dict_pre_hooks = OrderedDict()  # checkpoint.load calls them
        self._optimizer_load_state_dict_post_hooks = OrderedDict()
        try:
            super().load_state_dict(state_dict)
        finally:
            self._optimizer_load_state_dict_pre_hooks, self._optimizer_load_state_dict_post_hooks = hooks

    def __getstate__(self) -> dict[str, Any]:
        state = {**super().__getstate__(), "_critical_lost_group": self._critical_had_group()}
        return {**state, "state": checkpoint.in_tensors_of_their_own(self, state["state"])}

    def _critical_had_group(self) -> bool:
        return self._critical_lost_group or self._critical_process_group is not None

    def __setstate__(self, state: dict[str, Any]) -> None:
        # NOTE [only ours, again]: the bases look through the state here, too, and expect their keys in it.
        everything = state.get("state", {})
        hidden = {}
        for param in list(everything):
            if isinstance(everything[param], dict):
                hidden[param] = {key: everything[param].pop(key) for key in KEYS if key in everything[param]}
                if not everything[param]:
                    del everything[param]
        super().__setstate__(state)
        for param, ours in hidden.items():
            if ours:
                self.state[param].update(ours)
        self._critical_complete(option_keys(self._critical_base_names()))

    def _critical_complete(self, keys: dict[str, str]) -> None:
        """Bring in the options that a pickle lacks because an older release did not have them."""
        self._critical_parts = None
        for name, key in keys.items():
            self.defaults.setdefault(key, self._critical_defaults[name])
            for group in self.param_groups:
                group.setdefault(key, self.defaults[key])

    def __repr__(self) -> str:
        from ..inspection import summary

        return super().__repr__() + summary(self)


@torch.no_grad()
def _directions(store: Store, grads: Sequence[Tensor | None]) -> list[Tensor | None]:
    return run(store, grads)


def _differentiable(store: Store, grads: Sequence[Tensor | None]) -> list[Tensor | None]:
    """``memory.run`` with directions that autograd can follow."""
    engine = store.engine
    with torch.no_grad():
        engine.decide(all_reduce_(engine.measure(grads), store), None, offer=False)
    directions = cast("list[Tensor | None]", engine.differentiable(grads))
    with torch.no_grad():
        engine.advance()
        engine.apply(fresh=True, directions=False)
    return directions
