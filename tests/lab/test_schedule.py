"""The learning rate over a run: its shape, and that a run follows it whichever way its steps are taken."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from critgrad.lab.errors import LabError
from critgrad.lab.run.spec import Trial
from critgrad.lab.tasks import task_of
from critgrad.lab.train.bank import run_bank
from critgrad.lab.train.loop import train
from critgrad.lab.train.schedule import KINDS, Scheduled, factor


@pytest.mark.parametrize("kind", KINDS)
def test_it_rises_in_the_warm_up_and_is_whole_at_its_end(kind):
    shares = [factor(kind, 0.1, step, 100) for step in range(100)]
    assert shares[:10] == pytest.approx([(step + 1) / 10 for step in range(10)])
    assert shares[10] == 1.0
    assert all(0 < share <= 1 for share in shares)
    assert shares[10:] == sorted(shares[10:], reverse=True)


def test_the_cosine_and_the_line_are_half_in_the_middle_and_end_near_nothing():
    for kind in ("cosine", "linear"):
        assert factor(kind, 0.2, 60, 100) == pytest.approx(0.5)
        assert factor(kind, 0.2, 99, 100) < 0.02
        assert factor(kind, 0.2, 100, 100) == pytest.approx(0)
    assert factor("constant", 0.2, 99, 100) == 1.0


def test_it_is_torch_s_cosine():
    p = nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([p], lr=0.3)
    torchs = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=10)
    for step in range(10):
        assert optimizer.param_groups[0]["lr"] == pytest.approx(0.3 * factor("cosine", 0.0, step, 10))
        optimizer.step()
        torchs.step()


@pytest.mark.parametrize("kind, warmup, said", [("cosin", 0.1, "schedule: 'cosin'"), ("cosine", 1.1, "warmup: 1.1")])
def test_a_wrong_one_is_named(kind, warmup, said):
    with pytest.raises(LabError, match=said):
        factor(kind, warmup, 0, 10)


def test_groups_keep_their_own_rates_and_a_tensor_stays_where_it_is():
    rate = torch.tensor(0.1)
    a, b = (nn.Parameter(torch.ones(1)) for _ in range(2))
    optimizer = torch.optim.SGD([{"params": [a], "lr": 0.2}, {"params": [b], "lr": rate}], lr=1.0)
    scheduled = Scheduled(optimizer, "linear", 0.0, 4)
    scheduled.before(2)
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.1)
    assert optimizer.param_groups[1]["lr"] is rate
    assert float(rate) == pytest.approx(0.05)


def test_a_constant_one_touches_nothing():
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=0.1)
    optimizer.param_groups[0]["lr"] = 0.7  # somebody else's schedule
    Scheduled(optimizer, "constant", 0.0, 10).before(3)
    assert optimizer.param_groups[0]["lr"] == 0.7


def test_a_setting_replaces_the_task_s_own_and_a_bank_has_none():
    rates = []
    trial = Trial("digits-mlp@tiny", "SGD", {"lr": 0.1}, settings={"epochs": 1, "schedule": "linear"})
    train(trial, on_step=lambda optimizer: rates.append(optimizer.param_groups[0]["lr"]))
    assert rates == pytest.approx([0.1 * (1 - step / len(rates)) for step in range(len(rates))])
    with pytest.raises(LabError, match="Invalid schedule for a bank"):
        run_bank([trial.replace(engine="bank")])
    with pytest.raises(LabError, match="Invalid warmup of digits-mlp: -1, expected a number >= 0"):
        task_of("digits-mlp", {"warmup": -1})


def test_a_state_that_is_loaded_does_not_stop_it():
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=0.1)
    scheduled = Scheduled(optimizer, "linear", 0.0, 4)
    optimizer.load_state_dict(optimizer.state_dict())
    scheduled.before(2)
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.05)


def test_a_run_takes_each_step_at_its_rate():
    rates = []
    trial = Trial("pycode-gpt@tiny", "AdamW", {"lr": 0.01})
    train(trial, on_step=lambda optimizer: rates.append([group["lr"] for group in optimizer.param_groups]))
    steps = 3 * 23
    assert len(rates) == steps
    for step, found in enumerate(rates):
        assert found == pytest.approx([0.01 * factor("cosine", 0.05, step, steps)] * 3)
    assert math.isclose(rates[2][0], 0.01)  # three steps of warm-up
