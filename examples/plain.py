"""Plain PyTorch: a small network, a scheduler, a checkpoint, a look into the memory.

python examples/plain.py --steps 200
"""

import argparse

import torch
from torch import nn

import critgrad

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=200)
parser.add_argument("--checkpoint", help="where to save at the end")
args = parser.parse_args()

torch.manual_seed(0)
x = torch.randn(512, 10)
y = torch.sin(x.sum(1, keepdim=True))
model = nn.Sequential(nn.Linear(10, 64), nn.Tanh(), nn.Linear(64, 1))

# opt = torch.optim.Adam(model.parameters(), lr=3e-3)
opt = critgrad.Adam_C(model.parameters(), lr=3e-3, topC=5, decay=0.7)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(opt, args.steps)

for step in range(args.steps):
    rows = torch.randint(len(x), (32,))
    loss = nn.functional.mse_loss(model(x[rows]), y[rows])
    opt.zero_grad()
    loss.backward()
    opt.step()
    schedule.step()
    if (step + 1) % max(args.steps // 5, 1) == 0:
        print(f"step {step + 1}: loss {loss.item():.4f}; {critgrad.inspect(opt)}")

if args.checkpoint:
    torch.save({"model": model.state_dict(), "opt": opt.state_dict()}, args.checkpoint)
    opt.load_state_dict(torch.load(args.checkpoint, weights_only=True)["opt"])
