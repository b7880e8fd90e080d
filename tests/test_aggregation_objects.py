"""``critgrad.Aggregation``: weights that users write, against the built-in ones and the reference."""

from __future__ import annotations

import copy
import io
import math
import pickle

import pytest
import torch
from helpers import GradientStream, assert_close, assert_same_bits, copies, parameters
from memory_helpers import assert_directions, in_pieces, long_vector, vectors_at

import critgrad
from critgrad import Aggregation, Memory, inspect
from critgrad.reference import ReferenceMemory

SHAPES = ((3, 4), (5,), ())
KAPPA = 0.6


def ones(tables):
    return torch.ones_like(tables.g_norm)


def like_mean(tables):
    share = 1 / (1 + KAPPA * tables.live.sum(-1).double())
    return share, (share * KAPPA)[..., None].expand_as(tables.born)


def like_sum(tables):
    return ones(tables), (KAPPA / tables.live.sum(-1).double())[..., None].expand_as(
        tables.born
    )  # 1 / 0 while it is empty


def like_min(tables):
    never = torch.iinfo(torch.int64).max
    smallest = torch.where(tables.live, tables.norm, math.inf).amin(-1, keepdim=True)
    slot = torch.where(tables.live & (tables.norm == smallest), tables.born, never).argmin(-1)
    return ones(tables), KAPPA * torch.nn.functional.one_hot(slot, tables.born.shape[-1]).double()


def newest(tables):
    return ones(tables), torch.nn.functional.one_hot(tables.born.argmax(-1), tables.born.shape[-1]).double()


RESTATED = {"mean": like_mean, "sum": like_sum, "min": like_min}


def restless(params, seed=3):
    return GradientStream(params, seed, missing=0.15, zero=0.1, bad=0.15)


def same_directions(one, other, params, steps=12, dtype=torch.float64):
    stream = restless(params)
    for t in range(steps):
        vectors = vectors_at(stream, t, dtype)
        found, wanted = one.step(vectors), other.step(vectors)
        assert_directions(found, [None if d is None else d.double() for d in wanted], dtype)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("scope", ["global", "group", "tensor"])
@pytest.mark.parametrize("name", RESTATED)
def test_a_built_in_one_that_is_restated_by_weights_is_the_same(name, scope, dtype):
    params = parameters(SHAPES, dtype)
    options = {"topC": 3, "decay": 0.9, "scope": scope}
    restated = Memory(params, aggr=Aggregation("mine", RESTATED[name]), **options)
    same_directions(restated, Memory(params, aggr=name, kappa=KAPPA, **options), params, dtype=dtype)


@pytest.mark.parametrize("name", RESTATED)
def test_it_stands_before_any_optimizer_as_the_built_in_one_does(name):
    one, other = parameters(SHAPES), parameters(SHAPES)
    mine = critgrad.Adam_C(one, lr=0.05, topC=3, aggr=Aggregation("mine", RESTATED[name]))
    wrapped = critgrad.CriticalGradients(
        torch.optim.Adam(other, lr=0.05), topC=3, aggr=Aggregation("mine", RESTATED[name])
    )
    built_in = copies(one)
    theirs = critgrad.Adam_C(built_in, lr=0.05, topC=3, aggr=name, kappa=KAPPA)
    for t in range(12):
        for params, optimizer in ((one, mine), (other, wrapped), (built_in, theirs)):
            restless(params).set(params, t)
            optimizer.step()
    assert_close(one, built_in)
    assert_close(other, built_in)


def test_kappa_plays_no_part():
    params = parameters(SHAPES)
    aggr = Aggregation("mine", like_sum)
    same_directions(Memory(params, aggr=aggr, kappa=0.0), Memory(params, aggr=aggr, kappa=3.0), params)


@pytest.mark.parametrize("policy", ["KotH", "CDS", "RR"])
def test_the_newest_entry_can_be_written_and_is_the_references(policy):
    params = parameters(SHAPES)
    memory = Memory(params, topC=3, aggr=Aggregation("newest", newest), policy=policy)
    reference, stream = ReferenceMemory(topC=3, policy=policy), restless(params)
    for t in range(14):
        vectors = vectors_at(stream, t, torch.float64)
        g = long_vector(vectors, params)
        wanted = g
        if reference.live and torch.isfinite(g).all():
            wanted = g + max(reference.live, key=lambda entry: entry.born).gradient
        assert_directions(memory.step(vectors), in_pieces(wanted, vectors, params), torch.float64)
        reference.insert(g)


# -- what weights may look at ----------------------------------------------------------------------------------------------


