"""``critgrad.Memory``, the part of its own: every call against the reference, and what a call may not do."""

from __future__ import annotations

import io
import math
import os

import numpy as np
import pytest
import torch
from helpers import ALL_AGGREGATIONS, ALL_POLICIES, GradientStream, assert_same_bits, parameters
from memory_helpers import RankedMemory, assert_directions, assert_holds, in_pieces, long_vector, vectors_at

from critgrad import Memory, inspect
from critgrad.reference import ReferenceMemory

ENGINES_AND_DTYPES = {
    "torch-double": ("torch", torch.float64),
    "torch-single": ("torch", torch.float32),
    "native-single": ("native", torch.float32),
}
SHAPES = ((3, 4), (5,), ())
KEYS = {"critical_slots", "critical_sum", "critical_priority", "critical_norm", "critical_born", "critical_clock"}


@pytest.fixture(params=ENGINES_AND_DTYPES.values(), ids=ENGINES_AND_DTYPES.keys())
def dtype(request, monkeypatch):
    """Of the parameters; the engine is set beside it."""
    name, dtype = request.param
    monkeypatch.setenv("CRITGRAD_ENGINE", name)
    return dtype


def restless(params, seed=3):
    return GradientStream(params, seed, missing=0.15, zero=0.1, bad=0.15)


def storages(tensors) -> set[int]:
    return {t.untyped_storage().data_ptr() for t in tensors if t is not None}


def tensors_of(memory) -> list[torch.Tensor]:
    return [value for mine in memory.state.values() for value in mine.values()]


# -- the mathematics -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("aggr", ALL_AGGREGATIONS)
@pytest.mark.parametrize("policy", ALL_POLICIES)
def test_step_is_the_reference(dtype, policy, aggr):
    params = parameters(SHAPES, dtype)
    options = {"topC": 3, "decay": 0.8, "aggr": aggr, "kappa": 0.7, "rho": 0.2, "policy": policy, "every": 2, "seed": 5}
    memory, reference, stream = Memory(params, **options), ReferenceMemory(**options), restless(params)
    for t in range(12):
        vectors = vectors_at(stream, t, dtype)
        g = long_vector(vectors, params)
        assert_directions(memory.step(vectors), in_pieces(reference.direction(g), vectors, params), dtype)
        reference.insert(g)
        assert_holds(memory.state[params[0]], reference, dtype)
    assert len(memory) == len(reference.live)


@pytest.mark.parametrize("aggr", ALL_AGGREGATIONS)
@pytest.mark.parametrize("policy", ALL_POLICIES)
def test_step_is_combine_and_then_offer(dtype, policy, aggr):
    params = parameters(SHAPES, dtype)
    options = {"topC": 3, "decay": 0.8, "aggr": aggr, "policy": policy, "every": 2}
    at_once, one_by_one, stream = Memory(params, **options), Memory(params, **options), restless(params)
    reference = ReferenceMemory(**options)
    for t in range(10):
        vectors = vectors_at(stream, t, dtype)
        g = long_vector(vectors, params)
        wanted = in_pieces(reference.direction(g), vectors, params)
        reference.insert(g)
        assert_directions(at_once.step(vectors), wanted, dtype)
        assert_directions(one_by_one.combine(vectors), wanted, dtype)
        assert one_by_one.offer(vectors) is None
        assert_holds(at_once.state[params[0]], reference, dtype)
        assert_holds(one_by_one.state[params[0]], reference, dtype)


def test_calls_of_every_kind_may_take_turns(dtype):
    params = parameters(SHAPES, dtype)
    for aggr in ("mean", "fisher"):
        options = {"topC": 3, "decay": 0.9, "aggr": aggr}
        memory, reference, stream = Memory(params, **options), ReferenceMemory(**options), restless(params)
        for t in range(15):
            vectors = vectors_at(stream, t, dtype)
            g = long_vector(vectors, params)
            wanted = in_pieces(reference.direction(g), vectors, params)
            if t % 3 == 0:
                assert_directions(memory.step(vectors), wanted, dtype)
            elif t % 3 == 1:
                memory.offer(vectors)
            else:
                assert_directions(memory.combine(vectors), wanted, dtype)
                continue
            reference.insert(g)
        assert_holds(memory.state[params[0]], reference, dtype)


