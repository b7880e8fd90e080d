"""Small problems and the ways to drive an optimizer through them."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import critgrad
from critgrad.memory.aggregations import AGGREGATIONS
from critgrad.memory.policies import POLICIES
from critgrad.reference import ReferenceMemory

SHAPES = ((3, 4), (5,), (), (2, 1, 3))


def parameters(shapes=SHAPES, dtype=torch.float64, seed=0, device="cpu") -> list[nn.Parameter]:
    generator = torch.Generator().manual_seed(seed)
    return [
        nn.Parameter(torch.randn(shape, generator=generator, dtype=torch.float64).to(device, dtype)) for shape in shapes
    ]


def copies(params: list[nn.Parameter]) -> list[nn.Parameter]:
    return [nn.Parameter(p.detach().clone()) for p in params]


class GradientStream:
    """Random gradients whose size wanders over decades, the same for everybody who asks with the same seed.

    Some steps have a missing, a zero or a non-finite gradient, if asked for.
    """

    def __init__(self, params, seed=0, missing=0.0, zero=0.0, bad=0.0):
        self.shapes = [tuple(p.shape) for p in params]
        self.seed, self.missing, self.zero, self.bad = seed, missing, zero, bad

    def at(self, t: int) -> list[Tensor | None]:
        generator = torch.Generator().manual_seed(self.seed * 100_003 + t)

        def draw() -> float:
            return float(torch.rand((), generator=generator))

        size = 10 ** (2 * draw() - 1)
        if draw() < self.zero:
            size = 0.0
        grads: list[Tensor | None] = [
            torch.randn(shape, generator=generator, dtype=torch.float64) * size for shape in self.shapes
        ]
        for i in range(len(grads)):
            if draw() < self.missing:
                grads[i] = None
        if draw() < self.bad and grads[0] is not None:
            grads[0].view(-1)[0] = float("nan") if draw() < 0.5 else float("inf")
        return grads

    def set(self, params, t: int) -> None:
        for p, g in zip(params, self.at(t)):
            p.grad = None if g is None else g.to(p.device, p.dtype)


def run(optimizer, params, stream: GradientStream, steps, start=0) -> None:
    for t in range(start, start + steps):
        stream.set(params, t)
        optimizer.step()


def assert_close(ours, theirs, rtol=1e-9, atol=1e-11) -> None:
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a.detach(), b.detach(), rtol=rtol, atol=atol, equal_nan=True)


def assert_same_bits(ours, theirs) -> None:
    for a, b in zip(ours, theirs, strict=True):
        assert torch.equal(torch.nan_to_num(a.detach()), torch.nan_to_num(b.detach()))
        assert torch.equal(a.detach().isnan(), b.detach().isnan())


def memory_state(optimizer) -> list[dict[str, Tensor]]:
    """Our keys of every parameter, cloned."""
    return [
        {key: value.clone() for key, value in optimizer.state[p].items() if key.startswith("critical_")}
        for group in optimizer.param_groups
        for p in group["params"]
    ]


ALL_POLICIES = tuple(POLICIES)
ALL_AGGREGATIONS = tuple(AGGREGATIONS)


def pairs_first(names: str, first, second, third):
    """Parametrise with a product of three of which ``make test`` runs a part in which every two values meet.

    The rest is slow, for ``make test-all``. ``third`` has no more values than the others, and each of its values goes
    along the diagonals of their table.
    """
    assert len(third) <= min(len(first), len(second)), "not every pair would be met"
    cases = [
        pytest.param(a, b, c, marks=() if (i + j) % len(third) == k else pytest.mark.slow)
        for k, c in enumerate(third)
        for i, a in enumerate(first)
        for j, b in enumerate(second)
    ]
    return pytest.mark.parametrize(names, cases)


# Every base of torch.optim that can have a memory, with arguments that make it move.
BASES: dict[str, tuple[type, dict]] = {
    "SGD": (torch.optim.SGD, {"lr": 0.05}),
    "SGDM": (torch.optim.SGD, {"lr": 0.02, "momentum": 0.9, "nesterov": True}),
    "RMSprop": (torch.optim.RMSprop, {"lr": 0.01}),
    "Adam": (torch.optim.Adam, {"lr": 0.05}),
    "AdamW": (torch.optim.AdamW, {"lr": 0.05, "weight_decay": 0.01}),
    "AggMo": (critgrad.AggMo, {"lr": 0.01}),
    "Adagrad": (torch.optim.Adagrad, {"lr": 0.1}),
    "Adadelta": (torch.optim.Adadelta, {"lr": 1.0}),
    "NAdam": (torch.optim.NAdam, {"lr": 0.02}),
    "RAdam": (torch.optim.RAdam, {"lr": 0.05}),
    "Adamax": (torch.optim.Adamax, {"lr": 0.02}),
    "Adafactor": (torch.optim.Adafactor, {"lr": 0.05}),
    "ASGD": (torch.optim.ASGD, {"lr": 0.05}),
    "Rprop": (torch.optim.Rprop, {"lr": 0.01}),
}


class ReferenceOptimizer:
    """A base optimizer with a reference memory in front, for parameters that are plain float64 tensors.

    ``base`` is a function ``params -> optimizer``. A parameter without a gradient counts as zero and is not updated.
    """

    def __init__(self, params: list[Tensor], base, scope="global", **options):
        self.params = params
        self.optimizer = base(params)
        self.by_tensor = scope == "tensor"
        if self.by_tensor:
            self.memories = [ReferenceMemory(**options, stream=(1 << 20) + i) for i in range(len(params))]
        else:
            self.memories = [ReferenceMemory(**options, stream=1 if scope == "group" else 0)]

    def step(self) -> list[int | None]:
        grads = [torch.zeros_like(p) if p.grad is None else p.grad.clone() for p in self.params]
        vectors = [g.reshape(-1) for g in grads] if self.by_tensor else [torch.cat([g.reshape(-1) for g in grads])]
        directions = [memory.direction(g) for memory, g in zip(self.memories, vectors)]
        flat = torch.cat(directions)
        at = 0
        for p in self.params:
            if p.grad is not None:
                p.grad = flat[at : at + p.numel()].reshape(p.shape).clone()
            at += p.numel()
        self.optimizer.step()
        return [memory.insert(g) for memory, g in zip(self.memories, vectors)]
