"""The output layer of the language models with its loss, forward and backward, on a GPU: torch, six passes, the kernels.

``PYTHONPATH=src python benchmarks/output_layer.py``: PTB and WikiText-2, batch 420 and 20; ``--tiles`` tries other tiles.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Callable

import torch
import torch.nn.functional as F
from timing import Spread, batch_seconds
from torch import Tensor

from critgrad.lab.tasks.models import softmax, softmax_kernels

SIZES = {"PTB": 10_000, "WikiText-2": 33_278}
WORDS_OF_A_STEP = {420: 420 * 35, 20: 20 * 35}
WAYS = ("torch", "six passes", "kernels")


def problem(n: int, words: int, width: int = 128) -> tuple[Tensor, ...]:
    torch.manual_seed(0)
    hidden, weight = torch.rand(n, width, device="cuda") * 2 - 1, torch.randn(words, width, device="cuda") * 0.1
    parts = hidden, weight, torch.zeros(words, device="cuda")
    return (*(part.requires_grad_() for part in parts), torch.randint(words, (n,), device="cuda"))


def step(way: str, parts: tuple[Tensor, ...]) -> Callable[[], object]:
    *leaves, targets = parts

    def plain() -> object:
        loss = F.cross_entropy(F.linear(*leaves), targets)
        return loss.detach(), torch.autograd.grad(loss, leaves)  # a graph that lives on would disturb a capture

    def ours() -> object:
        softmax.FEWEST_ROWS = 1 if way == "kernels" else 1 << 62
        loss = softmax.linear_cross_entropy(*leaves, targets)
        return loss.detach(), torch.autograd.grad(loss, leaves)  # a graph that lives on would disturb a capture

    return plain if way == "torch" else ours


def interleaved(ways: dict[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Median ms of each way, taken in turns; captured, since in a training step they are."""
    replays = {way: captured(work) for way, work in ways.items()}
    times: dict[str, list[float]] = {way: [] for way in ways}
    for _, (way, replay) in itertools.product(range(rounds), replays.items()):
        times[way].append(1000 * batch_seconds(torch.device("cuda"), replay, 20))
    return {way: Spread.of(values).median for way, values in times.items()}


def captured(work: Callable[[], object]) -> Callable[[], object]:
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(2):
            work()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        work()
    return graph.replay


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--tiles", action="store_true", help="try other tiles for the kernels")
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = True
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, TF32, ms of forward and backward")
    for (name, words), (batch, n) in itertools.product(SIZES.items(), WORDS_OF_A_STEP.items()):
        parts = problem(n, words)
        ways = {way: step(way, parts) for way in WAYS}
        (loss, right), (found, ours) = ways["six passes"](), ways["kernels"]()
        apart = max(float((a - b).norm() / b.norm()) for a, b in zip(ours, right, strict=True))
        times = interleaved(ways, rounds=args.rounds)
        figures = ", ".join(f"{way} {ms:.3f}" for way, ms in times.items())
        print(f"{name}, batch {batch}: {figures}; losses {float(loss):.5f} {float(found):.5f}, gradients {apart:.1e}")
        if args.tiles and batch == 420:
            _try_tiles(parts, args.rounds)


def _try_tiles(parts: tuple[Tensor, ...], rounds: int) -> None:
    here = softmax_kernels.TILES
    for which, (rows, words, warps, stages) in itertools.product(
        range(2),
        [(128, 64, 8, 3), (128, 128, 8, 2), (128, 128, 8, 3), (64, 128, 8, 3), (64, 128, 4, 3), (64, 64, 4, 3)],
    ):
        tile = softmax_kernels.Tile(rows, words, warps, stages)
        softmax_kernels.TILES = (tile, here[1]) if which == 0 else (here[0], tile)
        times = interleaved({"kernels": step("kernels", parts)}, rounds=rounds)
        print(f"  {('over words', 'over rows')[which]} {tile}: {times['kernels']:.3f}", flush=True)
    softmax_kernels.TILES = here


if __name__ == "__main__":
    main()
