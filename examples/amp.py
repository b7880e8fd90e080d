"""Automatic mixed precision: float16 with a GradScaler on a GPU, the same loop in full precision on a CPU.

python examples/amp.py --steps 200
"""

import argparse

import torch
from torch import nn

import critgrad

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=200)
args = parser.parse_args()

device = "cuda" if torch.cuda.is_available() else "cpu"
on_gpu = device == "cuda"
torch.manual_seed(0)
x = torch.randn(512, 10, device=device)
y = torch.sin(x.sum(1, keepdim=True))
model = nn.Sequential(nn.Linear(10, 64), nn.Tanh(), nn.Linear(64, 1)).to(device)

# The stored gradients in half the bytes; the weights and the moments stay in float32.
opt = critgrad.AdamW_C(model.parameters(), lr=3e-3, memory_dtype=torch.bfloat16)
scaler = torch.amp.GradScaler(device, enabled=on_gpu)

for step in range(args.steps):
    rows = torch.randint(len(x), (32,), device=device)
    with torch.autocast(device, dtype=torch.float16, enabled=on_gpu):
        loss = nn.functional.mse_loss(model(x[rows]), y[rows])
    opt.zero_grad()
    scaler.scale(loss).backward()
    scaler.unscale_(opt)  # before clipping, and before the memory looks at norms
    nn.utils.clip_grad_norm_(model.parameters(), 5.0)
    scaler.step(opt)  # skipped if a gradient is not finite: the memory never sees it
    scaler.update()
    if (step + 1) % max(args.steps // 5, 1) == 0:
        print(f"step {step + 1}: loss {loss.item():.4f}, scale {scaler.get_scale():.0f}; {critgrad.inspect(opt)}")
