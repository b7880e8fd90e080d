"""How fast a CPU step could be with torch's operations alone: the same passes in a bare loop, without an optimizer around them.

    PYTHONPATH=src python benchmarks/floor.py [--threads 2] [--only lstm] [--rounds 9] [--json FILE]

Each line is against torch's fused Adam, timed in turns. "bare" does what no plain path can leave out: the norm (or the
products with the slots), the direction, the running sum and the slot's new content in blocks that stay in cache, the base's
fused operation; no state, no checks, no decision. "plain" is the optimizer (``CRITGRAD_NATIVE=0``). Where the two are close, it
is torch's passes that take the time.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable
from typing import Any

import torch
from shapes import MODELS
from step_time import Bench, Row
from timing import compare

BLOCK = 1 << 17  # values: a few arrays of them stay in a core's cache
COLUMNS = 1 << 14  # of one product with the slots
ADAM: dict[str, Any] = {
    "lr": 1e-4, "beta1": 0.9, "beta2": 0.999, "weight_decay": 0.0, "eps": 1e-8, "amsgrad": False, "maximize": False,
}  # fmt: skip


class Bare:
    """The passes of one kind of step over flat tensors."""

    def __init__(self, bench: Bench, row: Row) -> None:
        assert row.topC is not None
        self.bench, self.topC, self.turn = bench, row.topC, 0
        sizes = [g.numel() for g in bench.grads[0]]
        self.p, self.m, self.v, self.d, self.sum = ([torch.zeros(n) for n in sizes] for _ in range(5))
        self.slots = [torch.zeros(row.topC, n) for n in sizes]
        self.counts = [torch.tensor(1.0) for _ in sizes]
        self.weights = torch.full((row.topC,), 0.01)
        self.pass_over = self._damp if row.aggr == "fisher" else self._add

    def step(self) -> None:
        grads = [g.view(-1) for g in self.bench.grads[self.turn % len(self.bench.grads)]]
        slot = self.turn % self.topC
        self.turn += 1
        self.pass_over(grads, slot)
        torch._fused_adam_(self.p, self.d, self.m, self.v, [], self.counts, **ADAM)

    def _add(self, grads: list[torch.Tensor], slot: int) -> None:
        for g in grads:
            torch.dot(g, g)
        for g, d, total, slots in zip(grads, self.d, self.sum, self.slots):
            for piece, into, rest, old in zip(*(x.split(BLOCK) for x in (g, d, total, slots[slot]))):
                torch.add(piece, rest, out=into)
                torch.sub(into, old, out=rest)
                old.copy_(piece)
                into.mul_(1 / (self.topC + 1))

    def _damp(self, grads: list[torch.Tensor], slot: int) -> None:
        for g, slots in zip(grads, self.slots):
            torch.dot(g, g)
            for columns, piece, width in _tiles(slots, g):
                torch.bmm(columns, piece.view(-1, width, 1))
        for g, d, slots in zip(grads, self.d, self.slots):
            for (columns, piece, width), (_, into, _) in zip(_tiles(slots, g), _tiles(slots, d)):
                many = len(columns)
                weights = self.weights.expand(many, 1, self.topC)
                torch.baddbmm(piece.view(many, 1, width), weights, columns, alpha=-1, out=into.view(many, 1, width))
            slots[slot].copy_(g)


def _tiles(slots: torch.Tensor, values: torch.Tensor) -> list[tuple[torch.Tensor, torch.Tensor, int]]:
    """Whole tiles of COLUMNS values, and what is left: ``(tiles, topC, width)`` of the slots with their values."""
    whole = values.numel() // COLUMNS * COLUMNS
    cuts = [(0, whole, COLUMNS), (whole, values.numel(), values.numel() - whole)]
    return [
        (slots[:, a:b].unflatten(1, (-1, width)).transpose(0, 1), values[a:b], width) for a, b, width in cuts if b > a
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--only", action="append", choices=MODELS)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--batch", type=float, default=0.3, help="seconds of one")
    parser.add_argument("--json", metavar="FILE")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    os.environ["CRITGRAD_NATIVE"] = "0"
    device = torch.device("cpu")
    report: dict[str, Any] = {"threads": args.threads, "torch": torch.__version__, "models": {}}
    print(f"{'model':12} {'topC':>4} {'aggr':8} {'':6} {'x torch fused (quartiles)':>26}")
    for model in args.only or ["lstm", "transformer"]:
        bench = Bench(MODELS[model](), "adam", device, torch.float32, None)
        for topC, aggr in ((5, "default"), (3, "fisher"), (10, "fisher")):
            for name in ("bare", "plain"):
                row = Row("plain", topC, "float32", aggr)
                reference, ours = bench.optimizer(Row("torch fused")), bench.optimizer(row)
                bench.stepped = [reference[0], ours[0]]
                bench.rotate()
                step: Callable[[], object] = Bare(bench, row).step if name == "bare" else ours[1].step
                for _ in range(topC + 1):
                    reference[1].step()
                    step()
                found = compare(device, reference[1].step, step, args.rounds, args.batch, bench.rotate).ratio
                print(
                    f"{model:12} {topC:4} {aggr:8} {name:6} {found.median:12.2f} ({found.low:.2f}-{found.high:.2f})",
                    flush=True,
                )
                spread = {"low": found.low, "median": found.median, "high": found.high}
                report["models"].setdefault(model, []).append(
                    {"topC": topC, "aggr": aggr, "what": name, "ratio": spread}
                )
    if args.json:
        with open(args.json, "w", encoding="utf-8") as file:
            json.dump(report, file, indent=1)


if __name__ == "__main__":
    main()
