"""Rules that users write: what they return is checked before anything is written, and what they may look at is there."""

from __future__ import annotations

import copy

import pytest
import torch
from helpers import GradientStream, parameters

import critgrad
from critgrad.memory import policies
from critgrad.memory.aggregations import AGGREGATIONS
from critgrad.memory.policies import Policy, always, lowest_priority, oldest

ENGINES = {"torch": False, "native": None}  # by the option fused


def constant(value: int):
    return lambda tables: torch.full_like(tables.t, value)


def optimizer_with(policy, engine, params, **options):
    optimizer = critgrad.Adam_C(params, lr=0.01, topC=3, policy=policy, fused=ENGINES[engine], **options)
    return optimizer


def snapshot(optimizer):
    return copy.deepcopy({i: dict(state) for i, state in enumerate(optimizer.state.values())})


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("scope", ["global", "tensor"])
@pytest.mark.parametrize("aggr", ["mean", "fisher"])
@pytest.mark.parametrize("value", [3, 99, -1, 100_000, -(2**40)])
def test_a_slot_out_of_range_is_an_index_error_before_anything_is_written(engine, scope, aggr, value):
    params = parameters(((40,), (3, 2)), torch.float32)
    optimizer = optimizer_with(Policy("wrong", always, constant(value)), engine, params, scope=scope, aggr=aggr)
    stream = GradientStream(params)
    for t in range(3):
        stream.set(params, t)
        optimizer.step()
    assert critgrad.inspect(optimizer).engine == engine
    before, weights = snapshot(optimizer), [p.detach().clone() for p in params]
    stream.set(params, 3)
    with pytest.raises(IndexError, match=rf"policy 'wrong' replaces slot {value}, expected 0 <= slot < 3"):
        optimizer.step()
    after = snapshot(optimizer)
    assert all(torch.equal(before[i][key], after[i][key]) for i in before for key in before[i])
    assert all(map(torch.equal, weights, params))


@pytest.mark.parametrize("engine", ENGINES)
def test_a_slot_out_of_range_that_is_not_used_does_no_harm(engine):
    params = parameters(((40,),), torch.float32)
    optimizer = optimizer_with(
        Policy("never", lambda t: torch.zeros_like(t.g_norm, dtype=torch.bool), constant(-1)), engine, params
    )
    stream = GradientStream(params)
    for t in range(6):
        stream.set(params, t)
        optimizer.step()
    assert critgrad.inspect(optimizer).memories[0].inserted == 3


@pytest.mark.parametrize(
    "rules, error, message",
    [
        ({"evict": lambda t: 1}, TypeError, "evict returned 1, expected a tensor"),
        ({"evict": lambda t: t.t.float()}, ValueError, "evict returned torch.float32 of shape"),
        ({"evict": lambda t: t.born}, ValueError, r"of shape \(1, 3\) on cpu, expected int64 of shape \(1,\)"),
        ({"admit": lambda t: t.g_norm}, ValueError, "admit returned torch.float32"),
        ({"admit": lambda t: True}, TypeError, "admit returned True"),
        ({"priority": lambda norm: norm.long()}, ValueError, "priority returned torch.int64"),
        ({"admit": lambda t: t.cosine() > 0}, RuntimeError, "reads tables.cosine.*needs_cosine=True"),
        ({"admit": lambda t: t.dots[..., 0] > 0}, RuntimeError, "reads tables.dots.*needs_dots=True"),
    ],
)
@pytest.mark.parametrize("engine", ENGINES)
def test_what_a_rule_returns_or_reads_in_a_wrong_way_is_told_with_the_policys_name(engine, rules, error, message):
    params = parameters(((40,),), torch.float32)
    optimizer = optimizer_with(Policy("mine", **{"admit": always, "evict": oldest, **rules}), engine, params)
    GradientStream(params).set(params, 0)
    with pytest.raises(error, match=f"policy 'mine'.*{message}"):
        optimizer.step()


@pytest.mark.parametrize(
    "make, field",
    [
        (lambda: Policy(3, always, oldest), "name: 3, expected a string"),
        (lambda: Policy("x", True, oldest), "admit: True, expected a function"),
        (lambda: Policy("x", always, 3), "evict: 3"),
        (lambda: Policy("x", always, oldest, priority=1.0), "priority: 1.0"),
        (lambda: critgrad.Aggregation(None, lambda tables: None), "name: None"),
        (lambda: critgrad.Aggregation("x", 3), "weights: 3"),
    ],
    ids=["policy name", "admit", "evict", "priority", "aggregation name", "weights"],
)
def test_a_record_without_functions_or_a_name_is_refused_when_it_is_made(make, field):
    with pytest.raises(TypeError, match=f"Invalid {field}"):
        make()


