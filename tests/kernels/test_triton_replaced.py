"""What users replace or move between steps, with the Triton kernels; tests/test_replaced.py has it for the other paths."""

from __future__ import annotations

import copy
import gc
import weakref

import pytest
import torch
from helpers import GradientStream
from test_triton import critgrad, is_fused, pair, run  # which skips where there is neither GPU nor interpreter

pytestmark = pytest.mark.usefixtures("_no_native_core")
SHAPES = ((6, 4, 3, 3), (5,))
CASES = {
    "Adam_C": (critgrad.Adam_C, {"lr": 0.02}, {"topC": 3, "decay": 0.9}),
    "SGD_C": (critgrad.SGD_C, {"lr": 0.02, "momentum": 0.9}, {"topC": 3, "decay": 0.9}),
    "NAdam_F": (critgrad.NAdam_F, {"lr": 0.02}, {"topC": 3, "decay": 0.9, "memory_dtype": "float16"}),
    "by tensor": (critgrad.Adam_F, {"lr": 0.02}, {"topC": 3, "decay": 0.9, "scope": "tensor"}),
}


@pytest.fixture
def _no_native_core(monkeypatch):
    monkeypatch.setenv("CRITGRAD_NATIVE", "0")


def begun(name):
    """The same optimizer with and without kernels, after four steps."""
    cls, base, options = CASES[name]
    both = pair(cls, base, shapes=SHAPES, **options)
    stream = GradientStream(both[0][1])
    for optimizer, params in both:
        run(optimizer, params, stream, 4)
    return both


def go_on_alike(fused, ours, plain, theirs):
    stream = GradientStream(ours, seed=1)
    run(fused, ours, stream, 5)
    run(plain, theirs, stream, 5)
    assert is_fused(fused)
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=2e-5, atol=1e-4)


@pytest.mark.parametrize("name", CASES)
def test_channels_last_in_mid_run(name):
    (fused, ours), (plain, theirs) = begun(name)
    ours[0].data = ours[0].data.to(memory_format=torch.channels_last)
    go_on_alike(fused, ours, plain, theirs)


@pytest.mark.parametrize("name", CASES)
def test_kernels_that_are_turned_round_where_they_lie(name):
    """Their address and their shape stay; gradients that are negative views are read as what they show."""
    (fused, ours), (plain, theirs) = begun(name)
    for params in (ours, theirs):
        params[0].data = params[0].data.transpose(2, 3)
    stream = GradientStream(ours, seed=1)
    for optimizer, params in ((fused, ours), (plain, theirs)):
        stream.set(params, 0)
        params[1].grad = torch._neg_view(-params[1].grad)
        optimizer.step()
    go_on_alike(fused, ours, plain, theirs)


@pytest.mark.parametrize("shapes", [((0, 4), (5,)), ((5,), (0,)), ((0,),)])
@pytest.mark.parametrize("name", CASES)
def test_the_steps_of_an_empty_tensor_are_counted_as_in_torch(name, shapes):
    """Such as a shard may be: a checkpoint takes the count of whichever rank."""
    cls, base, options = CASES[name]
    counted = []
    for optimizer, params in pair(cls, base, shapes=shapes, **options):
        run(optimizer, params, GradientStream(params), 4)
        params[0].grad = None
        optimizer.step()
        keys = ("step", "mu_product")
        counted += [[float(optimizer.state[p][key]) for p in params for key in keys if key in optimizer.state[p]]]
    assert counted[0] == pytest.approx(counted[1], rel=1e-6)


@pytest.mark.parametrize("name", CASES)
def test_a_checkpoint_in_another_order(name):
    (fused, ours), (plain, theirs) = begun(name)
    saved = copy.deepcopy(fused.state_dict())
    for key, value in saved["state"][0].items():
        if value.dim() == 4:
            saved["state"][0][key] = value.to(memory_format=torch.channels_last)
    fused.load_state_dict(saved)
    go_on_alike(fused, ours, plain, theirs)


@pytest.mark.parametrize("name", CASES)
def test_state_that_was_moved_and_a_parameter_that_was_replaced(name):
    (fused, ours), (plain, theirs) = begun(name)
    for state in fused.state.values():
        for tensor in state.values():
            tensor.data = tensor.data.clone()
    for optimizer, params in ((fused, ours), (plain, theirs)):
        del optimizer.state[params[1]]
        params[1] = torch.nn.Parameter(torch.ones_like(params[1]))
        optimizer.param_groups[0]["params"][1] = params[1]
    go_on_alike(fused, ours, plain, theirs)
    assert (ours[1] != 1).any()


def test_tables_that_a_cuda_graph_reads_live_as_long_as_the_optimizer():
    (optimizer, params), _ = begun("Adam_C")
    stream = GradientStream(params)
    (store,) = optimizer._critical_memory().ready_stores
    store.engine.captured.append(torch.zeros(1))  # as in a capture
    engine = weakref.ref(store.engine)
    del store
    optimizer.param_groups[0]["policy"] = "FIFO"
    run(optimizer, params, stream, 2)
    (store,) = optimizer._critical_memory().ready_stores
    gc.collect()
    assert engine() not in (None, store.engine)
    del optimizer, store
    gc.collect()
    assert engine() is None


def test_a_schedule_of_kappa_takes_no_table_away_that_a_cuda_graph_reads():
    (optimizer, params), _ = begun("Adam_C")
    stream = GradientStream(params)
    (store,) = optimizer._critical_memory().ready_stores
    (table,) = store.engine.adding.values()
    store.engine.captured.append(torch.zeros(1))  # as in a capture
    for step in range(70):
        optimizer.param_groups[0]["kappa"] = 1 - step / 100
        run(optimizer, params, stream, 1)
    assert any(table is kept for kept in store.engine.adding.values())
