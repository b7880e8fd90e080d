"""Slots of many parameters in one buffer, as on an accelerator with torch's operations: the same memory, no dearer to keep.

The buffer is forced here on a CPU, once with decisions on the host and once on the path that looks at nothing.
"""

from __future__ import annotations

import copy
import gc
import io
import pickle
from contextlib import contextmanager

import pytest
import torch
from helpers import ALL_AGGREGATIONS, GradientStream, assert_close, assert_same_bits, copies, parameters
from torch.multiprocessing.reductions import StorageWeakRef

import critgrad
from critgrad import engines
from critgrad.engines import products, sums, torch_ops

SHAPES = ((3, 4), (300,), (), (2, 1, 3), (257,))
FORMATS = (None, "bfloat16", "float16", "int8", "float8")


@contextmanager
def apart():
    """As it would be without the buffer."""
    wants = engines.wants_one_buffer
    engines.wants_one_buffer = lambda *_: False
    try:
        yield
    finally:
        engines.wants_one_buffer = wants


@pytest.fixture(params=["host", "device"], autouse=True)
def one_buffer(request, monkeypatch):
    monkeypatch.setenv("CRITGRAD_ENGINE", "torch")
    monkeypatch.setattr(engines, "wants_one_buffer", lambda *_: True)
    if request.param == "device":
        for module in (products, sums, torch_ops):
            monkeypatch.setattr(module, "on_host", lambda tensor: False)


def steps(optimizer, params, count, start=0, **stream):
    for t in range(start, start + count):
        GradientStream(params, seed=6, **stream).set(params, t)
        optimizer.step()


def both(params, make, count=12, **stream):
    """The optimizer in one buffer and, with parameters of its own, the one without."""
    theirs = copies(params)
    optimizer = make(params)
    steps(optimizer, params, count, **stream)
    with apart():
        other = make(theirs)
        steps(other, theirs, count, **stream)
        assert storage_count(other, theirs) == len(theirs)
    assert storage_count(optimizer, params) == 1
    return optimizer, other, theirs


def storage_count(optimizer, params) -> int:
    return len({optimizer.state[p]["critical_slots"].untyped_storage().data_ptr() for p in params})


def blocks_of(optimizer):
    memory = optimizer.memory if isinstance(optimizer, critgrad.Adam_CM) else optimizer._critical_memory()
    memory.ready_stores or memory.ready()
    return [block for store in memory.ready_stores for block in store.blocks]


def saved(thing) -> bytes:
    file = io.BytesIO()
    torch.save(thing, file)
    return file.getvalue()


def loaded(data: bytes):
    return torch.load(io.BytesIO(data))


