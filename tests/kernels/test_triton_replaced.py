"""What users replace or move between steps, with the Triton kernels; tests/test_replaced.py has it for the other paths."""

from __future__ import annotations

import copy
import dataclasses
import gc
import weakref

import pytest
import torch
from helpers import GradientStream
from test_triton import DEVICE, critgrad, is_fused, pair, run  # which skips where there is neither GPU nor interpreter

from critgrad import engines
from critgrad.engines.torch_ops import TorchOps
from critgrad.memory.policies import POLICIES

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


def one_buffer_as_on_cuda(store, epilogue, only_torch):
    """The rule, with the interpreter's CPU for CUDA."""
    return engines._chosen(store, epilogue, only_torch)[0] is TorchOps


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


TAKEN_OVER = {
    "fused": ({"fused": False}, {"fused": None}),
    "policy": ({"policy": dataclasses.replace(POLICIES["FIFO"], name="mine")}, {"policy": "FIFO"}),
    "aggr": ({"aggr": critgrad.Aggregation("alone", lambda t: (t.g_norm * 0 + 1, t.norm * 0))}, {"aggr": "sum"}),
}


@pytest.mark.parametrize("change", TAKEN_OVER)
@pytest.mark.parametrize("memory_dtype", [None, "int8"])
def test_slots_that_torchs_operations_laid_in_one_buffer_are_taken_over(change, memory_dtype, monkeypatch):
    monkeypatch.setattr(engines, "wants_one_buffer", one_buffer_as_on_cuda)
    given, later = TAKEN_OVER[change]
    options = {"topC": 3, "decay": 0.9, "memory_dtype": memory_dtype, "aggr": "sum"}
    (fused, ours), (plain, theirs) = pair(critgrad.SGD_C, {"lr": 0.02}, shapes=((40, 30), (257,), (6,)), **options)
    for optimizer in (fused, plain):
        optimizer.param_groups[0].update(given)
    stream = GradientStream(ours)
    for optimizer, params in ((fused, ours), (plain, theirs)):
        run(optimizer, params, stream, 4)
    assert not is_fused(fused)
    fused.param_groups[0].update(later)
    plain.param_groups[0].update({key: value for key, value in later.items() if key != "fused"})
    go_on_alike(fused, ours, plain, theirs)


def test_combining_alone_before_the_first_step_leaves_the_kernels_their_rows(monkeypatch):
    monkeypatch.setattr(engines, "wants_one_buffer", one_buffer_as_on_cuda)
    params = [torch.nn.Parameter(torch.zeros(3000, device=DEVICE)) for _ in range(2)]
    memory, other = (critgrad.Memory(params, topC=3) for _ in range(2))
    stream = GradientStream(params)
    for t in range(6):
        stream.set(params, t)
        vectors = [p.grad for p in params]
        memory.combine(vectors)
        for ours, theirs in zip(memory.step(vectors), other.step(vectors), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=2e-5, atol=1e-5)
    assert memory.ready_stores[0].engine.name == "triton"


@pytest.mark.parametrize("name", ["Adam_C", "NAdam_F"])
def test_a_parameter_of_another_type_whose_storage_is_replaced_goes_on_learning(name):
    class Mine(torch.nn.Parameter):
        pass

    cls, base, options = CASES[name]
    param = Mine(torch.ones(300, device=DEVICE))
    optimizer = cls([param], **base, **options)
    stream = GradientStream([param])
    run(optimizer, [param], stream, 4)
    param.data = param.data.clone()
    before = param.detach().clone()
    run(optimizer, [param], stream, 1)
    assert (param != before).any()


@pytest.fixture
def _one_rank():
    backend = "gloo" if DEVICE == "cpu" else "nccl"
    torch.distributed.init_process_group(backend, store=torch.distributed.HashStore(), rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


@pytest.mark.usefixtures("_one_rank")
def test_shards_that_were_moved_go_on_learning():
    """As FSDP2's ``model.cpu()`` and ``model.cuda()`` do: the parameters stay who they are, their shards do not."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    model = torch.nn.Linear(20, 20, device=DEVICE)
    fully_shard(model, mesh=init_device_mesh(DEVICE, (1,)))
    optimizer = critgrad.Adam_C(model.parameters(), lr=0.1, topC=3)
    moved = []
    for t in range(5):
        if t == 3:
            model._apply(torch.clone)
        before = model.weight.detach().to_local().clone()
        optimizer.zero_grad()
        model(torch.randn(8, 20, device=DEVICE)).square().mean().backward()
        optimizer.step()
        moved.append(float((model.weight.detach().to_local() - before).norm()))
    assert is_fused(optimizer)
    assert all(moved)


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
