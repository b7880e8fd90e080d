"""What a memory costs: times beside the paper's, bytes per parameter."""

from __future__ import annotations

import pytest
import torch
from analysis_helpers import collected

from critgrad.paper.analyses import ANALYSES, Options
from critgrad.paper.protocol.paper_values import RUN_TIMES


def test_the_run_time_table_has_its_eleven_tasks():
    assert tuple(ANALYSES["runtime"].tasks) == tuple(RUN_TIMES)
    assert len(RUN_TIMES) == 11
    assert ANALYSES["runtime"].timed
    trials = [item.trial for item in ANALYSES["runtime"].trials("mnist-mlp", Options(1, {"epochs": 9}))]
    assert [trial.optimizer for trial in trials] == ["Adam", *["Adam_C"] * 5]
    assert {trial.settings["epochs"] for trial in trials} == {2}
    seeds = [item.trial.seed for item in ANALYSES["runtime"].trials("mnist-mlp", Options(2))]
    assert seeds == [0] * 6 + [1] * 6


def test_times_are_medians_and_stand_against_the_base():
    def give(trial):
        topC = trial.hyper.get("topC", 0) if trial.optimizer == "Adam_C" else 0
        slow = 10 if trial.seed == 2 else 1  # a hiccup of the machine
        first, second = 30.0, (2.0 + topC / 10) * slow  # the first epoch compiles: it is not counted
        clock = {"seconds": [first, first + second]}
        return {
            "train_seconds": first + second,
            "step_ms": (1.0 + topC / 5) * slow,
            "run_bytes": topC,
            "curves": clock,
        }

    data = collected("runtime", "mnist-mlp", give, Options(3))
    points = {point["topC"]: point for point in data["points"]}
    assert list(points) == [0, 5, 10, 20, 50, 100]
    assert (points[0]["epoch_ratio"], points[0]["step_ratio"]) == (1, 1)
    assert (points[20]["epoch_seconds"], points[20]["step_ms"]) == pytest.approx((4, 5))
    assert (points[20]["epoch_ratio"], points[20]["step_ratio"]) == pytest.approx((2, 5))
    assert points[0]["peak_bytes"] is None
    assert data["paper_minutes"] == RUN_TIMES["mnist-mlp"]
    assert data["device"] == "a machine"


def test_too_few_steps_to_time_leave_the_epochs():
    data = collected("runtime", "mnist-mlp", lambda trial: {"train_seconds": 1.0, "step_ms": None})
    assert {point["step_ms"] for point in data["points"]} == {point["step_ratio"] for point in data["points"]} == {None}
    assert {point["epoch_ratio"] for point in data["points"]} == {1}


@pytest.fixture(scope="module")
def sizes():
    data = ANALYSES["spectrum"].measure("digits-mlp")
    return {row["label"]: row["bytes"] for row in data["rows"]}


@pytest.mark.parametrize(
    "label, expected",
    [
        ("SGD", 0),
        ("SGDM", 4),
        ("RMSprop", 4),
        ("Adam", 8),
        ("AdamW", 8),
        # A memory of C slots and its running sum beside the base's state; a damper keeps no sum.
        ("SGD_C topC=5", 20 + 4),
        ("Adam_C topC=5", 8 + 20 + 4),
        ("Adam_C topC=20", 8 + 80 + 4),
        ("Adam_C topC=5 bfloat16", 8 + 10 + 4),
        ("Adam_C topC=5 int8", 8 + 5 + 4),
        ("SGD_F topC=5", 20),
        ("Adam_F topC=20", 8 + 80),
    ],
)
def test_bytes_per_parameter_are_those_of_the_state(sizes, label, expected):
    # Priorities, births, the clock, the Gram matrix, scales of int8 blocks: small change.
    assert expected <= sizes[label] <= expected + 0.1


def test_the_spectrum_leaves_the_global_generator_alone():
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    ANALYSES["spectrum"].measure("digits-mlp")
    assert torch.equal(torch.rand(2), expected)
