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


def looked_at(name: str, steps: int = 140, **hyper: object) -> dict[str, float]:
    """Steps on gradients of noise, each scaled by its coordinate: nothing that a running mean of squares does not see."""
    generator = torch.Generator().manual_seed(0)
    weight = nn.Parameter(torch.zeros(20_000))
    scale = torch.logspace(-2, 0, 20_000)
    optimizer = settled(TRAINED[name], {"lr": 0.001, **hyper}, [weight])
    looks = Looks(window=100, every=10)
    looks.start(optimizer)
    for _ in range(steps):
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


@pytest.mark.parametrize(
    "name, hyper, age",
    [
        ("GrokFast", {"betas": (0.9, 0.99), "alpha": 0.98, "lamb": 1.0}, 9 + 49 / 2),  # it writes to the gradient
        ("MARS", {"betas": (0.95, 0.99), "gamma": 0.02}, 19 - 0.02 * 19),
        ("Adam_CM", {"betas": (0.9, 0.99), "topC": 0}, 9),
    ],
)
def test_the_age_of_others_is_what_their_equations_say_also_where_it_is_older_than_the_window(name, hyper, age):
    pytest.importorskip("pytorch_optimizer")
    found = looked_at(name, steps=400, **hyper)
    assert found["age"] == pytest.approx(age, rel=0.02)
    assert found["explained"] > 0.99


def test_the_age_of_a_memory_is_that_of_its_slots():
    """FIFO, every gradient admitted: five slots of age 1 to 5 and the gradient itself, then a momentum."""
    found = looked_at("AdamW_C", betas=(0.9, 0.99), topC=5, policy="FIFO")
    assert found["age"] == pytest.approx(9 + 15 / 6, rel=0.02)
