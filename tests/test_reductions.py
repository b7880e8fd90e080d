"""Special settings are known optimizers: the base itself, a moving average, a projection."""

from __future__ import annotations

import pytest
import torch
from helpers import ALL_AGGREGATIONS, BASES, GradientStream, assert_close, assert_same_bits, parameters, run
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import critgrad

FUSED_ON_CPU = ("SGD", "SGDM", "Adam", "AdamW", "Adagrad")


def class_of(base, params, **options):
    cls, kwargs = BASES[base]
    return critgrad.critical(cls)(params, **{**kwargs, **options})


def wrapper_of(base, params, **options):
    cls, kwargs = BASES[base]
    ours = {name: options.pop(name) for name in ("topC", "kappa", "aggr", "decay") if name in options}
    return critgrad.CriticalGradients(cls(params, **{**kwargs, **options}), **ours)


def plain(base, params, **options):
    cls, kwargs = BASES[base]
    return cls(params, **{**kwargs, **options})


LOOPS = [(base, {"foreach": flag}) for base in BASES for flag in (True, False, None)]
LOOPS += [(base, {"fused": True}) for base in FUSED_ON_CPU]


@pytest.mark.parametrize("make", [class_of, wrapper_of], ids=["class", "wrapper"])
@pytest.mark.parametrize("base, flags", LOOPS, ids=str)
def test_topC_0_is_the_base_bit_for_bit(base, flags, make):
    ours, theirs = parameters(dtype=torch.float32), parameters(dtype=torch.float32)
    stream = GradientStream(ours, missing=0.2, bad=0.05)
    optimizer = make(base, ours, topC=0, **flags)
    run(optimizer, ours, stream, 12)
    run(plain(base, theirs, **flags), theirs, stream, 12)
    assert_same_bits(ours, theirs)
    assert not any(key.startswith("critical_") for state in optimizer.state.values() for key in state)


@pytest.mark.parametrize("make", [class_of, wrapper_of], ids=["class", "wrapper"])
@pytest.mark.parametrize("aggr", ALL_AGGREGATIONS)
@pytest.mark.parametrize("base", BASES)
def test_kappa_0_is_the_base_bit_for_bit(base, aggr, make):
    ours, theirs = parameters(), parameters()
    stream = GradientStream(ours, missing=0.2)
    run(make(base, ours, kappa=0.0, aggr=aggr), ours, stream, 8)
    run(plain(base, theirs), theirs, stream, 8)
    assert_same_bits(ours, theirs)


@pytest.mark.parametrize("aggr", ["mean", "min", "fisher"])
@pytest.mark.parametrize("base, flags", LOOPS, ids=str)
def test_an_empty_memory_is_the_base_bit_for_bit(base, flags, aggr):
    ours, theirs = parameters(), parameters()
    stream = GradientStream(ours)
    run(class_of(base, ours, aggr=aggr, **flags), ours, stream, 1)
    run(plain(base, theirs, **flags), theirs, stream, 1)
    assert_same_bits(ours, theirs)


@pytest.mark.parametrize("aggr", ["mean", "sum", "mid"])
@pytest.mark.parametrize("policy", ["KotH", "FIFO"])
@pytest.mark.parametrize("topC", [1, 3, 7])
def test_decay_0_is_a_moving_window(aggr, policy, topC):
    lr, steps = 0.1, 30
    ours = parameters()
    stream = GradientStream(ours)
    theta = [p.detach().clone() for p in ours]
    # FIFO is a moving window at any decay.
    decay = 0.0 if policy == "KotH" else 0.9
    run(critgrad.SGD_C(ours, lr=lr, topC=topC, decay=decay, aggr=aggr, policy=policy), ours, stream, steps)
    history: list = []
    for t in range(steps):
        grads = stream.at(t)
        for i, g in enumerate(grads):
            window = [past[i] for past in history[-topC:]]
            if not window:
                d = g
            elif aggr == "mean":
                d = sum(window, g) / (len(window) + 1)
            elif aggr == "sum":
                d = g + sum(window) / len(window)
            else:
                d = (g + sum(window) / len(window)) / 2
            theta[i] = theta[i] - lr * d
        history.append(grads)
    assert_close(ours, theta)


def test_decay_1_with_room_for_all_is_the_mean_of_all_gradients():
    lr, steps = 0.1, 20
    ours = parameters()
    stream = GradientStream(ours)
    theta = [p.detach().clone() for p in ours]
    run(critgrad.SGD_C(ours, lr=lr, topC=steps, decay=1.0, aggr="mean"), ours, stream, steps)
    total = [torch.zeros_like(p) for p in theta]
    for t in range(steps):
        for i, g in enumerate(stream.at(t)):
            total[i] += g
            theta[i] = theta[i] - lr * total[i] / (t + 1)
    assert_close(ours, theta)


