"""``critgrad.inspect`` and ``repr``: what they say is what is there."""

from __future__ import annotations

import math

import pytest
import torch
from helpers import ALL_AGGREGATIONS, GradientStream, parameters, run
from torch import nn

import critgrad
from critgrad.inspection import human_bytes
from critgrad.reference import ReferenceMemory


def stepped(optimizer, weight, *grads):
    for g in grads:
        weight.grad = torch.tensor(g, dtype=weight.dtype)
        optimizer.step()


def test_a_case_computed_by_hand():
    weight = nn.Parameter(torch.zeros(2, dtype=torch.float64))
    optimizer = critgrad.SGD_C([weight], lr=0.1, topC=2, decay=0.5)
    empty = critgrad.inspect(optimizer).memories[0]
    assert (empty.live, empty.steps, empty.inserted, empty.acceptance_rate) == (0, 0, 0, None)
    assert (empty.ages, empty.norms, empty.mean_norm, empty.gradient_norm, empty.last_slot) == (
        [],
        [],
        None,
        None,
        None,
    )
    assert not optimizer.state  # to look is not to touch

    # Until the memory is full everything is stored; each priority has decayed once per step since.
    stepped(optimizer, weight, [3.0, 4.0], [1.0, 0.0])
    memory = critgrad.inspect(optimizer).memories[0]
    assert (memory.live, memory.slots, memory.last_slot) == (2, [0, 1], 1)
    assert memory.norms == [5.0, 1.0]
    assert memory.priorities == [1.25, 0.5]
    assert memory.ages == [2, 1]
    assert memory.gradient_norm == 1.0
    assert memory.sum_norm == pytest.approx(math.hypot(4, 4))
    assert memory.mean_norm == 3.0
    assert (memory.scope, memory.policy, memory.aggr, memory.topC) == ("global", "KotH", ("sum",), 2)

    stepped(optimizer, weight, [0.0, 0.25])  # 0.25 < 0.5: not stored
    memory = critgrad.inspect(optimizer).memories[0]
    assert (memory.last_slot, memory.steps, memory.inserted) == (None, 3, 2)
    assert memory.acceptance_rate == pytest.approx(2 / 3)
    assert memory.priorities == [0.625, 0.25]

    stepped(optimizer, weight, [0.0, 0.5])  # beats 0.25, takes slot 1
    memory = critgrad.inspect(optimizer).memories[0]
    assert (memory.last_slot, memory.norms, memory.ages) == (1, [5.0, 0.5], [4, 1])


@pytest.mark.parametrize("aggr", ALL_AGGREGATIONS)
@pytest.mark.parametrize("policy", ["KotH", "RR"])
def test_every_step_of_a_run_agrees_with_the_reference(aggr, policy):
    params = parameters()
    options = {"topC": 3, "decay": 0.9, "aggr": aggr, "policy": policy}
    optimizer = critgrad.Adam_C(params, lr=0.05, **options)
    reference = ReferenceMemory(**options)
    stream = GradientStream(params)
    for t in range(15):
        g = torch.cat([x.reshape(-1) for x in stream.at(t)])
        run(optimizer, params, stream, 1, start=t)
        slot = reference.insert(g)
        memory = critgrad.inspect(optimizer).memories[0]
        live = reference.live
        assert memory.last_slot == slot
        assert memory.steps == reference.t
        assert memory.norms == pytest.approx([e.norm for e in live])
        assert memory.priorities == pytest.approx([e.priority for e in live])
        assert memory.ages == [reference.t + 1 - e.born for e in live]
        assert memory.gradient_norm == pytest.approx(float(g.norm()))
        assert memory.sum_norm == pytest.approx(float(torch.stack([e.gradient for e in live]).sum(0).norm()))
        assert memory.mean_norm == pytest.approx(sum(e.norm for e in live) / len(live))


def test_looking_every_step_changes_nothing():
    ours, theirs = parameters(), parameters()
    stream = GradientStream(ours)
    a, b = critgrad.Adam_F(ours, topC=3), critgrad.Adam_F(theirs, topC=3)
    for t in range(10):
        critgrad.inspect(a)
        run(a, ours, stream, 1, start=t)
        critgrad.inspect(a)
        repr(a)
        run(b, theirs, stream, 1, start=t)
    assert all(torch.equal(x, y) for x, y in zip(ours, theirs))


