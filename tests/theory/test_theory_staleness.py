"""Lemma S: its values, that no real memory violates it, and that one attains it."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from critgrad.reference import ReferenceMemory
from critgrad.theory import staleness_bound


@pytest.mark.parametrize(
    "arguments, expected",
    [
        ((5, 0.7, 10), 11),
        ((5, 0.7, 1000), 24),
        ((20, 0.9, 10), 41),
        ((20, 0.99, 10), 249),
        ((10, 0.99, 1000), 697),
        ((5, 1.0, 2), math.inf),
        ((5, 0, 100), 5),
        ((5, 0), 5),
        ((5, 0.7), math.inf),
        ((0, 0.7), 0),
        ((5, 0.7, 1), 5),
        ((5, 0.7, 0.5), 5),
        ((5, 0.9, 10, 0.905), 420),
        ((5, 0.99, 10, 0.995), 462),
        ((5, 0.9, 10, 0.9), math.inf),
        ((5, 0.9, 10, 0.8, 30), 30),
        ((5, 0.7, 10, 1.0, 30), 11),
        ((5, 0.7, 10, 1.0, 7), 7),
        ((3, 0.5, 8), 6),  # an exact power of the decay
    ],
)
def test_values(arguments, expected):
    bound = staleness_bound(*arguments)
    assert bound == expected
    assert isinstance(bound, int) or bound == math.inf


def ages_of(memory, norms):
    """The largest age that is aggregated while gradients of these norms pass."""
    oldest = 0
    for norm in norms:
        oldest = max([oldest] + [memory.t + 1 - entry.born for entry in memory.live])
        memory.insert(torch.tensor([norm], dtype=torch.float64))
    return oldest


@settings(deadline=None, max_examples=60)
@given(
    topC=st.integers(1, 6),
    decay=st.sampled_from([0.0, 0.3, 0.5, 0.7, 0.9]),
    max_age=st.sampled_from([None, None, 3, 9, 20]),
    norms=st.lists(st.floats(1.0, 50.0), min_size=30, max_size=80),
)
def test_no_real_memory_violates_it(topC, decay, max_age, norms):
    memory = ReferenceMemory(topC=topC, decay=decay, max_age=max_age)
    ratio = max(norms) / min(norms)
    assert ages_of(memory, norms) <= staleness_bound(topC, decay, ratio, max_age=max_age)


@pytest.mark.parametrize("topC, decay, ratio", [(5, 0.7, 10), (3, 0.5, 9), (1, 0.9, 3), (4, 0.9, 100)])
def test_it_is_attained(topC, decay, ratio):
    # A large gradient first, then some that stay just below it as long as they can, then the smallest.
    bound = staleness_bound(topC, decay, ratio)
    worst = 0
    for lead in range(bound):
        sequence = [ratio] + [0.99 * ratio * decay**j for j in range(1, lead)] + [1.0] * bound
        worst = max(worst, ages_of(ReferenceMemory(topC=topC, decay=decay), [max(n, 1.0) for n in sequence]))
    assert worst == bound


def test_norms_that_shrink_by_the_rate_assumed():
    memory = ReferenceMemory(topC=5, decay=0.9)
    norms = [10.0] + [0.95**j for j in range(1, 120)]
    assert ages_of(memory, norms) <= staleness_bound(5, 0.9, 10, norm_decay=0.95)


def test_there_is_no_bound_when_norms_shrink_faster_than_priorities():
    memory = ReferenceMemory(topC=3, decay=0.9)
    assert ages_of(memory, [0.8**j for j in range(200)]) == 199
    capped = ReferenceMemory(topC=3, decay=0.9, max_age=12)
    assert ages_of(capped, [0.8**j for j in range(200)]) == 12


@pytest.mark.parametrize("policy, decay", [("FIFO", 0.7), ("KotH", 0.0)])
def test_a_moving_window_has_the_age_of_its_length(policy, decay):
    memory = ReferenceMemory(topC=4, decay=decay, policy=policy)
    assert ages_of(memory, [1.0 + (7 * j) % 5 for j in range(60)]) == staleness_bound(4, 0.0)