def test_decay_1_keeps_the_largest_norms_for_ever():
    ours = parameters()
    stream = GradientStream(ours)
    optimizer = critgrad.SGD_C(ours, lr=0.1, topC=4, decay=1.0)
    run(optimizer, ours, stream, 30)
    norms = [float(torch.cat([g.reshape(-1) for g in stream.at(t)]).norm()) for t in range(30)]
    stored = critgrad.inspect(optimizer).memories[0].norms
    assert sorted(stored) == pytest.approx(sorted(norms)[-4:])


# -- the memory that damps ---------------------------------------------------------------------------------------------


def damped(slots, g, rho, kappa=1.0, dtype=torch.float64):
    """The direction that SGD_F takes for ``g`` once ``slots`` are in its memory."""
    weight = nn.Parameter(torch.zeros(len(g), dtype=dtype))
    optimizer = critgrad.SGD_F([weight], lr=1.0, topC=max(len(slots), 1), decay=1.0, rho=rho, kappa=kappa)
    for slot in slots:
        weight.grad = torch.as_tensor(slot, dtype=dtype).clone()
        optimizer.step()
    weight.data.zero_()
    weight.grad = torch.as_tensor(g, dtype=dtype).clone()
    optimizer.step()
    return -weight.detach()


@pytest.mark.parametrize(
    "slots, rho, g, expected",
    [
        ([(1, 0)], 0.1, (1, 1), (1 / 11, 1)),
        ([(1, 0, 0), (0, 1, 0)], 0.1, (1, 1, 1), (1 / 6, 1 / 6, 1)),
        ([(2, 0), (1, 1)], 0.25, (1, 1), (0.147541, 0.540984)),
    ],
)
def test_damping_has_the_values_of_the_theory(slots, rho, g, expected):
    torch.testing.assert_close(damped(slots, g, rho), torch.tensor(expected, dtype=torch.float64), rtol=0, atol=5e-7)


@pytest.mark.parametrize("base", ["SGD", "Adam", "RMSprop"])
def test_damping_with_a_huge_rho_is_nearly_the_base(base):
    ours, theirs = parameters(), parameters()
    stream = GradientStream(ours)
    run(class_of(base, ours, aggr="fisher", rho=1e12), ours, stream, 20)
    run(plain(base, theirs), theirs, stream, 20)
    assert_close(ours, theirs, rtol=1e-8, atol=1e-9)


def test_damping_with_a_tiny_rho_and_orthogonal_slots_is_a_projection():
    slots = [(3.0, 0, 0, 0), (0, 2.0, 0, 0)]
    d = damped(slots, (5.0, -7.0, 2.0, 1.0), rho=1e-10)
    torch.testing.assert_close(d, torch.tensor([0, 0, 2.0, 1.0], dtype=torch.float64), rtol=0, atol=1e-7)


@pytest.mark.parametrize("scale", [1e-12, 1e-3, 1e9])
def test_damping_is_invariant_to_the_scale_of_the_memory_and_linear_in_the_gradient(scale):
    generator = torch.Generator().manual_seed(1)
    slots = torch.randn(4, 9, generator=generator, dtype=torch.float64)
    g = torch.randn(9, generator=generator, dtype=torch.float64)
    d = damped(slots, g, 0.05)
    torch.testing.assert_close(damped(slots * scale, g, 0.05), d, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(damped(slots, g * scale, 0.05), d * scale, rtol=1e-9, atol=0)


@settings(max_examples=60, deadline=None)
@given(
    n=st.integers(1, 6),
    dim=st.integers(1, 8),
    rho=st.sampled_from([1e-5, 1e-3, 0.03, 0.3, 1.0, 30.0]),
    kappa=st.sampled_from([0.25, 1.0]),
    spread=st.sampled_from([0.0, 3.0]),
    seed=st.integers(0, 10_000),
)
def test_lemma_P_bounds_the_eigenvalues_of_the_damping(n, dim, rho, kappa, spread, seed):
    """``(1 - kappa / (1 + rho)) I <= P <= I``, attained by parallel slots."""
    from critgrad.memory.aggregations import damping_weights

    generator = torch.Generator().manual_seed(seed)
    G = torch.randn(n, dim, generator=generator, dtype=torch.float64)
    G = G * 10 ** (spread * torch.randn(n, 1, generator=generator, dtype=torch.float64))
    K = (G @ G.T)[None]
    columns = [
        damping_weights(K, (G @ e)[None], rho, kappa, torch.tensor([True]))[0] @ G for e in torch.eye(dim).double()
    ]
    P = torch.eye(dim, dtype=torch.float64) - torch.stack(columns, 1)
    assert torch.allclose(P, P.T, atol=1e-9)
    values = torch.linalg.eigvalsh((P + P.T) / 2)
    lowest = 1 - kappa / (1 + rho)
    assert values.min() >= lowest - 1e-9
    assert values.max() <= 1 + 1e-9
    if n == 1 or dim == 1:
        assert values.min().item() == pytest.approx(lowest, abs=1e-9)