@pytest.mark.parametrize("kappa", [0.5, 1.0])
@pytest.mark.parametrize("topC", [3, 30])
def test_what_damping_does_agrees_with_dense_linear_algebra(topC, kappa):
    shapes, rho = ((3, 2), (4,)), 0.05
    params = parameters(shapes)
    optimizer = critgrad.SGD_F(params, lr=0.1, topC=topC, rho=rho, kappa=kappa)
    stream = GradientStream(params)
    for t in range(12):
        run(optimizer, params, stream, 1, start=t)
        stream.set(params, t + 1)  # the coming gradient, which the report is about
        memory = critgrad.inspect(optimizer).memories[0]
        live = memory.slots
        G = torch.cat([optimizer.state[p]["critical_slots"][live].reshape(len(live), -1) for p in params], 1)
        g = torch.cat([p.grad.reshape(-1) for p in params])
        assert memory.spectrum == pytest.approx(torch.linalg.eigvalsh(G @ G.T).flip(0).tolist(), rel=1e-8, abs=1e-8)
        basis = torch.linalg.svd(G, full_matrices=False)
        V = basis.Vh[1e-9 * basis.S[0] < basis.S]
        assert memory.span_share == pytest.approx(float((V @ g).square().sum() / g.square().sum()), abs=1e-6)
        whole = torch.linalg.solve(torch.eye(10).double() + G.T @ G / (rho * (G * G).sum()), g)
        d = g - kappa * (g - whole)
        assert memory.damped_ratio == pytest.approx(float(d.norm() / g.norm()), rel=1e-7)


def test_what_is_said_of_a_memory_that_adds_here_and_damps_there():
    a, b, c = parameters(((3, 2), (4,), (5,)))
    groups = [{"params": [a], "aggr": "mean"}, {"params": [b]}, {"params": [c], "rho": 1e-3}]
    optimizer = critgrad.SGD_F(groups, lr=0.1, topC=3)
    stream = GradientStream([a, b, c])
    run(optimizer, [a, b, c], stream, 6)
    stream.set([a, b, c], 6)
    memory = critgrad.inspect(optimizer).memories[0]
    sums = [optimizer.state[p]["critical_slots"].sum(0) for p in (a, b, c)]
    assert memory.sum_norm == pytest.approx(math.sqrt(sum(float(s.square().sum()) for s in sums)))
    assert memory.damped_ratio is None  # by two values of rho: no one number tells it
    optimizer.param_groups[1]["rho"] = 1e-3
    assert 0 < critgrad.inspect(optimizer).memories[0].damped_ratio < 1


@pytest.mark.parametrize("scope, count", [("global", 1), ("group", 2), ("tensor", 3)])
def test_one_report_per_memory(scope, count):
    a, b = parameters(((2,), (3,))), parameters(((4,),))
    optimizer = critgrad.SGD_C([{"params": a}, {"params": b, "aggr": "mean"}], lr=0.1, scope=scope)
    run(optimizer, [*a, *b], GradientStream([*a, *b]), 3)
    report = critgrad.inspect(optimizer)
    assert len(report.memories) == count
    assert {memory.scope for memory in report.memories} == {scope}
    assert len(str(report).splitlines()) == count + 1  # the last one names the engine
    if scope == "global":
        assert report.memories[0].aggr == ("sum", "mean")


