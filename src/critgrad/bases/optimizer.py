"""What an optimizer with a memory is beside its step: construction, options, groups, saving and loading.

This file knows PyTorch's rules and no mathematics; the step itself is in mixin.py.
"""

from __future__ import annotations

import inspect as python_inspect
from collections import OrderedDict, defaultdict
from collections.abc import Callable
from typing import Any

from torch.optim import Optimizer

from ..memory.options import DEFAULTS, check_options, complete, option_keys, read_options, unexpected, warn_of_idle
from ..memory.prepared import Prepared
from . import checkpoint
from .families import family_of


class CriticalMeta(type):
    """Lets classes made by ``critical()`` be pickled: they stand in no module, but can be made again."""


class WithMemory(Optimizer, metaclass=CriticalMeta):
    """Everything of ``Critical`` but the step."""

    _critical_base: type[Optimizer] = Optimizer
    _critical_defaults: dict[str, Any] = DEFAULTS
    # Made again when missing: pickle and deepcopy drop attributes.
    _critical_prepared: Prepared | None = None
    _critical_process_group: Any = None
    _critical_lost_group = False  # had a process group, and came without it from pickle or deepcopy
    _critical_memory: Callable[..., Prepared]  # in front of the base (mixin.py)

    def __init__(self, params: Any, *args: Any, process_group: Any = None, **kwargs: Any) -> None:
        keys = self._critical_keys()
        ours = {name: kwargs.pop(key) for name, key in keys.items() if key in kwargs}
        # NOTE [fused]: RMSprop and NAdam have no such option in torch, but kernels here, which can be turned off.
        base = self._critical_base
        base_lacks_fused = family_of(base) is not None and "fused" not in python_inspect.signature(base).parameters
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
            complete(self.param_groups, self.defaults, ["fused"])
        self._critical_process_group = process_group
        self._critical_set_up({**self._critical_defaults, **ours})

    def _critical_set_up(self, options: dict[str, Any]) -> None:
        """Bring our options into ``defaults`` and every group; allocate now if the base has (Adagrad)."""
        check_options([options])
        keys = self._critical_keys()
        self.defaults.update({keys[name]: value for name, value in options.items()})
        ours = read_options(self.param_groups, keys, self.defaults)
        warn_of_idle(self.param_groups, self.defaults, ours, self._critical_defaults, keys, stacklevel=4)
        if len(self.state) > 0:
            # NOTE [state at construction]: DCP makes its dummy step only for an optimizer without any state.
            self._critical_memory().attach()

    # -- options -------------------------------------------------------------------------------------------------------

    def _critical_keys(self) -> dict[str, str]:
        """The keys of our options: their names, or ``critical_<name>`` where the base has one of that name."""
        return option_keys(python_inspect.signature(self._critical_base).parameters)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """As in torch; a group may bring its own ``topC, decay, aggr, ...``."""
        # In the base's constructor there are no options yet; what is no group it refuses itself.
        if "memory_device" not in self.__dict__.get("defaults", {}) or not isinstance(param_group, dict):
            self._critical_add_to_base(param_group)
            return
        keys, group = self._critical_keys(), dict(param_group)  # theirs is let be if we refuse it
        options = read_options([*self.param_groups, group], keys, self.defaults)
        usual = {name: self.defaults[key] for name, key in keys.items()}
        warn_of_idle([group], self.defaults, options[-1:], usual, keys, stacklevel=3)
        self._critical_add_to_base(param_group)
        self.param_groups[-1].update({key: group[key] for key in keys.values()})

    def _critical_add_to_base(self, param_group: dict[str, Any]) -> None:
        super().add_param_group(param_group)

    # NOTE [GradScaler]: otherwise, with fused=True, it would hand over scaled and even infinite gradients. Adam sets this on
    # the instance when ``fused``; not for us.
    _step_supports_amp_scaling = property(lambda self: False, lambda self, value: None)

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
        return {**state, "state": checkpoint.in_tensors_of_their_own(state["state"])}

    def _critical_had_group(self) -> bool:
        return self._critical_lost_group or self._critical_process_group is not None

    def __setstate__(self, state: dict[str, Any]) -> None:
        # NOTE [only ours, again]: the bases look through the state here, too, and expect their keys in it.
        ours, rest = checkpoint.split_state(state.get("state", {}))
        super().__setstate__({**state, "state": defaultdict(dict, rest)})
        self._critical_restore(ours)

    def _critical_restore(self, memory: dict[Any, dict[str, Any]]) -> None:
        """Bring in what a pickle keeps apart, and options that it lacks because an older release did not have them."""
        for param, mine in memory.items():
            self.state.setdefault(param, {}).update(mine)
        self._critical_prepared = None
        keys = self._critical_keys()
        for name, key in keys.items():
            self.defaults.setdefault(key, self._critical_defaults[name])
        complete(self.param_groups, self.defaults, keys.values())

    def __repr__(self) -> str:
        from ..inspection import summary

        return super().__repr__() + summary(self)
