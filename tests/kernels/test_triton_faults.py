"""What must not happen in silence in Triton's kernels: stale graphs, unknown names, numbers read as others."""

from __future__ import annotations

import pytest
import torch
from helpers import GradientStream, assert_close, parameters, run

import critgrad
from critgrad.engines.triton import launch
from critgrad.memory import aggregations, policies
from critgrad.memory.policies import Policy, always, lowest_priority

device = "cpu" if launch.INTERPRETED else "cuda"


def make(name="Adam_C", **options):
    params = parameters(((40,), (3, 2)), torch.float32, device=device)
    return params, getattr(critgrad, name)(params, lr=0.01, topC=3, **options)


def steps(params, optimizer, count=8):
    stream = GradientStream(params)
    for t in range(count):
        stream.set(params, t)
        optimizer.step()
    return critgrad.inspect(optimizer)


@pytest.mark.parametrize("name", ["Adam_C", "SGD_F"])
def test_a_backward_through_parameters_that_were_stepped_raises_as_in_torch(name):
    params, optimizer = make(name)
    assert steps(params, optimizer).engine == "triton"
    before = [p._version for p in params]
    loss = (params[0] ** 3).sum()
    params[1].grad = None
    optimizer.step()
    assert [p._version > was for p, was in zip(params, before)] == [True, False]
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_a_policy_added_by_contributings_recipe_is_declined_and_right(monkeypatch):
    def never_when_full(tables):
        return torch.zeros_like(tables.g_norm, dtype=torch.bool)

    monkeypatch.setitem(policies.POLICIES, "first", Policy("first", never_when_full, lowest_priority))
    params, optimizer = make(policy="first")
    report = steps(params, optimizer)
    assert report.memories[0].ages == [8, 7, 6]
    assert report.engine == "native" if device == "cpu" else "torch"


def test_an_aggregation_that_the_kernels_do_not_know_is_declined(monkeypatch):
    """A built-in pick that has no column in what the decision leaves, and an object of a user's."""
    newest = aggregations.Pick("newest", lambda norm, born: born.argmax(-1))
    monkeypatch.setitem(aggregations.AGGREGATIONS, "newest", newest)
    mine = critgrad.Aggregation("mine", lambda tables: (tables.g_norm * 0 + 1, tables.norm * 0))
    for aggr in ("newest", mine):
        params, optimizer = make(aggr=aggr)
        report = steps(params, optimizer)
        name = aggr if isinstance(aggr, str) else aggr.name
        assert report.engine == "torch"
        assert f"do not take aggr={name!r}" in report.engine_reason


def test_a_linear_aggregation_added_by_contributings_recipe_is_known_to_every_engine(monkeypatch):
    halved = aggregations.Linear("halved", lambda kappa, n: (n * 0 + 0.5, n * 0 + kappa))
    monkeypatch.setitem(aggregations.AGGREGATIONS, "halved", halved)
    results = []
    for fused in (None, False):
        params, optimizer = make("SGD_C", aggr="halved", fused=fused)
        assert steps(params, optimizer).engine == ("torch" if fused is False else "triton")
        results.append([p.detach() for p in params])
    torch.testing.assert_close(*results)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_a_learning_rate_tensor_of_any_dtype_is_read_as_the_number_it_is(dtype):
    results = []
    for as_tensor in (True, False):
        params, optimizer = make("SGD_C")
        steps(params, optimizer)
        stream = GradientStream(params)
        for first in (torch.float32, dtype):  # the kernel is compiled for the first one
            optimizer.param_groups[0]["lr"] = torch.tensor(0.25, dtype=first, device=device) if as_tensor else 0.25
            stream.set(params, 9)
            optimizer.step()
        assert critgrad.inspect(optimizer).engine == "triton"
        results.append([p.detach() for p in params])
    torch.testing.assert_close(*results)


@pytest.mark.parametrize("rho", [1e-9, 1e-30, 5e-324])
def test_tiny_rho_with_nearly_parallel_gradients_stays_finite(rho):
    generator = torch.Generator().manual_seed(0)
    line = torch.randn(3000, generator=generator)
    weight = torch.nn.Parameter(torch.zeros(3000, device=device))
    optimizer = critgrad.SGD_F([weight], lr=1.0, rho=rho, topC=4)
    for step in range(10):
        g = line * (1 + 0.01 * step) + 1e-6 * torch.randn(3000, generator=generator)
        weight.grad = g.to(device)
        before = weight.detach().clone()
        optimizer.step()
        assert float((weight.detach() - before).norm() / weight.grad.norm()) < (1.01 if step == 0 else 1e-3)
    assert critgrad.inspect(optimizer).engine == "triton"


@pytest.mark.parametrize("name", ["SGD_C", "SGD_F"])
def test_a_default_device_that_is_not_the_parameters_changes_nothing(name):
    results = []
    for default in (None, "meta"):
        params, optimizer = make(name)
        stream = GradientStream(params)
        for t in range(5):
            stream.set(params, t)
            torch.set_default_device(default)
            try:
                optimizer.step()
            finally:
                torch.set_default_device(None)
        results.append([p.detach() for p in params])
    torch.testing.assert_close(*results, rtol=0, atol=0)


def test_a_policys_slot_is_clamped_into_the_table_where_it_cannot_be_looked_at():
    if device == "cpu":
        tables = policies.Tables(
            **{key: torch.ones(1, 2, device="meta") for key in ("priority", "norm")},
            born=torch.ones(1, 2, dtype=torch.int64, device="meta"),
            t=torch.ones(1, dtype=torch.int64, device="meta"),
            g_norm=torch.ones(1, device="meta"),
            stream=torch.ones(1, dtype=torch.int64, device="meta"),
        )
        decision = policies.decide(Policy("wrong", always, lambda t: t.t * 99), tables, None)
        assert decision.slot.shape == (1,)  # and nothing was waited for
        return
    params, optimizer = make(policy=Policy("wrong", always, lambda t: t.t * 0 + 99))
    assert steps(params, optimizer).memories[0].last_slot == 2


@pytest.mark.parametrize("option", ["rho", "kappa"])
def test_groups_that_damp_in_two_ways_from_some_step_on_are_declined_and_right(option, monkeypatch):
    monkeypatch.setenv("CRITGRAD_NATIVE", "0")
    results = []
    for fused in (None, False):
        params = parameters(dtype=torch.float32, device=device)
        opt = critgrad.Adam_F([{"params": params[:2]}, {"params": params[2:]}], lr=0.02, topC=3, fused=fused)
        engines = []
        for t in range(9):
            opt.param_groups[1][option] = {"rho": 0.3, "kappa": 1.0}[option] if not 3 <= t < 6 else 0.01
            run(opt, params, GradientStream(params), 1, start=t)
            engines.append(critgrad.inspect(opt).engine)
        assert engines == (["triton"] * 3 + ["torch"] * 3 + ["triton"] * 3 if fused is None else ["torch"] * 9)
        results.append(params)
    assert_close(*results, rtol=2e-4, atol=2e-5)
