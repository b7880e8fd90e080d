"""Progress as one likes to see it: a live bar with ETA in a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from ..run.coordinator import Event, OnEvent
from ..run.coordinator import Progress as SweepProgress
from ..train import EpochProgress
from . import console as screen
from .live import epoch_line

PLAIN_SECONDS = 10.0  # between two plain lines


def duration(seconds: float | None) -> str:
    """``1:02:03`` as one reads it.

    >>> duration(75), duration(None)
    ('1:15', '-:--')
    """
    if seconds is None:
        return "-:--"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def event_line(title: str, event: Event) -> str:
    """A sweep in one line."""
    p = event.progress
    failed = f", {p.failed} failed" if p.failed else ""
    return f"{title}: {p.done}/{p.total}{up_to(p)}{failed}, {p.running} running, {duration(p.seconds)}, {eta(p)} to go"


def up_to(p: SweepProgress) -> str:
    """What the number of runs may become."""
    return " so far" if p.open else f" (up to {p.most})" if p.most > p.total else ""


def eta(p: SweepProgress) -> str:
    """The time to go; to the end of what may come, too."""
    least = "at least " if p.open and p.eta is not None else ""
    return least + duration(p.eta) + ("" if p.eta_most is None else f" to {duration(p.eta_most)}")


@contextmanager
def shown(title: str, console: Any = None) -> Iterator[OnEvent]:
    """Give a function for ``run_jobs(on_event=)`` that shows how far it is."""
    console = console or screen.console
    if console is None or not console.is_terminal:
        yield _PlainLines(title, console)
        return
    from rich.markup import escape
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(bar_width=30),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rest]}"),
        TimeElapsedColumn(),
        TextColumn("ETA {task.fields[eta]}"),
    )
    with Progress(*columns, console=console, transient=True) as progress:
        bar = progress.add_task(escape(title), total=None, rest="", eta="-:--")

        def on_event(event: Event) -> None:
            p = event.progress
            rest = f"{up_to(p)} {p.running} running".strip() + (f", [red]{p.failed} failed[/]" if p.failed else "")
            progress.update(bar, total=p.total, completed=p.done + p.failed, rest=rest, eta=eta(p))
            if event.kind == "failed":
                text = escape(f"{_named(event)}: {event.text}")
                progress.console.print(f"[red]failed[/]: {text}", highlight=False)
            elif event.kind == "stopping":
                progress.console.print(event.text, highlight=False)

        yield on_event


class _PlainLines:
    """One line now and then, for a log."""

    def __init__(self, title: str, console: Any) -> None:
        self.title, self.console = title, console
        self.said = 0.0

    def __call__(self, event: Event) -> None:
        if not event.progress.total:
            return
        if event.kind == "failed":
            self._say(f"failed: {_named(event)}: {event.text}")
        elif event.kind == "stopping":
            self._say(event.text)
        due = time.monotonic() - self.said >= PLAIN_SECONDS
        if event.kind in ("begin", "end", "stopping") or due:
            self.said = time.monotonic()
            self._say(event_line(self.title, event))

    def _say(self, text: str) -> None:
        if self.console is None:
            print(text, flush=True)
        else:
            self.console.print(text, highlight=False, markup=False, soft_wrap=True)


def _named(event: Event) -> str:
    trial = event.trial
    return "a trial" if trial is None else f"{trial.task} {trial.optimizer} seed {trial.seed}"


class EpochLines:
    """One line per epoch of a single run."""

    def __init__(self) -> None:
        self.began = time.monotonic()
        self.first: int | None = None

    def __enter__(self) -> EpochLines:
        return self

    def __exit__(self, *exception: object) -> None:
        return

    def on_epoch(self, progress: EpochProgress) -> None:
        """Print it, with the time to go at the pace so far."""
        self.first = progress.epoch - 1 if self.first is None else self.first
        pace = (time.monotonic() - self.began) / (progress.epoch - self.first)
        rest = duration(pace * (progress.epochs - progress.epoch))
        screen.say(f"{epoch_line(progress)}  ETA {rest}")

    on_step: Callable[[torch.optim.Optimizer], None] | None = None
