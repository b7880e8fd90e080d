"""What one does with optimizers in torch, on a CPU: scalers, closures, schedulers, groups, freezing."""

from __future__ import annotations

import math

import pytest
import torch
from feature_helpers import both, regression
from helpers import (
    BASES,
    GradientStream,
    assert_close,
    assert_same_bits,
    copies,
    memory_state,
    parameters,
    run,
)
from torch import nn
from torch.optim import lr_scheduler

import critgrad
from critgrad.reference import ReferenceMemory

# -- AMP ---------------------------------------------------------------------------------------------------------------


@both
@pytest.mark.parametrize("fused", [None, True])
@pytest.mark.parametrize("aggr", ["mean", "fisher"])
def test_grad_scaler_steps_on_unscaled_gradients_and_skips_infinite_ones(make, fused, aggr):
    """Powers of two scale without rounding, so a scaled run equals an unscaled one that leaves the bad steps out."""
    model, loss = regression()
    twin, twin_loss = regression()
    options = {"lr": 0.01, "topC": 3, "aggr": aggr, "fused": fused}
    optimizer = make(list(model.parameters()), **options)
    other = make(list(twin.parameters()), **options)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=4)
    bad = (2, 5, 6)
    for t in range(10):
        optimizer.zero_grad()
        scaler.scale(loss()).backward()
        if t in bad:
            model[0].weight.grad[0, 0] = math.inf if t != 6 else math.nan
        before = memory_state(optimizer) if t > 0 else None
        scaler.step(optimizer)
        scaler.update()
        if t in bad:
            for was, now in zip(before, memory_state(optimizer)):
                assert all(torch.equal(was[key], now[key]) for key in was)
            continue
        other.zero_grad()
        twin_loss().backward()
        other.step()
    assert_same_bits(model.parameters(), twin.parameters())
    assert critgrad.inspect(optimizer).memories[0].steps == 7
    for was, now in zip(memory_state(optimizer), memory_state(other)):
        assert torch.equal(was["critical_slots"], now["critical_slots"])


def test_fused_bases_do_not_take_the_scalers_work_over():
    optimizer = critgrad.Adam_C(parameters(dtype=torch.float32), fused=True)
    assert optimizer._step_supports_amp_scaling is False


# -- closures, accumulation, zero_grad ---------------------------------------------------------------------------------


@both
def test_a_closure_is_evaluated_once_with_gradients_and_its_loss_returned(make):
    model, loss = regression()
    twin, twin_loss = regression()
    optimizer, other = (make(list(m.parameters()), lr=0.01, topC=3) for m in (model, twin))
    calls = []

    def closure():
        calls.append(torch.is_grad_enabled())
        optimizer.zero_grad()
        value = loss()
        value.backward()
        return value

    for _ in range(5):
        with torch.no_grad():
            value = optimizer.step(closure)
        other.zero_grad()
        expected = twin_loss()
        expected.backward()
        other.step()
        assert torch.equal(value, expected)
    assert calls == [True] * 5
    assert_same_bits(model.parameters(), twin.parameters())


def test_a_closure_that_sets_the_gradients_to_none_first():
    """As Lightning does: the gradients that count are those after the closure."""
    weight = nn.Parameter(torch.tensor([1.0]))
    optimizer = critgrad.SGD_C([weight], lr=0.0, topC=4)
    for size in (1.0, 2.0):
        weight.grad = torch.tensor([100.0])

        def closure(size=size):
            optimizer.zero_grad(set_to_none=True)
            (weight * size).sum().backward()

        optimizer.step(closure)
    assert critgrad.inspect(optimizer).memories[0].norms == [1.0, 2.0]


@both
def test_accumulated_gradients_are_one_entry(make):
    weight = nn.Parameter(torch.ones(3))
    optimizer = make([weight], lr=0.1, topC=4)
    for _ in range(3):
        optimizer.zero_grad()
        for _ in range(4):
            weight.sum().backward()
        optimizer.step()
    memory = critgrad.inspect(optimizer).memories[0]
    assert memory.norms == pytest.approx([4 * 3**0.5] * 3)


