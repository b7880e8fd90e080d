"""The benchmark that looks at steps from outside finds the ages that the equations give."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from memory_age import Looks

from critgrad.lab.train.optimizers import TRAINED, settled


def looked_at(name: str, **hyper: object) -> dict[str, float]:
    """Steps on gradients of noise, each scaled by its coordinate: nothing that a running mean of squares does not see."""
    generator = torch.Generator().manual_seed(0)
    weight = nn.Parameter(torch.zeros(20_000))
    scale = torch.logspace(-2, 0, 20_000)
    optimizer = settled(TRAINED[name], {"lr": 0.001, **hyper}, [weight])
    looks = Looks(window=100, every=10)
    looks.start(optimizer)
    for _ in range(140):
        weight.grad = scale * torch.randn(20_000, generator=generator)
        optimizer.step()
        looks(optimizer)
    return looks.medians()


@pytest.mark.parametrize(
    "name, hyper, age",
    [
        ("SGD", {}, 0.0),
        ("SGDM", {"momentum": 0.9}, 9.0),
        ("AdamW", {"betas": (0.9, 0.999), "weight_decay": 0.1}, 9.0),
        ("AdamW", {"betas": (0.8, 0.999)}, 4.0),
        ("NesterovAdamW", {"betas": (0.9, 0.999)}, 8.1),
    ],
)
def test_the_age_of_a_momentum_is_what_its_beta_says(name, hyper, age):
    found = looked_at(name, **hyper)
    assert found["age"] == pytest.approx(age, abs=0.25)
    assert found["explained"] > 0.9
    assert abs(found["agrees"]) < 0.05  # the next gradient is noise, too
