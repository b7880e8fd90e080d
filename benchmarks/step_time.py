"""Time and memory of one optimizer step: torch's own, and ours by path, topC, memory dtype and aggregation.

    PYTHONPATH=src python benchmarks/step_time.py                      # every model, on this machine's CPU
    PYTHONPATH=src python benchmarks/step_time.py --device cuda --only roberta --json roberta.json

Every step of a memory replaces a slot, the dearest case: all gradients have the same norm and priorities decay, so each
new gradient beats the weakest one (policy "KotH"). The count of insertions is checked after the timing.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import itertools
import json
import os
import platform
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from shapes import MODELS, Shape, count
from timing import (
    Comparison,
    compare,
    copy_bandwidth,
    count_cpu_time,
    free_bytes,
    peak_bytes,
    start_cold,
    synchronize,
)

import critgrad

# name -> (torch's class, its arguments, words that its step moves for each value, the gradient read once)
BASES: dict[str, tuple[str, dict[str, Any], int]] = {
    "adam": ("Adam", {}, 7),
    "adamw": ("AdamW", {}, 7),
    "nadam": ("NAdam", {}, 7),
    "sgd": ("SGD", {}, 3),
    "sgdm": ("SGD", {"momentum": 0.9}, 5),
    "rmsprop": ("RMSprop", {}, 5),
}
STORED_BYTES = {
    "float64": 8.0,
    "float32": 4.0,
    "bfloat16": 2.0,
    "float16": 2.0,
    "int8": 1 + 4 / 256,
    "float8": 1 + 4 / 256,
}
STATE_WORDS = {"adam": 2, "adamw": 2, "nadam": 2, "sgd": 0, "sgdm": 1, "rmsprop": 1}


@dataclass
class Row:
    """One line of the table: what is stepped, then what was measured."""

    path: str  # torch fused | torch foreach | plain | fused | authors
    topC: int | None = None
    memory: str | None = None
    aggr: str = "default"
    note: str = ""
    result: dict[str, Any] = field(default_factory=dict)

    def bytes_per_value(self, base: str) -> float:
        """As docs/performance.md counts them: what must move, not what a path does move."""
        words = 4 * BASES[base][2]
        if self.topC is None or self.memory is None:
            return words
        stored = STORED_BYTES[self.memory]
        if self.aggr == "fisher":  # every slot in both passes, the new one written; g once more for the dots
            return words + 4 + (2 * self.topC + 1) * stored
        return words + 4 + 8 + 2 * stored  # g for the norm, the sum read and written, the old and the new entry

    def held_per_value(self, base: str) -> float:
        """Parameter, base state, slots, sum, and one temporary of a gradient's size."""
        stored = 0.0 if self.memory is None else STORED_BYTES[self.memory] * (self.topC or 0)
        return 4 + 4 * STATE_WORDS[base] + stored + 8


def rows(device: torch.device, quick: bool, authors: bool) -> Iterator[Row]:
    yield Row("torch fused")
    yield Row("torch foreach")
    for path in ("plain", "fused"):
        for topC in (5, 100) if quick else (1, 5, 20, 100):
            yield Row(path, topC, "float32")
        for memory in ("bfloat16", "int8") if quick else ("bfloat16", "float16", "int8", "float8"):
            yield Row(path, 20, memory)
        for topC in (3, 10):
            yield Row(path, topC, "float32", "fisher")
        if not quick or device.type == "cuda":
            for topC, memory in ((3, "bfloat16"), (10, "bfloat16"), (10, "int8")):
                yield Row(path, topC, memory, "fisher")
    if authors:
        for topC in (5, 20):
            yield Row("authors", topC, "float32")


