"""The class and the wrapper, made alike, and a small regression."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import critgrad


def adam_class(params, **options):
    return critgrad.Adam_C(params, **options)


def adam_wrapper(params, **options):
    ours = ("topC", "decay", "aggr", "kappa", "rho", "policy", "scope", "memory_dtype", "max_age", "seed")
    base = {name: value for name, value in options.items() if name not in ours}
    rest = {name: value for name, value in options.items() if name in ours}
    return critgrad.CriticalGradients(torch.optim.Adam(params, **base), **rest)


both = pytest.mark.parametrize("make", [adam_class, adam_wrapper], ids=["class", "wrapper"])


def regression(seed=0, dtype=torch.float32):
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1)).to(dtype)
    x, y = torch.randn(32, 6, dtype=dtype), torch.randn(32, 1, dtype=dtype)
    return model, lambda: nn.functional.mse_loss(model(x), y)
