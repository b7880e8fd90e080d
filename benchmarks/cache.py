"""How fast a CPU reads and rewrites arrays by their size: where the last level of cache ends.

    python benchmarks/cache.py [--threads 1]

A step that is timed over and over finds its data in cache as far as they fit. Adam's own (gradient, parameter, two buffers: 16
bytes a value) fit where those of a memory (24 bytes and 4 more for each slot) do not; then bytes alone do not say what a
ratio is. Least times, in GB/s.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import torch

SIZES = (1, 2, 4, 8, 16, 32, 48, 64, 96, 128, 256)  # MB


def least_seconds(operation: Callable[[torch.Tensor], object], values: torch.Tensor, times: int) -> float:
    best = float("inf")
    for _ in range(times):
        start = time.perf_counter()
        operation(values)
        best = min(best, time.perf_counter() - start)
    return best


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    print(f"{'MB':>5}{'read (dot)':>12}{'rewritten (mul_)':>18}")
    for size in SIZES:
        values = torch.ones(size << 18)
        times = max(8, 512 // size)
        read = least_seconds(lambda x: torch.dot(x, x), values, times)
        rewritten = least_seconds(lambda x: x.mul_(1.0), values, times)
        print(f"{size:5}{(size << 20) / read / 1e9:12.1f}{(size << 21) / rewritten / 1e9:18.1f}")


if __name__ == "__main__":
    main()
