"""What share of a real training step the optimizer takes: RoBERTa-base, forward + backward + step, on one GPU.

    PYTHONPATH=src python benchmarks/training_share.py --batch 16 --length 512

The model is built from its configuration (random weights; time does not depend on them) and trained on random tokens under
bfloat16 autocast. Contestants take turns, a few steps each; medians over the turns.
"""

from __future__ import annotations

import argparse
import json
import statistics
from typing import Any

import torch
from transformers import RobertaConfig, RobertaForCausalLM

import critgrad

CONTESTANTS: dict[str, Any] = {
    "Adam (torch, fused)": lambda params: torch.optim.Adam(params, lr=1e-5, fused=True),
    "Adam_C topC 5": lambda params: critgrad.Adam_C(params, lr=1e-5, topC=5),
    "Adam_C topC 20 bfloat16": lambda params: critgrad.Adam_C(params, lr=1e-5, topC=20, memory_dtype=torch.bfloat16),
    "Adam_F topC 10": lambda params: critgrad.Adam_F(params, lr=1e-5),
    "Adam_F topC 10 bfloat16": lambda params: critgrad.Adam_F(params, lr=1e-5, memory_dtype=torch.bfloat16),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--json", metavar="FILE")
    args = parser.parse_args()
    torch.manual_seed(0)
    config = RobertaConfig(vocab_size=50265, max_position_embeddings=514, type_vocab_size=1, is_decoder=True)
    model = RobertaForCausalLM(config).cuda()
    tokens = torch.randint(4, config.vocab_size, (args.batch, args.length), device="cuda")
    optimizers = {name: make(model.parameters()) for name, make in CONTESTANTS.items()}

    def one_step(optimizer: torch.optim.Optimizer) -> tuple[float, float]:
        """Milliseconds of the whole step, and of the optimizer's part."""
        marks = [torch.cuda.Event(enable_timing=True) for _ in range(3)]
        marks[0].record()
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        marks[1].record()
        optimizer.step()
        marks[2].record()
        marks[2].synchronize()
        return marks[0].elapsed_time(marks[2]), marks[1].elapsed_time(marks[2])

    times: dict[str, list[tuple[float, float]]] = {name: [] for name in optimizers}
    for turn in range(args.turns + 1):
        for name, optimizer in optimizers.items():
            measured = [one_step(optimizer) for _ in range(4)]
            if turn > 0:  # the first turn warms up
                times[name] += measured[1:]
    print(
        f"{torch.cuda.get_device_name()}, torch {torch.__version__}, batch {args.batch} x {args.length} tokens, bf16 autocast"
    )
    print(f"{'optimizer':28}{'whole step, ms':>15}{'optimizer, ms':>15}{'share':>8}")
    report = {}
    for name, pairs in times.items():
        whole, part = (statistics.median(column) for column in zip(*pairs))
        report[name] = {"whole_ms": whole, "optimizer_ms": part, "share": part / whole}
        print(f"{name:28}{whole:15.2f}{part:15.2f}{part / whole:8.1%}")
    if args.json:
        with open(args.json, "w") as file:
            json.dump(report, file, indent=1)


if __name__ == "__main__":
    main()
