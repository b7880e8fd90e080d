"""What one does with optimizers in torch, on a CPU: scalers, closures, schedulers, hooks, dtypes, layouts, compile."""

from __future__ import annotations

import math

import pytest
import torch
from helpers import (
    ALL_AGGREGATIONS,
    BASES,
    GradientStream,
    assert_close,
    assert_same_bits,
    copies,
    memory_state,
    parameters,
    run,
)
from reference import ReferenceMemory
from torch import nn
from torch.optim import lr_scheduler
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

import critgrad


def adam_class(params, **options):
    return critgrad.Adam_C(params, **options)


def adam_wrapper(params, **options):
    ours = ("topC", "decay", "aggr", "kappa", "rho", "policy", "scope", "memory_dtype", "max_age", "seed")
    base = {name: value for name, value in options.items() if name not in ours}
    rest = {name: value for name, value in options.items() if name in ours}
    return critgrad.CriticalGradients(torch.optim.Adam(params, **base), **rest)


both = pytest.mark.parametrize("make", [adam_class, adam_wrapper], ids=["class", "wrapper"])


def regression(seed=0, dtype=torch.float32):
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1)).to(dtype)
    x, y = torch.randn(32, 6, dtype=dtype), torch.randn(32, 1, dtype=dtype)
    return model, lambda: nn.functional.mse_loss(model(x), y)


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


# -- dtypes ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("aggr", ALL_AGGREGATIONS)
@pytest.mark.parametrize("scope", ["global", "tensor"])
def test_complex_parameters_equal_real_pairs(aggr, scope):
    shapes = ((3, 2), (4,), ())
    generator = torch.Generator().manual_seed(0)
    complexes = [nn.Parameter(torch.randn(s, dtype=torch.complex128, generator=generator)) for s in shapes]
    reals = [nn.Parameter(torch.view_as_real(p.detach()).clone()) for p in complexes]
    options = {"lr": 0.05, "topC": 3, "aggr": aggr, "scope": scope}
    a, b = critgrad.SGD_C(complexes, **options), critgrad.SGD_C(reals, **options)
    for _ in range(12):
        for p, q in zip(complexes, reals):
            p.grad = torch.randn(p.shape, dtype=torch.complex128, generator=generator)
            q.grad = torch.view_as_real(p.grad).clone()
        a.step()
        b.step()
    assert_close([torch.view_as_real(p.detach()) for p in complexes], reals)
    assert a.state[complexes[0]]["critical_slots"].dtype == torch.complex128


@pytest.mark.parametrize("memory_dtype", ["float32", "bfloat16", "float16", "int8", "float8"])
@pytest.mark.parametrize("aggr", ["mean", "max", "fisher"])
def test_complex_parameters_with_a_memory_of_another_dtype(memory_dtype, aggr):
    generator = torch.Generator().manual_seed(0)
    weight = nn.Parameter(torch.randn(40, 7, dtype=torch.complex64, generator=generator))
    pairs = nn.Parameter(torch.view_as_real(weight.detach()).clone())
    options = {"lr": 0.05, "topC": 3, "aggr": aggr, "memory_dtype": memory_dtype}
    a, b = critgrad.SGD_C([weight], **options), critgrad.SGD_C([pairs], **options)
    for _ in range(6):
        weight.grad = torch.randn(40, 7, dtype=torch.complex64, generator=generator)
        pairs.grad = torch.view_as_real(weight.grad).clone()
        a.step()
        b.step()
    assert_close([torch.view_as_real(weight.detach())], [pairs], rtol=1e-5, atol=1e-5)


def test_conjugate_gradients():
    weight, other = (nn.Parameter(torch.ones(3, dtype=torch.complex64)) for _ in range(2))
    a, b = critgrad.SGD_C([weight], lr=0.1), critgrad.SGD_C([other], lr=0.1)
    for t in range(4):
        g = torch.full((3,), 1 + 1j * t, dtype=torch.complex64)
        weight.grad, other.grad = g.conj(), g.conj().resolve_conj()
        a.step()
        b.step()
    assert torch.equal(weight, other)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("aggr", ALL_AGGREGATIONS)