def test_combine_changes_nothing(dtype):
    params = parameters(SHAPES, dtype)
    memory, stream = Memory(params, topC=2, aggr="fisher"), GradientStream(params)
    for t in range(3):
        memory.step(vectors_at(stream, t, dtype))
    before = memory.state_dict()["state"]
    memory.combine(vectors_at(stream, 3, dtype))
    after = memory.state_dict()["state"]
    assert all(torch.equal(before[i][key], after[i][key]) for i in before for key in before[i])


def test_max_age_and_the_other_numbers_reach_the_memory(dtype):
    params = parameters(SHAPES, dtype)
    options = {"topC": 3, "decay": 1.0, "max_age": 4, "policy": "RR", "seed": 11, "aggr": "sum", "kappa": 0.3}
    memory, reference, stream = Memory(params, **options), ReferenceMemory(**options), restless(params)
    for t in range(25):
        vectors = vectors_at(stream, t, dtype)
        g = long_vector(vectors, params)
        assert_directions(memory.step(vectors), in_pieces(reference.direction(g), vectors, params), dtype)
        reference.insert(g)
    assert_holds(memory.state[params[0]], reference, dtype)


# -- what a call may not do ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("call", ["step", "combine"])
@pytest.mark.parametrize("aggr", ["mean", "max", "fisher"])
def test_results_are_fresh_and_vectors_are_let_be(dtype, call, aggr):
    params = parameters(SHAPES, dtype)
    memory, stream = Memory(params, topC=2, aggr=aggr), GradientStream(params)
    results = []
    for t in range(5):
        vectors = vectors_at(stream, t, dtype)
        before, versions = [v.clone() for v in vectors], [v._version for v in vectors]
        found = getattr(memory, call)(vectors)
        if call == "combine":
            memory.offer(vectors)
        kept = [d.clone() for d in found]
        assert [v._version for v in vectors] == versions
        assert_same_bits(vectors, before)
        assert not storages(found) & storages([*vectors, *params, *tensors_of(memory)])
        assert not any(storages(found) & storages(earlier) for earlier, _ in results)
        assert not storages(vectors) & storages(tensors_of(memory))
        results.append((found, kept))
    for found, kept in results:
        assert_same_bits(found, kept)


def test_writing_to_a_result_or_to_a_vector_does_not_reach_the_memory(dtype):
    params = parameters(SHAPES, dtype)
    one, other, stream = Memory(params, topC=2), Memory(params, topC=2), GradientStream(params)
    for t in range(4):
        vectors = vectors_at(stream, t, dtype)
        wanted = other.step([v.clone() for v in vectors])
        found = one.step(vectors)
        assert_same_bits(found, wanted)
        for tensor in (*found, *vectors):
            tensor.fill_(math.nan)


def test_an_empty_memory_gives_what_is_equal_and_not_the_same(dtype):
    params = parameters(SHAPES, dtype)
    vectors = vectors_at(GradientStream(params), 0, dtype)
    memory = Memory(params)
    for found in (memory.combine(vectors), memory.step(vectors)):
        assert_same_bits(found, vectors)
        assert all(d is not v for d, v in zip(found, vectors))
        assert not storages(found) & storages(vectors)


def test_results_carry_no_graph_and_vectors_may(dtype):
    params = parameters(SHAPES, dtype)
    memory, stream = Memory(params, topC=2), GradientStream(params)
    for t in range(3):
        vectors = [v.requires_grad_() for v in vectors_at(stream, t, dtype)]
        assert not any(d.requires_grad for d in [*memory.combine(vectors), *memory.step(vectors)])


