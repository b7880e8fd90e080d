"""How the benchmarks measure: interleaved batches of steps, medians with spread, copy bandwidth, peak memory.

Machines are noisy and clocks wander, so a figure only counts against another one of the same minute: the baseline is
timed right before and right after every batch of what is compared with it.
"""

from __future__ import annotations

import gc
import os
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

Step = Callable[[], object]

clock = time.perf_counter


def count_cpu_time() -> None:
    """On a busy machine: the calling thread's own time, so with one thread only."""
    global clock
    clock = time.thread_time


_swept: torch.Tensor | None = None


def start_cold(bytes_: int = 1 << 28) -> None:
    """Before every step, untimed, a CPU's caches are filled with something else, as a forward and backward pass do."""
    global _swept
    _swept = torch.zeros(bytes_ // 4)


@dataclass(frozen=True)
class Spread:
    """A median with its quartiles."""

    low: float
    median: float
    high: float

    @classmethod
    def of(cls, values: list[float]) -> Spread:
        if len(values) < 2:
            return cls(values[0], values[0], values[0])
        low, median, high = statistics.quantiles(values, n=4, method="inclusive")
        return cls(low, median, high)

    @property
    def ms(self) -> str:
        """Seconds as milliseconds, the quartiles in parentheses."""
        return f"{1000 * self.median:.3f} ({1000 * self.low:.3f}-{1000 * self.high:.3f})"

    @property
    def times(self) -> str:
        """A ratio, in the same way."""
        return f"{self.median:.2f} ({self.low:.2f}-{self.high:.2f})"


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def batch_seconds(device: torch.device, step: Step, steps: int) -> float:
    """Seconds per step over a batch; on CUDA by events on the stream, so the host may run ahead as in training."""
    if device.type != "cuda" and _swept is not None:
        total = 0.0
        for _ in range(steps):
            _swept.add_(1)
            start = clock()
            step()
            total += clock() - start
        return total / steps
    if device.type != "cuda":
        start = clock()
        for _ in range(steps):
            step()
        return (clock() - start) / steps
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize(device)
    begin.record()
    for _ in range(steps):
        step()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / 1000 / steps


def steps_per_batch(device: torch.device, step: Step, seconds: float) -> int:
    """How many steps fill a batch of about ``seconds``."""
    once = batch_seconds(device, step, 2)
    return max(1, min(200, round(seconds / max(once, 1e-7))))


@dataclass(frozen=True)
class Comparison:
    seconds: Spread  # per step
    base_seconds: Spread
    ratio: Spread  # of each batch to the mean of the baseline's batches before and after it


def compare(
    device: torch.device,
    base: Step,
    step: Step,
    rounds: int,
    batch: float,
    between: Callable[[], None],
) -> Comparison:
    """``base step base step ... base``, ``rounds`` batches of ``step``; ``between`` runs untimed before each batch."""
    n_base, n_step = (steps_per_batch(device, s, batch) for s in (base, step))
    bases, ours = [], []
    for _ in range(rounds):
        between()
        bases.append(batch_seconds(device, base, n_base))
        between()
        ours.append(batch_seconds(device, step, n_step))
    between()
    bases.append(batch_seconds(device, base, n_base))
    ratios = [2 * o / (b + c) for o, b, c in zip(ours, bases, bases[1:])]
    return Comparison(Spread.of(ours), Spread.of(bases), Spread.of(ratios))


def take_turns(
    device: torch.device, steps: list[Step], rounds: int, batch: float, between: Callable[[], None]
) -> list[list[float]]:
    """Seconds per step of each in every round, a batch of one after the other; every other round in reversed order."""
    jobs = [(step, steps_per_batch(device, step, batch), list[float]()) for step in steps]
    for number in range(rounds):
        for step, many, seconds in jobs[:: -1 if number % 2 else 1]:
            between()
            seconds.append(batch_seconds(device, step, many))
    return [seconds for _, _, seconds in jobs]


def copy_bandwidth(device: torch.device, size: int | None = None) -> float:
    """Bytes per second, read and written, of ``copy_`` between large buffers: the yardstick for bytes moved."""
    size = size or (1 << 30 if device.type == "cuda" else 1 << 27)
    source = torch.ones(size // 4, device=device)
    target = torch.empty_like(source)
    times = [batch_seconds(device, lambda: target.copy_(source), 5) for _ in range(8)]
    return 2 * size / statistics.quantiles(times[1:], n=4)[0]  # the yardstick is what the machine can do


@contextmanager
def quiet() -> Iterator[None]:
    """Without what the profiler writes to stderr when it starts and stops."""
    kept, nothing = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nothing)


def peak_bytes(device: torch.device, step: Step, steps: int = 3) -> int:
    """The most that ``steps`` first steps hold beyond what was held before: state and temporaries."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        before = torch.cuda.memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        for _ in range(steps):
            step()
        torch.cuda.synchronize(device)
        return torch.cuda.max_memory_allocated(device) - before
    from torch.profiler import ProfilerActivity, profile

    gc.collect()  # or what is freed in between counts as negative
    with quiet(), profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        for _ in range(steps):
            step()
    events = [e for e in profiler.profiler.kineto_results.events() if e.name() == "[memory]"]  # type: ignore[union-attr]
    held = peak = 0
    for event in sorted(events, key=lambda e: e.start_ns()):
        held += event.nbytes()
        peak = max(peak, held)
    return peak


def free_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        torch.cuda.empty_cache()
        return torch.cuda.mem_get_info(device)[0]
    with open("/proc/meminfo") as file:
        for line in file:
            if line.startswith("MemAvailable"):
                return int(line.split()[1]) * 1024
    return 1 << 33
