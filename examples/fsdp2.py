"""FSDP2: the memory is sharded like the parameters. Saves a distributed checkpoint, and resumes on any number of ranks.

torchrun --nproc-per-node 2 examples/fsdp2.py --steps 200 --checkpoint runs/demo
torchrun --nproc-per-node 4 examples/fsdp2.py --steps 400 --checkpoint runs/demo    # goes on from step 200
"""

import argparse
import os
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard

import critgrad

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=200)
parser.add_argument("--checkpoint", type=Path, required=True)
args = parser.parse_args()

on_gpu = torch.cuda.is_available()
dist.init_process_group("nccl" if on_gpu else "gloo")
rank, world = dist.get_rank(), dist.get_world_size()
device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if on_gpu else torch.device("cpu")
if on_gpu:
    torch.cuda.set_device(device)

torch.manual_seed(0)
x = torch.randn(512, 10, device=device)
y = torch.sin(x.sum(1, keepdim=True))
model = nn.Sequential(nn.Linear(10, 64), nn.Tanh(), nn.Linear(64, 1)).to(device)
for layer in model:
    if isinstance(layer, nn.Linear):
        fully_shard(layer)
fully_shard(model)
opt = critgrad.AdamW_F(model.parameters(), lr=3e-3)  # after fully_shard: it must see the sharded parameters

first = 0
if (args.checkpoint / ".metadata").exists():
    model_state, opt_state = get_state_dict(model, opt)
    saved = {"model": model_state, "opt": opt_state, "step": 0}
    dcp.load(saved, checkpoint_id=args.checkpoint)
    set_state_dict(model, opt, model_state_dict=saved["model"], optim_state_dict=saved["opt"])
    first = saved["step"]

for step in range(first, args.steps):
    rows = torch.randint(len(x), (32,), generator=torch.Generator().manual_seed(step)).chunk(world)[rank]
    loss = nn.functional.mse_loss(model(x[rows]), y[rows])
    opt.zero_grad()
    loss.backward()
    opt.step()
    if (step + 1) % max(args.steps // 5, 1) == 0:
        report = critgrad.inspect(opt)  # sums over all ranks: every rank must call it
        if rank == 0:
            print(f"step {step + 1}: loss {loss.item():.4f}; {report}", flush=True)

model_state, opt_state = get_state_dict(model, opt)
dcp.save({"model": model_state, "opt": opt_state, "step": args.steps}, checkpoint_id=args.checkpoint)
dist.barrier()  # nobody leaves while others still talk to it
dist.destroy_process_group()