@both
def test_zero_grad_both_ways(make):
    params = parameters()
    ours, theirs = make(params, lr=0.05), make(copy_params := copies(params), lr=0.05)
    for to_none, optimizer, mine in ((True, ours, params), (False, theirs, copy_params)):
        for _ in range(6):
            optimizer.zero_grad(set_to_none=to_none)
            assert all((p.grad is None) if to_none else (p.grad is None or not p.grad.any()) for p in mine)
            sum(p.square().sum() for p in mine).backward()
            optimizer.step()
    assert_same_bits(params, copy_params)


# -- learning rates ----------------------------------------------------------------------------------------------------

SCHEDULERS = {
    "LambdaLR": lambda opt: lr_scheduler.LambdaLR(opt, lambda t: 0.9**t),
    "CosineAnnealingLR": lambda opt: lr_scheduler.CosineAnnealingLR(opt, 10),
    "OneCycleLR": lambda opt: lr_scheduler.OneCycleLR(opt, max_lr=0.1, total_steps=20, cycle_momentum=True),
    "CyclicLR": lambda opt: lr_scheduler.CyclicLR(opt, 0.01, 0.1, step_size_up=4, cycle_momentum=True),
    "SequentialLR": lambda opt: lr_scheduler.SequentialLR(
        opt, [lr_scheduler.ConstantLR(opt, 0.1, 3), lr_scheduler.ExponentialLR(opt, 0.9)], [3]
    ),
}


@pytest.mark.parametrize("name", SCHEDULERS)
@pytest.mark.parametrize("base", ["Adam", "SGDM"])
@pytest.mark.parametrize("kind", ["class", "wrapper"])
def test_schedulers_drive_ours_as_they_drive_the_base(name, base, kind):
    cls, kwargs = BASES[base]
    ours, theirs = parameters(), parameters()
    plain = cls(theirs, **kwargs)
    optimizer = critgrad.critical(cls)(ours, **kwargs, kappa=0.0)
    if kind == "wrapper":
        optimizer = critgrad.CriticalGradients(cls(ours, **kwargs), kappa=0.0)
    mine, other = SCHEDULERS[name](optimizer), SCHEDULERS[name](plain)
    stream = GradientStream(ours)
    for t in range(12):
        for params, opt, scheduler in ((ours, optimizer, mine), (theirs, plain, other)):
            run(opt, params, stream, 1, start=t)
            scheduler.step()
        for key in ("lr", "betas", "momentum"):
            assert optimizer.param_groups[0].get(key) == plain.param_groups[0].get(key)
    assert_same_bits(ours, theirs)


@both
def test_reduce_on_plateau(make):
    optimizer = make(parameters(), lr=1.0)
    scheduler = lr_scheduler.ReduceLROnPlateau(optimizer, patience=1, factor=0.5)
    for value in (1.0, 1.0, 1.0, 1.0, 1.0):
        scheduler.step(value)
    assert optimizer.param_groups[0]["lr"] == 0.25


def test_plain_sgd_has_a_momentum_for_cycling_schedulers():
    optimizer = critgrad.SGD_C(parameters(), lr=0.1)
    lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=4, cycle_momentum=True)


@pytest.mark.parametrize("foreach", [False, True])
def test_a_tensor_lr_equals_a_float(foreach):
    ours, theirs = parameters(), parameters()
    stream = GradientStream(ours)
    kwargs = {"capturable": False, "foreach": False} if not foreach else {}
    lr = torch.tensor(0.05, dtype=torch.float64)
    a = critgrad.Adam_C(ours, lr=lr, topC=3, **kwargs)
    b = critgrad.Adam_C(theirs, lr=0.05, topC=3, **kwargs)
    for t in range(10):
        run(a, ours, stream, 1, start=t)
        run(b, theirs, stream, 1, start=t)
        lr.mul_(0.9)
        b.param_groups[0]["lr"] = b.param_groups[0]["lr"] * 0.9
    assert_close(ours, theirs)


