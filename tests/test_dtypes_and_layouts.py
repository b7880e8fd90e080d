"""Complex, half and double parameters, and every order in memory."""

from __future__ import annotations

import pytest
import torch
from feature_helpers import regression
from helpers import (
    ALL_AGGREGATIONS,
    GradientStream,
    assert_close,
    assert_same_bits,
    parameters,
    run,
)
from torch import nn

import critgrad

# -- dtypes ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("aggr", ALL_AGGREGATIONS)
@pytest.mark.parametrize("scope", ["global", "tensor"])
def test_complex_parameters_equal_real_pairs(aggr, scope):
    shapes = ((3, 2), (4,), ())
    generator = torch.Generator().manual_seed(0)
    complexes = [nn.Parameter(torch.randn(s, dtype=torch.complex128, generator=generator)) for s in shapes]
    reals = [nn.Parameter(torch.view_as_real(p.detach()).clone()) for p in complexes]
    options = {"lr": 0.05, "topC": 3, "aggr": aggr, "scope": scope}
    a, b = critgrad.SGD_C(complexes, **options), critgrad.SGD_C(reals, **options)
    for _ in range(12):
        for p, q in zip(complexes, reals):
            p.grad = torch.randn(p.shape, dtype=torch.complex128, generator=generator)
            q.grad = torch.view_as_real(p.grad).clone()
        a.step()
        b.step()
    assert_close([torch.view_as_real(p.detach()) for p in complexes], reals)
    assert a.state[complexes[0]]["critical_slots"].dtype == torch.complex128


@pytest.mark.parametrize("memory_dtype", ["float32", "bfloat16", "float16", "int8", "float8"])
@pytest.mark.parametrize("aggr", ["mean", "max", "fisher"])
def test_complex_parameters_with_a_memory_of_another_dtype(memory_dtype, aggr):
    generator = torch.Generator().manual_seed(0)
    weight = nn.Parameter(torch.randn(40, 7, dtype=torch.complex64, generator=generator))
    pairs = nn.Parameter(torch.view_as_real(weight.detach()).clone())
    options = {"lr": 0.05, "topC": 3, "aggr": aggr, "memory_dtype": memory_dtype}
    a, b = critgrad.SGD_C([weight], **options), critgrad.SGD_C([pairs], **options)
    for _ in range(6):
        weight.grad = torch.randn(40, 7, dtype=torch.complex64, generator=generator)
        pairs.grad = torch.view_as_real(weight.grad).clone()
        a.step()
        b.step()
    assert_close([torch.view_as_real(weight.detach())], [pairs], rtol=1e-5, atol=1e-5)


def test_conjugate_gradients():
    weight, other = (nn.Parameter(torch.ones(3, dtype=torch.complex64)) for _ in range(2))
    a, b = critgrad.SGD_C([weight], lr=0.1), critgrad.SGD_C([other], lr=0.1)
    for t in range(4):
        g = torch.full((3,), 1 + 1j * t, dtype=torch.complex64)
        weight.grad, other.grad = g.conj(), g.conj().resolve_conj()
        a.step()
        b.step()
    assert torch.equal(weight, other)


@pytest.mark.parametrize("fused", [None, False])
def test_a_gradient_that_is_a_negative_view_is_read_as_what_it_shows(fused):
    """Autograd leaves one for a single value that becomes the imaginary part of a conjugate."""
    ours, theirs = (torch.nn.Parameter(torch.tensor(1.0)) for _ in range(2))
    opt, other = critgrad.Adam_C([ours], lr=0.1, fused=fused), critgrad.Adam_C([theirs], lr=0.1, fused=False)
    for t in range(4):
        opt.zero_grad()
        (torch.complex(torch.tensor(2.0), ours).conj() * complex(t, 3)).real.backward()
        assert ours.grad.is_neg()
        theirs.grad = ours.grad.resolve_neg()
        opt.step()
        other.step()
    torch.testing.assert_close(ours, theirs)
    assert_same_bits([opt.state[ours]["critical_slots"]], [other.state[theirs]["critical_slots"]])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("aggr", ALL_AGGREGATIONS)
def test_half_parameters_decide_in_single_precision(dtype, aggr):
    """Norms that a half type cannot hold, or cannot tell apart."""
    weight = nn.Parameter(torch.zeros(4096, dtype=dtype))
    optimizer = critgrad.SGD_C([weight], lr=1e-3, topC=2, decay=1.0, aggr=aggr)
    sizes = (2000.0, 1.0, 1.015625)  # 2000 * 64 = 128000 is no float16
    for size in sizes:
        weight.grad = torch.full_like(weight, size)
        optimizer.step()
    report = critgrad.inspect(optimizer).memories[0]
    assert report.norms == pytest.approx([128000.0, 65.0], rel=1e-6)
    assert optimizer.state[weight]["critical_priority"].dtype == torch.float32
    if aggr != "fisher":
        assert optimizer.state[weight]["critical_sum"].dtype == torch.float32
    assert weight.isfinite().all()


@pytest.mark.parametrize("aggr", ["sum", "max"])
def test_a_half_direction_saturates(aggr):
    """g and the memory's share are finite, their sum is no float16."""
    weight = nn.Parameter(torch.zeros(2, dtype=torch.float16))
    seen = []

    class Spy(torch.optim.SGD):
        def step(self, closure=None):
            seen.append(weight.grad.tolist())

    optimizer = critgrad.critical(Spy)([weight], lr=1.0, aggr=aggr)
    for _ in range(2):
        weight.grad = torch.tensor([60000.0, -60000.0], dtype=torch.float16)
        optimizer.step()
    assert seen[1] == [65504.0, -65504.0]


