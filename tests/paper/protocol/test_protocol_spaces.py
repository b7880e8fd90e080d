"""Search spaces: what is drawn, what is shared, what an edge is."""

from __future__ import annotations

import math

import pytest

from critgrad.lab.spaces import Axis, draw, edges, extra_points, widened

LR = Axis("log", 1e-4, 1.0, widen=1.0)
TOPC = Axis("log", 2, 20, integer=True)
DECAY = Axis("complement", 0.9, 0.999)


def test_arms_that_share_an_axis_try_the_same_values_on_it():
    alone = draw({"lr": LR}, 7, 0, 32)
    memory = draw({"lr": LR, "topC": TOPC, "decay": DECAY}, 7, 0, 32)
    rival = draw({"lr": LR, "beta1": Axis("complement", 0.0, 0.99)}, 7, 0, 32)
    assert [p["lr"] for p in alone] == [p["lr"] for p in memory] == [p["lr"] for p in rival]


def test_sixteen_points_put_one_learning_rate_into_each_sixteenth_of_the_range():
    places = sorted(LR.place(p["lr"]) for p in draw({"lr": LR}, 5, 0, 16))
    assert [int(16 * place + 1e-3) for place in places] == list(range(16))


def test_a_longer_draw_begins_with_the_shorter_one_and_another_seed_gives_other_points():
    assert draw({"lr": LR}, 1, 0, 16)[4:8] == draw({"lr": LR}, 1, 4, 4)
    assert draw({"lr": LR}, 1, 0, 8) != draw({"lr": LR}, 2, 0, 8)


def test_points_are_the_same_on_every_machine():
    # Typed in: a change of torch's sequence would silently rename every trial.
    assert [p["lr"] for p in draw({"lr": LR}, 20220425, 0, 4)] == GOLDEN


GOLDEN = [0.0002968, 0.06857, 0.1089, 0.004513]


@pytest.mark.parametrize("axis", [LR, TOPC, DECAY, Axis("linear", -1.0, 3.0)], ids=lambda axis: axis.scale)
def test_values_stay_inside_and_reach_both_ends(axis: Axis):
    values = [axis.value(i / 999) for i in range(1000)]
    assert min(values) == pytest.approx(axis.low, rel=1e-3)
    assert max(values) == pytest.approx(axis.high, rel=1e-2)
    assert all(axis.low <= value <= axis.high for value in values)


def test_a_complement_scale_spends_as_much_on_the_last_decade_as_on_the_one_before():
    values = [DECAY.value((i + 0.5) / 1000) for i in range(1000)]
    assert sum(value < 0.99 for value in values) == pytest.approx(500, abs=2)


def test_whole_numbers_at_the_ends_are_as_likely_as_their_neighbours():
    counts = [sum(TOPC.value((i + 0.5) / 2000) == n for i in range(2000)) for n in (2, 3, 4)]
    assert counts[0] > counts[1] > counts[2] > 0


def test_a_choice_gives_each_of_its_values():
    axis = Axis("choice", choices=("sum", "mean"))
    assert {p["aggr"] for p in draw({"lr": LR, "aggr": axis}, 0, 0, 8)} == {"sum", "mean"}


def test_the_outermost_learning_rate_tried_is_an_edge_and_an_inner_one_is_not():
    tried = [{"lr": lr} for lr in (1e-3, 1e-2, 0.2)]
    assert edges({"lr": 0.2}, {"lr": LR}, tried) == {"lr": "high"}
    assert edges({"lr": 1e-3}, {"lr": LR}, tried) == {"lr": "low"}
    assert edges({"lr": 1e-2}, {"lr": LR}, tried) == {}


def test_an_option_of_the_memory_is_at_an_edge_only_in_the_margin():
    tried = [{"decay": decay} for decay in (0.95, 0.99, 0.995)]
    assert edges({"decay": 0.995}, {"decay": DECAY}, tried) == {}
    assert edges({"decay": 0.999}, {"decay": DECAY}, tried) == {"decay": "high"}


def test_widening_adds_whole_decades_and_points_as_dense_as_before():
    assert widened(LR, ["high"]).high == 10.0
    both = widened(LR, ["low", "high"])
    assert (both.low, both.high) == (1e-5, 10.0)
    assert extra_points(LR, 16) == 4
    piece = LR.beyond("low", 1.0)
    assert (piece.low, piece.high) == (1e-5, 1e-4)


@pytest.mark.parametrize(
    "values, names",
    [
        ({"scale": "cubic"}, "cubic"),
        ({"scale": "log", "low": 0.0, "high": 1.0}, "above 0"),
        ({"scale": "log", "low": 2.0, "high": 1.0}, "low < high"),
        ({"scale": "complement", "low": 0.0, "high": 1.0}, "below 1"),
        ({"scale": "choice"}, "choices"),
        ({"scale": "linear", "low": 0.0, "high": 1.0, "widen": 1.0}, "widen"),
        ({"scale": "log", "low": 1.0, "high": 2.0, "base": 2}, "base"),
    ],
)
def test_a_bad_axis_is_refused_by_name(values: dict, names: str):
    with pytest.raises(ValueError, match=names):
        Axis.from_dict(values)


def test_an_unknown_axis_is_refused():
    with pytest.raises(ValueError, match="warmth"):
        draw({"warmth": LR}, 0, 0, 2)


def test_drawn_values_have_few_digits():
    for point in draw({"lr": LR, "decay": DECAY}, 3, 0, 16):
        assert float(f"{point['lr']:.3e}") == point["lr"]
        assert math.isclose(float(f"{1 - point['decay']:.3e}"), 1 - point["decay"], rel_tol=1e-6)
