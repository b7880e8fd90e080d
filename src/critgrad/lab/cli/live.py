"""``critgrad train --inspect``: the memory's slots in the terminal while training."""

from __future__ import annotations

import time
from types import TracebackType

import torch
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

import critgrad
from critgrad.critical import Critical
from critgrad.inspect import MemoryReport

from ..train import Progress

REFRESH_SECONDS = 0.25
BAR = 24


def slot_table(report: MemoryReport) -> Table:
    """One row per stored gradient: its age, priority and norm, and a bar of the priority."""
    made = Table(box=None, header_style="bold", pad_edge=False)
    for column in ("slot", "age", "priority", "norm", ""):
        made.add_column(column, justify="left" if column == "" else "right")
    highest = max(report.priorities, default=0.0)
    for slot, age, priority, norm in zip(report.slots, report.ages, report.priorities, report.norms):
        length = round(BAR * priority / highest) if highest > 0 else 0
        new = " new" if slot == report.last_slot else ""
        made.add_row(str(slot), str(age), f"{priority:.4g}", f"{norm:.4g}", "█" * length + new)
    return made


def header(report: MemoryReport) -> str:
    """The memory in one line."""
    rate = "-" if report.acceptance_rate is None else f"{report.acceptance_rate:.0%}"
    parts = [f"{report.live}/{report.topC} slots", f"step {report.steps}", f"accepted {rate}"]
    if report.gradient_norm is not None:
        parts.append(f"|g| {report.gradient_norm:.4g}")
    if report.span_share is not None:
        parts.append(f"in the span {report.span_share:.0%} of |g|²")
    if report.damped_ratio is not None:
        parts.append(f"|d|/|g| {report.damped_ratio:.2f}")
    return ", ".join(parts)


class Inspector:
    """Shows the memory a few times a second; without a terminal, one line per epoch."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.live = Live(console=console, refresh_per_second=8) if console.is_terminal else None
        self.shown = 0.0
        self.line = Text("epoch 0")

    def __enter__(self) -> Inspector:
        if self.live is not None:
            self.live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.live is not None:
            self.live.stop()

    def on_step(self, optimizer: torch.optim.Optimizer) -> None:
        """After a step, with its gradient still in place."""
        if self.live is None or time.monotonic() - self.shown < REFRESH_SECONDS:
            return
        self._show(optimizer)

    def on_epoch(self, progress: Progress) -> None:
        """After an epoch's evaluation."""
        self.line = Text(epoch_line(progress))
        if self.live is not None:
            self._show(progress.optimizer)
            return
        self.console.print(self.line, highlight=False)
        if isinstance(progress.optimizer, Critical):
            for report in critgrad.inspect(progress.optimizer).memories:
                self.console.print(f"  {header(report)}, ages {report.ages}", highlight=False)

    def _show(self, optimizer: torch.optim.Optimizer) -> None:
        self.shown = time.monotonic()
        assert self.live is not None
        if not isinstance(optimizer, Critical):
            self.live.update(Group(self.line, Text("no memory")))
            return
        reports = critgrad.inspect(optimizer).memories
        pieces = [piece for report in reports[:4] for piece in (Text(header(report)), slot_table(report))]
        more = [Text(f"... and {len(reports) - 4} more memories")] if len(reports) > 4 else []
        self.live.update(Group(self.line, *pieces, *more))


def epoch_line(progress: Progress) -> str:
    """An epoch in one line."""
    return (
        f"epoch {progress.epoch}/{progress.epochs}  train loss {progress.train_loss:.4f}  "
        f"valid {progress.valid:.4g}  test {progress.test:.4g}"
    )
