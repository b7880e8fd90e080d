"""DistributedDataParallel: every rank holds the whole memory, and all of them stay the same. Nothing extra is sent.

torchrun --nproc-per-node 2 examples/ddp.py --steps 200
"""

import argparse
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import critgrad

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=200)
args = parser.parse_args()

on_gpu = torch.cuda.is_available()
dist.init_process_group("nccl" if on_gpu else "gloo")
rank, world = dist.get_rank(), dist.get_world_size()
device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if on_gpu else torch.device("cpu")
if on_gpu:
    torch.cuda.set_device(device)

torch.manual_seed(0)  # the same model and data everywhere
x = torch.randn(512, 10, device=device)
y = torch.sin(x.sum(1, keepdim=True))
model = nn.Sequential(nn.Linear(10, 64), nn.Tanh(), nn.Linear(64, 1)).to(device)
model = DistributedDataParallel(model, device_ids=[device.index] if on_gpu else None)
opt = critgrad.Adam_C(model.parameters(), lr=3e-3)

x, y = x.chunk(world)[rank], y.chunk(world)[rank]  # this rank's part of the data
generator = torch.Generator().manual_seed(rank)
for step in range(args.steps):
    rows = torch.randint(len(x), (16,), generator=generator)
    loss = nn.functional.mse_loss(model(x[rows]), y[rows])
    opt.zero_grad()
    loss.backward()
    opt.step()
    if rank == 0 and (step + 1) % max(args.steps // 5, 1) == 0:
        print(f"step {step + 1}: loss {loss.item():.4f}; {critgrad.inspect(opt)}", flush=True)

dist.barrier()  # nobody leaves while others still talk to it
dist.destroy_process_group()
