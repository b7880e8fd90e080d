"""Arms side by side on one task: what curves, bars and cost tables are drawn from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ..ledger import Row
from ..ledger.reach import Reach
from ..stats import BestSoFar, Comparison, Interval, Speedup
from .costs import ArmCost


@dataclass(frozen=True)
class PanelArm:
    """One arm with its runs, and what was computed from them elsewhere in the lab."""

    family: str
    arm: str
    label: str
    optimizer: str
    hyper: Mapping[str, Any]
    rows: tuple[Row, ...]
    test: Interval
    diverged: int
    comparison: Comparison | None = None  # with the family's base
    speedup: Speedup | None = None  # over the family's base, in epochs
    reach: Reach | None = None  # in epochs
    cost: ArmCost | None = None
    best_after: BestSoFar | None = None
    shown: bool = True


@dataclass(frozen=True)
class Panel:
    """Arms on one task."""

    track: str
    task: str
    title: str
    metric: str
    unit: str
    higher_is_better: bool
    arms: tuple[PanelArm, ...]
    notes: tuple[str, ...] = ()
    seeds: int = 0
    settings: Mapping[str, Any] = field(default_factory=dict)
    rungs: bool = False  # whether points of the search were stopped early, after fewer epochs

    @property
    def measured(self) -> str:
        """The metric with its unit."""
        return f"{self.metric} ({self.unit})" if self.unit else self.metric

    @property
    def families(self) -> list[str]:
        """In the order of the arms."""
        return list(dict.fromkeys(arm.family for arm in self.arms))

    def split(self, largest: int) -> list[tuple[str, list[PanelArm]]]:
        """All arms at once where they are few, else family by family."""
        if len(self.arms) <= largest:
            return [("", list(self.arms))]
        return [(family, [arm for arm in self.arms if arm.family == family]) for family in self.families]
