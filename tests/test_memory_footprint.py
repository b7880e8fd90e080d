"""What a step may hold at its peak: the base's state, topC gradients, one sum, one more gradient on the plain path."""

from __future__ import annotations

import copy
import gc
import weakref

import pytest
import torch
from helpers import GradientStream, parameters
from torch.profiler import ProfilerActivity, profile

import critgrad

SHAPES = ((400, 1000), (300, 1000), (1000,))
VALUES = 701_000
SLACK = 1.25e6  # tables, blocks that are decoded: whatever does not grow with the model


def peak_and_rest(step, steps: int) -> tuple[float, float]:
    """Bytes at the peak of some steps, and after the last of them, beyond what was held before."""
    gc.collect()  # or what earlier tests left behind is freed in between, and counts as negative
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        for t in range(steps):
            step(t)
    events = [e for e in profiler.profiler.kineto_results.events() if e.name() == "[memory]"]
    assert events, "this torch does not report its allocations"
    held = peak = 0
    for event in sorted(events, key=lambda e: e.start_ns()):
        held += event.nbytes()
        peak = max(peak, held)
    return peak, held


def measured(options, steps=4, fused=True) -> tuple[float, float]:
    params = parameters(SHAPES, torch.float32)
    stream = GradientStream(params)
    grads = [stream.at(t) for t in range(steps)]
    grads = [[g.float() for g in each] for each in grads]
    opt = critgrad.Adam_C(params, fused=fused, **options)

    def step(t: int) -> None:
        for p, g in zip(params, grads[t]):
            p.grad = g
        opt.step()

    return peak_and_rest(step, steps)


def allowed(topC: int, stored_bytes: float, sums: int, temporaries: int) -> float:
    base = 2 * 4 * VALUES
    return base + topC * stored_bytes * VALUES + 4 * VALUES * (sums + temporaries) + SLACK


@pytest.mark.parametrize("topC", [1, 5, 20])
@pytest.mark.parametrize("native", ["0", "1"])
def test_an_exact_memory(topC, native, monkeypatch):
    monkeypatch.setenv("CRITGRAD_NATIVE", native)
    peak, _ = measured({"topC": topC})
    assert peak <= allowed(topC, 4, sums=1, temporaries=1)


@pytest.mark.parametrize("fused", [None, False])
@pytest.mark.parametrize("aggr", ["mean", "fisher", "max"])
def test_gradients_are_freed_with_zero_grad(aggr, fused):
    params = parameters(SHAPES, torch.float32)
    opt = critgrad.Adam_C(params, aggr=aggr, topC=2, fused=fused)
    for t in range(3):
        GradientStream(params).set(params, t)
        opt.step()
    held = [weakref.ref(p.grad) for p in params]
    opt.zero_grad()
    assert [ref() for ref in held] == [None] * len(params)


def test_damping_keeps_no_sum():
    peak, _ = measured({"topC": 5, "aggr": "fisher"})
    assert peak <= allowed(5, 4, sums=0, temporaries=1)


def test_without_a_memory_it_is_the_base():
    peak, _ = measured({"topC": 0})
    assert peak <= allowed(0, 0, sums=0, temporaries=0) - SLACK + 1000


def test_the_measure_sees_a_temporary_too_many(monkeypatch):
    """The tests above can fail: a second gradient-sized temporary is above what they allow."""
    monkeypatch.setenv("CRITGRAD_NATIVE", "0")
    base, _ = measured({"topC": 5})

    def step(_t: int) -> None:
        torch.empty(VALUES)

    extra, rest = peak_and_rest(step, 2)
    assert extra >= 4 * VALUES
    assert rest < extra
    assert base + extra > allowed(5, 4, sums=1, temporaries=1)


@pytest.fixture
def no_collector():
    torch.optim.SGD([torch.zeros(1)], lr=0.1)  # torch itself keeps the first one: it loads its compiler then
    gc.collect()
    gc.disable()
    yield
    gc.enable()


MAKERS = {
    "fastest": critgrad.Adam_C,
    "plain": lambda params: critgrad.Adam_C(params, fused=False),
    "damping": critgrad.Adam_F,
    "wrapper": lambda params: critgrad.CriticalGradients(torch.optim.RAdam(params)),
    "Adam_CM": critgrad.Adam_CM,
}


@pytest.mark.parametrize("what", ["deleted", "loaded", "another topC"])
@pytest.mark.parametrize("maker", MAKERS)
def test_what_was_held_is_freed_at_once_as_in_torch(maker, what, no_collector):
    params = parameters(((30, 4), (5,)), torch.float32)
    optimizer = MAKERS[maker](params)
    for t in range(3):
        GradientStream(params).set(params, t)
        optimizer.step()
    held = [weakref.ref(optimizer.state[p]["critical_slots"]) for p in params]
    if what == "deleted":
        del optimizer
    elif what == "loaded":
        optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    else:
        optimizer.param_groups[0]["topC"] = 3
    if what != "deleted":
        optimizer.step()
    assert [ref() for ref in held] == [None] * len(params)