def test_half_parameters_decide_in_single_precision(dtype, aggr):
    """Norms that a half type cannot hold, or cannot tell apart."""
    weight = nn.Parameter(torch.zeros(4096, dtype=dtype))
    optimizer = critgrad.SGD_C([weight], lr=1e-3, topC=2, decay=1.0, aggr=aggr)
    sizes = (2000.0, 1.0, 1.015625)  # 2000 * 64 = 128000 is no float16
    for size in sizes:
        weight.grad = torch.full_like(weight, size)
        optimizer.step()
    report = critgrad.inspect(optimizer).memories[0]
    assert report.norms == pytest.approx([128000.0, 65.0], rel=1e-6)
    assert optimizer.state[weight]["critical_priority"].dtype == torch.float32
    if aggr != "fisher":
        assert optimizer.state[weight]["critical_sum"].dtype == torch.float32
    assert weight.isfinite().all()


@pytest.mark.parametrize("aggr", ["sum", "max"])
def test_a_half_direction_saturates(aggr):
    """g and the memory's share are finite, their sum is no float16."""
    weight = nn.Parameter(torch.zeros(2, dtype=torch.float16))
    seen = []

    class Spy(torch.optim.SGD):
        def step(self, closure=None):
            seen.append(weight.grad.tolist())

    optimizer = critgrad.critical(Spy)([weight], lr=1.0, aggr=aggr)
    for _ in range(2):
        weight.grad = torch.tensor([60000.0, -60000.0], dtype=torch.float16)
        optimizer.step()
    assert seen[1] == [65504.0, -65504.0]


def test_float64_stays_float64():
    weight = nn.Parameter(torch.zeros(2, dtype=torch.float64))
    optimizer = critgrad.SGD_C([weight], lr=0.1, topC=2, decay=1.0)
    for size in (1.0, 1.0 + 1e-12, 1.0 + 2e-12):
        weight.grad = torch.tensor([size, 0], dtype=torch.float64)
        optimizer.step()
    state = optimizer.state[weight]
    assert state["critical_priority"].tolist() == [1.0 + 2e-12, 1.0 + 1e-12]
    assert {state[key].dtype for key in ("critical_slots", "critical_sum", "critical_norm")} == {torch.float64}


def test_parameters_of_different_dtypes_share_one_memory():
    params = [nn.Parameter(torch.ones(3, dtype=d)) for d in (torch.float32, torch.bfloat16, torch.float64)]
    optimizer = critgrad.SGD_C(params, lr=0.1, topC=3)
    for _ in range(4):
        for p in params:
            p.grad = torch.ones_like(p)
        optimizer.step()
    assert critgrad.inspect(optimizer).memories[0].norms == pytest.approx([3.0] * 3)
    assert torch.allclose(params[0].double(), params[2])


@pytest.mark.parametrize(
    "memory_dtype, tolerance", [("bfloat16", 0.01), ("float16", 0.002), ("int8", 0.02), ("float8", 0.1)]
)
@pytest.mark.parametrize("aggr", ["mean", "fisher"])
def test_a_rounded_memory_is_near_the_exact_one(memory_dtype, tolerance, aggr):
    ours, theirs = (
        parameters(((40, 30), (500,)), dtype=torch.float32),
        parameters(((40, 30), (500,)), dtype=torch.float32),
    )
    stream = GradientStream(ours)
    run(critgrad.SGD_C(ours, lr=0.01, aggr=aggr, memory_dtype=memory_dtype), ours, stream, 20)
    run(critgrad.SGD_C(theirs, lr=0.01, aggr=aggr), theirs, stream, 20)
    start = parameters(((40, 30), (500,)), dtype=torch.float32)
    for p, q, s in zip(ours, theirs, start):
        assert (p - q).norm() <= tolerance * (q - s).norm()