# -- parameters that come, go, and freeze ------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["class", "wrapper"])
@pytest.mark.parametrize("base", BASES)
def test_a_first_gradient_may_come_late(base, kind):
    cls, kwargs = BASES[base]
    ours, theirs = parameters(), parameters()
    optimizer = critgrad.critical(cls)(ours, **kwargs, kappa=0.0)
    if kind == "wrapper":
        optimizer = critgrad.CriticalGradients(cls(ours, **kwargs), kappa=0.0)
    plain = cls(theirs, **kwargs)
    stream = GradientStream(ours)
    for t in range(8):
        for params, opt in ((ours, optimizer), (theirs, plain)):
            stream.set(params, t)
            if t < 4:
                params[1].grad = None
            opt.step()
    assert_same_bits(ours, theirs)


@both
def test_freezing_and_unfreezing_a_layer(make):
    params = parameters()
    optimizer = make(params, lr=0.05, topC=3, decay=1.0, aggr="mean")
    stream = GradientStream(params)
    memory = ReferenceMemory(topC=3, decay=1.0, aggr="mean")
    for t in range(12):
        frozen = 4 <= t < 8
        params[0].requires_grad_(not frozen)
        stream.set(params, t)
        if frozen:
            params[0].grad = None
        g = torch.cat([torch.zeros(p.numel()).double() if p.grad is None else p.grad.reshape(-1) for p in params])
        memory.insert(g)
        value = params[0].detach().clone()
        optimizer.step()
        assert torch.equal(params[0], value) == frozen
        report = critgrad.inspect(optimizer).memories[0]
        assert report.norms == pytest.approx([e.norm for e in memory.live])
    slots = torch.cat([optimizer.state[p]["critical_slots"].reshape(3, -1) for p in params], 1)
    torch.testing.assert_close(slots, torch.stack([e.gradient for e in memory.live]))


def test_a_layer_that_is_frozen_from_the_start_may_be_unfrozen():
    params = parameters()
    params[0].requires_grad_(False)
    optimizer = critgrad.Adam_C(params, topC=3)
    stream = GradientStream(params)
    for t in range(8):
        if t == 4:
            params[0].requires_grad_(True)
        stream.set(params, t)
        if t < 4:
            params[0].grad = None
        optimizer.step()
        assert ("critical_slots" in optimizer.state.get(params[0], {})) == (t >= 4)
    assert critgrad.inspect(optimizer).memories[0].steps == 8


@both
@pytest.mark.parametrize("aggr", ["mean", "fisher"])
def test_a_group_added_in_mid_run_joins_the_memory_with_zeros_for_the_past(make, aggr):
    params = parameters()
    optimizer = make(params[:2], lr=0.05, topC=4, aggr=aggr)
    stream = GradientStream(params)
    run(optimizer, params, stream, 3)
    slots = optimizer.state[params[0]]["critical_slots"].clone()
    optimizer.add_param_group({"params": params[2:], "lr": 0.5})
    run(optimizer, params, stream, 1, start=3)
    report = critgrad.inspect(optimizer).memories[0]
    assert (report.live, report.steps) == (4, 4)
    assert torch.equal(optimizer.state[params[0]]["critical_slots"][:3], slots[:3])
    assert not optimizer.state[params[3]]["critical_slots"][:3].any()
    assert optimizer.state[params[3]]["critical_slots"][3].any()
    whole = torch.cat([g.reshape(-1) for g in stream.at(3)]).norm().item()
    assert report.norms[3] == pytest.approx(whole)


# -- groups ------------------------------------------------------------------------------------------------------------


def test_a_group_with_topC_0_is_out_of_the_memory_and_of_the_norm():
    ours, theirs, alone = parameters(), parameters(), parameters()
    stream = GradientStream(ours)
    groups = [{"params": ours[:2]}, {"params": ours[2:], "topC": 0}]
    optimizer = critgrad.Adam_C(groups, lr=0.05, topC=3)
    run(optimizer, ours, stream, 12)
    run(critgrad.Adam_C(alone[:2], lr=0.05, topC=3), alone, stream, 12)
    run(torch.optim.Adam(theirs[2:], lr=0.05), theirs, stream, 12)
    assert_same_bits(ours, [*alone[:2], *theirs[2:]])
    assert not any(key.startswith("critical_") for p in ours[2:] for key in optimizer.state[p])


