"""What a memory adds to the step of any base: the base alone and with a memory take turns, medians with quartiles.

    PYTHONPATH=src python benchmarks/any_base.py                              # this CPU, four models: adding topC 5, damping 10
    PYTHONPATH=src python benchmarks/any_base.py --device cuda --json FILE    # RoBERTa-base: adding topC 20, damping topC 10
    PYTHONPATH=src python benchmarks/any_base.py --device cuda --base RAdam --aggr fisher --memory bfloat16 --path torch

Every step replaces a slot (``decay=0``), which is checked. ``--path torch`` asks for torch's operations alone, as the
environment variable ``CRITGRAD_ENGINE=torch`` does (its values: ``torch``, ``native``, ``triton``). "floor" is what the
memory has to move at the measured bandwidth of ``copy_``; a CPU's cache may beat it. On a CPU the difference is also given
in steps of torch's fused Adam, timed in the same turns: that ratio is what counts there.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import sys
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from shapes import Shape, roberta_base, transformer
from step_time import STORED_BYTES, Bench, machine
from timing import Spread, copy_bandwidth, count_cpu_time, take_turns

import critgrad

# name -> torch's class, its arguments
BASES: dict[str, tuple[str, dict[str, Any]]] = {
    **{name: (name, {}) for name in ("RAdam", "Adagrad", "Adamax", "Muon", "SGD", "RMSprop", "NAdam")},
    "Adam fused": ("Adam", {"fused": True}),
    "SGD momentum": ("SGD", {"momentum": 0.9}),
    "wrapped RAdam": ("RAdam", {}),  # CriticalGradients(RAdam(...))
}
BATCH = 0.05  # seconds, about
ON_CPU = ("Adam fused", "RAdam", "Adagrad", "Adamax", "SGD momentum", "wrapped RAdam")
ON_CUDA = tuple(name for name in BASES if name != "SGD momentum")
CPU_MODELS: dict[str, list[Shape]] = {
    "digits": [(64, 64), (64,), (10, 64), (10,)],
    "2M-in-6": [(1100, 784), (1100,), (1000, 1100), (1000,), (10, 1000), (10,)],
    "2M-in-200": [(141, 141), (141,)] * 100,
    "19M-in-72": transformer(),
}


@dataclass(frozen=True)
class Variant:
    """A memory."""

    aggr: str
    topC: int
    memory: str = "float32"

    @property
    def bytes_per_value(self) -> float:
        """Of float32 parameters: what two passes must move, the first for the decision, the second with its outcome."""
        stored = STORED_BYTES[self.memory]
        if self.aggr == "fisher":  # g and all slots, twice; d and the new entry written
            return 2 * (4 + self.topC * stored) + 4 + stored
        return 4 + (4 + 4 + stored) + (4 + 4 + stored)  # g; then g, sum, old entry read, and d, sum, new entry written


def variants(args: argparse.Namespace) -> list[Variant]:
    found = [Variant("mean", 5), Variant("fisher", 10)]
    if args.device == "cuda":
        found = [Variant("mean", 20), found[1], Variant("fisher", 10, "bfloat16")]
    if args.aggr:
        found = [replace(v, aggr=args.aggr) for v in found if (v.aggr == "fisher") == (args.aggr == "fisher")]
    given = {name: value for name in ("topC", "memory") if (value := getattr(args, name)) is not None}
    return list(dict.fromkeys(replace(v, **given) for v in found))


def measure(bench: Bench, name: str, variant: Variant, args: argparse.Namespace) -> dict[str, Any]:
    """Seconds of the base, with the memory, of their difference and, on a CPU, of torch's fused Adam."""
    cls, options = getattr(torch.optim, BASES[name][0]), {"lr": 1e-4, **BASES[name][1]}
    ours = {"aggr": variant.aggr, "topC": variant.topC, "memory_dtype": variant.memory, "scope": args.scope, "decay": 0}
    alone, with_it, adams = bench.parameters(), bench.parameters(), bench.parameters() if args.device == "cpu" else []
    if name.startswith("wrapped"):
        memory = critgrad.CriticalGradients(cls(with_it, **options), **ours)
    else:
        memory = critgrad.critical(cls)(with_it, **options, **ours)
    steps = [cls(alone, **options).step, memory.step]
    steps += [torch.optim.Adam(adams, lr=1e-4, fused=True).step] if adams else []
    bench.stepped = [alone, with_it, adams]
    bench.rotate()
    for _ in range(variant.topC + 3):  # a full memory; allocator, kernels, caches
        for step in steps:
            step()
    base, both, *adam = take_turns(bench.device, steps, args.rounds, BATCH, bench.rotate)
    report = critgrad.inspect(memory)
    found = {
        "engine": getattr(report, "engine", "-"),
        "base": Spread.of(base),
        "with_memory": Spread.of(both),
        "difference": Spread.of([w - b for b, w in zip(base, both)]),
        "note": "" if all(m.inserted == m.steps for m in report.memories) else "not every gradient was stored",
    }
    if adam:
        found["fused_adam"] = Spread.of(adam[0])
        found["in_fused_adam_steps"] = found["difference"].median / found["fused_adam"].median
    return found