def test_casting_the_model_in_mid_run_takes_the_memory_along():
    model, loss = regression()
    optimizer = critgrad.SGD_C(model.parameters(), lr=0.01, topC=3)
    for _ in range(3):
        optimizer.zero_grad()
        loss().backward()
        optimizer.step()
    before = critgrad.inspect(optimizer).memories[0]
    optimizer.zero_grad()
    model.double()
    for p in model.parameters():
        p.grad = torch.zeros_like(p)
    optimizer.step()
    after = critgrad.inspect(optimizer).memories[0]
    assert after.norms == pytest.approx(before.norms)
    assert after.steps == before.steps + 1
    assert optimizer.state[model[0].weight]["critical_slots"].dtype == torch.float64


# -- layouts -----------------------------------------------------------------------------------------------------------


def channels_last(p):
    return p.to(memory_format=torch.channels_last)


def transposed(p):
    return p.transpose(0, -1).contiguous().transpose(0, -1)


def strided(p):
    wide = torch.empty(*p.shape[:-1], 2 * p.shape[-1], dtype=p.dtype)
    view = wide[..., ::2]
    view.copy_(p)
    return view


def unchanged(p):
    return p


@pytest.mark.parametrize("memory_dtype", [None, "int8"])
@pytest.mark.parametrize("aggr", ["mean", "median", "fisher"])
@pytest.mark.parametrize("of_grad", [unchanged, channels_last, transposed, strided])
@pytest.mark.parametrize("of_param", [unchanged, channels_last, transposed, strided])
def test_any_memory_layout_equals_a_contiguous_one(of_param, of_grad, aggr, memory_dtype):
    if memory_dtype == "int8" and of_param in (channels_last, transposed):
        tolerance = {"rtol": 0, "atol": 0.1}  # scales are shared by other neighbours
    else:
        tolerance = {"rtol": 1e-9, "atol": 1e-11}
    contiguous = parameters(((4, 3, 2, 5), (3, 2, 1, 1)))
    ours = [nn.Parameter(of_param(p.detach().clone())) for p in contiguous]
    options = {"lr": 0.05, "topC": 3, "aggr": aggr, "memory_dtype": memory_dtype}
    a, b = critgrad.Adam_C(ours, **options), critgrad.Adam_C(contiguous, **options)
    stream = GradientStream(ours)
    for t in range(8):
        for p, q, g in zip(ours, contiguous, stream.at(t)):
            p.grad, q.grad = of_grad(g.clone()), g.clone()
        a.step()
        b.step()
    assert_close(ours, contiguous, **tolerance)
    for p in ours:
        assert a.state[p]["critical_slots"].shape == (3, *p.shape)


@pytest.mark.parametrize("memory_dtype", [None, "float16", "int8", "float8"])
@pytest.mark.parametrize("scope", ["global", "tensor"])
@pytest.mark.parametrize("aggr", ALL_AGGREGATIONS)
def test_zero_size_and_zero_dim_parameters(aggr, scope, memory_dtype):
    params = parameters(((0,), (), (3, 0, 2), (4,)), dtype=torch.float32)
    optimizer = critgrad.SGD_C(params, lr=0.1, aggr=aggr, scope=scope, topC=2, memory_dtype=memory_dtype)
    run(optimizer, params, GradientStream(params), 5)
    reports = critgrad.inspect(optimizer).memories
    assert [report.live for report in reports] == ([2] if scope == "global" else [0, 2, 0, 2])


# -- torch.compile -----------------------------------------------------------------------------------------------------


def compiled_equals_eager(backend, options, steps=20, cls=critgrad.SGD_C, rtol=1e-9, atol=1e-11, dtype=torch.float64):
    torch._dynamo.reset()
    ours, theirs = parameters(dtype=dtype), parameters(dtype=dtype)
    stream = GradientStream(ours, zero=0.1)
    a, b = cls(ours, lr=0.05, **options), cls(theirs, lr=0.05, **options)
    step = torch.compile(a.step, backend=backend)
    for t in range(steps):
        stream.set(ours, t)
        step()
        run(b, theirs, stream, 1, start=t)
    assert_close(ours, theirs, rtol=rtol, atol=atol)
    for was, now in zip(critgrad.inspect(a).memories, critgrad.inspect(b).memories, strict=True):
        assert (was.live, was.steps, was.inserted, was.ages) == (now.live, now.steps, now.inserted, now.ages)