@pytest.mark.parametrize("scope", ["global", "group"])
def test_groups_have_aggregations_and_shares_of_their_own(scope):
    params = parameters()
    groups = [
        {"params": [params[0]], "aggr": "sum", "kappa": 0.5},
        {"params": [params[1]], "aggr": "fisher", "rho": 0.1},
        {"params": [params[2]], "aggr": "fisher", "rho": 2.0, "kappa": 0.25},
        {"params": [params[3]], "aggr": "min"},
    ]
    optimizer = critgrad.SGD_C(groups, lr=1.0, topC=3, decay=0.9, scope=scope)
    stream = GradientStream(params)
    memories = [ReferenceMemory(topC=3, decay=0.9) for _ in range(1 if scope == "global" else 4)]
    for t in range(12):
        grads = [g.reshape(-1) for g in stream.at(t)]
        vectors = [torch.cat(grads)] if scope == "global" else grads
        before = [p.detach().clone() for p in params]
        run(optimizer, params, stream, 1, start=t)
        sizes = [g.numel() for g in grads]
        for i, p in enumerate(params):
            memory = memories[0 if scope == "global" else i]
            entries = memory.live
            d = grads[i]
            if entries:
                rows = torch.stack([e.gradient for e in entries])
                parts = rows.split(sizes, 1) if scope == "global" else [rows] * 4
                if i == 0:
                    d = d + 0.5 * parts[0].mean(0)
                elif i == 3:
                    d = d + parts[3][min(range(len(entries)), key=lambda k: entries[k].norm)]
                else:
                    # K runs over the tensors of the groups that damp.
                    damped = torch.cat([parts[1], parts[2]], 1) if scope == "global" else rows
                    whole = torch.cat([grads[1], grads[2]]) if scope == "global" else grads[i]
                    rho, kappa = (0.1, 1.0) if i == 1 else (2.0, 0.25)
                    K = damped @ damped.T
                    w = torch.linalg.solve(K + rho * K.trace() * torch.eye(len(K)).double(), damped @ whole)
                    d = d - kappa * parts[i].T @ w
            torch.testing.assert_close((before[i] - p.detach()).reshape(-1), d, rtol=1e-8, atol=1e-9)
        for memory, vector in zip(memories, vectors):
            memory.insert(vector)


def test_max_age_bounds_the_ages():
    params = parameters()
    optimizer = critgrad.SGD_C(params, lr=0.1, topC=3, decay=1.0, max_age=5)
    for t in range(40):
        for p in params:
            p.grad = torch.full_like(p, 0.8**t)  # shrinks faster than the decay: nothing would ever be replaced
        optimizer.step()
        assert max(critgrad.inspect(optimizer).memories[0].ages) <= 5 + 3  # one is replaced per step


def test_memory_device_cpu_is_plain_for_parameters_on_a_cpu():
    ours, theirs = parameters(), parameters()
    stream = GradientStream(ours)
    a = critgrad.Adam_C(ours, topC=3, memory_device="cpu")
    run(a, ours, stream, 10)
    run(critgrad.Adam_C(theirs, topC=3), theirs, stream, 10)
    assert_same_bits(ours, theirs)
    assert a.param_groups[0]["memory_device"] == "cpu"
    assert critgrad.Adam_C(ours, memory_device=torch.device("cpu")).param_groups[0]["memory_device"] == "cpu"


@pytest.mark.parametrize("base", ["SGD", "Adam", "RMSprop", "AggMo"])
@pytest.mark.parametrize("aggr", ["mean", "fisher"])
def test_maximize_is_minimize_of_the_opposite(base, aggr):
    cls, kwargs = BASES[base]
    ours, theirs = parameters(), parameters()
    stream = GradientStream(ours)
    a = critgrad.critical(cls)(ours, **kwargs, aggr=aggr, maximize=True)
    b = critgrad.critical(cls)(theirs, **kwargs, aggr=aggr)
    for t in range(10):
        stream.set(ours, t)
        stream.set(theirs, t)
        for p in theirs:
            p.grad = -p.grad
        a.step()
        b.step()
    assert_close(ours, theirs)