class Bench:
    """The contestants of one model: gradients shared by all, parameters of their own."""

    def __init__(
        self,
        shapes: list[Shape],
        base: str,
        device: torch.device,
        dtype: torch.dtype,
        authors: Any,
        scope: str = "global",
    ):
        self.shapes, self.base, self.device, self.dtype, self.authors = shapes, base, device, dtype, authors
        self.scope = scope
        self.count = count(shapes)
        generator = torch.Generator(device=device).manual_seed(0)
        sets = 2 if self.count > 1 << 24 else 8
        self.grads = [self._gradients(generator) for _ in range(sets)]
        self._turn = itertools.cycle(range(sets))
        self.stepped: list[list[torch.nn.Parameter]] = []

    def _gradients(self, generator: torch.Generator) -> list[torch.Tensor]:
        grads = [torch.randn(s, generator=generator, device=self.device) for s in self.shapes]
        norm = torch.stack([g.square().sum(dtype=torch.float64) for g in grads]).sum().sqrt()
        return [(g / norm).to(self.dtype) for g in grads]

    def parameters(self) -> list[torch.nn.Parameter]:
        return [torch.nn.Parameter(torch.zeros(s, device=self.device, dtype=self.dtype)) for s in self.shapes]

    def rotate(self) -> None:
        """The next set of gradients, for everybody."""
        grads = self.grads[next(self._turn)]
        for params in self.stepped:
            for p, g in zip(params, grads):
                p.grad = g

    def optimizer(self, row: Row) -> tuple[list[torch.nn.Parameter], Any]:
        name, arguments, _ = BASES[self.base]
        params = self.parameters()
        fusable = name not in ("RMSprop", "NAdam")  # by torch itself
        kwargs = {"lr": 1e-4, **arguments}
        if row.path == "torch foreach":
            return params, getattr(torch.optim, name)(params, foreach=True, **kwargs)
        if row.path == "torch fused":
            return params, getattr(torch.optim, name)(
                params, **kwargs, **({"fused": True} if fusable else {"foreach": True})
            )
        if row.path == "authors":
            return params, getattr(self.authors, name + "_C")(params, topC=row.topC, decay=0.7, **kwargs)
        # On a CPU the plain path sits on torch's fused base (CRITGRAD_NATIVE=0 keeps the native core out); on an
        # accelerator fused=False is how a user asks for it.
        kwargs["fused"] = row.path == "fused" or self.device.type == "cpu"
        options: dict[str, Any] = {"topC": row.topC, "memory_dtype": row.memory, "scope": self.scope}
        cls = getattr(critgrad, name + ("_F" if row.aggr == "fisher" else "_C"))
        return params, cls(params, **kwargs, **options)

    def step_of(self, row: Row, optimizer: Any) -> Callable[[], object]:
        native = "0" if row.path == "plain" else "1"

        def step() -> None:
            os.environ["CRITGRAD_NATIVE"] = native
            optimizer.step()

        return step if self.device.type == "cpu" and row.path in ("plain", "fused") else optimizer.step

    def run(self, row: Row, rounds: int, batch: float) -> Comparison:
        reference = self.optimizer(Row("torch fused"))
        self.stepped = [reference[0]]
        params, optimizer = self.optimizer(row)
        self.stepped.append(params)
        self.rotate()
        step = self.step_of(row, optimizer)
        row.result["peak_bytes"] = peak_bytes(self.device, step)
        for _ in range(3):  # warm-up: allocator, kernels, caches
            reference[1].step()
            step()
        result = compare(self.device, reference[1].step, step, rounds, batch, self.rotate)
        if row.path in ("plain", "fused"):
            state = optimizer.state[params[0]]
            stored, steps = int(state["critical_inserted"]), int(state["critical_clock"])
            if stored != steps:
                row.note = f"only {stored} of {steps} steps stored"
        self.stepped = []
        return result


def measure(bench: Bench, row: Row, bandwidth: float, rounds: int, batch: float) -> None:
    needed = bench.count * row.held_per_value(bench.base)
    if needed > 0.8 * free_bytes(bench.device):
        row.note = f"skipped: needs {needed / 2**30:.0f} GiB"
        return
    try:
        found = bench.run(row, rounds, batch)
    except Exception as error:
        row.note = f"{type(error).__name__}: {error}".splitlines()[0][:100]
        return
    finally:
        bench.stepped = []
        gc.collect()
        if bench.device.type == "cuda":
            synchronize(bench.device)
            torch.cuda.empty_cache()
    moved = bench.count * row.bytes_per_value(bench.base)
    row.result.update(
        seconds=asdict(found.seconds),
        base_seconds=asdict(found.base_seconds),
        ratio=asdict(found.ratio),
        bytes=moved,
        share_of_copy=moved / found.seconds.median / bandwidth,
    )


HEAD = (
    f"{'path':14}{'topC':>5} {'memory':9}{'aggr':8}{'ms/step':>10} {'(quartiles)':17}{'x base':>7} {'(quartiles)':13}"
)
HEAD += f"{'MB moved':>9}{'of copy':>8}{'peak MB':>9}  note"