def test_dots_and_cosine_are_the_ones_with_what_is_held():
    params = parameters(SHAPES)
    seen = []

    def looks(tables):
        seen.append((tables.dots.clone(), tables.cosine().clone()))
        return ones(tables), torch.zeros_like(tables.norm)

    memory = Memory(params, topC=3, aggr=Aggregation("looks", looks, needs_dots=True, needs_cosine=True))
    reference, stream = ReferenceMemory(topC=3), GradientStream(params, missing=0.2)
    for t in range(8):
        vectors = vectors_at(stream, t, torch.float64)
        g = long_vector(vectors, params)
        dots = torch.tensor([0.0 if e is None else float(e.gradient @ g) for e in reference.entries]).double()
        total = sum((e.gradient for e in reference.live), torch.zeros_like(g))
        cosine = torch.nn.functional.cosine_similarity(g, total, dim=0)
        memory.step(vectors)
        torch.testing.assert_close(seen[-1][0][0], dots, rtol=1e-6, atol=1e-6)
        torch.testing.assert_close(seen[-1][1][0], cosine, rtol=1e-9, atol=1e-12)
        reference.insert(g)


def test_a_projection_on_the_newest_entry_can_be_written():
    params = parameters(((4,),))

    def without_newest(tables):
        slot = tables.born.argmax(-1, keepdim=True)
        share = -(tables.dots / tables.norm.double().square().clamp(min=1e-300)).gather(-1, slot)
        return ones(tables), torch.zeros_like(tables.dots).scatter(-1, slot, share)

    memory = Memory(params, topC=2, aggr=Aggregation("without", without_newest, needs_dots=True))
    a, b = torch.tensor([1.0, 2.0, 3.0, 4.0]).double(), torch.tensor([0.0, 1.0, -1.0, 1.0]).double()
    memory.step([a])
    (d,) = memory.step([b])
    torch.testing.assert_close(d, b - (a @ b) / (a @ a) * a)


@pytest.mark.parametrize(
    "reads, flag", [(lambda tables: tables.dots, "needs_dots"), (lambda tables: tables.cosine(), "needs_cosine")]
)
def test_what_was_not_asked_for_is_told_with_its_name(reads, flag):
    params = parameters(SHAPES)
    memory = Memory(params, aggr=Aggregation("curious", lambda tables: (ones(tables), reads(tables))))
    with pytest.raises(RuntimeError, match=f"aggregation 'curious' reads tables.*make it with {flag}=True"):
        memory.step([torch.ones_like(p) for p in params])


def test_the_policys_flag_does_not_hide_whose_rule_it_is():
    params = parameters(SHAPES)
    curious = Aggregation("curious", lambda tables: (ones(tables), tables.dots))
    memory = Memory(params, policy="CDS", aggr=curious)  # the policy has its cosine, and no dots
    with pytest.raises(RuntimeError, match="aggregation 'curious' reads"):
        memory.step([torch.ones_like(p) for p in params])


# -- what weights may return -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "weights, found",
    [
        (lambda t: (ones(t)[:, None], torch.zeros_like(t.norm)), r"\(\(1, 1\), \(1, 3\)\)"),
        (lambda t: (ones(t), ones(t)), r"\(\(1,\), \(1,\)\)"),
        (lambda t: (ones(t), torch.zeros_like(t.norm)[0]), r"\(\(1,\), \(3,\)\)"),
        (lambda t: (1.0, torch.zeros_like(t.norm)), r"\('float', \(1, 3\)\)"),
        (lambda t: (ones(t),), r"\(\(1,\),\)"),
        (lambda t: None, r"\('NoneType',\)"),
        (lambda t: 1.0, r"\('float',\)"),
    ],
)
@pytest.mark.parametrize("full", [False, True])
def test_weights_of_wrong_shapes_are_refused_with_its_name_and_nothing_is_written(weights, found, full):
    params = parameters(SHAPES)
    optimizer = critgrad.SGD_C(params, lr=0.1, topC=3)
    if full:
        for t in range(4):
            GradientStream(params).set(params, t)
            optimizer.step()
    GradientStream(params).set(params, 4)
    before = copy.deepcopy([dict(state) for state in optimizer.state.values()])
    weights_before = copies(params)
    optimizer.param_groups[0]["aggr"] = Aggregation("wrong", weights)
    with pytest.raises(ValueError, match=rf"aggregation 'wrong': weights of shapes {found}, expected"):
        optimizer.step()
    for mine, was in zip(optimizer.state.values(), before):
        assert all(torch.equal(mine[key], was[key]) for key in was)
    assert_same_bits(params, weights_before)


