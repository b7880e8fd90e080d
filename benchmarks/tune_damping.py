"""Ways to cut the damping kernels: tries many on this GPU and prints the best entries for ``launch.Tuning``.

    PYTHONPATH=src python benchmarks/tune_damping.py                                  # what matters most, 110 seconds
    PYTHONPATH=src python benchmarks/tune_damping.py --memory float32 --base sgd --base sgdm
    PYTHONPATH=src python benchmarks/tune_damping.py --by-slot --memory bfloat16 --base adam

Whole steps are timed, on RoBERTa-base's shapes, ``topC`` of them in a row, so that each slot is replaced once: by itself one
and the same update took twice as long at times (``--by-slot``: does it depend on the slot that it writes?). First come the
cuts of the pass over the slots, then, with the best of them, those of the update. A candidate costs a compilation of a second
or two, so they are tried in the order of their promise until the time is over; what was not tried any more is said.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from shapes import MODELS, Shape, count
from step_time import Row
from timing import batch_seconds, copy_bandwidth, synchronize

import critgrad
from critgrad.bases.families import FAMILIES
from critgrad.engines import triton as engine
from critgrad.engines.triton.device_functions import SLOT
from critgrad.engines.triton.launch import TUNING, Dots, Tuning

BASES: dict[str, tuple[Any, dict[str, Any]]] = {
    "adam": (critgrad.Adam_F, {}),
    "nadam": (critgrad.NAdam_F, {}),
    "rmsprop": (critgrad.RMSprop_F, {}),
    "sgdm": (critgrad.SGD_F, {"momentum": 0.9}),
    "sgd": (critgrad.SGD_F, {}),
}
SIZES = {"float32": 4, "bfloat16": 2, "int8": 1}
# Memory and base, in the order of what is to be gained.
CONTESTS = (
    ("int8", "adam"), ("bfloat16", "adam"), ("float32", "adam"), ("bfloat16", "rmsprop"), ("bfloat16", "sgdm"),
    ("bfloat16", "sgd"),
)  # fmt: skip
UPDATES = {
    1: [(512, 1), (512, 4), (512, 2), (1024, 4), (1024, 8), (1024, 2), (256, 2), (2048, 8), (256, 1)],
    2: [(512, 2), (512, 4), (1024, 4), (256, 1), (1024, 8), (2048, 8), (512, 1), (2048, 4)],
    4: [(1024, 4), (512, 4), (1024, 8), (512, 2), (2048, 8), (2048, 4)],
}
DOTS = {
    1: [
        Dots(512, 1, 16, stages=1, registers=128), Dots(512, 1, 16, stages=1), Dots(256, 1, 8, stages=1, registers=96),
        Dots(1024, 2, 16, stages=1, registers=128), Dots(512, 1, 16, stages=3, registers=128),
        Dots(512, 1, 16, stages=2, registers=128), Dots(1024, 4, 8, stages=1, registers=96),
        Dots(256, 1, 8, stages=3, registers=128), Dots(512, 4, 4, stages=3, registers=96),
    ],
    2: [
        Dots(256, 2, 4, registers=128), Dots(256, 1, 8, registers=128), Dots(512, 2, 8, registers=128),
        Dots(256, 1, 8, stages=1, registers=128), Dots(256, 2, 4, stages=1, registers=96), Dots(256, 2, 4),
        Dots(256, 1, 8, stages=2, registers=128), Dots(512, 4, 4, registers=96),
    ],
    4: [
        Dots(256, 2, 4, registers=128), Dots(256, 2, 4), Dots(256, 2, 4, registers=96), Dots(512, 4, 4, registers=96),
        Dots(128, 1, 4, registers=128), Dots(256, 2, 4, stages=1, registers=128),
    ],
}  # fmt: skip
THEN = (("programs", (24, 12, 32)), ("span", (4096, 8192)))


class Contest:
    """One optimizer with a full memory, whose passes are timed under other tunings."""

    def __init__(self, base: str, memory: str, topC: int, shapes: list[Shape], device: torch.device) -> None:
        cls, arguments = BASES[base]
        params = [torch.nn.Parameter(torch.zeros(shape, device=device)) for shape in shapes]
        self.optimizer = cls(params, lr=1e-4, topC=topC, memory_dtype=memory, **arguments)
        self.family = next(family for family in FAMILIES if self.optimizer._critical_base in family.bases)
        self.device, self.topC = device, topC
        generator = torch.Generator(device=device).manual_seed(0)
        for p in params:
            p.grad = torch.randn(p.shape, generator=generator, device=device)
        for _ in range(topC + 1):
            self.optimizer.step()
        self.store = self.optimizer._critical_memory().ready_stores[0]
        self.grads = [p.grad for p in params]
        self.buffers = len(self.family.buffers(self.optimizer.param_groups[0]))

    def fused(self, tuning: Tuning) -> Any:
        engine.TUNING = tuning
        fused = engine.Engine(self.store, self.store.engine.epilogue)
        fused.measure(self.grads)
        return fused

    def seconds(self, run: Callable[[], object], runs: int, batches: int = 5) -> float:
        for _ in range(2 * runs):  # compiles, and wakes the clocks up
            run()
        synchronize(self.device)
        return statistics.median(batch_seconds(self.device, run, runs) for _ in range(batches))

    def step(self, tuning: Tuning) -> float:
        fused = self.fused(tuning)

        def run() -> None:
            fused.decide(fused.measure(self.grads), None)
            fused.apply(fresh=False)

        return self.seconds(run, self.topC)

    def by_slot(self, tuning: Tuning) -> list[float]:
        """The update alone, for each slot that it may write."""
        fused = self.fused(tuning)
        fused.decide(fused.measure(self.grads), None)

        def run() -> None:
            for launch in fused.launches:
                fused._update(launch, fused.weights)

        times = []
        for slot in range(self.topC):
            fused.decisions[:, SLOT.value] = slot
            times.append(self.seconds(run, 4))
        return times


class Search:
    """Candidates until the time is over."""

    def __init__(self, seconds: float) -> None:
        self.end = time.monotonic() + seconds
        self.left_out = 0

    def best(self, candidates: list[Any], measure: Callable[[Any], float], known: dict[Any, float]) -> Any:
        for candidate in candidates:
            if candidate in known:
                continue
            if known and time.monotonic() > self.end:
                self.left_out += 1
                continue
            try:
                known[candidate] = measure(candidate)
                print(f"    {candidate!s:100} {known[candidate] * 1000:7.3f} ms", flush=True)
            except Exception as error:  # too many registers or too much shared memory
                print(f"    {candidate!s:100} {type(error).__name__}", flush=True)
        return min(known, key=lambda key: known[key])


def with_dots(tuning: Tuning, size: int, cut: Dots) -> Tuning:
    return replace(tuning, dots=tuple({**dict(tuning.dots), size: cut}.items()))


def tune_dots(search: Search, contest: Contest, size: int, tuning: Tuning) -> Tuning:
    def measure(cut: Dots) -> float:
        return contest.step(with_dots(tuning, size, cut))

    known: dict[Any, float] = {}
    cut = search.best([tuning.dots_of(size), *DOTS[size]], measure, known)
    for name, values in THEN:
        cut = search.best([replace(cut, **{name: value}) for value in values], measure, known)
    return with_dots(tuning, size, cut)


def tune_update(search: Search, contest: Contest, size: int, tuning: Tuning) -> Tuning:
    def with_update(cut: tuple[int, int]) -> Tuning:
        key = (contest.family.name, contest.buffers, size)
        return replace(tuning, damping=tuple({**dict(tuning.damping), key: cut}.items()))

    now = tuning.update(True, size, contest.family.name, contest.buffers)
    return with_update(search.best([now, *UPDATES[size]], lambda cut: contest.step(with_update(cut)), {}))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--base", action="append", choices=BASES)
    parser.add_argument("--memory", action="append", choices=SIZES)
    parser.add_argument("--only", default="roberta", choices=MODELS, help="the model's shapes")
    parser.add_argument("--topC", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=110)
    parser.add_argument("--by-slot", action="store_true", help="time the update for each slot that it may write, too")
    args = parser.parse_args()
    device = torch.device(args.device)
    chosen = [(m, b) for m in args.memory or SIZES for b in args.base or BASES]
    contests = chosen if args.memory or args.base else list(CONTESTS)
    search = Search(args.seconds)
    bandwidth = copy_bandwidth(device)
    print(f"copy bandwidth {bandwidth / 1e9:.0f} GB/s")
    shapes = MODELS[args.only]()
    best, tuned, summary = TUNING, set[int](), []
    for memory, base in contests:
        size = SIZES[memory]
        contest = Contest(base, memory, args.topC, shapes, device)
        before = contest.step(TUNING)
        if args.by_slot:
            times = " ".join(f"{seconds * 1000:.3f}" for seconds in contest.by_slot(TUNING))
            print(f"{memory}, update of {base} by the slot it writes, ms: {times}", flush=True)
        if size not in tuned:
            print(f"{memory}, pass over the slots")
            best = tune_dots(search, contest, size, best)
            tuned.add(size)
        print(f"{memory}, update of {base}")
        best = tune_update(search, contest, size, best)
        after = contest.step(best)
        moved = Row("fused", args.topC, memory, "fisher").bytes_per_value(base) * count(shapes)
        summary.append(
            f"{base} {memory}: {before * 1000:.3f} ms ({moved / before / bandwidth:.0%} of copy) -> "
            f"{after * 1000:.3f} ms ({moved / after / bandwidth:.0%})"
        )
        print("  whole step,", summary[-1], flush=True)
        key = (contest.family.name, contest.buffers, size)
        summary.append(f"    damping {(key, dict(best.damping)[key])},")
        del contest
    print("\nwhole steps, and the best for launch.Tuning:", *summary, sep="\n  ")
    print("  dots", *(f"    {entry}," for entry in best.dots), sep="\n")
    print("  as code:", best)
    if search.left_out:
        print(f"time was over: {search.left_out} candidates not tried (--seconds, --memory, --base)")


if __name__ == "__main__":
    main()
