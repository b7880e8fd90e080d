"""How long ``import critgrad`` takes where ``import torch`` stands anyway, and what it imports beyond torch.

    PYTHONPATH=src python benchmarks/import_time.py [--rounds 7]

Fresh processes take turns; the time is the import's own, without the interpreter's start. The first round, which fills the
caches of files and byte code, does not count.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys

from timing import Spread

HEAVY = ("torch._dynamo", "torch._inductor", "torch.distributed.tensor", "torch.fx", "sympy", "triton", "numpy")
CHILD = """
import json, sys, time
start = time.perf_counter()
import {name}
seconds = time.perf_counter() - start
print(json.dumps([seconds, sorted(sys.modules)]))
"""


def imported(name: str) -> tuple[float, set[str]]:
    """In a fresh process: seconds, and the modules that are there afterwards."""
    done = subprocess.run(
        [sys.executable, "-c", CHILD.format(name=name)], stdout=subprocess.PIPE, text=True, check=True
    )
    seconds, modules = json.loads(done.stdout.splitlines()[-1])
    return seconds, set(modules)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7, help="fresh processes of each")
    args = parser.parse_args()
    seconds: dict[str, list[float]] = {"torch": [], "critgrad": []}
    modules: dict[str, set[str]] = {}
    for number in range(args.rounds + 1):
        for name, times in seconds.items():
            took, modules[name] = imported(name)
            if number > 0:
                times.append(took)
    for name, times in seconds.items():
        found = Spread.of(times)
        print(
            f"import {name:10} {found.median:6.3f} s ({found.low:.3f}-{found.high:.3f}), {len(modules[name]):,} modules"
        )
    ratio = Spread.of([ours / torchs for torchs, ours in zip(seconds["torch"], seconds["critgrad"])])
    print(f"critgrad / torch  {ratio.median:6.2f}   ({ratio.low:.2f}-{ratio.high:.2f})")
    beyond = modules["critgrad"] - modules["torch"]
    for name in HEAVY:
        below = sum(module == name or module.startswith(name + ".") for module in beyond)
        there = "by torch itself" if name in modules["torch"] else "no"
        print(f"  {name:26}" + (f"imported by critgrad ({below:,} modules)" if name in beyond else there))
    print(f"  of critgrad itself: {sum(module.split('.')[0] == 'critgrad' for module in beyond)} modules")


if __name__ == "__main__":
    main()
