"""The task of the study: how a model is built, what it sees, what it is judged by. Change all of it.

The lab trains: it calls these four functions, and the optimizer of each arm. (For a loop of your own, with anything in it,
write one function `train(make_optimizer, seed, epochs, report)` instead.) Every run has its own stream of random numbers,
set before each function is called, so `seed` is only for what you draw by yourself.
"""

import torch
from torch import nn


def _data():
    """A smooth function of eight inputs in units of different size, with noise; the same for every run."""
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(1536, 8, generator=draw)
    y = torch.sin(2 * x[:, :1]) + x[:, 1:2] * x[:, 2:3] + 0.3 * torch.randn(1536, 1, generator=draw)
    return (x * torch.logspace(-0.4, 0.4, 8)).split(512), y.split(512)


(X_TRAIN, X_VALID, X_TEST), (Y_TRAIN, Y_VALID, Y_TEST) = _data()


def build(seed):
    """The model. Its weights come from the run's own stream."""
    return nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 1))


def batches(seed, epoch):
    """The batches of an epoch (from 0): any iterable, a DataLoader will do. They are moved to the model's device."""
    return [(X_TRAIN[part], Y_TRAIN[part]) for part in torch.randperm(512).split(32)]


def loss(model, batch):
    """What is minimised, of one batch."""
    x, y = batch
    return nn.functional.mse_loss(model(x), y)


@torch.no_grad()
def evaluate(model):
    """After each epoch: `valid` chooses points and epochs, `test` alone counts. Put your data where the model is."""
    device = next(model.parameters()).device
    valid = nn.functional.mse_loss(model(X_VALID.to(device)), Y_VALID.to(device))
    test = nn.functional.mse_loss(model(X_TEST.to(device)), Y_TEST.to(device))
    return {"valid": valid, "test": test}
