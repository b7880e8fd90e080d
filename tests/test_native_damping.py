"""The native core where the memory damps: equal to the reference and to the plain path, bit for bit the same on resuming."""

from __future__ import annotations

import copy

import pytest
import torch
from helpers import (
    BASES,
    GradientStream,
    ReferenceOptimizer,
    assert_close,
    assert_same_bits,
    memory_state,
    parameters,
    run,
)

import critgrad
from critgrad.engines.native import build as compiled

pytestmark = pytest.mark.skipif(compiled.compiled_core() is None, reason="no C compiler")

SHAPES = ((70, 600), (5,), (), (2, 1, 3), (0, 4))


@pytest.fixture(autouse=True)
def _only_native(monkeypatch):
    monkeypatch.setenv("CRITGRAD_ENGINE", "native")
    monkeypatch.delenv("CRITGRAD_NATIVE", raising=False)


def is_native(opt) -> bool:
    return critgrad.inspect(opt).engine == "native"


def adam(params, **options):
    return critgrad.Adam_F(params, **{"lr": 0.01, "topC": 6, **options})


@pytest.mark.parametrize("base", ["SGD", "SGDM", "RMSprop", "Adam", "AdamW", "NAdam"])
@pytest.mark.parametrize("scope", ["global", "tensor"])
@pytest.mark.parametrize("rho", [1e-4, 0.3])
def test_it_equals_the_reference(base, scope, rho):
    """Single precision against the formula in double: entry by entry the same memory, and close weights."""
    cls, kwargs = BASES[base]
    options = {"aggr": "fisher", "rho": rho, "scope": scope, "topC": 4, "decay": 0.95}
    shapes = ((30, 11), (5,), ())
    ours = parameters(shapes, torch.float32)
    theirs = [torch.nn.Parameter(p.detach().double()) for p in ours]
    optimizer = critgrad.critical(cls)(ours, **kwargs, **options)
    reference = ReferenceOptimizer(theirs, lambda params: cls(params, **kwargs), **options)
    stream = GradientStream(ours, missing=0.2, zero=0.1)
    for t in range(30):
        stream.set(ours, t)
        for p, q in zip(ours, theirs, strict=True):
            q.grad = None if p.grad is None else p.grad.double()
        optimizer.step()
        reference.step()
    assert is_native(optimizer)
    # Where rho is small the damped direction is a small difference of large numbers, and Adam divides by its size.
    tolerance = 5e-3 if rho < 1e-2 else 2e-4
    assert_close([p.double() for p in ours], theirs, rtol=tolerance, atol=tolerance)
    for i, memory in enumerate(reference.memories):
        born = optimizer.state[ours[i]]["critical_born"].tolist()
        assert born == [0 if e is None else e.born for e in memory.entries]


def test_the_gram_matrix_is_that_of_the_slots():
    params = parameters(SHAPES, torch.float32)
    opt = adam(params)
    run(opt, params, GradientStream(params, missing=0.3), 40)
    assert is_native(opt)
    slots = torch.cat([opt.state[p]["critical_slots"].reshape(6, -1) for p in params], 1).double()
    gram = opt.state[params[0]]["critical_gram"]
    torch.testing.assert_close(gram, slots @ slots.T, rtol=1e-5, atol=1e-5 * float(gram.abs().max()))


def test_groups_that_add_and_groups_that_damp_share_a_memory():
    results = []
    for fused in (None, False):
        params = parameters(((70, 600), (9, 7), (5,), (3,)), torch.float32)
        groups = [
            {"params": params[:1], "rho": 0.1},
            {"params": params[1:2], "aggr": "mean"},
            {"params": params[2:3], "kappa": 0.5},
            {"params": params[3:], "topC": 0},
        ]
        opt = critgrad.SGD_F(groups, lr=0.01, momentum=0.9, fused=fused)
        run(opt, params, GradientStream(params, missing=0.2), 40)
        assert is_native(opt) == (fused is None)
        results.append((params, memory_state(opt)))
    assert_close(results[0][0], results[1][0], rtol=1e-4, atol=1e-4)
    for mine, other in zip(results[0][1], results[1][1], strict=True):
        assert mine.keys() == other.keys()
        if "critical_born" in mine:
            assert torch.equal(mine["critical_born"], other["critical_born"])


