"""What is said of misspelt names, numpy's numbers, options without effect, and checkpoints of the other kind."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
import warnings

import numpy as np
import pytest
import torch
from checkpoint_helpers import assert_same, everything, through_a_file, trained
from helpers import GradientStream, copies, memory_state, parameters, run

import critgrad

# -- misspelt names ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("wrong, meant", [("topc", "topC"), ("TOPC", "topC"), ("weigth_decay", "weight_decay")])
def test_an_unknown_argument_names_our_class_and_what_was_meant(wrong, meant):
    with pytest.raises(
        TypeError,
        match=rf"^AdamW_C got an unexpected argument '{wrong}' \(did you mean '{meant}'\?\), expected one of lr",
    ) as caught:
        critgrad.AdamW_C(parameters(), **{wrong: 0.1})
    assert caught.value.__suppress_context__  # not the base's error above it


def test_what_resembles_nothing_is_refused_without_a_guess():
    with pytest.raises(
        TypeError, match=r"^SGD_C got an unexpected argument 'zzz', expected one of lr, momentum,.* topC,"
    ):
        critgrad.SGD_C(parameters(), zzz=1)


def test_a_class_that_has_no_name_here_is_told_how_it_is_made():
    with pytest.raises(AttributeError, match=r"'Adagrad_C'; .* critgrad.critical\(torch.optim.Adagrad\)"):
        _ = critgrad.Adagrad_C
    with pytest.raises(AttributeError, match=r"has no attribute 'nothing'$"):
        _ = critgrad.nothing


def test_rooms_of_the_package_are_there_without_an_import_of_their_own():
    code = "import critgrad; critgrad.theory.gains('sum', 5); critgrad.integrations.log_memory; critgrad.lab"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_wrapper_and_the_maker_name_the_options():
    with pytest.raises(
        TypeError, match=r"CriticalGradients .*'topc' \(did you mean 'topC'\?\), expected one of topC, dec"
    ):
        critgrad.CriticalGradients(torch.optim.SGD(parameters()), topc=3)
    with pytest.raises(TypeError, match=r"did you mean 'critical_rho'"):
        critgrad.CriticalGradients(torch.optim.Adadelta(parameters()), critical_roh=3)
    with pytest.raises(
        TypeError, match=r"critical\(\) .*'topc' \(did you mean 'topC'\?\), expected one of topC, decay"
    ):
        critgrad.critical(torch.optim.SGD, topc=3)


def test_the_bases_other_errors_are_its_own():
    with pytest.raises(TypeError, match=r"missing .* 'closer'"):
        critgrad.critical(Needy)(parameters())
    with pytest.raises(TypeError, match="iterable of Tensors"):
        critgrad.Adam_C(torch.ones(3))
    with pytest.raises(TypeError, match="param_group must be a dict"):
        critgrad.Adam_C(parameters()).add_param_group(parameters())


class Needy(torch.optim.SGD):
    def __init__(self, params, closer):
        super().__init__(params)


class Open(torch.optim.SGD):
    def __init__(self, params, **kwargs):
        self.mine = kwargs.pop("mine", None)
        super().__init__(params, **kwargs)


def test_a_base_that_takes_anything_is_asked():
    optimizer = critgrad.critical(Open)(parameters(), lr=0.1, mine=3, topC=2)
    assert (optimizer.mine, optimizer.param_groups[0]["topC"]) == (3, 2)
    with pytest.raises(TypeError, match="topc"):
        critgrad.critical(Open)(parameters(), topc=2)

    class Between(critgrad.SGD_C, Open):  # its next constructor is not that of the base it was declared with
        pass

    assert Between(parameters(), lr=0.1, mine=4).mine == 4


@pytest.fixture(params=["class", "wrapper"])
def make(request):
    """An SGD with a memory, by both ways, over parameters or groups."""
    if request.param == "class":
        return lambda params, **options: critgrad.SGD_C(params, lr=0.1, **options)
    return lambda params, **options: critgrad.CriticalGradients(torch.optim.SGD(params, lr=0.1), **options)


def said(action):
    """The texts of all warnings, each of which must point at this file."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        action()
    for warning in caught:
        assert (warning.category, warning.filename) == (UserWarning, __file__)
    return [str(warning.message) for warning in caught]


