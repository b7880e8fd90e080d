"""``critgrad train --inspect``: the memory's slots in the terminal while training."""

from __future__ import annotations

import time
from typing import Any

import torch
from torch.utils.hooks import RemovableHandle

import critgrad
from critgrad.bases.mixin import Critical
from critgrad.inspection import MemoryReport

from ..train import EpochProgress
from . import console as screen
from .console import ScreenTable, table

REFRESH_SECONDS = 0.25
BAR = 24
MEMORIES = 4  # shown at once: with one for each tensor there may be many


def slot_table(report: MemoryReport) -> ScreenTable:
    """One row per stored gradient: its age, priority and norm, and a bar of the priority."""
    numbers = ("slot", "age", "priority", "norm")
    made = table(None, *numbers, "", right=numbers)
    highest = max(report.priorities, default=0.0)
    for slot, age, priority, norm in zip(report.slots, report.ages, report.priorities, report.norms):
        length = round(BAR * priority / highest) if highest > 0 else 0
        new = " new" if slot == report.last_slot else ""
        made.add_row(str(slot), str(age), f"{priority:.4g}", f"{norm:.4g}", "█" * length + new)
    return made


def header(report: MemoryReport, ahead: MemoryReport | None = None) -> str:
    """The memory in one line. ``ahead`` is a look before a step: afterwards its gradient may itself be in the memory."""
    rate = "-" if report.acceptance_rate is None else f"{report.acceptance_rate:.0%}"
    parts = [f"{report.live}/{report.topC} slots", f"step {report.steps}", f"accepted {rate}"]
    if report.gradient_norm is not None:
        parts.append(f"|g| {report.gradient_norm:.4g}")
    if ahead is not None and ahead.span_share is not None:
        parts.append(f"in the span {ahead.span_share:.0%} of |g|²")
    if ahead is not None and ahead.damped_ratio is not None:
        parts.append(f"|d|/|g| {ahead.damped_ratio:.2f}")
    return ", ".join(parts)


class Inspector:
    """Shows the memory a few times a second; without a terminal, one line per epoch, of its last step.

    ``epoch_steps``: how many an epoch has, so that the last can be looked at and the others be left alone: a look takes
    time, and steps are timed. ``None`` looks at every one.
    """

    def __init__(self, epoch_steps: int | None = None, console: Any = None) -> None:
        self.console = console or screen.console
        self.epoch_steps = epoch_steps
        self.steps = 0  # of this epoch
        self.live: Any = None
        if self.console is not None and self.console.is_terminal:
            from rich.live import Live

            self.live = Live(console=self.console, refresh_per_second=8)
        self.shown = self.looked = float("-inf")
        self.ahead: list[MemoryReport] = []
        self.hook: RemovableHandle | None = None
        self.line = "epoch 0"

    def __enter__(self) -> Inspector:
        if self.live is not None:
            self.live.start()
        return self

    def __exit__(self, *exception: object) -> None:
        if self.hook is not None:
            self.hook.remove()
        if self.live is not None:
            self.live.stop()

    def on_step(self, optimizer: torch.optim.Optimizer) -> None:
        """After a step, with its gradient still in place."""
        self.steps += 1
        if self.hook is None and isinstance(optimizer, Critical):
            self.hook = optimizer.register_step_pre_hook(lambda *_: self._look_ahead(optimizer))
        if self.live is not None and time.monotonic() - self.shown >= REFRESH_SECONDS:
            self._show(optimizer)

    def _look_ahead(self, optimizer: Critical) -> None:
        """How the coming step's gradient lies to the memory: afterwards the question is moot."""
        if self._is_worth_a_look():
            self.looked = time.monotonic()
            self.ahead = critgrad.inspect(optimizer).memories

    def _is_worth_a_look(self) -> bool:
        if self.epoch_steps is None or self.steps + 1 == self.epoch_steps:
            return True
        return self.live is not None and time.monotonic() - self.looked >= REFRESH_SECONDS

    def on_epoch(self, progress: EpochProgress) -> None:
        """After an epoch's evaluation."""
        self.steps = 0
        self.line = epoch_line(progress)
        if self.live is not None:
            self._show(progress.optimizer)
            return
        screen.say(self.line)
        for report, ahead in self._memories(progress.optimizer):
            screen.say(f"  {header(report, ahead)}, ages {report.ages}")
        self.ahead = []  # a replayed CUDA graph calls no hook: rather nothing than what was true an epoch ago

    def _memories(self, optimizer: torch.optim.Optimizer) -> list[tuple[MemoryReport, MemoryReport | None]]:
        if not isinstance(optimizer, Critical):
            return []
        reports = critgrad.inspect(optimizer).memories
        return list(zip(reports, self.ahead if len(self.ahead) == len(reports) else [None] * len(reports)))

    def _show(self, optimizer: torch.optim.Optimizer) -> None:
        self.shown = time.monotonic()
        found = self._memories(optimizer)
        pieces = [self.line]
        for report, ahead in found[:MEMORIES]:
            pieces += [header(report, ahead), slot_table(report).plain()]
        if not found:
            pieces.append("no memory")
        elif len(found) > MEMORIES:
            pieces.append(f"... and {len(found) - MEMORIES} more memories")
        from rich.text import Text

        self.live.update(Text("\n".join(pieces)))


def epoch_line(progress: EpochProgress) -> str:
    """An epoch in one line."""
    return (
        f"epoch {progress.epoch}/{progress.epochs}  train loss {progress.train_loss:.4f}  "
        f"valid {progress.valid:.4g}  test {progress.test:.4g}"
    )