# -- the same memory -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", ["KotH", "CDS", "RR"])
@pytest.mark.parametrize("aggr", [*ALL_AGGREGATIONS, "own"])
def test_it_gives_what_separate_slots_give(aggr, policy):
    def own(tables):
        return torch.ones_like(tables.g_norm), 0.1 * torch.tanh(tables.dots)

    aggr = critgrad.Aggregation("own", own, needs_dots=True) if aggr == "own" else aggr
    params = parameters(SHAPES)
    optimizer, other, theirs = both(
        params,
        lambda ps: critgrad.Adam_C(ps, lr=0.05, topC=3, decay=0.9, aggr=aggr, policy=policy),
        missing=0.15, zero=0.1, bad=0.1,
    )  # fmt: skip
    assert_close(params, theirs)
    for p, q in zip(params, theirs):
        for key in ("critical_slots", "critical_born", "critical_norm", "critical_priority", "critical_clock"):
            torch.testing.assert_close(optimizer.state[p][key], other.state[q][key], rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("aggr", ["mean", "fisher"])
@pytest.mark.parametrize("memory_dtype", FORMATS)
def test_every_format_holds_the_same(memory_dtype, aggr, dtype):
    params = parameters(SHAPES, dtype)
    optimizer, other, theirs = both(
        params, lambda ps: critgrad.SGD_C(ps, lr=0.01, topC=3, decay=0.9, aggr=aggr, memory_dtype=memory_dtype), 8
    )
    for p, q in zip(params, theirs):
        mine, its = optimizer.state[p], other.state[q]
        for key in {"critical_slots", "critical_scale", "critical_born"} & its.keys():
            assert torch.equal(mine[key].float(), its[key].float()), key
        if "critical_sum" in its:
            torch.testing.assert_close(mine["critical_sum"], its["critical_sum"], rtol=1e-5, atol=1e-5)
    assert_close(
        [p.float() for p in params],
        [q.float() for q in theirs],
        rtol=0.02 if dtype == torch.bfloat16 else 1e-4,
        atol=1e-4,
    )


@pytest.mark.parametrize("base", [torch.optim.RAdam, torch.optim.Adagrad])
def test_it_serves_any_base_and_the_wrapper(base):
    params = parameters(SHAPES, torch.float32)
    _, _, theirs = both(params, lambda ps: critgrad.critical(base)(ps, lr=0.05, topC=3), missing=0.2)
    assert_close(params, theirs, rtol=1e-4, atol=1e-5)
    params = parameters(SHAPES, torch.float32)
    _, _, theirs = both(params, lambda ps: critgrad.CriticalGradients(base(ps, lr=0.05), topC=3), missing=0.2)
    assert_close(params, theirs, rtol=1e-4, atol=1e-5)


def test_orders_of_memory_are_kept_within_the_buffer():
    params = [torch.nn.Parameter(torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)), *parameters(((7,),))]
    params = [torch.nn.Parameter(p.detach().double()) for p in params]
    optimizer, _, theirs = both(params, lambda ps: critgrad.SGD_C(ps, lr=0.05, topC=3), missing=0.2)
    assert_close(params, theirs)
    assert optimizer.state[params[0]]["critical_slots"][0].stride() == params[0].stride()


def test_a_base_may_keep_what_it_is_given():
    kept = []

    class Keeping(torch.optim.SGD):
        def step(self, closure=None):
            for group in self.param_groups:
                kept.extend((p.grad, p.grad.clone()) for p in group["params"] if p.grad is not None)
            return super().step(closure)

    params = parameters(SHAPES, torch.float32)
    steps(critgrad.critical(Keeping)(params, lr=0.05, topC=3), params, 6, missing=0.2)
    assert all(torch.equal(now, then) for now, then in kept)


def test_results_of_a_memory_are_none_where_the_vector_is():
    params = parameters(SHAPES)
    memory = critgrad.Memory(params, topC=3)
    for t in range(4):
        vectors = GradientStream(params).at(t)
        vectors[1] = None
        for found in (memory.combine(vectors), memory.step(vectors)):
            assert [d is None for d in found] == [v is None for v in vectors]


# -- where things lie ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("memory_dtype", FORMATS)
def test_parts_begin_at_multiples_of_256_and_do_not_overlap(memory_dtype):
    params = parameters(SHAPES, torch.float32)
    optimizer = critgrad.SGD_C(params, lr=0.05, topC=3, memory_dtype=memory_dtype)
    steps(optimizer, params, 4)
    (block,) = blocks_of(optimizer)
    ends = [0]
    for part, p in zip(block.parts, params):
        assert part.start % 256 == 0
        assert part.start >= ends[-1]
        ends.append(part.start + p.numel())
        slots = optimizer.state[p]["critical_slots"]
        size = slots.element_size()
        assert slots.data_ptr() == block.slots.values.data_ptr() + part.start * size
        assert slots.shape == (3, *p.shape)
    assert ends[-1] <= block.length


def test_the_gaps_stay_zero():
    params = parameters(SHAPES)
    optimizer = critgrad.SGD_C(params, lr=0.05, topC=3)
    steps(optimizer, params, 8, missing=0.3)
    (block,) = blocks_of(optimizer)
    gap = torch.ones(block.length, dtype=torch.bool)
    for part in block.parts:
        gap[part.start : part.start + part.length] = False
    assert gap.any()
    assert not block.slots.values[:, gap].any()
    assert not block.sum[gap].any()


