"""Gradients that are no good (sparse, not finite, zero, missing, of another shape or dtype), and degenerate memories."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from helpers import ALL_AGGREGATIONS, ALL_POLICIES, BASES, GradientStream, memory_state, parameters, run
from torch import nn

import critgrad

# -- gradients ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", ["class", "wrapper"])
def test_sparse_gradients_are_refused_before_anything_changed(make):
    table, other = nn.Embedding(5, 3, sparse=True), nn.Parameter(torch.ones(2))
    params = [other, table.weight]
    optimizer = critgrad.SGD_C(params, lr=0.1)
    if make == "wrapper":
        optimizer = critgrad.CriticalGradients(torch.optim.SGD(params, lr=0.1))
    other.grad = torch.ones(2)
    table.weight.grad = torch.ones(5, 3)
    optimizer.step()
    before, values = memory_state(optimizer), [p.detach().clone() for p in params]
    table.weight.grad = None
    table(torch.tensor([1, 2])).sum().backward()
    with pytest.raises(RuntimeError, match=r"does not support sparse gradients.*sparse=False"):
        optimizer.step()
    assert_unchanged(optimizer, before)
    assert all(torch.equal(p, v) for p, v in zip(params, values))
    assert table.weight.grad.is_sparse


def test_a_group_with_topC_0_takes_sparse_gradients_like_its_base():
    table, other = nn.Embedding(5, 3, sparse=True), nn.Parameter(torch.ones(2))
    optimizer = critgrad.SGD_C([{"params": [other]}, {"params": table.weight, "topC": 0}], lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        (table(torch.tensor([1, 2])).sum() + other.sum()).backward()
        optimizer.step()
    assert critgrad.inspect(optimizer).memories[0].live == 3


@pytest.mark.parametrize("cls", [critgrad.SGD_C, critgrad.SGD_F])
def test_a_changed_parameter_shape_is_refused(cls):
    weight = nn.Parameter(torch.ones(3))
    optimizer = cls([weight], lr=0.1)
    weight.grad = torch.ones(3)
    optimizer.step()
    weight.data = torch.ones(4)
    weight.grad = torch.ones(4)
    with pytest.raises(ValueError, match=r"Invalid critical_slots: \(\d+, 3\) for a parameter of shape \(4,\)"):
        optimizer.step()
    assert torch.equal(weight, torch.ones(4))


def test_a_gradient_of_another_dtype_is_refused():
    if not hasattr(torch.Tensor, "grad_dtype"):
        pytest.skip("this torch has no gradients of another dtype")
    weight = nn.Parameter(torch.ones(3, dtype=torch.bfloat16))
    weight.grad_dtype = torch.float32
    optimizer = critgrad.SGD_C([weight], lr=0.1)
    weight.grad = torch.ones(3, dtype=torch.float32)
    with pytest.raises(RuntimeError, match=r"gradient of .*float32.* parameter of .*bfloat16"):
        optimizer.step()


def assert_unchanged(optimizer, before, only=None):
    after = memory_state(optimizer)
    for i, (was, now) in enumerate(zip(before, after, strict=True)):
        if only is not None and i not in only:
            continue
        assert was.keys() == now.keys()
        for key in was:
            assert torch.equal(as_bits(was[key]), as_bits(now[key])), key


def as_bits(tensor):
    return tensor.view(torch.int8) if tensor.dtype == torch.float8_e4m3fn else tensor


@pytest.mark.parametrize("memory_dtype", [None, "int8"])
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("policy", ["KotH", "CDS", "sparse", "random"])
@pytest.mark.parametrize("aggr", ALL_AGGREGATIONS)
def test_one_bad_step_leaves_the_whole_memory_as_it_was(aggr, policy, bad, memory_dtype):
    params = parameters()
    options = {"aggr": aggr, "policy": policy, "memory_dtype": memory_dtype, "every": 2, "max_age": 4, "topC": 3}
    optimizer = critgrad.SGD_C(params, lr=1.0, **options)
    stream = GradientStream(params)
    run(optimizer, params, stream, 5)
    before = memory_state(optimizer)
    values = [p.detach().clone() for p in params]
    stream.set(params, 5)
    params[1].grad[2] = bad
    expected = [v - p.grad for v, p in zip(values, params)]
    optimizer.step()
    assert_unchanged(optimizer, before)
    for p, e in zip(params, expected):  # d = g: the base sees what it would see without a memory
        assert torch.equal(p.nan_to_num(), e.nan_to_num())


@pytest.mark.parametrize("aggr", ALL_AGGREGATIONS)
def test_a_bad_first_step_stores_nothing(aggr):
    params = parameters()
    optimizer = critgrad.Adam_C(params, aggr=aggr)
    GradientStream(params).set(params, 0)
    params[0].grad[0, 0] = math.nan
    optimizer.step()
    for state in memory_state(optimizer):
        assert all(not as_bits(value).any() for value in state.values())


@pytest.mark.parametrize("aggr", ALL_AGGREGATIONS)
@pytest.mark.parametrize("policy", ALL_POLICIES)
def test_under_scope_tensor_only_the_bad_tensor_stands_still(aggr, policy):
    def train(bad):
        params = parameters()
        options = {"scope": "tensor", "aggr": aggr, "policy": policy, "topC": 3, "every": 1}
        optimizer = critgrad.SGD_C(params, lr=0.1, **options)
        stream = GradientStream(params)
        run(optimizer, params, stream, 4)
        before = memory_state(optimizer)
        stream.set(params, 4)
        if bad:
            params[1].grad[2] = math.nan
        optimizer.step()
        return params, optimizer, before

    params, optimizer, before = train(bad=True)
    good_params, good, _ = train(bad=False)
    assert_unchanged(optimizer, before, only=[1])
    for i in (0, 2, 3):
        assert torch.equal(params[i], good_params[i])
        mine, theirs = memory_state(optimizer)[i], memory_state(good)[i]
        assert all(torch.equal(mine[key], theirs[key]) for key in mine)
        assert mine["critical_clock"] == 5


@pytest.mark.parametrize("aggr", ["mean", "fisher"])
def test_under_scope_group_only_the_bad_group_stands_still(aggr):
    a, b = parameters(((2,), (3,))), parameters(((4,),))
    optimizer = critgrad.SGD_C([{"params": a}, {"params": b}], lr=0.1, scope="group", aggr=aggr)
    params = [*a, *b]
    run(optimizer, params, GradientStream(params), 3)
    before = memory_state(optimizer)
    GradientStream(params).set(params, 3)
    a[0].grad[0] = math.inf
    optimizer.step()
    assert_unchanged(optimizer, before, only=[0, 1])
    assert optimizer.state[b[0]]["critical_clock"] == 4


@pytest.mark.parametrize("aggr", ALL_AGGREGATIONS)
def test_a_squared_norm_that_overflows_counts_as_not_finite(aggr):
    params = parameters(dtype=torch.float32)
    optimizer = critgrad.SGD_C(params, lr=1e-30, aggr=aggr)
    run(optimizer, params, GradientStream(params), 3)
    before = memory_state(optimizer)
    for p in params:
        p.grad = torch.full_like(p, 1e25)
    optimizer.step()
    assert_unchanged(optimizer, before)
    assert all(p.isfinite().all() for p in params)


@pytest.mark.parametrize("size", [0.0, 1e-30])
@pytest.mark.parametrize("aggr", ALL_AGGREGATIONS)
@pytest.mark.parametrize("policy", ALL_POLICIES)
def test_a_zero_gradient_ticks_and_decays_but_takes_no_slot(policy, aggr, size):
    """A norm whose square underflows counts as zero."""
    params = parameters(dtype=torch.float32)
    optimizer = critgrad.SGD_C(params, lr=0.1, topC=4, decay=0.5, aggr=aggr, policy=policy, every=1, max_age=2)
    run(optimizer, params, GradientStream(params), 2)
    (before, *_) = memory_state(optimizer)
    for p in params:
        p.grad = torch.full_like(p, size)
    optimizer.step()
    (after, *_) = memory_state(optimizer)
    assert after["critical_clock"] == before["critical_clock"] + 1
    assert torch.equal(after["critical_priority"], before["critical_priority"] * 0.5)
    for key in ("critical_slots", "critical_born", "critical_norm", "critical_inserted"):
        assert torch.equal(after[key], before[key])


def test_a_first_step_with_zero_gradients_allocates_everything_and_takes_no_slot():
    """What distributed checkpointing does to a fresh optimizer."""
    params = parameters()
    params[1].grad = None
    optimizer = critgrad.Adam_C(params)
    for i, p in enumerate(params):
        p.grad = None if i == 1 else torch.zeros_like(p)
    optimizer.step()
    for state, p in zip(memory_state(optimizer), params):
        assert state["critical_slots"].shape == (5, *p.shape)
        assert not state["critical_born"].any()


@pytest.mark.parametrize("base", BASES)
def test_all_gradients_missing_is_a_step_that_changes_no_parameter(base):
    cls, kwargs = BASES[base]
    params = parameters()
    optimizer = critgrad.critical(cls)(params, **kwargs)
    values = [p.detach().clone() for p in params]
    optimizer.step()
    assert all(torch.equal(p, v) for p, v in zip(params, values))
    run(optimizer, params, GradientStream(params), 3)
    assert critgrad.inspect(optimizer).memories[0].live == 3


# -- degenerate memories -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("rho", [1e-5, 0.3])
@pytest.mark.parametrize("memory_dtype", [None, "float16", "int8"])
def test_parallel_and_equal_slots_damp_like_one(dtype, rho, memory_dtype):
    """K is singular; what is solved is not."""
    weight = nn.Parameter(torch.zeros(4, dtype=dtype))
    options = {"topC": 4, "decay": 1.0, "rho": rho, "memory_dtype": memory_dtype}
    optimizer = critgrad.SGD_F([weight], lr=1.0, **options)
    for size in (1.0, 1.0, 2.0, 4.0):
        weight.grad = torch.tensor([size, 0, 0, 0], dtype=dtype)
        optimizer.step()
    weight.data.zero_()
    weight.grad = torch.tensor([1.0, 2.0, 0, 0], dtype=dtype)
    optimizer.step()
    expected = torch.tensor([-rho / (1 + rho), -2.0, 0, 0], dtype=torch.float64)
    torch.testing.assert_close(
        weight.detach().double(), expected, rtol=0.01, atol=1e-6 if dtype != torch.bfloat16 else 1e-2
    )


@pytest.mark.parametrize("size", [1e-30, 1e-17, 1e17, 1e30])
@pytest.mark.parametrize("aggr", ALL_AGGREGATIONS)
@pytest.mark.parametrize("memory_dtype", [None, "bfloat16", "float16", "int8", "float8"])
def test_tiny_and_huge_gradients_give_finite_directions(size, aggr, memory_dtype):
    weight = nn.Parameter(torch.zeros(300))
    optimizer = critgrad.SGD_C([weight], lr=1.0, aggr=aggr, topC=3, memory_dtype=memory_dtype)
    generator = torch.Generator().manual_seed(0)
    for _ in range(6):
        weight.data.zero_()
        weight.grad = torch.randn(300, generator=generator) * size
        g = weight.grad.clone()
        optimizer.step()
        assert weight.isfinite().all()
        assert weight.abs().max() <= 10 * max(g.abs().max(), 1e5)
    for state in memory_state(optimizer):
        assert all(value.double().isfinite().all() for value in state.values())


@pytest.mark.parametrize("aggr", ["mean", "fisher"])
def test_float16_slots_saturate(aggr):
    weight = nn.Parameter(torch.zeros(2))
    optimizer = critgrad.SGD_C([weight], lr=1.0, aggr=aggr, memory_dtype=torch.float16)
    weight.grad = torch.tensor([1e6, -1e6])
    optimizer.step()
    assert optimizer.state[weight]["critical_slots"][0].tolist() == [65504.0, -65504.0]
    assert optimizer.state[weight]["critical_norm"][0].item() == pytest.approx(2**0.5 * 1e6)


def test_of_tied_norms_the_oldest_goes():
    """Clipping makes many norms equal: the memory is then the last ones, at any decay."""
    weight = nn.Parameter(torch.zeros(3))
    optimizer = critgrad.SGD_C([weight], lr=0.1, topC=3, decay=1.0)
    for t in range(5):
        weight.grad = torch.zeros(3)
        weight.grad[t % 3] = 1.0
        optimizer.step()
    assert critgrad.inspect(optimizer).memories[0].ages == [5, 4, 3]  # strict: an equal norm does not get in
    optimizer = critgrad.SGD_C([weight], lr=0.1, topC=3, decay=0.999)
    for t in range(5):
        weight.grad = torch.zeros(3)
        weight.grad[t % 3] = 1.0
        optimizer.step()
    assert sorted(critgrad.inspect(optimizer).memories[0].ages) == [1, 2, 3]
    weight.grad = torch.tensor([2.0, 0, 0])
    optimizer = critgrad.SGD_C([weight], lr=0.1, topC=2, decay=1.0)
    for norm in (1.0, 1.0, 2.0):
        weight.grad = torch.tensor([norm, 0, 0])
        optimizer.step()
    assert critgrad.inspect(optimizer).memories[0].ages == [1, 2]  # of the two with norm 1 the older one went


def test_an_error_in_the_base_puts_the_gradients_back():
    class Broken(torch.optim.SGD):
        def step(self, closure=None):
            raise RuntimeError("broken")

    params = parameters()
    optimizer = critgrad.critical(Broken)(params, lr=0.1)
    GradientStream(params).set(params, 0)
    grads = [p.grad for p in params]
    before = copy.deepcopy(dict(optimizer.state))
    with pytest.raises(RuntimeError, match="broken"):
        optimizer.step()
    assert all(p.grad is g for p, g in zip(params, grads))
    assert dict(optimizer.state) == before
