"""What a trial may record beside its curves: the memory's ages and norms, the damping, the size of the updates.

Probes look through the public API (``critgrad.inspect``, the optimizer's state) and change nothing: a trial with probes
gives the same weights as one without, only later.
"""

from __future__ import annotations

from typing import Any

import torch

import critgrad
from critgrad.bases.mixin import Critical
from critgrad.inspection import MemoryReport
from critgrad.memory import BORN, CLOCK

# The updates' size is measured in one step out of so many: it needs a copy of all parameters.
UPDATE_EVERY = 10


class Probes:
    """The recorders of one run; ``epoch`` gives and clears what was gathered since the last call.

    ``steps`` are those that were taken before: a resumed run looks at the same steps as one left alone.
    """

    def __init__(self, names: tuple[str, ...], optimizer: torch.optim.Optimizer, steps: int = 0) -> None:
        self.names = set(names)
        self.optimizer = optimizer
        slots = max((group.get("topC", 0) for group in optimizer.param_groups), default=0)
        self.memory = optimizer if isinstance(optimizer, Critical) and slots > 0 else None
        self.steps = steps
        self.tables: list[tuple[torch.Tensor, torch.Tensor]] = []
        self.squares: list[torch.Tensor] = []
        self.before: list[torch.Tensor] | None = None
        self.seen: list[MemoryReport] = []

    def _parameters(self) -> list[torch.Tensor]:
        return [p for group in self.optimizer.param_groups for p in group["params"] if p.requires_grad]

    def before_step(self) -> None:
        """Called with the gradients in place, before ``optimizer.step``."""
        self.steps += 1
        if "update" in self.names and self.steps % UPDATE_EVERY == 0:
            self.before = [p.detach().clone() for p in self._parameters()]
        # The share of a gradient in the span is one of the coming step: looked at every tenth, before it.
        if self.memory is not None and "damping" in self.names and self.steps % UPDATE_EVERY == 0:
            self.seen.append(critgrad.inspect(self.memory).memories[0])

    def after_step(self) -> None:
        """Called after ``optimizer.step``."""
        if self.before is not None:
            after = self._parameters()
            total = sum(((a.detach() - b).double() ** 2).sum() for a, b in zip(after, self.before))
            self.squares.append(torch.as_tensor(total) / sum(p.numel() for p in after))
            self.before = None
        if self.memory is not None and "decisions" in self.names:
            # Copies of two tiny tables, read at the epoch's end: a report per step would wait for the device.
            state = self.memory.state[self._parameters()[0]]
            self.tables.append((state[BORN].clone(), state[CLOCK].clone()))

    def epoch(self) -> dict[str, Any]:
        """The values of the epoch that has just ended."""
        out: dict[str, Any] = {}
        if "update" in self.names:
            # An epoch shorter than the interval may have nothing to show: nan, so that each epoch has its row.
            out["update_rms"] = float(torch.stack(self.squares).mean().sqrt()) if self.squares else float("nan")
            self.squares = []
        if self.memory is None:
            return out
        if "decisions" in self.names:
            out["decisions"], self.tables = _slots_written(self.tables), []
        if "memory" in self.names:
            report = critgrad.inspect(self.memory).memories[0]
            out["ages"] = _filled(report.ages, report.topC, 0)
            out["g_norm"] = _number(report.gradient_norm)
            out["gc_norm"] = _number(report.mean_norm)
            out["accepted"] = _number(report.acceptance_rate)
        if "damping" in self.names:
            out["span_share"] = _mean([r.span_share for r in self.seen])
            out["damped_ratio"] = _mean([r.damped_ratio for r in self.seen])
            topC = self.memory.param_groups[0]["topC"]
            out["spectrum"] = _filled(self.seen[-1].spectrum if self.seen else [], topC, 0.0)
            self.seen = []
        return out


def _slots_written(tables: list[tuple[torch.Tensor, torch.Tensor]]) -> list[int]:
    """Per step the slot that it wrote, the one as old as the clock, or -1."""
    if not tables:
        return []
    born, clock = (torch.stack(part).cpu() for part in zip(*tables))
    written = (born == clock[:, None]) & (born > 0)
    slots: list[int] = torch.where(written.any(1), written.int().argmax(1), -1).tolist()
    return slots


def _filled(values: list[Any], length: int, filler: Any) -> list[Any]:
    return [*values, *[filler] * (length - len(values))]


def _mean(values: list[float | None]) -> float:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else float("nan")


def _number(value: float | None) -> float:
    return float("nan") if value is None else float(value)
