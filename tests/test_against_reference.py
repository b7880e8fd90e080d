"""Every path equals Algorithm 1, slot by slot: all policies, aggregations, scopes and options."""

from __future__ import annotations

import pytest
import torch
from helpers import (
    ALL_AGGREGATIONS,
    ALL_POLICIES,
    BASES,
    GradientStream,
    ReferenceOptimizer,
    assert_close,
    copies,
    pairs_first,
    parameters,
    run,
)
from hypothesis import given, settings
from hypothesis import strategies as st

import critgrad


def compare(options, steps=40, base="SGD", stream_options=None, shapes=((3, 4), (5,), (), (2, 1, 3)), seed=0):
    """Ours against the reference, over a stream of gradients; the tables after it, too."""
    cls, kwargs = BASES[base]
    ours, theirs = parameters(shapes, seed=seed), parameters(shapes, seed=seed)
    stream = GradientStream(ours, seed=seed, **(stream_options or {}))
    optimizer = critgrad.critical(cls)(ours, **kwargs, **options)
    reference = ReferenceOptimizer(theirs, lambda params: cls(params, **kwargs), **options)
    for t in range(steps):
        stream.set(ours, t)
        stream.set(theirs, t)
        optimizer.step()
        reference.step()
    assert_close(ours, theirs)
    for i, memory in enumerate(reference.memories):
        state = optimizer.state[ours[i]]  # under one memory for all, every parameter has the same tables
        assert state["critical_clock"].item() == memory.t
        assert state["critical_born"].tolist() == [0 if e is None else e.born for e in memory.entries]
        for key, values in {
            "critical_priority": [0.0 if e is None else e.priority for e in memory.entries],
            "critical_norm": [0.0 if e is None else e.norm for e in memory.entries],
        }.items():
            torch.testing.assert_close(state[key].tolist(), values, rtol=1e-9, atol=0)


@pairs_first("policy, aggr, scope", ALL_POLICIES, ALL_AGGREGATIONS, ["global", "group", "tensor"])
def test_every_policy_aggregation_and_scope(policy, aggr, scope):
    compare({"policy": policy, "aggr": aggr, "scope": scope, "topC": 4, "decay": 0.9, "every": 3})


@pytest.mark.parametrize("aggr", ALL_AGGREGATIONS)
@pytest.mark.parametrize("kappa", [0.0, 0.3, 1.0])
def test_kappa(aggr, kappa):
    compare({"aggr": aggr, "kappa": kappa, "topC": 3, "decay": 0.95})


@pytest.mark.parametrize("policy", ALL_POLICIES)
@pytest.mark.parametrize("max_age", [1, 3, 7])
def test_max_age(policy, max_age):
    compare({"aggr": "sum", "policy": policy, "max_age": max_age, "topC": 4, "decay": 0.99})


@pytest.mark.parametrize("aggr", ALL_AGGREGATIONS)
def test_missing_zero_and_bad_gradients(aggr):
    # The base sees what the plain base would see, NaN included, so the parameters may be NaN: the memory may not.
    compare({"aggr": aggr, "topC": 3, "decay": 0.9}, stream_options={"missing": 0.3, "zero": 0.2})


@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize("aggr", ["mean", "sum", "fisher"])
def test_every_base(base, aggr):
    compare({"aggr": aggr, "topC": 4, "decay": 0.9}, base=base, steps=25)


@settings(max_examples=60, deadline=None)
@given(
    topC=st.integers(1, 9),
    decay=st.sampled_from([0.0, 0.3, 0.7, 0.99, 1.0]),
    aggr=st.sampled_from(ALL_AGGREGATIONS),
    policy=st.sampled_from(ALL_POLICIES),
    kappa=st.sampled_from([0.0, 0.5, 1.0]),
    rho=st.sampled_from([1e-5, 0.03, 0.3, 10.0]),
    max_age=st.sampled_from([None, 1, 4]),
    seed=st.integers(0, 2**40),
    scope=st.sampled_from(["global", "tensor"]),
    shapes=st.lists(st.lists(st.integers(1, 4), max_size=3).map(tuple), min_size=1, max_size=4),
    missing=st.sampled_from([0.0, 0.4]),
    stream=st.integers(0, 1000),
)
def test_any_options_and_shapes(topC, decay, aggr, policy, kappa, rho, max_age, seed, scope, shapes, missing, stream):
    options = {
        "topC": topC,
        "decay": decay,
        "aggr": aggr,
        "policy": policy,
        "kappa": kappa,
        "rho": rho,
        "max_age": max_age,
        "seed": seed,
        "scope": scope,
    }
    compare(options, steps=25, shapes=tuple(shapes), seed=stream, stream_options={"missing": missing})


@pytest.mark.parametrize(
    "base, aggr, policy",
    [
        *(("Adam", aggr, policy) for policy in ("KotH", "CDS") for aggr in ALL_AGGREGATIONS),
        *((base, aggr, "KotH") for base in BASES if base != "Adam" for aggr in ("mean", "fisher")),
    ],
)
def test_wrapper_equals_class(base, aggr, policy):
    ours, theirs = parameters(), parameters()
    stream = GradientStream(ours)
    options = {"aggr": aggr, "policy": policy, "topC": 4, "decay": 0.9}
    cls, kwargs = BASES[base]
    a = critgrad.critical(cls)(ours, **kwargs, **options)
    b = critgrad.CriticalGradients(cls(theirs, **kwargs), **options)
    run(a, ours, stream, 30)
    run(b, theirs, stream, 30)
    for x, y in zip(ours, theirs, strict=True):
        assert torch.equal(x, y)


@pairs_first("aggr, policy, memory_dtype", ALL_AGGREGATIONS, ALL_POLICIES, [None, torch.float32, "int8", "float8"])
def test_the_path_without_host_decisions_equals_the_one_with(aggr, policy, memory_dtype, monkeypatch):
    """What runs on an accelerator (every choice a ``where``), tried on the CPU by forbidding a look at values."""
    from critgrad.engines import products, sums, torch_ops

    options = {"aggr": aggr, "policy": policy, "topC": 4, "decay": 0.9, "memory_dtype": memory_dtype, "every": 2}
    ours = parameters()
    theirs = copies(ours)
    stream = GradientStream(ours, missing=0.2, zero=0.1)
    run(critgrad.Adam_C(ours, lr=0.05, **options), ours, stream, 30)
    for module in (products, sums, torch_ops):
        monkeypatch.setattr(module, "on_host", lambda tensor: False)
    run(critgrad.Adam_C(theirs, lr=0.05, **options), theirs, stream, 30)
    assert_close(ours, theirs, rtol=1e-8, atol=1e-9)