def test_a_misspelt_key_in_a_group_warns_once(make):
    expected = ["'topc' in a parameter group has no effect: did you mean 'topC'?"]
    groups = [{"params": [p], "topc": 3} for p in parameters()]
    made = []
    assert said(lambda: made.append(make(groups))) == expected
    assert said(lambda: made[0].add_param_group({"params": parameters(((2,),)), "topc": 3})) == expected
    assert said(made[0].step) == []
    own = {"params": parameters(), "name": "body", "score": 1, "lr_scale": 0.5, "initial_lr": 1.0, 7: 7}
    assert said(lambda: make([own])) == []


# -- numpy's numbers ---------------------------------------------------------------------------------------------------

NUMPYS = {
    "topC": np.int64(4), "decay": np.float32(0.75), "kappa": np.float64(0.5), "rho": np.float16(0.5),
    "every": np.int32(3), "max_age": np.uint8(6), "seed": np.int64(2),
}  # fmt: skip


def plain(group):
    values = {name: group[name] for name in NUMPYS}
    assert {type(value) for value in values.values()} == {int, float}
    assert values == NUMPYS
    return True


def test_numpys_numbers_are_numbers_and_saved_as_pythons(make):
    for where in ("keyword", "group", "later"):
        params = parameters()
        rest = {"policy": "sparse", "aggr": "fisher"}
        if where == "group":
            optimizer = make([{"params": params, **NUMPYS, **rest}])
        else:
            optimizer = make(params, **rest, **(NUMPYS if where == "keyword" else {}))
        optimizer.param_groups[0].update(NUMPYS)
        assert plain(optimizer.state_dict()["param_groups"][0])  # also before any step
        run(optimizer, params, GradientStream(params), 5)
        optimizer.param_groups[0]["decay"] = np.float32(0.75)  # equal to what is there
        saved = through_a_file(optimizer.state_dict())  # weights_only=True
        assert plain(saved["param_groups"][0])
        assert plain(optimizer.param_groups[0] | {"decay": 0.75})
        optimizer.load_state_dict(saved)
    assert critgrad.critical(torch.optim.SGD, topC=np.int64(4)) is critgrad.critical(torch.optim.SGD, topC=4)


@pytest.mark.parametrize("name", NUMPYS)
def test_what_is_no_number_is_refused_still(make, name):
    for value in (np.bool_(True), True, torch.tensor(1), np.array([1])):
        with pytest.raises(ValueError, match=rf"Invalid {name}: .*, expected "):
            make(parameters(), **{name: value})
    with pytest.raises(ValueError, match=r"^Invalid decay: 1\.5, expected 0 <= decay <= 1$"):
        make(parameters(), decay=np.float32(1.5))


# -- options without effect --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("option, text", [
    ({"rho": 0.1}, 'rho=0.1 has no effect with aggr="sum", only with "fisher"'),
    ({"every": 3}, 'every=3 has no effect with policy="KotH", only with "sparse"'),
])  # fmt: skip
def test_an_option_that_nothing_looks_at_warns_once(make, option, text):
    params = parameters()
    made = []
    assert said(lambda: made.append(make([{"params": [p]} for p in params], **option))) == [text]
    own = [{"params": [p], "scope": "group", **option} for p in params]
    assert said(lambda: make(own)) == [text]
    stream = GradientStream(params)
    saved = made[0].state_dict()
    assert said(lambda: run(made[0], params, stream, 3) or made[0].load_state_dict(saved)) == []
    more = {"params": parameters(((2,),)), "scope": "group"}
    assert said(lambda: made[0].add_param_group(dict(more))) == []  # the constructor's, of which it was said
    other = {name: 2 * value for name, value in option.items()}
    more["params"] = parameters(((3,),))
    (again,) = said(lambda: made[0].add_param_group({**more, **other}))
    assert "has no effect" in again


def test_an_option_that_is_used_or_not_given_does_not_warn(make):
    params = parameters()
    mixed = [{"params": params[:1], "aggr": "fisher"}, {"params": params[1:]}]

    def fine():
        make(params)
        make(params, rho=0.1, aggr="fisher")
        make(params, every=3, policy="sparse")
        make(params, every=3, policy=own_policy())
        make(params, rho=0.3, every=10)  # as they are anyway
        make(params, rho=0.1, every=3, topC=0)
        make(mixed, rho=0.1)
        critgrad.critical(torch.optim.SGD, rho=0.1)(params)
        critgrad.SGD_F(params, rho=0.1)
        critgrad.critical(torch.optim.Adadelta)(params, rho=0.5)

    assert said(fine) == []


def own_policy():
    from critgrad.memory.policies import always, oldest

    return critgrad.Policy("own", always, oldest)


# -- checkpoints of the other kind -------------------------------------------------------------------------------------


