"""Steps a second of several processes on one GPU under MPS, as a sweep has them."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from multiprocessing import get_context
from typing import Any

import torch
from output_layer import captured

from critgrad.lab.run.executors.mps import service_for

Step = Callable[[], object]
# Of a case a step for each way: a function of a module, since processes are sent its name.
Steps = Callable[[str], dict[str, Step]]


def rates(processes: int, cases: Sequence[str], steps_of: Steps, seconds: float = 1.0) -> dict[tuple[str, str], float]:
    """For each case and way the steps a second of all processes together, captured as CUDA graphs."""
    service = service_for(processes, "cuda")
    if service is not None:
        os.environ.update(service.environment)
    context = get_context("spawn")
    barrier, found = context.Barrier(processes), context.SimpleQueue()
    arguments = (barrier, found, tuple(cases), steps_of, seconds)
    workers = [context.Process(target=_work, args=arguments) for _ in range(processes)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    if service is not None:
        service.stop()
    out: dict[tuple[str, str], float] = {}
    while not found.empty():
        key, rate = found.get()
        out[key] = out.get(key, 0.0) + rate
    return out


def _work(barrier: Any, found: Any, cases: Sequence[str], steps_of: Steps, seconds: float) -> None:
    for case in cases:
        for way, step in steps_of(case).items():
            replay = captured(step)
            torch.cuda.synchronize()
            barrier.wait(120)  # one that has died would keep the others for ever
            begin, steps = time.perf_counter(), 0
            while time.perf_counter() - begin < seconds:
                for _ in range(20):
                    replay()
                torch.cuda.synchronize()
                steps += 20
            found.put(((case, way), steps / (time.perf_counter() - begin)))


def table(found: dict[tuple[str, str], float]) -> str:
    """A line for each case."""
    cases = dict.fromkeys(case for case, _ in found)
    rows = [", ".join(f"{way} {rate:,.0f}" for (of, way), rate in found.items() if of == case) for case in cases]
    return "\n".join(f"{case}: {row} steps a second" for case, row in zip(cases, rows, strict=True))
