"""A large tensor on a CPU is worked through in blocks: what comes out does not depend on their size."""

from __future__ import annotations

import pytest
import torch
from helpers import GradientStream, memory_state, parameters, run

import critgrad
from critgrad import blocks, plain

SHAPES = ((100, 201), (7,))  # the first is no multiple of anything, and too large to be worked on in a list
OPTIONS = [
    {"aggr": "mean"},
    {"aggr": "sum", "kappa": 0.5},
    {"aggr": "max"},
    {"memory_dtype": "bfloat16"},
    {"memory_dtype": "int8"},
    {"memory_dtype": "float8"},
]
DAMPING = [{"aggr": "fisher"}, {"aggr": "fisher", "memory_dtype": "int8"}]


def stepped(options, block, monkeypatch, dtype=torch.float32):
    monkeypatch.setattr(blocks, "BLOCK", block)
    monkeypatch.setattr(blocks, "PRODUCT_BLOCK", block)
    params = parameters(SHAPES, dtype)
    assert params[0].numel() > plain._FEW
    opt = critgrad.SGD_C(params, lr=0.01, topC=3, decay=0.9, fused=False, **options)
    run(opt, params, GradientStream(params, missing=0.2), 12)
    return [p.detach() for p in params], memory_state(opt)


def names(options):
    return "-".join(str(value) for value in options.values())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("options", OPTIONS, ids=names)
def test_adding_gives_the_same_bits(options, dtype, monkeypatch):
    whole = stepped(options, 1 << 20, monkeypatch, dtype)
    small = stepped(options, 4096, monkeypatch, dtype)
    assert all(torch.equal(a, b) for a, b in zip(whole[0], small[0], strict=True))
    for mine, other in zip(whole[1], small[1], strict=True):
        for key, value in mine.items():
            assert torch.equal(value.float(), other[key].float()), key


@pytest.mark.parametrize("options", DAMPING, ids=names)
def test_damping_stores_the_same(options, monkeypatch):
    """A matrix product may round by where a column lies, so its directions are only close."""
    whole, small = (stepped(options, block, monkeypatch) for block in (1 << 20, 4096))
    for a, b in zip(whole[0], small[0], strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)
    for mine, other in zip(whole[1], small[1], strict=True):
        assert torch.equal(mine["critical_slots"].float(), other["critical_slots"].float())
