"""Block sizes and warps of the damping kernels: tries some on this GPU and prints the best entries for ``launch.Tuning``.

    PYTHONPATH=src python benchmarks/tune_damping.py                                  # what matters most, 110 seconds
    PYTHONPATH=src python benchmarks/tune_damping.py --memory float32 --base sgd --base sgdm

Each pass is timed by itself, on RoBERTa-base's shapes: the pass over the slots (``dots``; the same for every base), and the
update. A candidate costs a compilation of a second or three, so they are tried in the order of their promise until the time
is over; what was not tried any more is said.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from shapes import MODELS, Shape
from timing import batch_seconds, synchronize

import critgrad
from critgrad.kernels import triton_path
from critgrad.kernels.families import FAMILIES
from critgrad.kernels.launch import TUNING, Dots

BASES: dict[str, tuple[Any, dict[str, Any]]] = {
    "adam": (critgrad.Adam_F, {}),
    "rmsprop": (critgrad.RMSprop_F, {}),
    "sgdm": (critgrad.SGD_F, {"momentum": 0.9}),
    "sgd": (critgrad.SGD_F, {}),
}
UPDATES = [(512, 2), (512, 1), (1024, 4), (1024, 2), (512, 4), (1024, 8), (2048, 4), (2048, 8), (256, 1), (256, 2)]
DOTS = [
    Dots(256, 2), Dots(256, 4), Dots(512, 4), Dots(512, 2), Dots(256, 1), Dots(1024, 4), Dots(512, 8), Dots(1024, 8),
]  # fmt: skip
STAGES = (2, 4, 1)
PROGRAMS = (8, 32, 12)


class Contest:
    """One optimizer with a full memory, whose passes are timed under other tunings."""

    def __init__(self, base: str, memory: str, topC: int, shapes: list[Shape], device: torch.device) -> None:
        cls, arguments = BASES[base]
        params = [torch.nn.Parameter(torch.zeros(shape, device=device)) for shape in shapes]
        self.optimizer = cls(params, lr=1e-4, topC=topC, memory_dtype=memory, **arguments)
        self.family = next(family for family in FAMILIES if self.optimizer._critical_base in family.bases)
        self.device = device
        generator = torch.Generator(device=device).manual_seed(0)
        for p in params:
            p.grad = torch.randn(p.shape, generator=generator, device=device)
        for _ in range(topC + 1):
            self.optimizer.step()
        self.memories, self.grads = self.optimizer._critical_look()
        self.groups = {p: group for group in self.optimizer.param_groups for p in group["params"]}

    def fused(self, tuning: Any) -> Any:
        triton_path.TUNING = tuning
        fused = triton_path.FusedMemory(self.optimizer, self.memories[0], self.groups, self.family)
        fused._write_addresses(self.grads[0])
        return fused

    def seconds(self, run: Callable[[], object], batches: int = 5) -> float:
        run()  # compiles
        synchronize(self.device)
        return statistics.median(batch_seconds(self.device, run, 4) for _ in range(batches))

    def dots(self, cut: Dots, size: int) -> float:
        fused = self.fused(replace(TUNING, dots=tuple({**dict(TUNING.dots), size: cut}.items())))
        return self.seconds(fused._measure)

    def update(self, block: int, warps: int) -> float:
        fused = self.fused(replace(TUNING, small=(block, warps)))
        fused._measure()
        fused._decide()

        def run() -> None:
            for launch in fused.launches:
                fused._update(launch)

        return self.seconds(run)


class Search:
    """Candidates until the time is over."""

    def __init__(self, seconds: float) -> None:
        self.end = time.monotonic() + seconds
        self.left_out = 0

    def best(self, candidates: list[Any], measure: Callable[[Any], float], known: dict[Any, float]) -> Any:
        for candidate in candidates:
            if known and time.monotonic() > self.end:
                self.left_out += 1
                continue
            try:
                known[candidate] = measure(candidate)
                print(f"    {candidate!s:58} {known[candidate] * 1000:7.3f} ms", flush=True)
            except Exception as error:  # too many registers or too much shared memory
                print(f"    {candidate!s:58} {type(error).__name__}", flush=True)
        return min(known, key=lambda key: known[key])


def tune_dots(search: Search, contest: Contest, size: int) -> str:
    known: dict[Any, float] = {}
    cut = search.best(DOTS, lambda candidate: contest.dots(candidate, size), known)
    for name, values in (("stages", STAGES), ("programs", PROGRAMS)):
        more = [replace(cut, **{name: value}) for value in values]
        cut = search.best(more, lambda candidate: contest.dots(candidate, size), known)
    return f"dots     ({size}, {cut}),  # {known[cut] * 1000:.3f} ms"


def tune_update(search: Search, contest: Contest, size: int) -> str:
    known: dict[Any, float] = {}
    best = search.best(UPDATES, lambda candidate: contest.update(*candidate), known)
    buffers = len(contest.family.buffers(contest.optimizer.param_groups[0]))
    return f'damping  (("{contest.family.name}", {buffers}, {size}), {best}),  # {known[best] * 1000:.3f} ms'


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--base", action="append", choices=BASES)
    parser.add_argument("--memory", action="append", choices=["float32", "bfloat16", "int8"])
    parser.add_argument("--only", default="roberta", choices=MODELS, help="the model's shapes")
    parser.add_argument("--topC", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=110)
    args = parser.parse_args()
    search = Search(args.seconds)
    lines: list[str] = []
    for memory in args.memory or ["int8", "bfloat16"]:
        size = {"float32": 4, "bfloat16": 2, "int8": 1}[memory]
        for i, base in enumerate(args.base or ["adam", "rmsprop"]):
            contest = Contest(base, memory, args.topC, MODELS[args.only](), torch.device(args.device))
            if i == 0:
                print(f"{memory}, pass over the slots")
                lines.append(tune_dots(search, contest, size))
            print(f"{memory}, update of {base}")
            lines.append(tune_update(search, contest, size))
    print("\nbest, for launch.Tuning:", *lines, sep="\n  ")
    if search.left_out:
        print(f"time was over: {search.left_out} candidates not tried (--seconds, --memory, --base)")


if __name__ == "__main__":
    main()
