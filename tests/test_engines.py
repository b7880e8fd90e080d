"""Which engine makes a step, and why not a faster one; engines under a default device that is not the parameters'."""

from __future__ import annotations

import logging

import pytest
import torch
from helpers import GradientStream, parameters

import critgrad
from critgrad.memory.policies import Policy, always, oldest
from critgrad.memory.prepared import COMPILED


def stepped(optimizer, params, steps=6):
    stream = GradientStream(params)
    for t in range(steps):
        stream.set(params, t)
        optimizer.step()
    return critgrad.inspect(optimizer)


@pytest.mark.parametrize(
    "make, engine, reason",
    [
        (lambda p: critgrad.Adam_C(p), "native", "nothing is faster on a CPU"),
        (lambda p: critgrad.AdamW_F(p), "native", "nothing is faster on a CPU"),
        (lambda p: critgrad.Adam_C(p, policy=Policy("mine", always, oldest)), "native", "nothing is faster"),
        (lambda p: critgrad.Adam_C(p, fused=False), "torch", "kernels are turned off (fused=False)"),
        (lambda p: critgrad.Adam_C(p, policy="CDS"), "torch", "does not take policy 'CDS'"),
        (lambda p: critgrad.Adam_C(p, aggr="median"), "torch", "does not take aggr='median'"),
        (lambda p: critgrad.Adam_C(p, memory_dtype="int8"), "torch", "does not take slots in int8"),
        (lambda p: critgrad.critical(torch.optim.RAdam)(p), "native", "RAdam makes its own update"),
        (
            lambda p: critgrad.CriticalGradients(torch.optim.Adam(p)),
            "native",
            "an optimizer that is wrapped makes its own update",
        ),
        (lambda p: critgrad.Adam_C(p, topC=0), "torch", "there is no memory (topC=0)"),
    ],
)
def test_inspect_names_the_engine_and_says_why_not_a_faster_one(make, engine, reason):
    params = parameters(((40,), (3, 2)), torch.float32)
    report = stepped(make(params), params)
    assert report.engine == engine
    assert reason in report.engine_reason
    assert (f"engine: {engine} (" in str(report)) == (report.memories != [])
    assert "\n" not in report.engine_reason


def test_turned_off_is_told(monkeypatch):
    monkeypatch.setenv("CRITGRAD_NATIVE", "0")
    params = parameters(((40,),), torch.float32)
    report = stepped(critgrad.Adam_C(params), params)
    assert (report.engine, "CRITGRAD_NATIVE=0" in report.engine_reason) == ("torch", True)


def test_what_a_damping_memory_does_stands_in_what_inspect_prints():
    params = parameters(((40,),), torch.float32)
    text = str(stepped(critgrad.SGD_F(params, lr=0.1), params))
    assert "of |g|^2 in its span, |d|/|g| " in text


def test_inspecting_logs_nothing(caplog):
    params = parameters(((40,),), torch.float32)
    with caplog.at_level(logging.WARNING, logger="critgrad"):
        stepped(critgrad.Adam_C(params), params)
    assert caplog.records == []


CASES = {
    "adding": {},
    "damping": {"aggr": "fisher"},
    "codes": {"memory_dtype": "int8"},
    "damping halves": {"aggr": "fisher", "memory_dtype": "bfloat16", "scope": "tensor"},
    "cosine": {"policy": "CDS"},
    "pick": {"aggr": "median"},
    "object": {"policy": Policy("mine", always, oldest)},
    "replay": {"policy": critgrad.Replay([0, 1, None, 0, 2])},
}


@pytest.mark.parametrize("options", CASES.values(), ids=CASES)
@pytest.mark.parametrize("fused", [None, False])
@pytest.mark.parametrize("length", [10, 300_000])
def test_a_default_device_that_is_not_the_parameters_changes_nothing(options, fused, length):
    results = []
    for device in ("cpu", "meta"):
        params = parameters(((length,), (3, 2)), torch.float32)
        optimizer = critgrad.SGD_C(params, lr=0.1, fused=fused, **options)
        stream = GradientStream(params)
        for t in range(6):
            stream.set(params, t)
            torch.set_default_device(device)
            try:
                optimizer.step()
                str(critgrad.inspect(optimizer))
                optimizer.load_state_dict(optimizer.state_dict())
            finally:
                torch.set_default_device(None)
        results.append([p.detach() for p in params])
    torch.testing.assert_close(*results, rtol=0, atol=0)


@pytest.mark.parametrize("cls", ["SGD_C", "SGD_F", "AdamW_C", "AdamW_F"])
@pytest.mark.parametrize("scope", ["global", "tensor"])
@pytest.mark.parametrize("memory_dtype", [None, "bfloat16"])
def test_parameters_on_the_meta_device_step_as_in_torch(cls, scope, memory_dtype):
    params = [torch.nn.Parameter(torch.ones(shape, device="meta")) for shape in ((10,), (3, 2))]
    make = getattr(critgrad, cls)
    optimizer = make(params, lr=0.1, scope=scope, memory_dtype=memory_dtype)
    for _ in range(3):
        for p in params:
            p.grad = torch.ones_like(p)
        optimizer.step()
    other = make(params, lr=0.1, scope=scope, memory_dtype=memory_dtype)
    other.load_state_dict(optimizer.state_dict())
    other.step()
    assert other.state[params[0]]["critical_slots"].is_meta


def test_what_is_said_is_how_the_last_step_was_made():
    params = [torch.nn.Parameter(torch.ones(3)) for _ in range(2)]
    memory = critgrad.Memory(params, topC=2)
    vectors = [torch.ones(3), torch.ones(3)]
    for _ in range(2):
        memory.combine(vectors)
        memory.offer(vectors)
    assert critgrad.inspect(memory).engine == "torch"
    assert critgrad.inspect(memory).engine_reason == "kernels are turned off (combine() or offer() alone)"
    followed = critgrad.SGD_C(params, lr=0.1, differentiable=True)
    assert critgrad.inspect(followed).engine_reason == "kernels are turned off (differentiable=True)"
    compiled = critgrad.SGD_C(params, lr=0.1)
    compiled._critical_memory().ready(COMPILED)
    assert critgrad.inspect(compiled).engine_reason == "kernels are turned off (a compiled step)"


@pytest.mark.parametrize("engine", ["torch", "native"])
def test_results_of_a_memory_are_each_others_business(engine, monkeypatch):
    monkeypatch.setenv("CRITGRAD_ENGINE", engine)
    params = [torch.nn.Parameter(torch.ones(3)) for _ in range(2)]
    memory = critgrad.Memory(params, topC=2)
    for _ in range(2):
        first, second = memory.step([torch.ones(3), torch.ones(3)])
    loss = (params[0] * first).sum()
    second.mul_(2)
    loss.backward()  # raises if autograd takes the change for one of the first
