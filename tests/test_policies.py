"""Draws, policies as objects, and the replay of recorded decisions."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from helpers import ALL_POLICIES, GradientStream, assert_close, parameters, run
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import critgrad
from critgrad import reference
from critgrad.memory.policies import ADMISSION, EVICTION, POLICIES, Policy, Tables, decide, uniform

# -- draws -------------------------------------------------------------------------------------------------------------


@settings(max_examples=80, deadline=None)
@given(
    seed=st.integers(0, 2**63 - 1),
    t=st.integers(1, 2**45),
    stream=st.integers(0, 2**24),
    purpose=st.sampled_from([ADMISSION, EVICTION]),
)
def test_draws_equal_the_reference(seed, t, stream, purpose):
    ours = uniform(seed, torch.tensor([t]), torch.tensor([stream]), purpose)
    assert ours.dtype == torch.float64
    assert ours.item() == reference.uniform(seed, t, stream, purpose)
    assert 0 <= ours.item() < 1


def chi_square(counts):
    counts = counts.double()
    expected = counts.sum() / counts.numel()
    return float(((counts - expected) ** 2 / expected).sum())


STEPS = torch.arange(1, 20_001)


@pytest.mark.parametrize("seed", [0, 1, 12345, 2**40 + 7])
@pytest.mark.parametrize("stream", [0, 1, (1 << 20) + 3])
@pytest.mark.parametrize("purpose", [ADMISSION, EVICTION])
def test_draws_are_uniform(seed, stream, purpose):
    u = uniform(seed, STEPS, torch.full_like(STEPS, stream), purpose)
    # 63 degrees of freedom: 116 is exceeded once in 20,000 trials.
    assert chi_square(torch.histc(u, 64, 0, 1)) < 116
    # The low bits too, which a slot's number is made of.
    assert chi_square(torch.histc((u * 2**26) % 1, 64, 0, 1)) < 116


def pair(one, other):
    """Chi-square of two sequences on a 10 x 10 table: 99 degrees of freedom, 161 once in 10,000."""
    cells = (one * 10).long() * 10 + (other * 10).long()
    return chi_square(torch.bincount(cells, minlength=100))


def test_the_draws_of_one_step_are_independent_of_each_other():
    zero = torch.zeros_like(STEPS)
    for seed in (0, 7):
        assert pair(uniform(seed, STEPS, zero, ADMISSION), uniform(seed, STEPS, zero, EVICTION)) < 161


def test_draws_of_neighbouring_steps_streams_and_seeds_are_independent():
    zero = torch.zeros_like(STEPS)
    u = uniform(0, STEPS, zero, ADMISSION)
    assert pair(u[:-1], u[1:]) < 161
    assert pair(u, uniform(0, STEPS, zero + 1, ADMISSION)) < 161
    assert pair(u, uniform(1, STEPS, zero, ADMISSION)) < 161
    assert pair(uniform(0, STEPS, zero, EVICTION), uniform(0, STEPS, zero + 1, ADMISSION)) < 161


def test_streams_of_one_step_are_uniform_among_themselves():
    streams = torch.arange(1 << 20, (1 << 20) + 20_000)
    u = uniform(3, torch.full_like(streams, 17), streams, ADMISSION)
    assert chi_square(torch.histc(u, 64, 0, 1)) < 116


# -- frequencies -------------------------------------------------------------------------------------------------------


def many(policy, norms, g_norm, steps=20_000, **extra):
    """One decision at each of many steps, of a full memory that stays the same: ``rows`` serves as the steps."""
    C = len(norms)
    norm = torch.tensor(norms, dtype=torch.float64).expand(steps, C)
    tables = Tables(
        priority=norm,
        norm=norm,
        born=torch.arange(1, C + 1).expand(steps, C),
        t=torch.arange(C + 1, C + 1 + steps),
        g_norm=torch.full((steps,), g_norm, dtype=torch.float64),
        stream=torch.zeros(steps, dtype=torch.int64),
        **{k: torch.full((steps,), v, dtype=torch.float64) for k, v in extra.items()},
    )
    return decide(POLICIES[policy], tables, None)


def test_NCPR_evicts_in_proportion_to_the_stored_norm():
    norms = [1.0, 2.0, 3.0, 4.0]
    decision = many("NCPR", norms, 5.0)
    assert decision.accept.all()
    share = torch.bincount(decision.slot, minlength=4) / len(decision.slot)
    torch.testing.assert_close(share.double(), torch.tensor(norms).double() / 10, rtol=0, atol=0.012)


def test_RR_evicts_uniformly():
    decision = many("RR", [1.0, 2.0, 3.0, 4.0, 5.0], 9.0)
    assert chi_square(torch.bincount(decision.slot, minlength=5)) < 24  # 4 degrees of freedom: once in 10,000


@pytest.mark.parametrize(
    "policy, g_norm, extra, probability",
    [
        ("random", 0.1, {}, 0.5),
        ("MNDS", 2.5, {}, 0.25),  # the stored norms' mean is 2
        ("MNDS", 1.0, {}, 0.5),
        ("MNDS", 9.0, {}, 1.0),
        ("MNDS", 2.0, {}, 0.0),
        ("CDS", 1.0, {"g_dot_sum": 1.0, "sum_sq": 4.0}, 0.25),  # cos = 1/2
        ("CSS", 1.0, {"g_dot_sum": 1.0, "sum_sq": 4.0}, 0.75),
        ("CSS", 1.0, {"g_dot_sum": -2.0, "sum_sq": 4.0}, 0.0),
        ("CDS", 1.0, {"g_dot_sum": 0.0, "sum_sq": 0.0}, 0.5),
        ("sparse", 1.0, {}, 0.1),
        ("FIFO", 0.001, {}, 1.0),
        ("KotH", 1.0, {}, 0.0),
        ("KotH", 1.01, {}, 1.0),
        ("bottomC", 0.99, {}, 1.0),
        ("bottomC", 1.01, {}, 0.0),
    ],
)
def test_admission_has_the_probability_of_the_paper(policy, g_norm, extra, probability):
    accept = many(policy, [1.0, 3.0], g_norm, **extra).accept
    assert accept.double().mean().item() == pytest.approx(probability, abs=0.012)


@pytest.mark.parametrize("policy", ALL_POLICIES)
def test_rules_work_with_a_leading_axis_of_memories(policy):
    """Rows are decided alike, alone or together."""
    generator = torch.Generator().manual_seed(0)
    rows, C = 6, 4
    norm = torch.rand(rows, C, generator=generator, dtype=torch.float64)
    fields = {
        "priority": norm * 0.5,
        "norm": norm,
        "born": torch.randint(0, 5, (rows, C), generator=generator),
        "t": torch.full((rows,), 9),
        "g_norm": torch.rand(rows, generator=generator, dtype=torch.float64),
        "stream": torch.arange(rows),
        "g_dot_sum": torch.rand(rows, generator=generator, dtype=torch.float64),
        "sum_sq": torch.rand(rows, generator=generator, dtype=torch.float64),
    }
    together = decide(POLICIES[policy], Tables(**fields), 5)
    for i in range(rows):
        alone = decide(POLICIES[policy], Tables(**{k: v[i : i + 1] for k, v in fields.items()}), 5)
        assert [x[i].item() for x in together] == [x.item() for x in alone]


@pytest.mark.parametrize("policy", ["random", "MNDS", "CDS", "CSS", "RR", "NCPR"])
def test_the_seed_decides(policy):
    def slots(seed):
        params = parameters()
        optimizer = critgrad.SGD_C(params, lr=0.01, policy=policy, seed=seed, topC=3)
        record = []
        for t in range(40):
            run(optimizer, params, GradientStream(params), 1, start=t)
            record.append(critgrad.inspect(optimizer).memories[0].last_slot)
        return record

    assert slots(0) == slots(0)
    assert slots(0) != slots(1)


# -- policies as objects -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scope", ["global", "group", "tensor"])
@pytest.mark.parametrize("aggr", ["mean", "fisher"])
@pytest.mark.parametrize("name", ALL_POLICIES)
def test_a_policy_object_of_the_built_in_rules_is_the_built_in_policy(name, aggr, scope):
    built_in = POLICIES[name]
    mine = Policy(
        "mine", built_in.admit, built_in.evict, built_in.priority, built_in.also_while_filling, built_in.needs_cosine
    )
    ours, theirs = parameters(), parameters()
    stream = GradientStream(ours)
    run(critgrad.Adam_C(ours, topC=3, policy=mine, aggr=aggr, scope=scope), ours, stream, 20)
    run(critgrad.Adam_C(theirs, topC=3, policy=name, aggr=aggr, scope=scope), theirs, stream, 20)
    assert_close(ours, theirs, rtol=0, atol=0)


def test_a_policy_of_ones_own():
    """Keep the newest, but only gradients larger than the last one stored."""

    def larger_than_newest(tables):
        newest = tables.born.argmax(-1, keepdim=True)
        return tables.g_norm > tables.norm.gather(-1, newest).squeeze(-1)

    policy = Policy("rising", larger_than_newest, lambda tables: tables.born.argmin(-1))
    weight = nn.Parameter(torch.zeros(1))
    optimizer = critgrad.SGD_C([weight], lr=0.1, topC=2, policy=policy)
    for size in (1.0, 2.0, 1.5, 3.0, 2.9, 4.0):
        weight.grad = torch.tensor([size])
        optimizer.step()
    assert sorted(critgrad.inspect(optimizer).memories[0].norms) == [3.0, 4.0]
    assert "rising" in str(critgrad.inspect(optimizer))


# -- replay ------------------------------------------------------------------------------------------------------------


def record(optimizer, params, stream, steps):
    decisions = []
    for t in range(steps):
        run(optimizer, params, stream, 1, start=t)
        decisions.append(critgrad.inspect(optimizer).memories[0].last_slot)
    return decisions


@pytest.mark.parametrize("aggr", ["mean", "fisher"])
@pytest.mark.parametrize("policy", ALL_POLICIES)
def test_a_replay_reproduces_the_run_it_was_recorded_from(policy, aggr):
    ours, theirs = parameters(), parameters()
    stream = GradientStream(ours, zero=0.1)
    options = {"topC": 3, "decay": 0.9, "aggr": aggr, "every": 2}
    recorded = critgrad.Adam_C(ours, lr=0.05, policy=policy, **options)
    decisions = record(recorded, ours, stream, 30)
    assert any(d is not None for d in decisions)
    replayed = critgrad.Adam_C(theirs, lr=0.05, policy=critgrad.Replay(decisions), **options)
    assert record(replayed, theirs, stream, 30) == decisions
    assert_close(ours, theirs, rtol=0, atol=0)
    for p, q in zip(ours, theirs):
        for key in ("critical_slots", "critical_born", "critical_norm"):
            assert torch.equal(recorded.state[p][key], replayed.state[q][key])


def test_a_replay_does_not_look_at_this_runs_norms():
    ours, theirs = parameters(), parameters()
    decisions = record(critgrad.SGD_C(ours, lr=0.05, topC=3), ours, GradientStream(ours, seed=1), 30)
    yoked = critgrad.SGD_C(theirs, lr=0.05, topC=3, policy=critgrad.Replay(decisions))
    assert record(yoked, theirs, GradientStream(theirs, seed=2), 30) == decisions


def test_after_the_end_of_its_list_a_replay_admits_nothing():
    params = parameters()
    optimizer = critgrad.SGD_C(params, lr=0.05, topC=3, policy=critgrad.Replay([0, None, 2]))
    assert record(optimizer, params, GradientStream(params), 6) == [0, None, 2, None, None, None]


@pytest.mark.parametrize("fused", [False, None], ids=["torch", "native"])
def test_a_replay_of_a_slot_that_is_not_there_is_an_index_error(fused):
    params = parameters(dtype=torch.float32)
    optimizer = critgrad.Adam_C(params, topC=2, policy=critgrad.Replay([1, 5]), fused=fused)
    stream = GradientStream(params)
    assert record(optimizer, params, stream, 1) == [1]
    stream.set(params, 1)
    with pytest.raises(IndexError, match="policy 'replay' replaces slot 5, expected 0 <= slot < 2"):
        optimizer.step()


def test_a_replay_takes_numpys_numbers():
    assert critgrad.Replay(np.array([2, 0])) == critgrad.Replay([2, 0])
    assert [type(each) for each in critgrad.Replay([np.int32(1), None]).decisions] == [int, type(None)]


def test_bottomC_keeps_the_smallest_norms():
    weight = nn.Parameter(torch.zeros(1))
    optimizer = critgrad.SGD_C([weight], lr=0.1, topC=2, decay=1.0, policy="bottomC")
    for size in (5.0, 3.0, 4.0, 1.0, 2.0):
        weight.grad = torch.tensor([size])
        optimizer.step()
    assert sorted(critgrad.inspect(optimizer).memories[0].norms) == [1.0, 2.0]


def test_sparse_fills_at_its_own_pace():
    params = parameters()
    optimizer = critgrad.SGD_C(params, lr=0.05, topC=3, policy="sparse", every=4)
    decisions = record(optimizer, params, GradientStream(params), 20)
    assert [t for t, d in enumerate(decisions, 1) if d is not None] == [1, 5, 9, 13, 17]
    assert [d for d in decisions if d is not None] == [0, 1, 2, 0, 1]