def line(row: Row) -> str:
    left = f"{row.path:14}{row.topC or '-':>5} {row.memory or '-':9}{row.aggr:8}"
    if "seconds" not in row.result:
        return left + row.note
    r = row.result
    ms = {key: value * 1000 for key, value in r["seconds"].items()}
    low, median, high = r["ratio"]["low"], r["ratio"]["median"], r["ratio"]["high"]
    quartiles, ratios = f"({ms['low']:.3f}-{ms['high']:.3f})", f"({low:.2f}-{high:.2f})"
    left += f"{ms['median']:10.3f} {quartiles:17}{median:7.2f} {ratios:13}"
    return left + f"{r['bytes'] / 1e6:9.1f}{r['share_of_copy']:8.0%}{r['peak_bytes'] / 1e6:9.1f}  {row.note}"


def machine(device: torch.device) -> str:
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor() or platform.machine()
    if device.type == "cpu" and os.path.exists("/proc/cpuinfo"):
        with open("/proc/cpuinfo") as file:
            name = next((li.split(":")[1].strip() for li in file if li.startswith("model name")), name)
        name += f", {torch.get_num_threads()} threads"
    return f"{name}, torch {torch.__version__}, critgrad {critgrad.__version__}"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--optimizer", default="adam", choices=BASES)
    parser.add_argument("--only", action="append", choices=MODELS, help="this model (may be given more than once)")
    parser.add_argument(
        "--path", action="append", choices=["plain", "fused", "authors"], help="only these paths of ours"
    )
    parser.add_argument("--topC", action="append", type=int, help="only rows of this topC")
    parser.add_argument("--memory", action="append", choices=STORED_BYTES, help="only rows of this memory dtype")
    parser.add_argument("--aggr", action="append", choices=["default", "fisher"], help="only rows of this aggregation")
    parser.add_argument("--scope", default="global", choices=["global", "tensor"], help="of the memory")
    parser.add_argument(
        "--dtype", default="float32", choices=["float32", "bfloat16", "float16"], help="of the parameters"
    )
    parser.add_argument("--threads", type=int, default=None, help="of the CPU (torch.set_num_threads)")
    parser.add_argument("--cpu-time", action="store_true", help="one thread's own time: for a CPU that others use, too")
    parser.add_argument(
        "--cold", action="store_true", help="of a CPU: caches hold other data before a step, as in training"
    )
    parser.add_argument("--rounds", type=int, default=None, help="batches of each contestant")
    parser.add_argument("--quick", action="store_true", help="fewer rows, fewer and shorter batches")
    parser.add_argument("--authors", metavar="MODULE", help="the authors' optimizers, if importable (has Adam_C, ...)")
    parser.add_argument("--json", metavar="FILE", help="write every figure there, too")
    args = parser.parse_args()

    device = torch.device(args.device)
    if args.threads or args.cpu_time:
        torch.set_num_threads(1 if args.cpu_time else args.threads)
    if args.cpu_time:
        count_cpu_time()
    if args.cold:
        start_cold()
    authors = None
    if args.authors:
        try:
            authors = importlib.import_module(args.authors)
        except ImportError as error:
            print(f"--authors {args.authors}: {error}")
    rounds = args.rounds or (7 if args.quick else 21)
    batch = 0.02 if args.quick else 0.05
    bandwidth = copy_bandwidth(device)
    print(f"{machine(device)}\ncopy bandwidth {bandwidth / 1e9:.1f} GB/s (read + written)")
    print(f"{args.optimizer}: x base is against torch's fused one in the same minute; every step replaces a slot")
    report = {"machine": machine(device), "copy_bandwidth": bandwidth, "optimizer": args.optimizer, "models": {}}
    for name in args.only or MODELS:
        shapes = MODELS[name]()
        bench = Bench(shapes, args.optimizer, device, getattr(torch, args.dtype), authors, args.scope)
        print(f"\n{name}: {bench.count:,} parameters in {len(shapes)} tensors\n{HEAD}")
        done = []
        for row in rows(device, args.quick, authors is not None):
            ours = row.topC is not None
            if (ours and args.path and row.path not in args.path) or (ours and args.topC and row.topC not in args.topC):
                continue
            if ours and ((args.memory and row.memory not in args.memory) or (args.aggr and row.aggr not in args.aggr)):
                continue
            measure(bench, row, bandwidth, rounds, batch)
            print(line(row), flush=True)
            done.append({"values": bench.count, "tensors": len(shapes), **asdict(row)})
        report["models"][name] = done
        if args.json:
            with open(args.json, "w") as file:
                json.dump(report, file, indent=1)
        del bench
        gc.collect()


if __name__ == "__main__":
    main()
