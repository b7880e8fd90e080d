"""The recurrent layers of the lab's tasks, forward and backward, on a GPU: torch's (cuDNN) and the kernels.

``PYTHONPATH=src python benchmarks/recurrent_layer.py``: by itself, in turns; ``--cuts`` tries other cuts of the kernels.
``--processes 12``: so many processes side by side under MPS, as a sweep has them; steps a second of all of them together.
"""

from __future__ import annotations

import argparse
import itertools
import os

import torch
from output_layer import interleaved
from side_by_side import Step, rates, table
from torch import nn

from critgrad.lab.tasks.models import lstm, lstm_kernels

# Steps, rows, inputs, hidden units.
SIZES = {
    "PTB, batch 420": (35, 420, 64, 128),
    "PTB, batch 20": (35, 20, 64, 128),
    "SNLI, two sentences": (20, 256, 300, 200),
    "MultiWOZ, encoder": (64, 64, 128, 100),
    "MultiWOZ, decoder": (40, 64, 128, 200),
}


def steps_of(name: str) -> dict[str, Step]:
    """A step of each way, with the same weights."""
    steps, rows, inputs, width = SIZES[name]
    torch.manual_seed(0)
    words = torch.randn(steps, rows, inputs, device="cuda", requires_grad=True)
    ours = lstm.LSTM(inputs, width).cuda()
    torchs = nn.LSTM(inputs, width).cuda()
    torchs.load_state_dict(ours.state_dict())

    def step(layer: nn.Module) -> Step:
        leaves = [words, *layer.parameters()]
        weights = torch.linspace(-1, 1, width, device="cuda")
        return lambda: torch.autograd.grad((layer(words)[0] * weights).sum(), leaves)

    return {"torch": step(torchs), "kernels": step(ours)}


def apart(ways: dict[str, Step]) -> float:
    """The relative distance of their gradients."""
    found, right = (list(ways[way]()) for way in ("kernels", "torch"))  # type: ignore[call-overload]
    return max(float((a - b).norm() / b.norm()) for a, b in zip(found, right, strict=True))


def alone(rounds: int, cuts: bool) -> None:
    for name in SIZES:
        ways = steps_of(name)
        print(f"{name}: gradients {apart(ways):.1e} apart", flush=True)
        times = interleaved(ways, rounds=rounds)
        print("  " + ", ".join(f"{way} {ms:.3f} ms" for way, ms in times.items()), flush=True)
        if cuts:
            _try_cuts(ways["kernels"], rounds)


def _try_cuts(step: Step, rounds: int) -> None:
    here = lstm_kernels.CUTS
    for which, chunk, warps, stages in itertools.product(range(2), (32, 64), (4, 8), (1, 2, 3)):
        cut = lstm_kernels.Cut(16, chunk, warps, stages)
        lstm_kernels.CUTS = (cut, here[1]) if which == 0 else (here[0], cut)
        try:
            times = interleaved({"kernels": step}, rounds=rounds)
        except Exception as error:  # more shared memory than there is, for one
            print(f"  {('forward', 'backward')[which]} {cut}: {type(error).__name__}", flush=True)
            continue
        print(f"  {('forward', 'backward')[which]} {cut}: {times['kernels']:.3f}", flush=True)
    lstm_kernels.CUTS = here


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--cuts", action="store_true", help="try other cuts of the kernels")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--processes", type=int, default=1, help="side by side; 1: the layers by themselves")
    args = parser.parse_args()
    os.environ[lstm.ASKED] = "1"
    if args.processes > 1:
        print(f"{args.processes} processes side by side, torch {torch.__version__}, forward and backward")
        print(table(rates(args.processes, list(SIZES), steps_of)))
    else:
        print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, forward and backward")
        alone(args.rounds, args.cuts)


if __name__ == "__main__":
    main()