def test_a_vector_that_is_missing_counts_as_zero(dtype):
    params = parameters(SHAPES, dtype)
    with_none, with_zeros, stream = Memory(params, topC=2), Memory(params, topC=2), GradientStream(params, missing=0.4)
    for t in range(8):
        vectors = vectors_at(stream, t, dtype)
        whole = [torch.zeros_like(p) if v is None else v for v, p in zip(vectors, params)]
        found, wanted = with_none.step(vectors), with_zeros.step(whole)
        assert [d is None for d in found] == [v is None for v in vectors]
        assert_same_bits([d for d in found if d is not None], [w for w, v in zip(wanted, vectors) if v is not None])
    assert_same_bits(tensors_of(with_none), tensors_of(with_zeros))


def test_nothing_but_missing_vectors_tick_and_are_not_stored(dtype):
    params = parameters(SHAPES, dtype)
    memory = Memory(params, topC=2)
    assert memory.step([None] * 3) == [None] * 3
    assert memory.combine([None] * 3) == [None] * 3
    assert (len(memory), int(memory.state[params[0]]["critical_clock"])) == (0, 1)


def test_zeros_tick_and_are_not_stored(dtype):
    params = parameters(SHAPES, dtype)
    memory = Memory(params, topC=2, decay=0.5)
    memory.step([torch.ones_like(p) for p in params])
    first = memory.state[params[0]]["critical_priority"].clone()
    found = memory.step([torch.zeros_like(p) for p in params])
    state = memory.state[params[0]]
    assert (len(memory), int(state["critical_clock"])) == (1, 2)
    assert torch.equal(state["critical_priority"], first * 0.5)
    assert all(torch.equal(d, torch.full_like(d, 0.5)) for d in found)  # the mean of it and what is held


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_vectors_that_are_not_finite_come_back_as_they_are_and_do_not_tick(dtype, bad):
    params = parameters(SHAPES, dtype)
    memory = Memory(params, topC=2)
    memory.step([torch.ones_like(p) for p in params])
    before = memory.state_dict()["state"]
    vectors = [torch.ones_like(p) for p in params]
    vectors[1][0] = bad
    for found in (memory.combine(vectors), memory.step(vectors)):
        assert_same_bits(found, vectors)
    memory.offer(vectors)
    after = memory.state_dict()["state"]
    assert all(torch.equal(before[i][key], after[i][key]) for i in before for key in before[i])


# -- priority --------------------------------------------------------------------------------------------------------------