def test_groups_dtypes_and_scopes_have_blocks_of_their_own():
    params = [*parameters(((5,), (6,)), torch.float32), *parameters(((7,), (8,)), torch.float64)]
    optimizer = critgrad.SGD_C([{"params": params[:3]}, {"params": params[3:]}], lr=0.05, topC=3)
    steps(optimizer, params, 4)
    assert [len(block.parts) for block in blocks_of(optimizer)] == [2, 1, 1]
    by_tensor = critgrad.SGD_C(parameters(SHAPES), lr=0.05, topC=3, scope="tensor")
    assert [len(block.parts) for block in blocks_of(by_tensor)] == [1] * len(SHAPES)


@pytest.mark.parametrize("aggr", ["sum", "fisher"])
@pytest.mark.parametrize("how", ["group", "same group"])
def test_parameters_that_come_later_get_a_block_of_their_own_and_nothing_is_copied(how, aggr):
    params = parameters(SHAPES)
    theirs = copies(params)

    def run(mine):
        optimizer = critgrad.SGD_C(mine[:3], lr=0.05, topC=3, decay=0.9, aggr=aggr)
        steps(optimizer, mine, 5)
        before = [optimizer.state[p]["critical_slots"] for p in mine[:3]]
        if how == "group":
            optimizer.add_param_group({"params": mine[3:]})
        else:
            optimizer.param_groups[0]["params"].extend(mine[3:])
        steps(optimizer, mine, 5, 5)
        return optimizer, before

    optimizer, before = run(params)
    first, second = blocks_of(optimizer)
    assert [len(first.parts), len(second.parts)] == [3, 2]
    for p, slots in zip(params, before):
        assert optimizer.state[p]["critical_slots"] is slots
        assert slots.untyped_storage().data_ptr() == first.slots.values.untyped_storage().data_ptr()
    assert optimizer.state[params[3]]["critical_slots"].untyped_storage().data_ptr() == second.slots.values.data_ptr()
    with apart():
        run(theirs)
    assert_close(params, theirs)


def test_a_parameter_that_is_taken_out_frees_the_buffer():
    params = parameters(SHAPES)
    optimizer = critgrad.SGD_C(params, lr=0.05, topC=3)
    steps(optimizer, params, 4)
    old = StorageWeakRef(optimizer.state[params[0]]["critical_slots"].untyped_storage())
    gone = optimizer.param_groups[0]["params"].pop()
    del optimizer.state[gone]
    steps(optimizer, params, 2, 4)
    gc.collect()
    assert old.expired()
    (block,) = blocks_of(optimizer)
    assert len(block.parts) == len(params) - 1


@pytest.mark.parametrize("aggr", ["sum", "fisher"])
def test_state_that_is_moved_away_frees_its_buffer_and_goes_on(aggr):
    params = parameters(SHAPES)
    theirs = copies(params)
    optimizer = critgrad.SGD_C(params, lr=0.05, topC=3, decay=0.9, aggr=aggr)
    other = critgrad.SGD_C(theirs, lr=0.05, topC=3, decay=0.9, aggr=aggr)
    steps(optimizer, params, 5)
    steps(other, theirs, 5)
    old = StorageWeakRef(optimizer.state[params[0]]["critical_slots"].untyped_storage())
    assert not old.expired()
    for p in params:
        optimizer.state[p]["critical_slots"] = optimizer.state[p]["critical_slots"].clone()
    steps(optimizer, params, 1, 5)
    gc.collect()
    assert old.expired()
    steps(optimizer, params, 4, 6)
    steps(other, theirs, 5, 5)
    assert_close(params, theirs)
    assert storage_count(optimizer, params) == 1


