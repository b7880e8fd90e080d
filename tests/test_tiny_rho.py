"""Damping with a rho that is lost in rounding: nearly parallel gradients leave nothing that is not finite, nor large."""

from __future__ import annotations

import pytest
import torch

import critgrad


@pytest.mark.parametrize("fused", [None, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("spread", [0.0, 1e-7, 1e-6, 1e-4])
@pytest.mark.parametrize("rho", [1e-6, 1e-9, 1e-20, 5e-324])
def test_nearly_parallel_gradients_are_damped_to_nearly_nothing(fused, dtype, spread, rho):
    generator = torch.Generator().manual_seed(0)
    line = torch.randn(3000, generator=generator, dtype=dtype)
    weight = torch.nn.Parameter(torch.zeros(3000, dtype=dtype))
    optimizer = critgrad.SGD_F([weight], lr=1.0, rho=rho, fused=fused)
    for step in range(40):
        noise = torch.randn(3000, generator=generator, dtype=dtype)
        weight.grad = line * (1 + 0.01 * step) + spread * noise
        before = weight.detach().clone()
        optimizer.step()
        left = float((weight.detach() - before).norm() / weight.grad.norm())
        assert left < (1.01 if step == 0 else 1e-3), step


def test_a_rho_above_rounding_gives_what_it_gave():
    generator = torch.Generator().manual_seed(0)
    weight = torch.nn.Parameter(torch.zeros(50, dtype=torch.float64))
    optimizer = critgrad.SGD_F([weight], lr=1.0, rho=1e-5, topC=4, decay=0.0)
    held: list[torch.Tensor] = []
    for _ in range(12):
        g = torch.randn(50, generator=generator, dtype=torch.float64) + 3
        weight.grad = g.clone()
        before = weight.detach().clone()
        optimizer.step()
        expected = g
        if held:
            G = torch.stack(held[-4:])
            K = G @ G.T
            expected = g - G.T @ torch.linalg.solve(K + 1e-5 * K.trace() * torch.eye(len(G), dtype=G.dtype), G @ g)
        torch.testing.assert_close(before - weight.detach(), expected, rtol=1e-9, atol=1e-11)
        held.append(g)
