"""Training steps of the lab's convolutional networks on a GPU, several processes side by side: sizes, precisions, optimizers.

``PYTHONPATH=src python benchmarks/conv_net.py --processes 8``; once more with ``CRITGRAD_COMPILE=1`` for the compiled network.
"""

from __future__ import annotations

import argparse
import os

import torch
import torch.nn.functional as F
from side_by_side import Step, rates, table
from torch import nn

import critgrad
from critgrad.lab.tasks.models import DeepConvNet, ResNet
from critgrad.lab.train.compiling import compile_if_asked

CASES = {  # network, batch size, bfloat16
    "batch 128, bf16": (DeepConvNet, 128, True),
    "batch 256, bf16": (DeepConvNet, 256, True),
    "batch 64, bf16": (DeepConvNet, 64, True),
    "batch 64, TF32": (DeepConvNet, 64, False),
    "residual, batch 256, bf16": (ResNet, 256, True),
}
OPTIMIZERS = {
    "Adam": lambda parameters: torch.optim.Adam(parameters, lr=1e-3, fused=True, capturable=True),
    "Adam_F": lambda parameters: critgrad.Adam_F(parameters, lr=1e-3, capturable=True),
}


def steps_of(case: str) -> dict[str, Step]:
    network, batch, bf16 = CASES[case]
    torch.manual_seed(0)
    images, labels = torch.randn(batch, 3, 32, 32, device="cuda"), torch.randint(10, (batch,), device="cuda")

    def step(name: str) -> Step:
        model = network(bf16=bf16).cuda()
        compile_if_asked(model)
        parameters = list(model.parameters())
        optimizer = OPTIMIZERS[name](parameters)

        def take() -> object:
            for p in parameters:
                p.grad = None
            loss = F.cross_entropy(model(images), labels)
            loss.backward()
            nn.utils.clip_grad_norm_(parameters, 10.0)
            optimizer.step()
            return loss.detach()

        return take

    return {name: step(name) for name in OPTIMIZERS}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--processes", type=int, default=8)
    parser.add_argument("--case", action="append", choices=CASES, help="instead of all; may be repeated")
    args = parser.parse_args()
    asked = " (CRITGRAD_COMPILE=1)" if os.environ.get("CRITGRAD_COMPILE") == "1" else ""
    print(f"{args.processes} processes side by side, torch {torch.__version__}{asked}")
    print(table(rates(args.processes, args.case or list(CASES), steps_of)))


if __name__ == "__main__":
    main()