@pytest.mark.parametrize(
    "options",
    [
        {"topC": 4, "momentum": 0.9},
        pytest.param({"topC": 3, "aggr": "fisher", "policy": "CDS"}, marks=pytest.mark.slow),
        pytest.param({"topC": 3, "aggr": "median", "policy": "RR", "memory_dtype": "int8"}, marks=pytest.mark.slow),
        pytest.param({"topC": 3, "scope": "tensor", "max_age": 5, "policy": "NCPR"}, marks=pytest.mark.slow),
        {"topC": 0},
    ],
    ids=str,
)
def test_a_compiled_step_equals_an_eager_one(options):
    """Twenty steps: with an empty memory, while it fills, and when it is full."""
    compiled_equals_eager("eager", options)


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
@pytest.mark.parametrize("cls", [critgrad.Adam_C, critgrad.Adam_F])
def test_a_compiled_adam_equals_an_eager_one(backend, cls):
    # Compiled, torch's Adam counts its steps in float32, and so has its bias corrections.
    compiled_equals_eager(backend, {"topC": 4}, cls=cls, dtype=torch.float32, rtol=1e-3, atol=1e-4)


@pytest.mark.slow
def test_a_compiled_step_settles_after_its_first_calls():
    """No compilation after the second step: with a tensor lr, not even when the memory fills."""
    import torch._dynamo.testing

    torch._dynamo.reset()
    counter = torch._dynamo.testing.CompileCounter()
    params = parameters()
    optimizer = critgrad.Adam_C(params, lr=torch.tensor(0.05), topC=4)
    step = torch.compile(optimizer.step, backend=counter)
    stream = GradientStream(params)
    counts = []
    for t in range(12):
        stream.set(params, t)
        step()
        optimizer.param_groups[0]["lr"].mul_(0.9)
        counts.append(counter.frame_count)
    assert counts[3] == counts[-1]


# -- hooks, gradients, generators --------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["class", "wrapper"])
@pytest.mark.parametrize("base", BASES)
def test_step_hooks_fire_once(base, kind):
    cls, kwargs = BASES[base]
    cls(parameters(), **kwargs)  # a plain one, whose class torch gives hooks of its own
    params = parameters()
    inner = cls(params, **kwargs)
    optimizer = critgrad.critical(cls)(params, **kwargs) if kind == "class" else critgrad.CriticalGradients(inner)
    seen = []
    optimizer.register_step_pre_hook(lambda opt, args, kw: seen.append(("before", opt)))
    optimizer.register_step_post_hook(lambda opt, args, kw: seen.append(("after", opt)))
    inner.register_step_pre_hook(lambda opt, args, kw: seen.append(("before inner", opt)))
    inner.register_step_post_hook(lambda opt, args, kw: seen.append(("after inner", opt)))
    for t in range(2):
        run(optimizer, params, GradientStream(params), 1, start=t)
        names = [name for name, _ in seen]
        inside = ["before inner", "after inner"] if kind == "wrapper" else []
        assert names == ["before", *inside, "after"]
        assert seen[0][1] is optimizer
        seen.clear()


@pytest.mark.parametrize("kind", ["class", "wrapper"])
def test_global_step_hooks_fire_once_per_optimizer(kind):
    torch.optim.Adam(parameters())
    params = parameters()
    inner = torch.optim.Adam(params)
    optimizer = critgrad.Adam_C(params) if kind == "class" else critgrad.CriticalGradients(inner)
    seen = []
    handles = [
        register_optimizer_step_pre_hook(lambda opt, args, kw: seen.append(opt)),
        register_optimizer_step_post_hook(lambda opt, args, kw: seen.append(opt)),
    ]
    try:
        run(optimizer, params, GradientStream(params), 1)
    finally:
        for handle in handles:
            handle.remove()
    assert seen == [optimizer, optimizer] if kind == "class" else [optimizer, inner, inner, optimizer]