@pytest.mark.parametrize(
    "dtype, memory_dtype, value, scales",
    [
        (torch.float32, None, 4, 0),
        (torch.float32, "bfloat16", 2, 0),
        (torch.bfloat16, None, 2, 0),
        (torch.float32, "int8", 1, 2),
        (torch.float64, None, 8, 0),
    ],
)
@pytest.mark.parametrize("aggr", ["mean", "fisher"])
def test_bytes_are_counted_right(dtype, memory_dtype, value, scales, aggr):
    length, C = 300, 4
    weight = nn.Parameter(torch.zeros(length, dtype=dtype))
    optimizer = critgrad.SGD_C([weight], lr=0.1, topC=C, aggr=aggr, memory_dtype=memory_dtype)
    weight.grad = torch.ones_like(weight)
    optimizer.step()
    wide = 8 if dtype == torch.float64 else 4
    expected = C * length * value + C * scales * 4  # slots
    expected += C * C * 8 if aggr == "fisher" else length * wide
    expected += C * (wide + wide + 8) + 8 + 8  # priority, norm, born; clock, inserted
    assert critgrad.inspect(optimizer).bytes == expected
    held = {t.data_ptr(): t.numel() * t.element_size() for k, t in optimizer.state[weight].items()}
    assert sum(held.values()) == expected
    assert human_bytes(expected) in repr(optimizer)


@pytest.mark.parametrize("scope", ["global", "tensor"])
def test_bytes_of_all_memories_are_the_bytes_of_the_state(scope):
    params = parameters()
    optimizer = critgrad.SGD_F(params, lr=0.1, scope=scope)
    run(optimizer, params, GradientStream(params), 2)
    held = {t.data_ptr(): t.numel() * t.element_size() for s in optimizer.state.values() for t in s.values()}
    assert critgrad.inspect(optimizer).bytes == sum(held.values())


def test_human_bytes():
    assert [human_bytes(n) for n in (0, 1023, 1024, 1536 * 1024, 3 << 30, 5 << 40)] == [
        "0 B",
        "1023 B",
        "1.0 KiB",
        "1.5 MiB",
        "3.0 GiB",
        "5120.0 GiB",
    ]


@pytest.mark.parametrize("make", ["class", "wrapper"])
def test_repr_shows_the_options_and_the_bytes(make):
    params = parameters(dtype=torch.float32)
    options = {"topC": 7, "decay": 0.25, "policy": "NCPR"}
    optimizer = critgrad.Adam_C(params, **options)
    if make == "wrapper":
        optimizer = critgrad.CriticalGradients(torch.optim.Adam(params), **options)
    text = repr(optimizer)
    for line in ("topC: 7", "decay: 0.25", "policy: NCPR", "aggr: mean", "nothing held yet"):
        assert line in text
    assert text.startswith("Adam_C" if make == "class" else "CriticalGradients")
    run(optimizer, params, GradientStream(params), 1)
    text = repr(optimizer)
    held = critgrad.inspect(optimizer).bytes
    assert f"1 memory of 4 tensors, {human_bytes(held)}" in text


def test_repr_and_report_of_topC_0():
    optimizer = critgrad.Adam_C(parameters(), topC=0)
    assert critgrad.inspect(optimizer).memories == []
    assert str(critgrad.inspect(optimizer)) == "no memory (topC=0)"
    assert critgrad.inspect(optimizer).scalars() == {"critical/bytes": 0.0}
    repr(optimizer)


def test_scalars_are_floats_under_stable_names():
    params = parameters()
    optimizer = critgrad.SGD_F(params, lr=0.1, scope="tensor", topC=2)
    run(optimizer, params, GradientStream(params), 5)
    report = critgrad.inspect(optimizer)
    scalars = report.scalars()
    assert set(scalars) == {
        f"critical/{name}"
        for name in (
            "bytes",
            "live",
            "acceptance_rate",
            "gradient_norm",
            "sum_norm",
            "mean_norm",
            "mean_age",
            "max_age",
            "span_share",
            "damped_ratio",
        )
    }
    assert all(type(value) is float for value in scalars.values())
    mean = sum(memory.gradient_norm for memory in report.memories) / 4
    assert scalars["critical/gradient_norm"] == pytest.approx(mean)
    ages = [max(memory.ages) for memory in report.memories]
    assert scalars["critical/max_age"] == pytest.approx(sum(ages) / 4)


def test_a_bad_gradient_shows_as_such_and_the_memory_as_it_is():
    params = parameters()
    optimizer = critgrad.SGD_F(params, lr=0.1)
    run(optimizer, params, GradientStream(params), 3)
    params[0].grad[0, 0] = math.nan
    memory = critgrad.inspect(optimizer).memories[0]
    assert math.isnan(memory.gradient_norm)
    assert memory.live == 3
    assert memory.damped_ratio is None
