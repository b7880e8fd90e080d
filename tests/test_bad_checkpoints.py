"""A checkpoint that does not fit raises, and changes nothing."""

from __future__ import annotations

import copy

import pytest
import torch
from checkpoint_helpers import (
    assert_same,
    everything,
    named,
    trained,
    wrapped,
)
from helpers import assert_close, parameters, run
from torch import nn

import critgrad
from critgrad import memory as m

# -- checkpoints that do not fit ---------------------------------------------------------------------------------------


def one_tensor_less(saved):
    saved["param_groups"][0]["params"].pop()


def another_group(saved):
    saved["param_groups"].append({**saved["param_groups"][0], "params": []})


def no_groups(saved):
    del saved["param_groups"]


def no_state(saved):
    del saved["state"]


def misshapen_slots(saved):
    saved["state"][0][m.SLOTS] = torch.zeros(4, 9, 9)


def slots_of_no_tensor(saved):
    saved["state"][0][m.SLOTS] = "slots"


def misshapen_table(saved):
    saved["state"][1][m.BORN] = torch.ones(9, dtype=torch.int64)


def table_of_no_tensor(saved):
    saved["state"][1][m.PRIORITY] = [1.0, 2.0]


def missing_table(saved):
    del saved["state"][2][m.NORM]


def missing_clock(saved):
    del saved["state"][2][m.CLOCK]


def missing_slots(saved):
    del saved["state"][2][m.SLOTS]


def misshapen_sum(saved):
    saved["state"][0][m.SUM] = torch.zeros(2)


def misshapen_clock(saved):
    saved["state"][0][m.CLOCK] = torch.zeros(2, dtype=torch.int64)


def wrong_option(saved):
    saved["param_groups"][0]["decay"] = 1.5


def unknown_policy(saved):
    saved["param_groups"][0]["policy"] = "KingOfTheHill"


def eight_bit_without_scales(saved):
    for i in saved["state"]:
        saved["state"][i][m.SLOTS] = saved["state"][i][m.SLOTS].to(torch.int8)


@pytest.mark.parametrize("make", [named, wrapped], ids=["class", "wrapper"])
@pytest.mark.parametrize(
    "damage",
    [
        one_tensor_less,
        another_group,
        no_groups,
        no_state,
        misshapen_slots,
        slots_of_no_tensor,
        misshapen_table,
        table_of_no_tensor,
        missing_table,
        missing_clock,
        missing_slots,
        misshapen_sum,
        misshapen_clock,
        wrong_option,
        unknown_policy,
        eight_bit_without_scales,
    ],
    ids=lambda f: f.__name__,
)
def test_a_checkpoint_that_does_not_fit_raises_and_changes_nothing(damage, make):
    _, source, stream = trained()
    saved = copy.deepcopy(source.state_dict())
    damage(saved)
    params = parameters()
    optimizer = make("Adam_C" if make is named else "Adam", params, {"topC": 4})
    run(optimizer, params, stream, 3)
    before = everything(optimizer)
    with pytest.raises(ValueError, match=r"state|param|Invalid|policy|group"):
        optimizer.load_state_dict(saved)
    assert_same(everything(optimizer), before)
    run(optimizer, params, stream, 3, start=3)  # and goes on
    theirs = parameters()
    other = make("Adam_C" if make is named else "Adam", theirs, {"topC": 4})
    run(other, theirs, stream, 6)
    assert_close(params, theirs, rtol=0, atol=0)


def test_a_checkpoint_of_another_model_raises():
    _, source, _ = trained()
    other = critgrad.Adam_C([nn.Parameter(torch.zeros(3, 5)), *parameters()[1:]], topC=4)
    with pytest.raises(ValueError, match=r"Invalid critical_slots: \(4, 3, 4\) for a parameter of shape \(3, 5\)"):
        other.load_state_dict(source.state_dict())


class Lenient(torch.optim.SGD):
    def load_state_dict(self, state_dict):
        pass


def test_a_base_that_takes_any_checkpoint_does_not_hide_that_the_memory_does_not_fit():
    params = parameters()
    optimizer = critgrad.CriticalGradients(Lenient(params, lr=0.1))
    saved = optimizer.state_dict()
    saved["param_groups"][0]["params"].pop()
    with pytest.raises(ValueError, match=r"parameter groups of \[3\] parameters, expected \[4\]"):
        optimizer.load_state_dict(saved)


@pytest.mark.parametrize("memory_dtype", [None, "bfloat16"])
@pytest.mark.parametrize("make", [critgrad.SGD_C, critgrad.Adam_CM])
def test_a_complex_memory_and_a_real_parameter_do_not_fit_either_way(make, memory_dtype):
    of = {
        kind: [nn.Parameter(torch.ones(shape, dtype=kind))]
        for kind, shape in ((torch.float32, (2, 2)), (torch.complex64, (2, 2)))
    }
    for kind, other in ((torch.float32, torch.complex64), (torch.complex64, torch.float32)):
        (p,), (q,) = of[kind], of[other]
        source, optimizer = (make([x], lr=0.1, topC=2, memory_dtype=memory_dtype) for x in (p, q))
        p.grad = torch.ones_like(p)
        source.step()
        before = everything(optimizer)
        with pytest.raises(ValueError, match=r"Invalid critical_slots: .* parameter of shape \(2, 2\), expected"):
            optimizer.load_state_dict(source.state_dict())
        assert_same(everything(optimizer), before)
        again = make([nn.Parameter(p.detach().clone())], lr=0.1, topC=2, memory_dtype=memory_dtype)
        again.load_state_dict(source.state_dict())
