"""What a smaller memory costs in precision: the error against a full one is stated here, and held to."""

from __future__ import annotations

import pytest
import torch
from helpers import GradientStream, parameters, run

import critgrad
from critgrad.memory import SLOTS
from critgrad.memory.formats import FORMATS, SCALE_BLOCK, Slots

# Half a unit in the last place, relative to the value (half types) or to the largest value of its block (8 bits).
ERRORS = {"bfloat16": 2**-9, "float16": 2**-12, "int8": 0.5 / 127, "float8": 2**-4 / 2 + 2**-9}
STEP = {"bfloat16": 2.0, "float16": 2.0, "int8": 1.0, "float8": 2.0}  # rounding happens within one binade


def stored(values: torch.Tensor, name: str) -> torch.Tensor:
    format_ = FORMATS[name]
    blocks = -(-values.numel() // SCALE_BLOCK)
    empty = torch.zeros(1, values.numel(), dtype=torch.float32).to(format_.dtype)
    slots = Slots(empty, torch.zeros(1, blocks) if format_.scaled else None, format_, torch.float32, values.device)
    slots.write(0, *slots.encode(values))
    return slots.row(0)


@pytest.mark.parametrize("name", ERRORS)
@pytest.mark.parametrize("size", [1, 255, 256, 1000])
@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e4])
def test_a_stored_value_is_off_by_no_more_than_stated(name, size, scale):
    values = torch.randn(size, generator=torch.Generator().manual_seed(size)) * scale
    error = (stored(values, name) - values).abs()
    padded = torch.nn.functional.pad(values.abs(), (0, -size % SCALE_BLOCK)).view(-1, SCALE_BLOCK)
    largest = padded.amax(-1, keepdim=True).expand_as(padded).reshape(-1)[:size]
    if name == "int8":
        allowed = ERRORS[name] * largest
    elif name == "float8":
        allowed = ERRORS[name] * STEP[name] * values.abs() + largest * 2**-9 / 448
    else:
        # Below the smallest normal number of float16 the error is absolute.
        allowed = ERRORS[name] * STEP[name] * values.abs() + (2**-25 if name == "float16" else 0.0)
    assert (error <= allowed * (1 + 1e-6)).all()


@pytest.mark.parametrize("name", ERRORS)
def test_what_is_too_large_saturates_and_what_is_zero_stays_zero(name):
    values = torch.tensor([3e38, -3e38, 0.0, 1e-44])
    kept = stored(values, name)
    assert torch.isfinite(kept).all()
    assert kept[2] == 0
    assert kept[0] > 0 > kept[1]
    assert (stored(torch.zeros(300), name) == 0).all()


@pytest.mark.parametrize("name", ERRORS)
@pytest.mark.parametrize("aggr", ["mean", "sum", "fisher"])
def test_a_run_with_a_small_memory_stays_near_the_run_with_a_full_one(name, aggr):
    """Same gradients: priorities and decisions are the same, only the stored values are rounded."""
    shapes = ((40, 30), (7,))
    ends = {}
    for memory_dtype in (None, name):
        params = parameters(shapes, dtype=torch.float32)
        start = torch.cat([p.detach().reshape(-1).clone() for p in params])
        optimizer = critgrad.SGD_C(params, lr=0.1, aggr=aggr, topC=5, decay=0.9, memory_dtype=memory_dtype)
        run(optimizer, params, GradientStream(params), 40)
        ends[memory_dtype] = torch.cat([p.detach().reshape(-1) for p in params]) - start
        assert optimizer.state[params[0]][SLOTS].element_size() == {None: 4, "bfloat16": 2, "float16": 2}.get(
            memory_dtype, 1
        )
    difference = (ends[name] - ends[None]).norm() / ends[None].norm()
    # Rounding errors of 40 steps, each a fraction of the memory's share: no larger than one rounding of everything.
    assert 0 < difference < {"bfloat16": 4e-3, "float16": 5e-4, "int8": 2e-2, "float8": 6e-2}[name]


@pytest.mark.slow
@pytest.mark.parametrize("memory_dtype", [None, "bfloat16"])
def test_the_running_sum_does_not_drift_over_100_000_steps(memory_dtype):
    params = parameters(((30, 50), (7,)), dtype=torch.float32)
    optimizer = critgrad.SGD_C(params, lr=0.0, topC=5, decay=0.5, memory_dtype=memory_dtype)
    generator = torch.Generator().manual_seed(0)
    pool = [
        [torch.randn(p.shape, generator=generator) * 10**e for p in params] for e in (-3, -1, 0, 1, 3) for _ in range(7)
    ]
    for t in range(100_000):
        for p, g in zip(params, pool[(t * 17) % len(pool)]):
            p.grad = g
        optimizer.step()
    assert int(optimizer.state[params[0]]["critical_inserted"]) > 50_000
    for p in params:
        state = optimizer.state[p]
        exact = state[SLOTS].double().sum(0)
        error = (state["critical_sum"] - exact).abs().max()
        # One round of refreshing is 80 steps; the largest value that passes through the sum is about 3e3.
        assert error <= 80 * 2 * torch.finfo(torch.float32).eps * 4e3
