"""Points that stay where they are, whatever is added to a study."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

from critgrad.lab.errors import LabError
from critgrad.lab.study.axes import axis_of, near_end, points, settled
from critgrad.lab.study.plan import replicate_seed
from critgrad.lab.train.schedule import factor

LR, MOMENTUM = axis_of("log 1e-4 1e-1"), axis_of("one-minus 0.5 0.99")


def test_axes_that_arms_share_have_the_same_points() -> None:
    one = points({"lr": LR}, seed=3, replicate=2, count=8)
    both = points({"momentum": MOMENTUM, "lr": axis_of("log 0.0001 0.1")}, seed=3, replicate=2, count=8)
    assert [p["lr"] for p in one] == [p["lr"] for p in both]
    assert list(both[0]) == ["momentum", "lr"]
    other = points({"lr": axis_of("log 1e-4 1")}, seed=3, replicate=2, count=8)
    assert [p["lr"] for p in one] != [p["lr"] for p in other]


def test_more_trials_are_added_behind_those_that_are_there() -> None:
    few, many = (points({"lr": LR, "momentum": MOMENTUM}, 3, 2, count) for count in (5, 20))
    assert many[:5] == few


def test_seeds_and_replicates_have_points_of_their_own() -> None:
    found = {
        tuple(p["lr"] for p in points({"lr": LR}, seed, replicate, 4))
        for seed, replicate in itertools.product((1, 2), (1, 2, 3))
    }
    assert len(found) == 6


@pytest.mark.parametrize("count", [4, 8, 16])
def test_every_axis_is_covered_evenly(count: int) -> None:
    for replicate in range(5):
        drawn = points({"lr": LR, "momentum": MOMENTUM}, 1, replicate, count)
        for name, axis in (("lr", LR), ("momentum", MOMENTUM)):
            places = sorted(axis.place(p[name]) for p in drawn)
            assert all(k / count - 0.01 <= place <= (k + 1) / count + 0.01 for k, place in enumerate(places))


def test_two_axes_do_not_move_together() -> None:
    together = []
    for replicate in range(200):
        drawn = points({"lr": LR, "momentum": MOMENTUM}, 1, replicate, 8)
        places = torch.tensor([[LR.place(p["lr"]), MOMENTUM.place(p["momentum"])] for p in drawn])
        together.append(torch.corrcoef(places.T)[0, 1])
    found = torch.stack(together)
    assert abs(found.mean()) < 0.1
    assert found.std() < 0.5  # all on a diagonal would be 1, independent values 0.38


def test_whole_numbers_and_choices() -> None:
    drawn = points({"n": axis_of("int 1 3"), "m": axis_of("log-int 1 100"), "k": axis_of("choice a 2 true")}, 1, 1, 64)
    assert {p["n"] for p in drawn} == {1, 2, 3}
    assert {p["k"] for p in drawn} == {"a", 2, True}
    assert all(type(p["m"]) is int and 1 <= p["m"] <= 100 for p in drawn)
    assert sum(p["m"] <= 10 for p in drawn) > 24


def test_the_outer_tenth_is_near_an_end() -> None:
    assert [near_end(MOMENTUM, value) for value in (0.51, 0.9, 0.989)] == [True, False, True]
    assert [near_end(axis_of("linear 0 1"), value) for value in (0.05, 0.1, 0.9, 0.95)] == [True, False, False, True]
    assert [near_end(axis_of("int 0 20"), value) for value in (0, 1, 2, 19, 20)] == [True, True, False, True, True]
    assert not near_end(axis_of("choice 1 2"), 1)


def test_places_in_sequences_come_from_fixed_before_defaults() -> None:
    assert settled({"betas": [0.8, 0.9], "betas.1": 0.5}, {"betas": (0.1, 0.2)}) == {"betas": (0.8, 0.5)}
    with pytest.raises(LabError, match=r"nus\.0: .* give nus under fixed"):
        settled({"nus.0": 1.0}, {})


def test_seeds_lie_in_their_range_and_differ() -> None:
    seeds = {
        replicate_seed(s, r, p, k) for s in (1, 2) for r in range(50) for p in ("search", "report") for k in (0, 1)
    }
    assert len(seeds) == 400
    assert min(seeds) >= 1
    assert max(seeds) < 2**31


def test_schedules_begin_with_their_warm_up_and_end_low() -> None:
    linear = [factor("linear", 0.25, step, 8) for step in range(8)]
    assert linear[:3] == [0.5, 1.0, 1.0]
    assert linear[2:] == sorted(linear[2:], reverse=True)
    assert math.isclose(linear[-1], 1 / 6)
    assert [factor("constant", 0.0, step, 8) for step in range(8)] == [1.0] * 8