def test_float64_stays_float64():
    weight = nn.Parameter(torch.zeros(2, dtype=torch.float64))
    optimizer = critgrad.SGD_C([weight], lr=0.1, topC=2, decay=1.0)
    for size in (1.0, 1.0 + 1e-12, 1.0 + 2e-12):
        weight.grad = torch.tensor([size, 0], dtype=torch.float64)
        optimizer.step()
    state = optimizer.state[weight]
    assert state["critical_priority"].tolist() == [1.0 + 2e-12, 1.0 + 1e-12]
    assert {state[key].dtype for key in ("critical_slots", "critical_sum", "critical_norm")} == {torch.float64}


def test_parameters_of_different_dtypes_share_one_memory():
    params = [nn.Parameter(torch.ones(3, dtype=d)) for d in (torch.float32, torch.bfloat16, torch.float64)]
    optimizer = critgrad.SGD_C(params, lr=0.1, topC=3)
    for _ in range(4):
        for p in params:
            p.grad = torch.ones_like(p)
        optimizer.step()
    assert critgrad.inspect(optimizer).memories[0].norms == pytest.approx([3.0] * 3)
    assert torch.allclose(params[0].double(), params[2])


@pytest.mark.parametrize(
    "memory_dtype, tolerance", [("bfloat16", 0.01), ("float16", 0.002), ("int8", 0.02), ("float8", 0.1)]
)
@pytest.mark.parametrize("aggr", ["mean", "fisher"])
def test_a_rounded_memory_is_near_the_exact_one(memory_dtype, tolerance, aggr):
    ours, theirs = (
        parameters(((40, 30), (500,)), dtype=torch.float32),
        parameters(((40, 30), (500,)), dtype=torch.float32),
    )
    stream = GradientStream(ours)
    run(critgrad.SGD_C(ours, lr=0.01, aggr=aggr, memory_dtype=memory_dtype), ours, stream, 20)
    run(critgrad.SGD_C(theirs, lr=0.01, aggr=aggr), theirs, stream, 20)
    start = parameters(((40, 30), (500,)), dtype=torch.float32)
    for p, q, s in zip(ours, theirs, start):
        assert (p - q).norm() <= tolerance * (q - s).norm()


def test_casting_the_model_in_mid_run_takes_the_memory_along():
    model, loss = regression()
    optimizer = critgrad.SGD_C(model.parameters(), lr=0.01, topC=3)
    for _ in range(3):
        optimizer.zero_grad()
        loss().backward()
        optimizer.step()
    before = critgrad.inspect(optimizer).memories[0]
    optimizer.zero_grad()
    model.double()
    for p in model.parameters():
        p.grad = torch.zeros_like(p)
    optimizer.step()
    after = critgrad.inspect(optimizer).memories[0]
    assert after.norms == pytest.approx(before.norms)
    assert after.steps == before.steps + 1
    assert optimizer.state[model[0].weight]["critical_slots"].dtype == torch.float64


# -- layouts -----------------------------------------------------------------------------------------------------------


def channels_last(p):
    return p.to(memory_format=torch.channels_last)


def transposed(p):
    return p.transpose(0, -1).contiguous().transpose(0, -1)


def strided(p):
    wide = torch.empty(*p.shape[:-1], 2 * p.shape[-1], dtype=p.dtype)
    view = wide[..., ::2]
    view.copy_(p)
    return view


def unchanged(p):
    return p


@pytest.mark.parametrize("memory_dtype", [None, "int8"])
@pytest.mark.parametrize("aggr", ["mean", "median", "fisher"])
@pytest.mark.parametrize("of_grad", [unchanged, channels_last, transposed, strided])
@pytest.mark.parametrize("of_param", [unchanged, channels_last, transposed, strided])
def test_any_memory_layout_equals_a_contiguous_one(of_param, of_grad, aggr, memory_dtype):
    if memory_dtype == "int8" and of_param in (channels_last, transposed):
        tolerance = {"rtol": 0, "atol": 0.1}  # scales are shared by other neighbours
    else:
        tolerance = {"rtol": 1e-9, "atol": 1e-11}
    contiguous = parameters(((4, 3, 2, 5), (3, 2, 1, 1)))
    ours = [nn.Parameter(of_param(p.detach().clone())) for p in contiguous]
    options = {"lr": 0.05, "topC": 3, "aggr": aggr, "memory_dtype": memory_dtype}
    a, b = critgrad.Adam_C(ours, **options), critgrad.Adam_C(contiguous, **options)
    stream = GradientStream(ours)
    for t in range(8):
        for p, q, g in zip(ours, contiguous, stream.at(t)):
            p.grad, q.grad = of_grad(g.clone()), g.clone()
        a.step()
        b.step()
    assert_close(ours, contiguous, **tolerance)
    for p in ours:
        assert a.state[p]["critical_slots"].shape == (3, *p.shape)


@pytest.mark.parametrize("memory_dtype", [None, "float16", "int8", "float8"])
@pytest.mark.parametrize("scope", ["global", "tensor"])
@pytest.mark.parametrize("aggr", ALL_AGGREGATIONS)
def test_zero_size_and_zero_dim_parameters(aggr, scope, memory_dtype):
    params = parameters(((0,), (), (3, 0, 2), (4,)), dtype=torch.float32)
    optimizer = critgrad.SGD_C(params, lr=0.1, aggr=aggr, scope=scope, topC=2, memory_dtype=memory_dtype)
    run(optimizer, params, GradientStream(params), 5)
    reports = critgrad.inspect(optimizer).memories
    assert [report.live for report in reports] == ([2] if scope == "global" else [0, 2, 0, 2])
