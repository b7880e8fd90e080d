"""What an optimizer with a memory does beside its base: the mixin in front of every base, and the order of a step.

This file knows PyTorch's rules and no mathematics: the order of a step, where state may stand, what a base optimizer
may see. The order of a step is: closure, look at the gradients, direction in the place of ``p.grad``, the base's own
step, ``p.grad`` put back, insertion.
"""

from __future__ import annotations

import inspect as python_inspect
import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from operator import itemgetter
from typing import Any, cast

import torch
from torch import Tensor
from torch.optim import Optimizer

from . import checkpoint, kernels
from .distributed import refuse_lost_group
from .layout import aligned, local
from .measure import settle
from .memory import KEYS, SLOTS, Memory
from .options import (
    DEFAULTS,
    check_agreement,
    idle_options,
    misspelt_keys,
    normalize_options,
    option_keys,
    unexpected,
)
from .plain import Visit
from .plan import Plan


class CriticalMeta(type):
    """Lets classes made by ``critical()`` be pickled: they stand in no module, but can be made again."""


class Critical(Optimizer, metaclass=CriticalMeta):
    """What an optimizer with a memory does beside its base; stands before the base in the class's bases."""

    _critical_base: type[Optimizer]
    _critical_defaults: dict[str, Any] = DEFAULTS
    # Both are rebuilt or asked for again when missing: pickle and deepcopy drop attributes.
    _critical_plan: Plan | None = None
    _critical_read: Callable[[dict[str, Any]], Any] | None = None
    _critical_process_group: Any = None
    _critical_lost_group = False  # had a process group, and came without it from pickle or deepcopy
    _critical_kernel: tuple[list[Memory], Any, kernels.Step | None] | None = None

    def __init__(self, params: Any, *args: Any, process_group: Any = None, **kwargs: Any) -> None:
        keys = option_keys(self._critical_base_names())
        ours = {name: kwargs.pop(key) for name, key in keys.items() if key in kwargs}
        # NOTE [fused]: RMSprop and NAdam have no such option in torch, but kernels here, which can be turned off.
        base_lacks_fused = "fused" not in self._critical_base_names() and kernels.has_one_for(self._critical_base)
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
            for memory in self._critical_memories():
                self._critical_attach(memory)

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
        if not self._critical_is_set_up():  # called by the base's constructor, before ours has any option
            super().add_param_group(param_group)
            return
        usual = {name: self.defaults[self._critical_key(name)] for name in DEFAULTS}
        given = {n: param_group[k] for n in DEFAULTS if (k := self._critical_key(n)) in param_group}
        options = {**usual, **given}
        normalize_options(options)
        self._critical_warn([param_group], [options], usual, stacklevel=3)
        self._critical_add_to_base(param_group)
        group = self.param_groups[-1]
        self._critical_write(group, options)
        try:
            self._critical_check_groups()
        except ValueError:
            self.param_groups.pop()
            raise
        self._critical_plan = None

    def _critical_add_to_base(self, param_group: dict[str, Any]) -> None:
        super().add_param_group(param_group)

    def _critical_is_set_up(self) -> bool:
        return "memory_device" in self.__dict__.get("defaults", {})

    # -- memories ------------------------------------------------------------------------------------------------------

    def _critical_signature(self) -> list[Any]:
        """What the memories were made for; as soon as it changes they are made anew from what they hold."""
        if self._critical_read is None:
            self._critical_read = itemgetter(*(self._critical_key(name) for name in DEFAULTS))
        read = self._critical_read
        frozen = [[p.requires_grad for p in group["params"]] for group in self.param_groups]
        return [self.state, [read(group) for group in self.param_groups], frozen]

    def _critical_memories(self) -> list[Memory]:
        """The memories of all groups; made at the first call, and again when groups or options have changed."""
        if self._critical_plan is not None and self._critical_fits(self._critical_plan):
            return self._critical_plan.memories
        return self._critical_make_memories()

    @torch.compiler.disable
    def _critical_make_memories(self) -> list[Memory]:
        options = self._critical_check_groups()
        for group, checked in zip(self.param_groups, options):
            self._critical_write(group, checked)
        made = []
        together: list[tuple[Tensor, dict[str, Any]]] = []
        first_number = 0
        for number, (group, mine) in enumerate(zip(self.param_groups, options)):
            # A frozen parameter that has been in the memory stays in it: its gradients count as zero.
            owners = [(p, mine) for p in group["params"] if p.requires_grad or SLOTS in self._critical_peek(p)]
            if mine["topC"] > 0 and owners:
                if mine["scope"] == "global":
                    together += owners
                elif mine["scope"] == "group":
                    made.append(self._critical_make(owners, [number + 1], by_tensor=False))
                else:
                    streams = [(1 << 20) + first_number + i for i in range(len(owners))]
                    made.append(self._critical_make(owners, streams, by_tensor=True))
            first_number += len(group["params"])
        if together:
            made.insert(0, self._critical_make(together, [0], by_tensor=False))
        self._critical_forget({part.param for memory in made for part in memory.parts})
        self._critical_plan = Plan(self._critical_signature(), made, self.param_groups)
        for memory in made:
            if any(SLOTS in self._critical_peek(part.param) for part in memory.parts):
                self._critical_attach(memory)  # made from existing state: what is there now is what counts
        return made

    def _critical_forget(self, inside: set[Tensor]) -> None:
        """Take our keys out of the state of parameters that are in no memory (any more): nothing keeps them true."""
        for param in [p for group in self.param_groups for p in group["params"] if p not in inside]:
            state = self._critical_peek(param)
            ours = [state.pop(key) for key in KEYS if key in state]
            if ours and not state:
                del self.state[param]  # NOTE [only ours]

    def _critical_peek(self, param: Tensor) -> dict[str, Any]:
        """The state of a parameter, without making one by asking (``state`` is a defaultdict)."""
        return cast("dict[str, Any]", self.state.get(param, {}))

    def _critical_fits(self, plan: Plan) -> bool:
        was, now = plan.signature, self._critical_signature()
        if was[0] is not now[0] or was[1:] != now[1:]:
            return False
        if not torch.compiler.is_compiling():
            return plan.fits(self.param_groups, self.state)
        # A compiled step guards its tensors itself, and would trace a look at every one of them.
        for memory in plan.memories:
            first = memory.parts[0]
            state = self._critical_peek(first.param)
            if (memory.attached or SLOTS in state) and state.get(SLOTS) is not first.tensors[SLOTS]:
                return False
        return True

    def _critical_make(self, owners: list[Any], streams: list[int], by_tensor: bool) -> Memory:
        states = [self._critical_peek(p) for p, _ in owners]
        if self._critical_lost_group:
            refuse_lost_group()
        return Memory(owners, states, streams, by_tensor, self._critical_process_group)

    def _critical_attach(self, memory: Memory) -> None:
        memory.attach([self.state[part.param] for part in memory.parts])

    def _critical_grads(self, memory: Memory) -> list[Tensor | None]:
        """The gradients of the parts of a memory; ``_MisfitError`` if one does not fit its layout."""
        grads: list[Tensor | None] = []
        for part in memory.parts:
            g = part.param.grad
            if g is not None:
                if g.layout is not torch.strided:
                    raise RuntimeError(
                        f"{type(self).__name__} does not support sparse gradients (layout {g.layout}): a memory of "
                        "whole gradients is dense; use a dense embedding (sparse=False), or topC=0 for that group"
                    )
                here = g
                if part.sharded:
                    g = aligned(g, part.param)
                    here = local(g)
                if here.shape != part.layout.shape or here.device != part.device or g.dtype != part.dtype:
                    raise _MisfitError(
                        f"a gradient of {g.dtype} and shape {tuple(here.shape)} on {here.device} for a parameter of "
                        f"{part.param.dtype} and shape {tuple(part.layout.shape)} on {part.device}"
                    )
            grads.append(g)
        return grads

    def _critical_look(self) -> tuple[list[Memory], list[list[Tensor | None]]]:
        """The memories, and the gradients of the parts of each."""
        memories = self._critical_memories()
        try:
            return memories, [self._critical_grads(memory) for memory in memories]
        except _MisfitError:
            # The model was moved or cast since the last step: take the memory along. A new shape raises there.
            self._critical_plan = None
            memories = self._critical_memories()
            return memories, [self._critical_grads(memory) for memory in memories]

    # -- the step ------------------------------------------------------------------------------------------------------

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Perform one step: the base's own, on the gradient combined with the memory.

        Args:
            closure: as in torch; evaluated once, before anything is read.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        key = self._critical_key("topC")
        if all(group[key] == 0 for group in self.param_groups):
            if self._critical_plan is None or self._critical_plan.memories:
                self._critical_make_memories()  # none: what they held, or a pickle brought along, goes
            self._critical_base_step()
            return loss
        memories, grads = self._critical_look()
        fused = self._critical_fused_step(memories)
        if fused is not None and fused(grads):
            assert self._critical_plan is not None
            self._critical_step_others(self._critical_plan.stepped_by_the_base())
        else:
            visits = [Visit(memory, these) for memory, these in zip(memories, grads)]
            try:
                with self._critical_swapped(visits):
                    self._critical_base_step()
            finally:
                # Also when the base raises: large tensors are stored on the way (blocks.py, NOTE [stored early]), and
                # a memory's tables must say what its slots hold.
                for visit in visits:
                    visit.insert()
        for memory in memories:
            if not memory.attached:
                self._critical_attach(memory)
        return loss

    def _critical_fused_step(self, memories: list[Memory]) -> kernels.Step | None:
        """A kernel that does the memories' and the base's part at once, where there is one for all options in use."""
        if torch.compiler.is_compiling():
            if self._critical_kernel is not None:
                self._critical_leave_kernel(memories)
            return None
        asked = [[group.get(name) for name in kernels.ASKED] for group in self.param_groups]
        known = self._critical_kernel
        if known is None or known[0] is not memories or known[1] != asked:
            known = self._critical_kernel = (memories, asked, kernels.choose(self, memories))
        return known[2]

    @torch.compiler.disable
    def _critical_leave_kernel(self, memories: list[Memory]) -> None:
        """A step that is compiled goes on where a kernel has left off."""
        self._critical_kernel = None
        for memory in memories:
            settle(memory)

    def _critical_step_others(self, groups: list[dict[str, Any]]) -> None:
        """The base's step for what has no memory, after a kernel has done the others."""
        if not groups:
            return
        everything = self.param_groups
        self.param_groups = groups
        try:
            self._critical_base_step()
        finally:
            self.param_groups = everything

    def _critical_base_step(self) -> None:
        # NOTE [hooks once]: torch wraps a class's step with its hooks when the first instance is made. Ours has them
        # already, so the base's must be called bare, or they fire twice as soon as anybody makes a plain one.
        step = super().step.__func__  # type: ignore[attr-defined]
        while getattr(step, "hooked", False):
            step = step.__wrapped__
        step(self)

    @contextmanager
    def _critical_swapped(self, visits: list[Visit]) -> Iterator[None]:
        """While the base steps: directions stand in ``p.grad``, and state that is only ours is out of sight."""
        grads: list[tuple[Tensor, Tensor | None]] = []
        hidden: list[tuple[Tensor, dict[str, Any]]] = []
        for visit in visits:
            parts = visit.memory.parts
            if self.defaults.get("differentiable"):
                directions = visit.differentiable_directions([part.param.grad for part in parts])
            else:
                directions = visit.directions()
            for part, d in zip(parts, directions):
                g = part.param.grad
                if g is not None:
                    # NOTE [p.grad is not written]: SGD's foreach loop with nesterov adds to it, so where the direction
                    # is the gradient itself (an empty memory), the base gets a copy.
                    grads.append((part.param, g))
                    part.param.grad = part.layout.copy(g) if d is None else d
        for param in list(self.state):
            # NOTE [only ours]: Adam and others set their state up only when they find none at all.
            if torch.is_tensor(param) and not any(key not in KEYS for key in self.state[param]):
                hidden.append((param, self.state.pop(param)))
        try:
            yield
        finally:
            for param, state in hidden:
                self.state[param].update(state)
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
        return {**super().__getstate__(), "_critical_lost_group": self._critical_had_group()}

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
        self._critical_plan = None

    def _critical_complete(self, keys: dict[str, str]) -> None:
        """Bring in the options that a pickle lacks because an older release did not have them."""
        for name, key in keys.items():
            self.defaults.setdefault(key, self._critical_defaults[name])
            for group in self.param_groups:
                group.setdefault(key, self.defaults[key])

    def __repr__(self) -> str:
        from .inspect import summary

        return super().__repr__() + summary(self)


class _MisfitError(RuntimeError):
    """A gradient does not fit the memory's layout."""