def test_a_policy_of_functions():
    policy = critgrad.Policy("mine", lambda tables: tables.t % 3 == 0, lambda tables: tables.norm.argmax(-1))
    results = []
    for fused in (None, False):
        params = parameters(SHAPES, torch.float32)
        opt = critgrad.SGD_F(params, lr=0.01, topC=4, policy=policy, fused=fused)
        run(opt, params, GradientStream(params, bad=0.1, zero=0.1), 30)
        assert is_native(opt) == (fused is None)
        results.append(memory_state(opt))
    for mine, other in zip(*results, strict=True):
        assert torch.equal(mine["critical_born"], other["critical_born"])
        torch.testing.assert_close(mine["critical_gram"], other["critical_gram"], rtol=1e-4, atol=1e-4)


def test_threads_do_not_change_a_bit():
    results = []
    threads = torch.get_num_threads()
    for count in (1, 3):
        torch.set_num_threads(count)
        try:
            params = parameters(((300, 1000),), torch.float32)
            run(adam(params), params, GradientStream(params), 8)
        finally:
            torch.set_num_threads(threads)
        results.append(params)
    assert_same_bits(*results)


def test_resume_is_bitwise():
    params = parameters(SHAPES, torch.float32)
    stream = GradientStream(params, missing=0.2)
    opt = adam(params)
    run(opt, params, stream, 25)
    resumed = [torch.nn.Parameter(p.detach().clone()) for p in params]
    again = adam(resumed)
    again.load_state_dict(copy.deepcopy(opt.state_dict()))
    run(opt, params, stream, 20, start=25)
    run(again, resumed, stream, 20, start=25)
    assert is_native(again)
    assert_same_bits(params, resumed)


def test_a_bad_gradient_moves_the_base_only():
    params = parameters(SHAPES, torch.float32)
    stream = GradientStream(params)
    opt = critgrad.SGD_F(params, lr=0.01, topC=3)
    run(opt, params, stream, 10)
    before, were = memory_state(opt), [p.detach().clone() for p in params]
    stream.set(params, 10)
    params[0].grad[3, 3] = float("inf")
    opt.step()
    assert_close(params, [w - 0.01 * p.grad for w, p in zip(were, params, strict=True)], rtol=1e-6, atol=1e-7)
    for was, now in zip(before, memory_state(opt), strict=True):
        assert all(torch.equal(was[key], now[key]) for key in was)


@pytest.mark.parametrize("size", [1e-30, 1e-12, 1e12, 1e30])
def test_gradients_of_any_size(size):
    """Beyond the range of a single-precision square a gradient counts as zero or not finite; within it all is well."""
    params = parameters(((40, 40), (5,)), torch.float32)
    stream = GradientStream(params)
    opt = critgrad.SGD_F(params, lr=0.01 / size, topC=3)
    for t in range(8):
        for p, g in zip(params, stream.at(t), strict=True):
            p.grad = (g * size).float()
        opt.step()
    assert all(torch.isfinite(p).all() for p in params)
    assert (int(opt.state[params[0]]["critical_inserted"]) > 0) == (1e-30 < size < 1e30)
    assert torch.isfinite(opt.state[params[0]]["critical_gram"]).all()


def test_an_empty_memory_is_the_base_bit_for_bit():
    bases = {critgrad.Adam_F: torch.optim.Adam, critgrad.SGD_C: torch.optim.SGD, critgrad.NAdam_F: torch.optim.NAdam}
    for make, plain in bases.items():
        ours, theirs = (parameters(SHAPES, torch.float32) for _ in range(2))
        a, b = make(ours, lr=0.01), plain(theirs, lr=0.01)
        stream = GradientStream(ours)
        run(a, ours, stream, 1)
        run(b, theirs, stream, 1)
        assert is_native(a)
        assert_same_bits(ours, theirs)