@pytest.mark.parametrize(
    "option, own, equal",
    [
        ("policy", Policy("KotH", always, oldest), policies.POLICIES["KotH"]),
        ("policy", critgrad.Replay([0], name="FIFO"), copy.deepcopy(policies.POLICIES["FIFO"])),
        ("aggr", critgrad.Aggregation("mean", lambda tables: None), AGGREGATIONS["mean"]),
    ],
    ids=["policy", "replay", "aggregation"],
)
def test_rules_of_ones_own_cannot_have_a_built_in_name_by_which_another_would_come_back(option, own, equal):
    params = parameters(((3,),))
    message = f"Invalid {option}: '{own.name}' is the name of a built-in one, which a checkpoint .*a name of its own"
    for make in (critgrad.Adam_C, critgrad.Adam_CM, critgrad.Memory):
        with pytest.raises(ValueError, match=message):
            make(params, **{option: own})
        make(params, **{option: equal})


def test_other_integer_types_are_slots_too():
    params = parameters(((40,),), torch.float32)
    optimizer = optimizer_with(Policy("short", always, lambda t: oldest(t).to(torch.int32)), "native", params)
    stream = GradientStream(params)
    for t in range(5):
        stream.set(params, t)
        optimizer.step()
    assert critgrad.inspect(optimizer).memories[0].ages == [2, 1, 3]


@pytest.mark.parametrize("scope", ["global", "tensor"])
@pytest.mark.parametrize("aggr", ["sum", "fisher", "mixed"])
def test_dots_are_the_gradients_inner_products_with_every_slot(scope, aggr):
    seen = []

    def look(tables):
        seen.append(tables.dots.clone())
        return always(tables)

    params = parameters(((5,), (3, 2)), torch.float64)
    groups = [{"params": [p]} for p in params]
    groups[1]["aggr"] = "fisher" if aggr == "mixed" else aggr
    optimizer = critgrad.SGD_C(
        groups, lr=0.01, topC=3, aggr="sum" if aggr == "mixed" else aggr, scope=scope,
        policy=Policy("looks", look, oldest, needs_dots=True),
    )  # fmt: skip
    stream, held = GradientStream(params), []
    for step in range(6):
        stream.set(params, step)
        grads = [p.grad.flatten().clone() for p in params]
        seen.clear()
        optimizer.step()
        expected = torch.zeros(len(params), 3, dtype=torch.float64)
        for slot in range(min(step, 3)):
            entry = held[-1 - (step - 1 - slot) % 3]
            for i, (g, stored) in enumerate(zip(grads, entry)):
                expected[i, slot] = g @ stored
        if scope == "global":
            expected = expected.sum(0, keepdim=True)
        found = torch.cat(seen) if scope == "tensor" else seen[0]
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-14)
        held.append(grads)


@pytest.mark.parametrize("base", ["Adam", "SGD"])
@pytest.mark.parametrize("extra", [{}, {"also_while_filling": True}, {"priority": lambda norm: norm * 2}])
def test_a_policy_added_by_contributings_recipe_is_the_same_on_every_engine(monkeypatch, base, extra):
    def larger_than_the_youngest(tables):
        newest = tables.born.argmax(-1, keepdim=True)
        return tables.g_norm > tables.norm.gather(-1, newest).squeeze(-1)

    monkeypatch.setitem(
        policies.POLICIES, "rising", Policy("rising", larger_than_the_youngest, lowest_priority, **extra)
    )
    results = []
    for engine, fused in ENGINES.items():
        params = parameters(((40,), (3, 2)), torch.float32)
        optimizer = getattr(critgrad, base + "_C")(params, lr=0.01, topC=3, policy="rising", fused=fused)
        stream = GradientStream(params)
        for t in range(20):
            stream.set(params, t)
            optimizer.step()
        report = critgrad.inspect(optimizer)
        assert report.engine == engine
        results.append((report.memories[0].ages, [p.detach() for p in params]))
    assert results[0][0] == results[1][0]
    assert 3 < critgrad.inspect(optimizer).memories[0].inserted < 20
    torch.testing.assert_close(results[0][1], results[1][1])
