"""A memory for an optimizer that exists already: ``CriticalGradients(instance)``."""

from __future__ import annotations

from typing import Any

from torch.optim import Optimizer

from .classes import default_options, refuse
from .critical import Critical
from .options import DEFAULTS, option_keys


class CriticalGradients(Critical):
    """A memory of critical gradients for an optimizer that exists already, somebody else's included.

    It shares ``param_groups`` and ``state`` with the optimizer it is given and leaves the step itself to it. It *is* an
    ``Optimizer``, so schedulers, scalers and trainers take it. What the inner one has beyond that is at ``.optimizer``.

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

    def __init__(self, optimizer: Optimizer, *, process_group: Any = None, **options: Any) -> None:
        if not isinstance(optimizer, Optimizer):
            raise TypeError(f"CriticalGradients takes a torch.optim.Optimizer, got {type(optimizer).__name__}")
        refuse(type(optimizer))
        taken = set(optimizer.defaults) | {key for group in optimizer.param_groups for key in group}
        keys = option_keys(taken - {name for name in DEFAULTS if name not in optimizer.defaults})
        ours = {name: options.pop(key) for name, key in keys.items() if key in options}
        if options:
            raise TypeError(f"CriticalGradients got unexpected options: {', '.join(options)}")
        # NOTE [no Optimizer.__init__]: it would make param_groups and state of its own; this sets up hooks alone.
        Optimizer.__setstate__(self, {"defaults": dict(optimizer.defaults), "optimizer": optimizer})
        self._critical_process_group = process_group
        self._critical_set_up(default_options(type(optimizer), ours), keys)

    @property
    def param_groups(self) -> list[dict[str, Any]]:  # type: ignore[override]
        return self.optimizer.param_groups

    @param_groups.setter
    def param_groups(self, groups: list[dict[str, Any]]) -> None:
        self.optimizer.param_groups = groups

    @property
    def state(self) -> Any:  # type: ignore[override]
        return self.optimizer.state

    @state.setter
    def state(self, state: Any) -> None:
        self.optimizer.state = state

    def __getstate__(self) -> dict[str, Any]:
        return {"defaults": self.defaults, "optimizer": self.optimizer}

    def __setstate__(self, state: dict[str, Any]) -> None:
        Optimizer.__setstate__(self, state)
        self._critical_plan = None

    def zero_grad(self, set_to_none: bool = True) -> None:
        self.optimizer.zero_grad(set_to_none)

    def _critical_base_step(self) -> None:
        self.optimizer.step()

    def _critical_add_to_base(self, param_group: dict[str, Any]) -> None:
        self.optimizer.add_param_group(param_group)

    def _critical_base_state_dict(self) -> dict[str, Any]:
        return self.optimizer.state_dict()

    def _critical_load_base(self, state_dict: dict[str, Any]) -> None:
        self.optimizer.load_state_dict(state_dict)