@pytest.mark.parametrize("one, other", [(critgrad.AdamW_C, critgrad.AdamW_F), (critgrad.AdamW_F, critgrad.AdamW_C)])
def test_a_checkpoint_of_the_other_kind_brings_its_aggr_and_warns_once(one, other):
    params, optimizer, stream = trained(cls=one)
    saved = optimizer.state_dict()
    groups = [{"params": copies(params)}]
    fresh = other(groups, lr=0.05)
    was, loaded = fresh.param_groups[0]["aggr"], optimizer.param_groups[0]["aggr"]
    (text,) = said(lambda: fresh.load_state_dict(saved))
    assert f'{other.__name__} had aggr="{was}", the checkpoint has aggr="{loaded}"' in text
    assert f'set group["aggr"] = "{was}"' in text
    assert fresh.param_groups[0]["aggr"] == loaded
    fresh.param_groups[0]["aggr"] = was
    run(fresh, fresh.param_groups[0]["params"], stream, 2, start=8)
    assert said(lambda: one(copies(params)).load_state_dict(saved)) == []
    assert said(lambda: other(copies(params)).load_state_dict(torch.optim.AdamW(copies(params)).state_dict())) == []


def test_a_checkpoint_loads_into_the_plain_base_if_every_parameter_has_had_a_gradient():
    """What docs/faq.md says of it."""
    params, optimizer, stream = trained(cls=critgrad.AdamW_C, dtype=torch.float32)
    theirs = copies(params)
    plain = torch.optim.AdamW(theirs)
    plain.load_state_dict(through_a_file(optimizer.state_dict()))
    assert "critical_slots" in plain.state[theirs[0]]  # the memory rides along, unused
    for state in plain.state.values():
        for key in [key for key in state if key.startswith("critical_")]:
            del state[key]
    without = critgrad.AdamW_C(ours := copies(params), topC=0)
    without.load_state_dict(optimizer.state_dict())
    run(plain, theirs, stream, 3, start=8)
    run(without, ours, stream, 3, start=8)
    assert all(torch.equal(p, q) for p, q in zip(ours, theirs))

    optimizer.add_param_group({"params": parameters(((2,),))})
    run(optimizer, params, stream, 1, start=8)
    with pytest.raises(KeyError, match="step"):
        torch.optim.AdamW([{"params": g["params"]} for g in optimizer.param_groups]).load_state_dict(
            optimizer.state_dict()
        )


# -- what the wrapper hands on -----------------------------------------------------------------------------------------


class Switching(torch.optim.SGD):
    """Stands in for the schedule-free ones, whose ``eval()`` puts other values into the parameters."""

    mode = None
    _private = 1
    _step_supports_amp_scaling = True

    def train(self):
        self._switch("train", 2.0)

    def eval(self):
        self._switch("eval", 0.5)

    @torch.no_grad()
    def _switch(self, mode, factor):
        self.mode = mode
        for group in self.param_groups:
            torch._foreach_mul_(group["params"], factor)


def test_the_wrapper_hands_on_what_the_inner_one_has():
    optimizer = critgrad.CriticalGradients(Switching(parameters(), lr=0.1))
    optimizer.train()
    assert (optimizer.mode, optimizer.optimizer.mode) == ("train", "train")
    for twin in (optimizer, copy.copy(optimizer), copy.deepcopy(optimizer), pickle.loads(pickle.dumps(optimizer))):
        twin.eval()
        assert twin.optimizer.mode == "eval"
    assert not hasattr(optimizer, "_private")
    assert not optimizer._step_supports_amp_scaling
    bare = critgrad.CriticalGradients(torch.optim.SGD(parameters(), lr=0.1))
    assert not any(hasattr(bare, name) for name in ("train", "eval", "mode", "__wrapped__"))
    empty = object.__new__(critgrad.CriticalGradients)
    assert not any(hasattr(empty, name) for name in ("train", "optimizer", "param_groups", "defaults"))


def test_switching_leaves_the_memory_alone():
    params = parameters()
    optimizer = critgrad.CriticalGradients(Switching(params, lr=0.1), topC=3)
    stream = GradientStream(params)
    run(optimizer, params, stream, 5)
    before, memory = everything(optimizer)[0], memory_state(optimizer)
    optimizer.eval()
    assert torch.equal(params[0], before[0] / 2)
    assert_same(memory_state(optimizer), memory)
    optimizer.train()
    assert_same(everything(optimizer)[0], before)
    run(optimizer, params, stream, 1, start=5)
    assert critgrad.inspect(optimizer).memories[0].steps == 6
