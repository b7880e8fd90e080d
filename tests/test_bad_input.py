"""Wrong options and arguments: a clear error that names the value and the rule, before anything has changed."""

from __future__ import annotations

import math
import re

import pytest
import torch
from helpers import parameters
from torch import nn

import critgrad

WRONG = {
    "topC": [-1, 2.5, True, None, "5"],
    "decay": [-0.1, 1.5, math.nan, math.inf, None, "0.7", True],
    "aggr": ["average", None, 3],
    "kappa": [-1.0, math.nan, math.inf, None],
    "rho": [0, 0.0, -1.0, math.inf, math.nan, None],
    "policy": ["koth", None, 3, print],
    "every": [0, -1, 1.5, None, True],
    "scope": ["all", None, ["global"]],
    "max_age": [0, -3, 1.5, True, "1"],
    "seed": [-1, 0.5, None, True],
    "memory_dtype": ["int4", torch.int64, torch.complex64, 16, "half"],
    "memory_device": ["cuda", "disk", 0, torch.device("meta")],
}
PAIRS = [(name, value) for name, values in WRONG.items() for value in values]


def refused(name, value):
    """The error names the option, the value as it was given and the rule."""
    shown = str(value).removeprefix("torch.") if isinstance(value, (torch.dtype, torch.device)) else repr(value)
    return pytest.raises(ValueError, match=rf"(?s)Invalid {name}: .*{re.escape(shown)}.*, expected .+")


@pytest.mark.parametrize("name, value", PAIRS)
def test_a_wrong_option_is_refused_everywhere(name, value):
    params = parameters(((2,),))
    base = torch.optim.SGD(params, lr=0.1)
    with refused(name, value):
        critgrad.SGD_C(params, lr=0.1, **{name: value})
    with refused(name, value):
        critgrad.SGD_C([{"params": params, name: value}], lr=0.1)
    with refused(name, value):
        critgrad.critical(torch.optim.SGD, **{name: value})
    with refused(name, value):
        critgrad.CriticalGradients(base, **{name: value})
    assert set(base.param_groups[0]) == set(torch.optim.SGD(params, lr=0.1).param_groups[0])  # nothing was left in it
    for optimizer in (critgrad.SGD_C(params, lr=0.1), critgrad.CriticalGradients(torch.optim.SGD(params, lr=0.1))):
        with refused(name, value):
            optimizer.add_param_group({"params": parameters(((3,),)), name: value})
        assert len(optimizer.param_groups) == 1
        if name not in ("topC", "scope", "memory_dtype", "memory_device"):  # those stay as constructed
            saved = optimizer.state_dict()
            saved["param_groups"][0][name] = value
            before = dict(optimizer.param_groups[0])
            with pytest.raises(ValueError, match=rf"Invalid {name}|policy"):
                optimizer.load_state_dict(saved)
            assert optimizer.param_groups[0] == before
        optimizer.param_groups[0][name] = value  # also when it is set by hand: at the next step, before anything moves
        params[0].grad = torch.ones_like(params[0])
        before = params[0].detach().clone()
        with refused(name, value):
            optimizer.step()
        assert torch.equal(params[0], before)


def test_fisher_takes_kappa_up_to_1():
    params = parameters()
    critgrad.SGD_F(params, kappa=1.0)
    critgrad.SGD_C(params, kappa=3.0)
    with pytest.raises(ValueError, match=r"Invalid kappa: 1.5, expected 0 <= kappa <= 1"):
        critgrad.SGD_F(params, kappa=1.5)
    with pytest.raises(ValueError, match=r"Invalid kappa: 1.5"):
        critgrad.SGD_C([{"params": params, "aggr": "fisher"}], lr=0.1, kappa=1.5)


@pytest.mark.parametrize("name, values", [
    ("topC", (3, 4)), ("decay", (0.5, 0.6)), ("policy", ("KotH", "FIFO")), ("every", (2, 3)), ("max_age", (None, 5)),
    ("seed", (0, 1)),
])  # fmt: skip
def test_groups_that_share_a_memory_must_agree(name, values):
    a, b = parameters(((2,),)), parameters(((3,),))

    def groups():  # fresh ones: torch fills in the defaults in place
        return [{"params": a, name: values[0]}, {"params": b, name: values[1]}]

    with pytest.raises(ValueError, match=rf"(?s)Invalid {name}: .*{values[1]!r}.*share one memory.*scope=\"group\""):
        critgrad.Adam_C(groups())
    critgrad.Adam_C(groups(), scope="group")
    critgrad.Adam_C(groups(), scope="tensor")
    optimizer = critgrad.Adam_C(a, **{name: values[0]})
    with pytest.raises(ValueError, match=f"Invalid {name}"):
        optimizer.add_param_group({"params": b, name: values[1]})
    assert len(optimizer.param_groups) == 1
    optimizer.add_param_group({"params": b, name: values[1], "topC": 0} if name != "topC" else {"params": b, "topC": 0})
    optimizer.add_param_group({"params": parameters(((4,),)), "aggr": "sum", "kappa": 0.5, "rho": 1.0})
    optimizer.param_groups[0][name] = values[1]
    a[0].grad = torch.ones_like(a[0])
    with pytest.raises(ValueError, match=f"Invalid {name}"):
        optimizer.step()