LOOPS = [(base, {"foreach": flag}) for base in BASES for flag in (True, False)]
LOOPS += [(base, {"fused": True}) for base in ("SGD", "SGDM", "Adam", "AdamW", "Adagrad")]


@pytest.mark.parametrize("kind", ["class", "wrapper"])
@pytest.mark.parametrize("base, flags", LOOPS, ids=str)
def test_p_grad_is_the_same_object_unwritten(base, flags, kind):
    cls, kwargs = BASES[base]
    params = parameters()
    if kind == "class":
        optimizer = critgrad.critical(cls)(params, **kwargs, **flags)
    else:
        optimizer = critgrad.CriticalGradients(cls(params, **kwargs, **flags))
    stream = GradientStream(params)
    for t in range(4):
        stream.set(params, t)
        if t == 3:
            params[0].grad[0, 0] = math.nan
        grads = [p.grad for p in params]
        versions, values = [g._version for g in grads], [g.clone() for g in grads]
        optimizer.step()
        assert all(p.grad is g for p, g in zip(params, grads))
        assert [g._version for g in grads] == versions
        assert_same_bits(grads, values)


def test_the_memory_keeps_a_copy_and_no_reference():
    """Under DDP a gradient is a view into a bucket that is written again."""
    params = parameters()
    optimizer = critgrad.SGD_C(params, lr=0.1)
    run(optimizer, params, GradientStream(params), 1)
    slots = [state["critical_slots"] for state in memory_state(optimizer)]
    for p in params:
        p.grad.fill_(99.0)
    assert all(torch.equal(a, optimizer.state[p]["critical_slots"]) for a, p in zip(slots, params))


@pytest.mark.parametrize("policy", ["random", "MNDS", "CDS", "CSS", "RR", "NCPR"])
def test_the_global_generator_is_untouched(policy):
    params = parameters()
    optimizer = critgrad.SGD_C(params, lr=0.1, policy=policy)
    torch.manual_seed(5)
    before = torch.get_rng_state()
    stream = GradientStream(params)
    for t in range(8):
        run(optimizer, params, stream, 1, start=t)
        critgrad.inspect(optimizer)
    assert torch.equal(torch.get_rng_state(), before)


# -- differentiable ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scope", ["global", "tensor"])
@pytest.mark.parametrize("aggr", ALL_AGGREGATIONS)
def test_a_differentiable_step_has_the_gradients_of_the_formula(aggr, scope):
    """d(theta after) / d(g): the memory is a constant, the direction a function of the gradient."""
    shapes = ((2, 2), (3,))
    generator = torch.Generator().manual_seed(0)
    history = [[torch.randn(s, generator=generator, dtype=torch.float64) for s in shapes] for _ in range(3)]
    start = [torch.randn(s, generator=generator, dtype=torch.float64) for s in shapes]

    def after(a, b):
        theta = [p.clone().requires_grad_() for p in start]
        work = [t.clone() for t in theta]
        optimizer = critgrad.SGD_C(work, lr=0.1, topC=2, aggr=aggr, scope=scope, differentiable=True)
        for grads in history:
            for w, g in zip(work, grads):
                w.grad = g
            optimizer.step()
        for w, g in zip(work, (a, b)):
            w.grad = g
        optimizer.step()
        return tuple(work)

    inputs = [torch.randn(s, generator=generator, dtype=torch.float64, requires_grad=True) for s in shapes]
    assert torch.autograd.gradcheck(after, inputs, atol=1e-6)


@pytest.mark.parametrize("aggr", ["mean", "fisher"])
def test_a_differentiable_step_has_a_gradient_with_respect_to_the_learning_rate(aggr):
    def after(lr):
        work = [torch.ones(3, dtype=torch.float64, requires_grad=True).clone()]
        optimizer = critgrad.SGD_C(work, lr=lr, topC=2, aggr=aggr, differentiable=True, foreach=False)
        for k in range(3):
            work[0].grad = torch.tensor([1.0, k, 2.0], dtype=torch.float64)
            optimizer.step()
        return work[0]

    assert torch.autograd.gradcheck(after, [torch.tensor(0.1, dtype=torch.float64, requires_grad=True)])