def test_an_empty_memory_gives_the_gradient_whatever_the_weights():
    params = parameters(SHAPES)
    vectors = vectors_at(GradientStream(params), 0, torch.float64)
    for value in (7.0, math.nan, math.inf):
        aggr = Aggregation("any", lambda t, v=value: (v * ones(t), torch.full_like(t.norm, v)))
        assert_same_bits(Memory(params, aggr=aggr).step(vectors), vectors)


@pytest.mark.parametrize("part", [0, 1], ids=["gradient", "slots"])
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_weights_that_are_not_finite_are_an_error_with_its_name_once_they_count(value, part):
    params, weights = parameters(SHAPES), [1.0, 1.0]
    aggr = Aggregation("odd", lambda t: (weights[0] * ones(t), torch.full_like(t.norm, weights[1])))
    optimizer = critgrad.SGD_C(params, lr=0.1, aggr=aggr)
    GradientStream(params).set(params, 0)
    weights[part] = value
    optimizer.step()  # an empty memory is not used
    before = copy.deepcopy(optimizer.state_dict()["state"])
    with pytest.raises(ValueError, match=r"aggregation 'odd': weights .*(nan|inf).*, expected finite ones"):
        optimizer.step()
    for i, state in optimizer.state_dict()["state"].items():
        assert all(torch.equal(value, before[i][key]) for key, value in state.items())


@pytest.mark.parametrize("value", [5.0, math.nan, math.inf])
def test_free_slots_are_ignored_whatever_weight_they_get(value):
    params = parameters(SHAPES)

    def wild(tables):
        return ones(tables), torch.where(tables.live, 0.5, value).to(tables.norm.dtype)

    memory, stream = Memory(params, topC=5, aggr=Aggregation("wild", wild)), GradientStream(params)
    held = []
    for t in range(4):
        vectors = vectors_at(stream, t, torch.float64)
        g = long_vector(vectors, params)
        wanted = g + 0.5 * sum(held, torch.zeros_like(g))
        assert_directions(memory.step(vectors), in_pieces(wanted, vectors, params), torch.float64)
        held.append(g)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_gradient_that_is_not_finite_comes_as_it_is(bad):
    params = parameters(SHAPES)
    memory = Memory(params, topC=2, aggr=Aggregation("mine", like_mean), scope="tensor")
    first = [torch.ones_like(p) for p in params]
    memory.step(first)
    vectors = [torch.ones_like(p) * 2 for p in params]
    vectors[1][0] = bad
    vectors[2] = None
    found = memory.step(vectors)
    assert_same_bits([found[1]], [vectors[1]])
    assert found[2] is None
    torch.testing.assert_close(found[0], (2 + KAPPA * first[0]) / (1 + KAPPA))


def test_whole_numbers_are_weights_too():
    params = parameters(SHAPES)

    def whole(tables):
        return ones(tables).long(), tables.live.long()

    memory = Memory(params, topC=3, aggr=Aggregation("whole", whole))
    memory.step([torch.ones_like(p) for p in params])
    assert all(torch.equal(d, torch.full_like(d, 3.0)) for d in memory.step([torch.ones_like(p) * 2 for p in params]))


@pytest.mark.parametrize("memory_dtype", ["bfloat16", "int8", "float8"])
def test_slots_of_fewer_bits_are_weighed_as_they_are_held(memory_dtype):
    params = parameters(((300,), (7,)), torch.float32)
    memory = Memory(params, topC=2, memory_dtype=memory_dtype, aggr=Aggregation("newest", newest))
    stream = GradientStream(params)
    first, second = vectors_at(stream, 0, torch.float32), vectors_at(stream, 1, torch.float32)
    memory.step(first)
    plain = Memory(params, topC=2, memory_dtype=memory_dtype, aggr="sum")
    plain.step(first)
    assert_close(memory.step(second), plain.step(second), rtol=1e-5, atol=1e-6)


# -- engines, names, checkpoints -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("flags", [{}, {"needs_dots": True}, {"needs_cosine": True}], ids=str)
def test_it_runs_on_torchs_operations_and_inspect_says_why(flags):
    params = parameters(SHAPES, torch.float32)
    optimizer = critgrad.Adam_C(params, aggr=Aggregation("mine", like_mean, **flags))
    for t in range(3):
        GradientStream(params).set(params, t)
        optimizer.step()
    report = inspect(optimizer)
    assert (report.engine, report.memories[0].aggr) == ("torch", ("mine",))
    assert "does not take aggr='mine'" in report.engine_reason


