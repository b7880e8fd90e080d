"""The decision in Python numbers is the decision in torch, bit for bit: any tables, any norm, every policy it knows."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from helpers import GradientStream, memory_state, parameters, run
from hypothesis import given, settings
from hypothesis import strategies as st

import critgrad
import critgrad.plain
from critgrad import host
from critgrad.memory import Memory
from critgrad.options import DEFAULTS
from critgrad.policies import Tables, advance, decide

SIZES = st.one_of(st.sampled_from([0.0, 1.0, 2.0]), st.floats(2.0**-40, 2.0**40, width=32))


def memory_with(entries, t, **options) -> Memory:
    dtype = options.pop("dtype")
    owner = (torch.nn.Parameter(torch.zeros(2, dtype=dtype)), {**DEFAULTS, **options, "topC": len(entries)})
    memory = Memory([owner], [{}], [3], by_tensor=False)
    for k, (norm, age, shrunk) in enumerate(entries):
        if age is not None:
            memory.born[0, k] = max(t - age, 1)
            memory.norm[0, k] = norm
            memory.priority[0, k] = norm * shrunk
    memory.clock[0] = t
    return memory


@settings(max_examples=200, deadline=None)
@given(
    entries=st.lists(
        st.tuples(SIZES, st.one_of(st.none(), st.integers(0, 9)), st.sampled_from([1.0, 0.5, 0.0])),
        min_size=1,
        max_size=6,
    ),
    t=st.integers(0, 2**33),
    square=st.one_of(SIZES, st.sampled_from([math.nan, math.inf, 1e39, 1e-50, 1e300])),
    policy=st.sampled_from(sorted(host._RULES)),
    max_age=st.sampled_from([None, 1, 5]),
    decay=st.sampled_from([0.0, 0.7, 0.99, 1.0]),
    seed=st.integers(0, 2**40),
    dtype=st.sampled_from([torch.float32, torch.float64]),
)
def test_any_tables(entries, t, square, policy, max_age, decay, seed, dtype):
    memory = memory_with(entries, t, policy=policy, max_age=max_age, decay=decay, seed=seed, every=3, dtype=dtype)
    assert host.knows(memory)
    squared = torch.tensor([square], dtype=torch.float64)
    tables = Tables(
        priority=memory.priority.clone(),
        norm=memory.norm.clone(),
        born=memory.born.clone(),
        t=memory.clock + 1,
        g_norm=squared.to(memory.dtype).sqrt(),
        stream=memory.stream,
        seed=seed,
        every=3,
    )
    decision = decide(memory.policy, tables, max_age)
    expected = advance(memory.policy, tables, decision, decay)
    ours = host.HostDecision(memory, squared)
    ours.advance()
    assert ours.finite == bool(decision.finite)
    assert ours.accept == bool(decision.accept)
    if ours.accept:
        assert ours.slot == int(decision.slot)
    assert ours.live == sum(age is not None for _, age, _ in entries)
    for table, other in zip((memory.priority, memory.norm, memory.born), expected, strict=True):
        assert torch.equal(table, other)
    assert int(memory.clock) == t + ours.finite
    assert int(memory.inserted) == ours.accept


@pytest.mark.parametrize("aggr", ["mean", "fisher"])
@pytest.mark.parametrize("policy", sorted(host._RULES))
def test_a_run_with_it_is_the_run_without_it(policy, aggr, monkeypatch):
    options = {"policy": policy, "aggr": aggr, "topC": 4, "decay": 0.9, "max_age": 9, "every": 2, "fused": False}
    ours, theirs = (parameters(dtype=torch.float32) for _ in range(2))
    stream = GradientStream(ours, zero=0.1, bad=0.1, missing=0.2)
    a = critgrad.SGD_C(ours, lr=1e-3, **options)
    run(a, ours, stream, 40)
    monkeypatch.setattr(critgrad.plain, "knows", lambda memory: False)
    b = critgrad.SGD_C(theirs, lr=1e-3, **options)
    run(b, theirs, stream, 40)
    for mine, other in zip(copy.deepcopy(memory_state(a)), memory_state(b), strict=True):
        for key, value in mine.items():
            assert torch.equal(value, other[key]), key


def test_rules_that_add_up_are_left_to_torch():
    for policy in ("MNDS", "NCPR", "CDS", "CSS"):
        assert not host.knows(memory_with([(1.0, 1, 1.0)], 3, policy=policy, dtype=torch.float32))
    mine = critgrad.Policy("KotH", lambda tables: tables.g_norm > 0, lambda tables: tables.born.argmin(-1))
    assert not host.knows(memory_with([(1.0, 1, 1.0)], 3, policy=mine, dtype=torch.float32))