def test_what_cannot_have_a_memory_says_why():
    params = parameters(((2,),))
    with pytest.raises(TypeError, match=r"LBFGS cannot have a memory.*closure"):
        critgrad.critical(torch.optim.LBFGS)
    with pytest.raises(TypeError, match=r"SparseAdam cannot have a memory.*sparse"):
        critgrad.critical(torch.optim.SparseAdam)
    with pytest.raises(TypeError, match="LBFGS cannot have a memory"):
        critgrad.CriticalGradients(torch.optim.LBFGS(params))
    with pytest.raises(TypeError, match="SparseAdam cannot have a memory"):
        critgrad.CriticalGradients(torch.optim.SparseAdam(params))
    with pytest.raises(TypeError, match="Adam_C has a memory already"):
        critgrad.critical(critgrad.Adam_C)
    with pytest.raises(TypeError, match="Adam_C has a memory already"):
        critgrad.CriticalGradients(critgrad.Adam_C(params))

    class MyLBFGS(torch.optim.LBFGS):
        pass

    with pytest.raises(TypeError, match="MyLBFGS cannot have a memory"):
        critgrad.critical(MyLBFGS)


class ScheduleFreeClosure(torch.optim.SGD):
    def step(self, closure):
        raise AssertionError


class SAM(torch.optim.SGD):
    def first_step(self, zero_grad=False):
        raise AssertionError

    second_step = first_step


@pytest.mark.parametrize("cls", [ScheduleFreeClosure, SAM])
def test_what_evaluates_the_closure_itself_is_told_to_have_the_memory_inside(cls):
    message = (
        rf"{cls.__name__} cannot have a memory.*closure by itself.*inside.*SAM\(params, base_optimizer=critgrad.SGD_C\)"
    )
    with pytest.raises(TypeError, match=message):
        critgrad.critical(cls)
    with pytest.raises(TypeError, match=message):
        critgrad.CriticalGradients(cls(parameters(((2,),)), lr=0.1))


@pytest.mark.parametrize("wrapped", [False, True], ids=["class", "wrapper"])
def test_a_group_that_is_refused_is_left_as_it_was(wrapped):
    params = parameters(((2,),))
    optimizer = (
        critgrad.CriticalGradients(torch.optim.SGD(params, lr=0.1)) if wrapped else critgrad.SGD_C(params, lr=0.1)
    )
    group = {"params": parameters(((3,),)), "topC": 9}
    with pytest.raises(ValueError, match="Invalid topC"):
        optimizer.add_param_group(group)
    assert group.keys() == {"params", "topC"}
    del group["topC"]
    optimizer.add_param_group(group)
    assert group is optimizer.param_groups[1]
    assert group["topC"] == optimizer.param_groups[0]["topC"]


@pytest.mark.parametrize("thing", [nn.Linear, int, "Adam", None, torch.optim.SGD([nn.Parameter(torch.ones(1))])])
def test_critical_takes_optimizer_classes_only(thing):
    with pytest.raises(TypeError, match=r"critical\(\) takes a torch.optim.Optimizer class"):
        critgrad.critical(thing)


def test_the_wrapper_takes_optimizers_only():
    for thing in (torch.optim.SGD, nn.Linear(1, 1), None):
        with pytest.raises(TypeError, match=r"CriticalGradients takes a torch\.optim\.Optimizer"):
            critgrad.CriticalGradients(thing)


def test_unknown_arguments_are_refused():
    params = parameters(((2,),))
    with pytest.raises(TypeError, match="topc"):
        critgrad.Adam_C(params, topc=3)
    with pytest.raises(TypeError, match="topc"):
        critgrad.critical(torch.optim.Adam, topc=3)
    with pytest.raises(TypeError, match="topc"):
        critgrad.CriticalGradients(torch.optim.Adam(params), topc=3)
    with pytest.raises(TypeError, match="optimizer with a memory"):
        critgrad.inspect(torch.optim.Adam(params))


def test_an_empty_parameter_list_is_torchs_error():
    with pytest.raises(ValueError, match="empty parameter list"):
        critgrad.Adam_C([])
    with pytest.raises(ValueError, match="empty parameter list"):
        critgrad.Adam_C(nn.ReLU().parameters())


def test_adadelta_keeps_its_own_rho():
    Adadelta_C = critgrad.critical(torch.optim.Adadelta)
    optimizer = Adadelta_C(parameters(), rho=0.8, aggr="fisher", critical_rho=0.2)
    assert (optimizer.param_groups[0]["rho"], optimizer.param_groups[0]["critical_rho"]) == (0.8, 0.2)
    with pytest.raises(ValueError, match=r"Invalid (critical_)?rho: -1"):
        Adadelta_C(parameters(), critical_rho=-1)


def test_wrong_replay_decisions_are_refused():
    for decisions in ([-1], [0.5], ["0"]):
        with pytest.raises(ValueError, match="Invalid decision"):
            critgrad.Replay(decisions)