def test_going_over_to_a_built_in_one_and_back_changes_the_engine_and_keeps_the_entries():
    params = parameters(SHAPES, torch.float32)
    mine = Aggregation("mine", like_sum)
    optimizer, stream = critgrad.SGD_C(params, lr=0.1, topC=3, kappa=KAPPA), GradientStream(params)
    theirs = copies(params)
    other = critgrad.SGD_C(theirs, lr=0.1, topC=3, kappa=KAPPA, fused=False)
    engines = []
    for t in range(9):
        optimizer.param_groups[0]["aggr"] = mine if t // 3 == 1 else "sum"
        for each, stepper in ((params, optimizer), (theirs, other)):
            stream.set(each, t)
            stepper.step()
        engines.append(inspect(optimizer).engine)
    assert engines == ["native"] * 3 + ["torch"] * 3 + ["native"] * 3
    assert_close(params, theirs, rtol=1e-4, atol=1e-5)


def test_a_class_with_one_by_default_is_called_C():
    cls = critgrad.critical(torch.optim.Adagrad, aggr=Aggregation("mine", like_mean))
    assert cls.__name__ == "Adagrad_C"
    assert critgrad.critical(torch.optim.Adagrad, aggr=Aggregation("mine", like_mean)) is cls


def test_it_is_saved_by_its_name_and_loading_asks_for_the_object():
    params = parameters(SHAPES, torch.float32)
    mine, stream = Aggregation("mine", like_mean), GradientStream(params)
    optimizer = critgrad.Adam_C(params, lr=0.05, topC=3, aggr=mine)
    for t in range(5):
        stream.set(params, t)
        optimizer.step()
    file = io.BytesIO()
    torch.save(optimizer.state_dict(), file)
    file.seek(0)
    saved = torch.load(file)  # weights only: there is no function in it
    assert saved["param_groups"][0]["aggr"] == "mine"
    assert optimizer.param_groups[0]["aggr"] is mine
    theirs = copies(params)
    with pytest.raises(ValueError, match=r"made with 'mine', .*construct the optimizer with that critgrad.Aggregation"):
        critgrad.Adam_C(theirs, lr=0.05, topC=3).load_state_dict(saved)
    other = critgrad.Adam_C(theirs, lr=0.05, topC=3, aggr=mine)
    other.load_state_dict(saved)
    for t in range(5, 10):
        for each, stepper in ((params, optimizer), (theirs, other)):
            stream.set(each, t)
            stepper.step()
    assert_same_bits(params, theirs)


@pytest.mark.parametrize("way", [copy.deepcopy, lambda optimizer: pickle.loads(pickle.dumps(optimizer))])
def test_it_is_copied_and_pickled_with_its_optimizer(way):
    params = parameters(SHAPES, torch.float32)
    optimizer, stream = critgrad.SGD_C(params, lr=0.05, aggr=Aggregation("mine", like_mean)), GradientStream(params)
    for t in range(4):
        stream.set(params, t)
        optimizer.step()
    other = way(optimizer)
    theirs = other.param_groups[0]["params"]
    for t in range(4, 8):
        for each, stepper in ((params, optimizer), (theirs, other)):
            stream.set(each, t)
            stepper.step()
    assert_same_bits(params, theirs)


def test_it_may_damp_in_one_group_and_add_by_weights_in_the_other():
    params = parameters(SHAPES)
    mine = Aggregation("dots", lambda t: (ones(t), 0.1 * torch.tanh(t.dots)), needs_dots=True)
    memory = Memory(
        [{"params": params[:1], "aggr": "fisher", "rho": 0.2}, {"params": params[1:], "aggr": mine}], topC=3, decay=0.9
    )
    reference, stream = ReferenceMemory(topC=3, decay=0.9, rho=0.2), restless(params)
    for t in range(10):
        vectors = vectors_at(stream, t, torch.float64)
        g = long_vector(vectors, params)
        wanted = g
        if reference.live and torch.isfinite(g).all():
            G = torch.stack([entry.gradient for entry in reference.live])
            wanted = g + (0.1 * torch.tanh(G @ g)) @ G
            held = ReferenceMemory(aggr="fisher", rho=0.2)
            n = params[0].numel()
            held.entries = [copy.copy(entry) for entry in reference.live]
            for entry in held.entries:
                entry.gradient = entry.gradient[:n]
            wanted = torch.cat([held.damped(g[:n]), wanted[n:]])
        assert_directions(memory.step(vectors), in_pieces(wanted, vectors, params), torch.float64)
        reference.insert(g)


@pytest.mark.parametrize("wrong", [like_mean, 3, None])
def test_what_is_no_aggregation_is_refused(wrong):
    with pytest.raises(ValueError, match=r"Invalid aggr: .*, expected one of .* or a critgrad.Aggregation"):
        critgrad.Adam_C(parameters(SHAPES), aggr=wrong)
