"""A task in pieces: which of two spirals does a point belong to? The lab trains."""

import torch
from torch import nn


def points(count, seed):
    draw = torch.Generator().manual_seed(seed)
    arm = torch.randint(2, (count,), generator=draw)
    turn = 0.3 + 4.0 * torch.rand(count, generator=draw)
    angle = 1.5 * turn + torch.pi * arm
    x = torch.stack([turn * angle.cos(), turn * angle.sin()], 1) + 0.2 * torch.randn(count, 2, generator=draw)
    return x / 2, arm


TRAIN, VALID, TEST = points(512, 1), points(1024, 2), points(1024, 3)


def build(seed):
    return nn.Sequential(nn.Linear(2, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 2))


def batches(seed, epoch):
    return [(TRAIN[0][part], TRAIN[1][part]) for part in torch.randperm(512).split(32)]


def loss(model, batch):
    x, y = batch
    return nn.functional.cross_entropy(model(x), y)


@torch.no_grad()
def evaluate(model):
    device = next(model.parameters()).device
    return {
        name: loss(model, (x.to(device), y.to(device))).item() for name, (x, y) in (("valid", VALID), ("test", TEST))
    }
