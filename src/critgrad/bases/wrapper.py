"""A memory for an optimizer that exists already: ``CriticalGradients(instance)``."""

from __future__ import annotations

from collections import defaultdict
from typing import Any, cast

from torch.optim import Optimizer

from ..memory.options import option_keys, unexpected
from .checkpoint import in_tensors_of_their_own, split_state
from .factory import options_for, refuse
from .mixin import Critical


def _inner(name: str) -> Any:
    """An attribute that is the inner optimizer's."""
    return property(lambda self: getattr(self.optimizer, name), lambda self, new: setattr(self.optimizer, name, new))


class CriticalGradients(Critical):
    """A memory of critical gradients for an optimizer that exists already, somebody else's included.

    It shares ``param_groups`` and ``state`` with the optimizer it is given and leaves the step itself to it. It *is* an
    ``Optimizer``, so schedulers, scalers and trainers take it. What the inner one has beyond that (``train()`` and
    ``eval()`` of the schedule-free ones, say) is handed on; the inner one itself is at ``.optimizer``.

    Args:
        optimizer: the optimizer to be wrapped.
        **options: the memory's options (``topC, decay, aggr, ...``).

    >>> import torch, critgrad
    >>> weight = torch.nn.Parameter(torch.ones(3))
    >>> opt = critgrad.CriticalGradients(torch.optim.NAdam([weight], lr=0.1), topC=5)
    >>> opt.optimizer.param_groups is opt.param_groups
    True
    """

    optimizer: Optimizer
    param_groups: list[dict[str, Any]] = _inner("param_groups")
    state: Any = _inner("state")  # with our keys in it
    _critical_base = Optimizer  # the inner one makes its step itself, so no kernel may do that part for it

    def __init__(self, optimizer: Optimizer, *, process_group: Any = None, **options: Any) -> None:
        if not isinstance(optimizer, Optimizer):
            raise TypeError(f"CriticalGradients takes a torch.optim.Optimizer, got {type(optimizer).__name__}")
        refuse(type(optimizer))
        keys = option_keys(optimizer.defaults)
        if all(key in group for group in optimizer.param_groups for key in keys.values()):
            raise TypeError(
                f"this {type(optimizer).__name__} has a memory already: use the CriticalGradients that was made for it "
                "(its options are in param_groups), or wrap a new optimizer"
            )
        ours = {name: options.pop(key) for name, key in keys.items() if key in options}
        if options:
            raise unexpected("CriticalGradients", next(iter(options)), [*keys.values(), "process_group"])
        # NOTE [no Optimizer.__init__]: it would make param_groups and state of its own; this sets up hooks alone.
        Optimizer.__setstate__(self, {"defaults": dict(optimizer.defaults), "optimizer": optimizer})
        self._critical_process_group = process_group
        self._critical_set_up(options_for(type(optimizer), ours))

    def __getattr__(self, name: str) -> Any:
        # What begins with _ stays apart: torch's promises of the inner one are none of ours (NOTE [GradScaler]), and
        # copy and pickle ask an object without attributes for its dunders. Nor has that one an "optimizer" yet.
        if name.startswith("_") or name == "optimizer":
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self.optimizer, name)

    def __getstate__(self) -> dict[str, Any]:
        inner, ours = self.optimizer, cast("dict[Any, dict[str, Any]]", {})
        if "state" in inner.__dict__:
            # NOTE [only ours, in a copy]: the inner one is unpickled by itself, and Adam and others then expect their
            # keys in whatever state they find. So our keys travel beside a twin of it that has none of them.
            ours, rest = split_state(in_tensors_of_their_own(inner.state))
            inner = object.__new__(type(inner))
            inner.__dict__.update({**self.optimizer.__dict__, "state": defaultdict(dict, rest)})
        lost = self._critical_had_group()
        return {"defaults": self.defaults, "optimizer": inner, "memory": ours, "_critical_lost_group": lost}

    def __setstate__(self, state: dict[str, Any]) -> None:
        state = dict(state)
        ours = state.pop("memory")
        Optimizer.__setstate__(self, state)
        self._critical_restore(ours)

    def _critical_keys(self) -> dict[str, str]:
        return option_keys(self.optimizer.defaults)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """As in torch."""
        self.optimizer.zero_grad(set_to_none)

    def _critical_base_step(self, rest: Any) -> None:
        self.optimizer.step()  # no engine updates parameters of a base that it does not know

    def _critical_add_to_base(self, param_group: dict[str, Any]) -> None:
        self.optimizer.add_param_group(param_group)

    def _critical_base_state_dict(self) -> dict[str, Any]:
        for before in self._optimizer_state_dict_pre_hooks.values():
            before(self)
        state_dict = self.optimizer.state_dict()
        for after in self._optimizer_state_dict_post_hooks.values():
            changed = after(self, state_dict)
            state_dict = state_dict if changed is None else changed
        return state_dict

    def _critical_load_base(self, state_dict: dict[str, Any]) -> None:
        self.optimizer.load_state_dict(state_dict)