def test_state_that_is_dropped_frees_its_buffer():
    params = parameters(SHAPES)
    optimizer = critgrad.SGD_C(params, lr=0.05, topC=3)
    steps(optimizer, params, 4)
    old = StorageWeakRef(optimizer.state[params[0]]["critical_slots"].untyped_storage())
    optimizer.state.clear()
    steps(optimizer, params, 1, 4)
    gc.collect()
    assert old.expired()
    assert int(optimizer.state[params[0]]["critical_clock"]) == 1


# -- saving ----------------------------------------------------------------------------------------------------------------

MANY = tuple((40 + i, 3) for i in range(12))
KINDS = {
    "class": lambda ps, **options: critgrad.Adam_C(ps, lr=0.05, topC=4, **options),
    "damping": lambda ps, **options: critgrad.Adam_F(ps, lr=0.05, topC=4, **options),
    "made": lambda ps, **options: critgrad.critical(torch.optim.RAdam)(ps, lr=0.05, topC=4, **options),
    "wrapper": lambda ps, **options: critgrad.CriticalGradients(torch.optim.SGD(ps, lr=0.05), topC=4, **options),
    "on a memory": lambda ps, **options: critgrad.Adam_CM(ps, lr=0.05, topC=4, **options),
}


@pytest.mark.parametrize("memory_dtype", [None, "int8"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_pickle_and_the_saved_state_of_one_parameter_are_no_larger(kind, memory_dtype):
    params = parameters(MANY, torch.float32)
    theirs = copies(params)
    optimizer = KINDS[kind](params, memory_dtype=memory_dtype)
    steps(optimizer, params, 6)
    with apart():
        other = KINDS[kind](theirs, memory_dtype=memory_dtype)
        steps(other, theirs, 6)
        sizes = [len(data) for data in (pickle.dumps(other), saved(other.state_dict()["state"][0]))]
        whole = len(saved(other.state_dict()))
    mine = [len(data) for data in (pickle.dumps(optimizer), saved(optimizer.state_dict()["state"][0]))]
    for size, was in zip(mine, sizes):
        assert size <= 1.05 * was + 4096
    assert len(saved(optimizer.state_dict())) <= 1.05 * whole + 4096 + 400 * 8 * len(MANY)  # a header for each tensor


@pytest.mark.parametrize("aggr", ["sum", "median", "fisher"])
@pytest.mark.parametrize("memory_dtype", [None, "bfloat16", "int8"])
def test_a_checkpoint_goes_on_bit_for_bit(memory_dtype, aggr):
    params = parameters(SHAPES, torch.float32)
    options = {"lr": 0.05, "topC": 3, "decay": 0.9, "aggr": aggr, "memory_dtype": memory_dtype}
    optimizer = critgrad.SGD_C(params, **options)
    steps(optimizer, params, 6)
    data = saved(optimizer.state_dict())
    theirs = copies(params)
    other = critgrad.SGD_C(theirs, **options)
    steps(other, theirs, 2)  # of which nothing is left
    with torch.no_grad():
        for q, p in zip(theirs, params):
            q.copy_(p)
    other.load_state_dict(loaded(data))
    assert storage_count(other, theirs) == 1
    for p, q in zip(params, theirs):
        for key in optimizer.state[p]:
            if key != "critical_sum":
                assert torch.equal(optimizer.state[p][key].float(), other.state[q][key].float()), key
    steps(optimizer, params, 6, 6)
    steps(other, theirs, 6, 6)
    assert_same_bits(params, theirs)


@pytest.mark.parametrize("kind", KINDS)
def test_checkpoints_go_from_one_layout_to_the_other(kind):
    params = parameters(SHAPES, torch.float32)
    theirs = copies(params)
    optimizer = KINDS[kind](params)
    steps(optimizer, params, 5)
    data = saved(optimizer.state_dict())
    with torch.no_grad():
        for q, p in zip(theirs, params):
            q.copy_(p)
    with apart():
        other = KINDS[kind](theirs)
        other.load_state_dict(loaded(data))
        steps(other, theirs, 5, 5)
        assert storage_count(other, theirs) == len(theirs)
        back = saved(other.state_dict())
    steps(optimizer, params, 5, 5)
    assert_close(params, theirs, rtol=1e-4, atol=1e-5)
    again = copies(theirs)
    third = KINDS[kind](again)
    third.load_state_dict(loaded(back))
    steps(third, again, 3, 10)
    steps(optimizer, params, 3, 10)
    assert_close(again, params, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("way", [copy.deepcopy, lambda optimizer: pickle.loads(pickle.dumps(optimizer))])
@pytest.mark.parametrize("kind", KINDS)
def test_a_copy_goes_on_bit_for_bit_and_shares_nothing(kind, way):
    params = parameters(SHAPES, torch.float32)
    optimizer = KINDS[kind](params)
    steps(optimizer, params, 6)
    other = way(optimizer)
    theirs = [p for group in other.param_groups for p in group["params"]]
    mine = {t.untyped_storage().data_ptr() for s in optimizer.state.values() for t in s.values()}
    assert not mine & {t.untyped_storage().data_ptr() for s in other.state.values() for t in s.values()}
    steps(optimizer, params, 5, 6)
    steps(other, theirs, 5, 6)
    assert_same_bits(params, theirs)


def test_saving_leaves_the_buffer_as_it_is():
    params = parameters(SHAPES, torch.float32)
    optimizer = critgrad.SGD_C(params, lr=0.05, topC=3)
    steps(optimizer, params, 4)
    before = [optimizer.state[p]["critical_slots"] for p in params]
    stores = optimizer._critical_memory().ready_stores
    saved(optimizer.state_dict()), pickle.dumps(optimizer), copy.deepcopy(optimizer)
    steps(optimizer, params, 1, 4)
    assert all(optimizer.state[p]["critical_slots"] is slots for p, slots in zip(params, before))
    assert optimizer._critical_memory().ready_stores is stores


def test_a_memory_of_its_own_is_in_one_buffer_and_saves_each_parameter_apart():
    params = parameters(MANY, torch.float32)
    memory = critgrad.Memory(params, topC=4)
    for t in range(5):
        memory.step([g.float() for g in GradientStream(params).at(t)])
    (store,) = memory.ready_stores
    assert len(store.blocks) == 1
    size = 4 * 5 * params[0].numel()  # four slots and their sum
    assert len(saved(memory.state_dict()["state"][0])) < size + 6000


def newer_way() -> None:
    torch.backends.mkldnn.matmul.fp32_precision = "bf16"  # after which torch no longer answers the older question


ASK = [lambda: torch.set_float32_matmul_precision("medium")]
ASK += [newer_way] if hasattr(torch.backends, "fp32_precision") else []  # torch 2.9


@pytest.mark.parametrize("ask", ASK, ids=["older", "newer"][: len(ASK)])
def test_whoever_asks_for_coarser_matrix_products_gets_the_same_memory(ask):
    ours, theirs = (parameters(((300, 200), (7,)), torch.float32) for _ in range(2))
    options = {"lr": 0.1, "topC": 4, "aggr": "fisher", "rho": 0.01}
    steps(critgrad.SGD_C(theirs, **options), theirs, 8)
    try:
        ask()
        steps(critgrad.SGD_C(ours, **options), ours, 8)
    finally:
        torch.set_float32_matmul_precision("highest")
    assert_close(ours, theirs, rtol=2e-6, atol=3e-7)


@pytest.mark.parametrize("memory_dtype", [None, "bfloat16"])
def test_a_step_within_autocast_is_the_step_without(memory_dtype):
    ours, theirs = (parameters(((300, 200), (7,)), torch.float32) for _ in range(2))
    options = {"lr": 0.1, "topC": 4, "aggr": "fisher", "rho": 0.01, "memory_dtype": memory_dtype}
    steps(critgrad.SGD_C(theirs, **options), theirs, 8)
    with torch.autocast("cpu", torch.bfloat16):
        steps(critgrad.SGD_C(ours, **options), ours, 8)
    assert_close(ours, theirs, rtol=2e-6, atol=3e-7)