HEAD = f"{'base':14}{'memory':19}{'engine':8}{'base, ms':>24}{'with it, ms':>24}{'difference, ms':>24}{'floor, ms':>11}"


def line(name: str, variant: Variant, found: dict[str, Any]) -> str:
    left = f"{name:14}{f'{variant.aggr} {variant.topC} {variant.memory}':19}{found['engine']:8}"
    if "base" in found:
        left += "".join(f"{found[key].ms:>24}" for key in ("base", "with_memory", "difference"))
        left += f"{1000 * found['floor']:11.3f}"
    if "fused_adam" in found:
        left += f"{found['fused_adam'].ms:>24}{found['in_fused_adam_steps']:11.2f}x"
    return f"{left}  {found['note']}".rstrip()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--only", action="append", choices=CPU_MODELS, help="of a CPU: this model")
    parser.add_argument("--base", action="append", choices=BASES, help="this base (may be given more than once)")
    parser.add_argument("--aggr", choices=["mean", "sum", "mid", "fisher"])
    parser.add_argument("--memory", choices=STORED_BYTES, help="how entries are stored")
    parser.add_argument("--topC", type=int)
    parser.add_argument("--scope", default="global", choices=["global", "tensor"])
    parser.add_argument("--path", default="default", choices=["default", "torch"], help="torch: its operations alone")
    parser.add_argument("--cpu-time", action="store_true", help="one thread's own time: for a CPU that others use, too")
    parser.add_argument("--rounds", type=int, default=11, help="batches of each contestant")
    parser.add_argument("--json", metavar="FILE", help="write every figure there, too")
    args = parser.parse_args()
    if args.path == "torch" and os.environ.get("CRITGRAD_ENGINE") != "torch":
        os.environ["CRITGRAD_ENGINE"] = "torch"  # must be there before critgrad is imported
        os.execv(sys.executable, sys.orig_argv)
    if args.cpu_time:
        torch.set_num_threads(1)
        count_cpu_time()
    device = torch.device(args.device)
    bandwidth = copy_bandwidth(device)
    torch.empty(
        30 << 18
    )  # made and freed: from then on glibc keeps what is freed, and no base pays for fresh pages alone
    print(f"{machine(device)}; copy bandwidth {bandwidth / 1e9:.1f} GB/s; scope {args.scope}, path {args.path}")
    report: dict[str, Any] = {"machine": machine(device), "copy_bandwidth": bandwidth, **vars(args), "any_base": []}
    for model, shapes in (CPU_MODELS if args.device == "cpu" else {"roberta": roberta_base()}).items():
        if args.only and model not in args.only:
            continue
        print(f"\n{model}\n{HEAD}" + (f"{'fused Adam, ms':>24}{'difference':>12}" if args.device == "cpu" else ""))
        for name in args.base or (ON_CPU if args.device == "cpu" else ON_CUDA):
            known = [
                s for s in shapes if len(s) == 2 or name != "Muon"
            ]  # Muon knows matrices only: the rest is left out
            bench = Bench(known, "adam", device, torch.float32, None)
            for variant in variants(args):
                try:
                    found = measure(bench, name, variant, args)
                    found["floor"] = bench.count * variant.bytes_per_value / bandwidth
                except Exception as error:  # a base that this torch does not have
                    found = {"engine": "-", "note": f"{type(error).__name__}: {error}".splitlines()[0][:100]}
                bench.stepped = []
                gc.collect()  # an optimizer refers to itself, and 20 slots are 10 GB
                print(line(name, variant, found), flush=True)
                report["any_base"].append({"model": model, "base_name": name, **asdict(variant), **found})
    if args.json:
        with open(args.json, "w") as file:
            json.dump(report, file, indent=1, default=asdict)


if __name__ == "__main__":
    main()
