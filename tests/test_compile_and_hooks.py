"""torch.compile, step hooks, p.grad, random generators, differentiable steps."""

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
    memory_state,
    parameters,
    run,
)
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

import critgrad

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


def moves(opt, params):
    opt.param_groups[1]["params"].append(opt.param_groups[0]["params"].pop())


def is_thawed(opt, params):
    params[0].requires_grad_(True)


def is_replaced(opt, params):
    params[1] = opt.param_groups[0]["params"][1] = torch.nn.Parameter(params[1].detach().clone())


def loses_its_state(opt, params):
    del opt.state[params[1]]


@pytest.mark.parametrize("change", [moves, is_thawed, is_replaced, loses_its_state])
def test_a_compiled_step_sees_what_has_changed_between_two(change):
    """Nobody inspects in between, which would bring the memory up to date. (Of a group's last parameter torch's own compiled
    step overlooks that its state is gone, or new.)
    """
    torch._dynamo.reset()
    ours, theirs = parameters([(4, 3)] * 4), parameters([(4, 3)] * 4)
    opts = []
    for params in (ours, theirs):
        params[0].requires_grad_(False)
        groups = [{"params": params[:2], "kappa": 1.0}, {"params": params[2:], "lr": 0.02, "kappa": 0.3}]
        opts.append(critgrad.SGD_C(groups, lr=0.05, topC=3, scope="group", momentum=0.5))
    steps = [torch.compile(opts[0].step, backend="eager"), opts[1].step]
    stream = GradientStream(ours)
    for t in range(10):
        for params, opt, step in zip((ours, theirs), opts, steps):
            if t == 5:
                change(opt, params)
            stream.set(params, t)
            for param in params:
                param.grad = param.grad if param.requires_grad else None
            step()
    assert_close(ours, theirs, rtol=1e-9, atol=1e-11)
    for was, now in zip(*(critgrad.inspect(opt).memories for opt in opts), strict=True):
        assert (was.live, was.steps, was.inserted, was.ages) == (now.live, now.steps, now.inserted, now.ages)


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
