"""A policy that repeats what another run decided."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from numbers import Integral
from typing import Any

import torch
from torch import Tensor

from .policies import Policy, Tables, always, oldest


@dataclass(frozen=True)
class Replay(Policy):
    """Replays a recorded list of decisions: at step ``t`` (from 1) entry ``t - 1`` is the slot to write, or ``None``.

    The control for what *selection* buys: the same ages as another run, chosen without a look at this run's norms.
    After the end of the list nothing is admitted; a slot that is not there is an error, as with any ``Policy``.
    ``critgrad.inspect(opt).memories[0].last_slot`` records a run.

    >>> Replay([0, 1, None, 0]).name
    'replay'
    """

    decisions: tuple[int | None, ...] = ()
    _on_device: dict[torch.device, Tensor] = field(default_factory=dict, repr=False, compare=False)

    def __init__(self, decisions: Sequence[Any], name: str = "replay") -> None:
        for decision in decisions:
            if decision is not None and (not isinstance(decision, Integral) or decision < 0):
                raise ValueError(f"Invalid decision: {decision!r}, expected a slot >= 0 or None")
        super().__init__(name, always, oldest)
        object.__setattr__(self, "decisions", tuple(None if each is None else int(each) for each in decisions))
        object.__setattr__(self, "_on_device", {})

    def __reduce__(self) -> tuple[Any, ...]:
        return Replay, (self.decisions, self.name)

    def choose(self, tables: Tables, max_age: int | None) -> tuple[Tensor, Tensor]:
        """What stands in the list for this step, ``max_age`` or not."""
        device = tables.born.device
        if device not in self._on_device:
            # The last entry stands for every step after the end of the list.
            codes = [-1 if decision is None else decision for decision in self.decisions] + [-1]
            self._on_device[device] = torch.tensor(codes, device=device)
        code = self._on_device[device][(tables.t - 1).clamp(max=len(self.decisions))]
        return code >= 0, code  # decide() looks at the range