def ranks(count: int, bad=(math.nan, math.inf, -1.0, -math.inf)) -> list[float]:
    """Priorities that have nothing to do with the vectors' norms, some of which admit nothing."""
    generator = torch.Generator().manual_seed(8)
    values = [float(10 ** (2 * torch.rand((), generator=generator) - 1)) for _ in range(count)]
    return [bad[i // 5 % len(bad)] if bad and i % 5 == 4 else value for i, value in enumerate(values)]


@pytest.mark.parametrize("as_tensor", [False, True], ids=["number", "tensor"])
@pytest.mark.parametrize("policy", ALL_POLICIES)
def test_a_priority_stands_in_the_norms_place(dtype, policy, as_tensor):
    params = parameters(SHAPES, dtype)
    options = {"topC": 3, "decay": 0.9, "policy": policy, "every": 2, "aggr": "max"}
    if dtype == torch.float32:
        options["aggr"] = "sum"  # which the native engine takes
    memory, reference, stream = Memory(params, **options), RankedMemory(**options), restless(params)
    for t, priority in enumerate(ranks(25)):
        vectors = vectors_at(stream, t, dtype)
        g = long_vector(vectors, params)
        given = torch.tensor(priority, dtype=torch.float64) if as_tensor else priority
        wanted = in_pieces(reference.direction(g), vectors, params)
        if t % 2:
            assert_directions(memory.step(vectors, priority=given), wanted, dtype)
        else:
            assert_directions(memory.combine(vectors), wanted, dtype)
            memory.offer(vectors, priority=given)
        reference.insert(g, priority)
        assert_holds(memory.state[params[0]], reference, dtype)


@pytest.mark.parametrize("call", ["step", "offer"])
@pytest.mark.parametrize("priority", [math.nan, math.inf, -math.inf, -1e-30, torch.tensor(math.nan)])
def test_a_priority_that_is_no_size_admits_nothing_but_ticks(dtype, call, priority):
    params = parameters(SHAPES, dtype)
    memory = Memory(params, topC=2, decay=0.5)
    ones = [torch.ones_like(p) for p in params]
    memory.step(ones)
    first = memory.state[params[0]]["critical_priority"].clone()
    getattr(memory, call)(ones, priority=priority)
    state = memory.state[params[0]]
    assert (len(memory), int(state["critical_clock"]), int(state["critical_inserted"])) == (1, 2, 1)
    assert torch.equal(state["critical_priority"], first * 0.5)


def test_a_priority_of_zero_is_the_lowest_and_under_bottomC_the_highest(dtype):
    params = parameters(SHAPES, dtype)
    ones = [torch.ones_like(p) for p in params]
    for policy, last in (("KotH", [2, 3]), ("bottomC", [2, 1])):
        memory = Memory(params, topC=2, decay=1.0, policy=policy)
        for priority in (0.0, 1.0, 2.0):
            memory.step(ones, priority=priority)
        born = memory.state[params[0]]["critical_born"].tolist()
        assert sorted(born) == sorted(last)
        assert torch.isfinite(memory.state[params[0]]["critical_priority"]).all()


def test_whole_numbers_and_one_number_in_a_list_are_priorities(dtype):
    params = parameters(SHAPES, dtype)
    ones = [torch.ones_like(p) for p in params]
    memory = Memory(params, topC=3, decay=1.0)
    for priority in (2, torch.tensor([3]), [4.0]):
        memory.step(ones, priority=priority)
    assert memory.state[params[0]]["critical_priority"].tolist() == [2.0, 3.0, 4.0]


@pytest.mark.parametrize("form", [float, np.float64, torch.tensor])
def test_a_number_in_a_wide_memory_is_not_rounded_to_single_precision(form):
    params = parameters(SHAPES, torch.float64)
    ones = [torch.ones_like(p) for p in params]
    memory = Memory(params, topC=1, decay=1.0)
    for priority in (1.0, 1.0 + 1e-12, 1e100):
        memory.step(
            ones, priority=torch.tensor(priority, dtype=torch.float64) if form is torch.tensor else form(priority)
        )
        assert memory.state[params[0]]["critical_priority"].item() == priority


@pytest.mark.parametrize("form", ["list", "tensor", "list of tensors"])
def test_under_scope_tensor_there_is_a_priority_for_each(dtype, form):
    params = parameters(SHAPES, dtype)
    options = {"topC": 2, "decay": 0.9, "aggr": "mid"}
    memory, stream = Memory(params, scope="tensor", **options), restless(params)
    references = [RankedMemory(**options, stream=(1 << 20) + i) for i in range(len(params))]
    numbers = ranks(60)
    for t in range(20):
        vectors, mine = vectors_at(stream, t, dtype), numbers[3 * t : 3 * t + 3]
        given = mine if form == "list" else torch.tensor(mine)
        given = list(given) if form == "list of tensors" else given
        wanted = []
        for reference, v, p, priority in zip(references, vectors, params, mine):
            g = long_vector([v], [p])
            wanted += in_pieces(reference.direction(g), [v], [p])
            reference.insert(g, priority)
        assert_directions(memory.step(vectors, priority=given), wanted, dtype)
    for reference, p in zip(references, params):
        assert_holds(memory.state[p], reference, dtype)


def test_norms_that_are_kept_are_the_vectors_own(dtype):
    params = parameters(SHAPES, dtype)
    memory, stream = Memory(params, topC=3, decay=1.0), GradientStream(params)
    vectors = [vectors_at(stream, t, dtype) for t in range(3)]
    for t, mine in enumerate(vectors):
        memory.step(mine, priority=t + 1.0)
    norms = torch.stack([long_vector(mine, params).norm() for mine in vectors])
    state = memory.state[params[0]]
    torch.testing.assert_close(state["critical_norm"].double(), norms, rtol=1e-5, atol=0)
    assert state["critical_priority"].tolist() == [1.0, 2.0, 3.0]


@pytest.mark.parametrize(
    "scope, priority, message",
    [
        ("global", [1.0, 2.0, 3.0], "Invalid priority: 3 numbers, expected one"),
        ("tensor", [1.0, 2.0], r"Invalid priority: shape \(2,\), expected one for each parameter"),
    ],
)
def test_a_wrong_number_of_priorities_is_told_before_anything_is_written(dtype, scope, priority, message):
    params = parameters(SHAPES, dtype)
    memory = Memory(params, scope=scope)
    ones = [torch.ones_like(p) for p in params]
    for call in (memory.step, memory.offer):
        with pytest.raises(ValueError, match=message):
            call(ones, priority=priority)
    assert len(memory) == 0


# -- groups and options ----------------------------------------------------------------------------------------------------


def test_groups_have_options_of_their_own(dtype):
    params = parameters(SHAPES, dtype)
    mine = [{"aggr": "sum", "kappa": 0.5}, {"aggr": "mean", "kappa": 2.0}]
    groups = [{"params": params[:1], **mine[0]}, {"params": params[1:], **mine[1]}]
    memory, stream = Memory(groups, topC=3, decay=0.9), restless(params)
    references = [ReferenceMemory(topC=3, decay=0.9, **options) for options in mine]  # the same entries in both
    for t in range(12):
        vectors = vectors_at(stream, t, dtype)
        g = long_vector(vectors, params)
        pieces = [in_pieces(reference.direction(g), vectors, params) for reference in references]
        assert_directions(memory.step(vectors), [pieces[0][0], *pieces[1][1:]], dtype)
        for reference in references:
            reference.insert(g)
    assert_holds(memory.state[params[2]], references[0], dtype)


def test_memories_of_their_own_and_a_group_without_one(dtype):
    params = parameters(SHAPES, dtype)
    groups = [
        {"params": params[0], "topC": 2, "decay": 0.5, "scope": "group"},
        {"params": [params[1]], "topC": 0},
        {"params": [params[2]], "topC": 4, "scope": "group", "policy": "FIFO"},
    ]
    memory, stream = Memory(groups, aggr="sum"), restless(params)
    references = {
        0: ReferenceMemory(topC=2, decay=0.5, aggr="sum", stream=1),
        2: ReferenceMemory(topC=4, policy="FIFO", aggr="sum", stream=3),
    }
    for t in range(12):
        vectors = vectors_at(stream, t, dtype)
        found = memory.step(vectors)
        for i, (d, v, p) in enumerate(zip(found, vectors, params)):
            if i == 1:
                assert (d is None) == (v is None)
                assert d is None or (torch.equal(d, v) and d is not v)
                continue
            g = long_vector([v], [p])
            assert_directions([d], in_pieces(references[i].direction(g), [v], [p]), dtype)
            references[i].insert(g)
    assert len(memory) == len(references[0].live) + len(references[2].live)
    assert params[1] not in memory.state


def test_a_memory_without_slots_gives_copies(dtype):
    params = parameters(SHAPES, dtype)
    vectors = vectors_at(GradientStream(params), 0, dtype)
    memory = Memory(params, topC=0)
    for found in (memory.step(vectors), memory.combine(vectors), memory.step(vectors, priority=3.0)):
        assert_same_bits(found, vectors)
        assert not storages(found) & storages(vectors)
    memory.offer(vectors)
    assert (len(memory), memory.state, memory.state_dict()["state"]) == (0, {}, {0: {}, 1: {}, 2: {}})


def test_len_counts_entries_over_all_tensors_under_scope_tensor(dtype):
    params = parameters(SHAPES, dtype)
    memory = Memory(params, topC=2, scope="tensor")
    memory.step([torch.ones_like(p) for p in params])
    memory.step([torch.ones_like(params[0]), None, None])
    assert len(memory) == 4


def test_state_gets_the_keys_under_each_parameter(dtype):
    params = parameters(SHAPES, dtype)
    state = {params[0]: {"mine": 1}}
    memory = Memory(params, state=state, topC=2)
    memory.step([torch.ones_like(p) for p in params])
    assert memory.state is state
    assert state[params[0]]["mine"] == 1
    for p in params:
        assert state[p].keys() >= KEYS
        assert state[p]["critical_slots"].shape == (2, *p.shape)
    memory.step([torch.ones_like(p) for p in params])
    assert int(state[params[1]]["critical_clock"]) == 2


def test_a_single_tensor_and_an_iterator_are_parameters_too(dtype):
    params = parameters(((3,),), dtype)
    for given in (params[0], iter(params), tuple(params), [{"params": params[0]}]):
        memory = Memory(given)
        memory.step([torch.ones_like(params[0])])
        assert len(memory) == 1


def test_an_option_set_in_a_group_counts_from_the_next_call(dtype):
    params = parameters(SHAPES, dtype)
    memory, reference, stream = Memory(params, topC=3), ReferenceMemory(topC=3), GradientStream(params)
    for t in range(8):
        memory.groups[0]["kappa"] = reference.kappa = 0.1 * t
        vectors = vectors_at(stream, t, dtype)
        g = long_vector(vectors, params)
        assert_directions(memory.step(vectors), in_pieces(reference.direction(g), vectors, params), dtype)
        reference.insert(g)


def test_inspect_looks_into_a_memory(dtype):
    params = parameters(SHAPES, dtype)
    memory = Memory(params, topC=3)
    memory.step([torch.ones_like(p) for p in params])
    report = inspect(memory)
    assert (report.memories[0].live, report.engine) == (1, os.environ["CRITGRAD_ENGINE"])


# -- saving ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("aggr", ["mean", "median", "fisher"])
@pytest.mark.parametrize("scope", ["global", "tensor"])
def test_a_saved_memory_goes_on_bit_for_bit(dtype, aggr, scope):
    params = parameters(SHAPES, dtype)
    options = {"topC": 3, "aggr": aggr, "scope": scope}
    one, stream = Memory(params, **options), restless(params)
    for t in range(6):
        one.step(vectors_at(stream, t, dtype))
    file = io.BytesIO()
    torch.save(one.state_dict(), file)
    file.seek(0)
    other = Memory(parameters(SHAPES, dtype), **options)
    other.step([torch.ones_like(p) for p in params])  # of which nothing is left
    other.load_state_dict(torch.load(file))
    assert_same_bits(tensors_of(other), tensors_of(one))
    for t in range(6, 12):
        vectors = vectors_at(stream, t, dtype)
        found, wanted = other.step(vectors), one.step(vectors)
        assert_same_bits([d for d in found if d is not None], [d for d in wanted if d is not None])
    assert_same_bits(tensors_of(other), tensors_of(one))


def test_what_was_saved_shares_nothing_with_the_memory(dtype):
    params = parameters(SHAPES, dtype)
    memory, stream = Memory(params, topC=2), GradientStream(params)
    memory.step(vectors_at(stream, 0, dtype))
    saved = memory.state_dict()
    tensors = [value for mine in saved["state"].values() for value in mine.values()]
    assert not storages(tensors) & storages(tensors_of(memory))
    memory.load_state_dict(saved)
    assert not storages(tensors) & storages(tensors_of(memory))
    before = [t.clone() for t in tensors]
    memory.step(vectors_at(stream, 1, dtype))
    assert_same_bits(tensors, before)


@pytest.mark.parametrize("topC", [1, 2, 3, 6])
def test_another_topC_keeps_the_strongest(dtype, topC):
    params = parameters(SHAPES, dtype)
    one, stream = Memory(params, topC=4, decay=1.0), GradientStream(params)
    for t in range(4):
        one.step(vectors_at(stream, t, dtype))
    other = Memory(params, topC=topC, decay=1.0)
    other.load_state_dict(one.state_dict())
    was, now = one.state[params[0]], other.state[params[0]]
    keep = was["critical_norm"].argsort(descending=True)[:topC].sort().values
    assert len(other) == min(topC, 4)
    assert torch.equal(now["critical_slots"][: len(keep)], was["critical_slots"][keep])
    assert torch.equal(now["critical_norm"][: len(keep)], was["critical_norm"][keep])
    total = was["critical_slots"][keep].sum(0)
    torch.testing.assert_close(now["critical_sum"], total)
    found = other.step([torch.zeros_like(p) for p in params])
    torch.testing.assert_close(found[0], total / (1 + len(keep)))


def test_a_state_that_does_not_fit_is_told_and_changes_nothing(dtype):
    params = parameters(SHAPES, dtype)
    memory = Memory(params, topC=2)
    memory.step([torch.ones_like(p) for p in params])
    saved = memory.state_dict()
    saved["state"][2]["critical_slots"] = torch.zeros(2, 7)
    before = [t.clone() for t in tensors_of(memory)]
    with pytest.raises(ValueError, match=r"Invalid critical_slots: \(2, 7\) for a parameter of shape \(\)"):
        memory.load_state_dict(saved)
    assert_same_bits(tensors_of(memory), before)


# -- what is wrong is told -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options, error, message",
    [
        ({"topc": 3}, TypeError, "Memory got an unexpected argument 'topc' .did you mean 'topC'"),
        ({"lr": 3}, TypeError, "Memory got an unexpected argument 'lr'.*expected one of topC, decay"),
        ({"decay": 1.5}, ValueError, "Invalid decay: 1.5, expected 0 <= decay <= 1"),
        ({"topC": -1}, ValueError, "Invalid topC: -1"),
        ({"aggr": "max_"}, ValueError, "Invalid aggr: 'max_', expected one of"),
        ({"policy": "koth"}, ValueError, "Invalid policy: 'koth', expected one of"),
        ({"aggr": "fisher", "kappa": 2.0}, ValueError, "Invalid kappa: 2.0, expected 0 <= kappa <= 1"),
    ],
)
def test_options_that_are_wrong_are_told(options, error, message):
    with pytest.raises(error, match=message):
        Memory(parameters(SHAPES), **options)


def test_a_wrong_option_of_a_group_is_told():
    params = parameters(SHAPES)
    with pytest.raises(ValueError, match="Invalid decay: 2"):
        Memory([{"params": params, "decay": 2}])
    with pytest.raises(ValueError, match=r"Invalid decay: .* in groups that share one memory"):
        Memory([{"params": params[:1], "decay": 0.5}, {"params": params[1:]}])
    with pytest.raises(ValueError, match="empty list of parameters"):
        Memory([])


@pytest.mark.parametrize("call", ["step", "combine", "offer"])
@pytest.mark.parametrize("count", [0, 2, 4])
def test_a_wrong_number_of_vectors_is_told(dtype, call, count):
    params = parameters(SHAPES, dtype)
    memory = Memory(params)
    with pytest.raises(ValueError, match=f"Invalid vectors: {count} of them, expected one for each of 3 parameters"):
        getattr(memory, call)([torch.ones(())] * count)
    assert len(memory) == 0


@pytest.mark.parametrize("call", ["step", "combine", "offer"])
@pytest.mark.parametrize("scope", ["global", "group"])
@pytest.mark.parametrize(
    "wrong, message",
    [
        (lambda p: torch.ones(4, dtype=p.dtype), r"shape \(4,\) on cpu for a parameter of .* and shape \(5,\)"),
        (lambda p: torch.ones(5, dtype=torch.float16), r"of torch.float16 and shape \(5,\)"),
        (lambda p: torch.ones(5, dtype=p.dtype, device="meta"), "on meta for a parameter"),
        (lambda p: torch.ones(5, dtype=p.dtype).to_sparse(), "does not support sparse"),
    ],
    ids=["shape", "dtype", "device", "sparse"],
)
def test_vectors_that_do_not_fit_are_told_before_anything_is_written(dtype, call, scope, wrong, message):
    params = parameters(SHAPES, dtype)
    memory = Memory([{"params": [p]} for p in params], topC=2, scope=scope)
    ones = [torch.ones_like(p) for p in params]
    memory.step(ones)
    before = [t.clone() for t in tensors_of(memory)]
    with pytest.raises(RuntimeError, match=message):
        getattr(memory, call)([ones[0], wrong(params[1]), ones[2]])
    assert_same_bits(tensors_of(memory), before)


# -- what torch refuses, and what is no list of vectors ----------------------------------------------------------------------


@pytest.mark.parametrize(
    "given, error, message",
    [
        (
            lambda: torch.nn.Linear(2, 2).named_parameters(),
            TypeError,
            "a tuple among them, expected tensors.*not named",
        ),
        (lambda: [1, 2], TypeError, "a int among them"),
        (lambda: [torch.zeros(2), {"params": [torch.zeros(2)]}], TypeError, "a dict among them"),
        (lambda: [{"parameters": [torch.zeros(2)]}], TypeError, "a dict among them.*with 'params'"),
        (lambda: [{"params": [p]} for p in [torch.zeros(2)] * 2], ValueError, "some are in more than one group"),
    ],
    ids=["named", "numbers", "mixed", "no params", "twice"],
)
def test_parameters_that_are_none_are_told(given, error, message):
    with pytest.raises(error, match=f"Invalid params: {message}"):
        Memory(given())


def test_a_state_that_is_none_is_told():
    with pytest.raises(TypeError, match="Invalid state: 'x', expected an optimizer or its state"):
        Memory([torch.zeros(2)], state="x")


@pytest.mark.parametrize("call", ["step", "combine", "offer"])
@pytest.mark.parametrize(
    "vectors, found",
    [
        (torch.ones(2, 2), "Tensor of Tensor"),
        ([None, [1.0, 2.0]], "list of NoneType, list"),
        ([np.ones(2)] * 2, "list of ndarray"),
        ({0: 1}, "dict of int"),
    ],
    ids=["tensor", "list", "numpy", "dict"],
)
def test_vectors_that_are_none_are_told(call, vectors, found):
    memory = Memory(parameters(((2,), (2,)), torch.float32))
    with pytest.raises(
        TypeError, match=f"Invalid vectors: a {found}, expected a list of tensors or None, one for each of 2"
    ):
        getattr(memory, call)(vectors)


def test_a_generator_of_vectors_is_taken_and_a_shape_that_does_not_fit_has_its_number():
    params = parameters(SHAPES, torch.float32)
    memory = Memory(params)
    memory.step(torch.ones_like(p) for p in params)
    assert len(memory) == 1
    with pytest.raises(RuntimeError, match=r"vectors\[1\]: .* shape \(4,\) on cpu for a parameter of .* shape \(5,\)"):
        memory.step([None, torch.ones(4), None])


@pytest.mark.parametrize("saved", [{}, "x", {"state": 3}, None], ids=str)
def test_what_is_no_state_of_a_memory_is_told(saved):
    with pytest.raises(ValueError, match="Invalid state_dict: no 'state' of parameters, expected 1"):
        Memory([torch.zeros(2)]).load_state_dict(saved)
