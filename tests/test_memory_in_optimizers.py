"""``critgrad.Memory`` in optimizers of one's own: saving, copies, loading, and what the optimizer has now."""

from __future__ import annotations

import copy
import io
import pickle
import warnings

import pytest
import torch
from helpers import GradientStream, assert_same_bits, parameters

from critgrad import Adam_CM, Memory, inspect
from critgrad.memory.options import KEPT_ON_LOAD

SHAPES = ((3, 4), (5,), ())


# -- an optimizer that is built on it ----------------------------------------------------------------------------------------


class OnDirections(torch.optim.Optimizer):
    """Gradient descent along the memory's directions: what a researcher would write."""

    _memory = None

    def __init__(self, params, lr=0.1, **memory):
        super().__init__(params, {"lr": lr, **memory})

    @property
    def memory(self):  # made when it is missing: torch's pickle and deepcopy drop attributes
        self._memory = self._memory or Memory(self.param_groups, state=self)
        return self._memory

    @torch.no_grad()
    def step(self):
        params = [(p, group["lr"]) for group in self.param_groups for p in group["params"]]
        for (p, lr), d in zip(params, self.memory.step([p.grad for p, _ in params])):
            if d is not None:
                p.sub_(d, alpha=lr)


class OnState(OnDirections):
    """The same with the optimizer's state alone, which torch replaces when it loads."""

    @property
    def memory(self):
        if self._memory is None or self._memory.state is not self.state or self._memory.groups is not self.param_groups:
            self._memory = Memory(self.param_groups, state=self.state)
        return self._memory


def by_a_file(optimizer, params):
    file = io.BytesIO()
    torch.save(optimizer.state_dict(), file)
    file.seek(0)
    kept = {
        name: optimizer.param_groups[0][name] for name in (*KEPT_ON_LOAD, "aggr") if name in optimizer.param_groups[0]
    }
    fresh = type(optimizer)(params, **kept, decay=0.1)
    for p in params:
        p.grad = torch.ones_like(p)
    fresh.memory.step([p.grad for p in params])  # of which nothing is left
    fresh.load_state_dict(torch.load(file))
    return fresh


def by_pickle(optimizer, params):
    return pickle.loads(pickle.dumps(optimizer))


def by_deepcopy(optimizer, params):
    return copy.deepcopy(optimizer)


WAYS = pytest.mark.parametrize("way", [by_a_file, by_pickle, by_deepcopy])


def goes_on(optimizer, params, way, bad=0.15):
    stream = GradientStream(params, 3, missing=0.15, zero=0.1, bad=bad)
    for t in range(7):
        stream.set(params, t)
        optimizer.step()
    other = way(optimizer, [torch.nn.Parameter(p.detach().clone()) for p in params])
    theirs = [p for group in other.param_groups for p in group["params"]]
    assert other.param_groups[0]["topC"] == 3
    assert len(other.memory) == len(optimizer.memory) > 0
    assert {p for p in other.state if "critical_slots" in other.state[p]} == set(theirs)
    for t in range(7, 14):
        for mine, stepper in ((params, optimizer), (theirs, other)):
            stream.set(mine, t)
            stepper.step()
    assert_same_bits(theirs, params)
    for p, q in zip(params, theirs):
        mine, its = optimizer.state[p], other.state[q]
        assert mine.keys() == its.keys()
        assert_same_bits([mine[key].float() for key in mine], [its[key].float() for key in mine])
        assert [mine[key].dtype for key in mine] == [its[key].dtype for key in mine]
    return other


@WAYS
@pytest.mark.parametrize("options", [{"scope": "global"}, {"scope": "tensor"}, {"policy": "RR", "max_age": 5}], ids=str)
@pytest.mark.parametrize("made", [OnDirections, OnState])
@pytest.mark.parametrize("engine", ["torch", "native"])
def test_an_optimizer_on_a_memory_saves_it_without_a_line_of_its_own(monkeypatch, engine, made, options, way):
    monkeypatch.setenv("CRITGRAD_ENGINE", engine)
    params = parameters(SHAPES, torch.float32)
    assert inspect(goes_on(made(params, topC=3, **options), params, way)).engine == engine


@WAYS
@pytest.mark.parametrize(
    "dtype, options",
    [
        (torch.float32, {"aggr": "fisher"}),
        (torch.float32, {"memory_dtype": "bfloat16"}),
        (torch.float32, {"memory_dtype": "int8"}),
        (torch.float32, {"memory_dtype": "float16", "aggr": "fisher"}),
        (torch.bfloat16, {}),
        (torch.float64, {"aggr": "median"}),
    ],
    ids=str,
)
def test_what_torch_would_cast_when_it_loads_is_followed_bit_for_bit(dtype, options, way):
    params = parameters(SHAPES, dtype)
    goes_on(OnDirections(params, topC=3, **options), params, way)


def test_a_clock_that_a_parameters_dtype_cannot_hold_is_loaded_as_it_was():
    params = parameters(((3,),), torch.bfloat16)
    optimizer, stream = OnDirections(params, topC=3), GradientStream(params)
    for t in range(261):
        stream.set(params, t)
        optimizer.step()
    other = by_a_file(optimizer, [torch.nn.Parameter(p.detach().clone()) for p in params])
    (p,), (q,) = params, other.param_groups[0]["params"]
    for key in ("critical_clock", "critical_born", "critical_priority"):
        assert torch.equal(optimizer.state[p][key], other.state[q][key])
    assert int(other.state[q]["critical_clock"]) == 261


def test_a_memory_that_was_made_before_loading_follows_its_optimizer():
    params = parameters(SHAPES, torch.float32)
    optimizer, stream = OnDirections(params, topC=3), GradientStream(params)
    for t in range(5):
        stream.set(params, t)
        optimizer.step()
    other = OnDirections([torch.nn.Parameter(p.detach().clone()) for p in params], topC=3)
    memory = other.memory
    other.load_state_dict(optimizer.state_dict())
    assert len(memory) == 3
    for p in other.param_groups[0]["params"]:
        p.grad = torch.ones_like(p)
    other.step()
    assert other.memory is memory
    assert {int(mine["critical_clock"]) for mine in other.state_dict()["state"].values()} == {6}


def test_a_group_that_an_optimizer_gets_later_is_in_its_memory():
    params = parameters(SHAPES, torch.float32)
    optimizer = OnDirections(params[:2], topC=3)
    stream = GradientStream(params)
    for t in range(6):
        if t == 3:
            optimizer.add_param_group({"params": params[2:]})
        stream.set(params, t)
        optimizer.step()
    assert int(optimizer.state[params[2]]["critical_clock"]) == 6
    assert optimizer.state[params[2]]["critical_slots"].abs().sum() > 0


def test_tensors_that_need_no_gradient_are_remembered_too():
    memory = Memory([torch.zeros(3)], topC=2)
    memory.step([torch.ones(3)])
    assert len(memory) == 1


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda memory: pickle.loads(pickle.dumps(memory))])
def test_a_copy_goes_on_by_itself(copied):
    params = [torch.nn.Parameter(torch.zeros(3)), torch.nn.Parameter(torch.zeros(2, 2))]
    vectors = [[torch.full_like(p, 1.0 + t) for p in params] for t in range(5)]
    memory = Memory(params, topC=3)
    for v in vectors[:3]:
        memory.step([x.detach() for x in v])
    other = copied(memory)
    for v in vectors[3:]:
        for x, y in zip(memory.step([x.detach() for x in v]), other.step([x.detach() for x in v]), strict=True):
            assert torch.equal(x, y)
    assert memory.state_dict()["state"][0]["critical_slots"].data_ptr() != (
        other.state_dict()["state"][0]["critical_slots"].data_ptr()
    )


def test_a_checkpoint_of_another_number_of_parameters_is_refused():
    memory = Memory([torch.nn.Parameter(torch.zeros(3))])
    other = Memory([torch.nn.Parameter(torch.zeros(3)) for _ in range(2)])
    other.step([torch.ones(3), torch.ones(3)])
    with pytest.raises(ValueError, match="2 parameters, expected 1"):
        memory.load_state_dict(other.state_dict())


# -- on an optimizer: one memory, over what the optimizer has now -----------------------------------------------------------


def stepped(optimizer, params, steps, start=0):
    for t in range(start, start + steps):
        GradientStream(params).set(params, t)
        optimizer.step()
    return optimizer


def test_a_memory_loads_into_what_its_optimizer_has_after_loading():
    params = parameters(SHAPES, torch.float32)
    optimizer = stepped(Adam_CM(params, topC=3), params, 3)
    three = optimizer.memory.state_dict()
    stepped(optimizer, params, 2, 3)
    optimizer.load_state_dict(optimizer.state_dict())
    optimizer.memory.load_state_dict(three)
    assert {int(optimizer.state[p]["critical_clock"]) for p in params} == {3}
    stepped(optimizer, params, 1, 3)
    assert int(optimizer.state[params[0]]["critical_clock"]) == 4


def test_a_group_may_come_right_after_loading():
    params = parameters(SHAPES, torch.float32)
    optimizer = stepped(Adam_CM(params[:2], topC=3), params, 3)
    optimizer.load_state_dict(optimizer.state_dict())
    optimizer.add_param_group({"params": params[2:]})
    stepped(optimizer, params, 1, 3)
    assert {int(optimizer.state[p]["critical_clock"]) for p in params} == {4}


def test_of_two_memories_on_one_optimizer_the_newest_counts_and_the_other_says_so():
    params = parameters(SHAPES, torch.float32)
    optimizer = stepped(OnDirections(params, topC=3), params, 2)
    older, vectors = optimizer.memory, [p.grad for p in params]
    newer = Memory(optimizer.param_groups, state=optimizer)
    calls = (
        lambda: older.step(vectors),
        lambda: older.combine(vectors),
        lambda: older.offer(vectors),
        lambda: len(older),
        older.state_dict,
        lambda: older.load_state_dict(newer.state_dict()),
    )
    for call in calls:
        with pytest.raises(
            RuntimeError, match=r"another critgrad.Memory was made on this OnDirections since.*one for each"
        ):
            call()
    newer.step(vectors)
    assert int(optimizer.state[params[0]]["critical_clock"]) == 3


def test_a_memory_that_is_made_again_has_the_options_of_the_first_also_for_new_groups():
    params = parameters(SHAPES, torch.float32)
    optimizer = torch.optim.SGD(params[:2], lr=0.1)
    Memory(optimizer.param_groups, state=optimizer, topC=2, decay=0.9)
    other = copy.deepcopy(optimizer)
    memory = Memory(other.param_groups, state=other)
    other.add_param_group({"params": params[2:]})
    memory.step([torch.ones_like(p) for p in params])
    assert [(group["topC"], group["decay"]) for group in other.param_groups] == [(2, 0.9)] * 2


@pytest.mark.parametrize("part", [lambda params: params[:1], lambda params: params[::-1]], ids=["part", "order"])
def test_a_memory_on_an_optimizer_is_over_its_parameters_in_their_order(part):
    params = parameters(SHAPES)
    with pytest.raises(ValueError, match="Invalid params: they are not those of this SGD, in their order"):
        Memory(part(params), state=torch.optim.SGD(params, lr=0.1))


def test_an_option_that_every_group_has_already_warns_once_and_names_both_values():
    params = parameters(SHAPES)
    adadelta = torch.optim.Adadelta(params)
    with pytest.warns(UserWarning, match="has no effect") as found:
        memory = Memory(adadelta.param_groups, state=adadelta, aggr="fisher", rho=0.2)
    assert [str(w.message) for w in found] == ["Memory(rho=0.2) has no effect: every group has a 'rho' already: 0.9"]
    assert (memory.options[0]["rho"], memory.options[0]["aggr"]) == (0.9, "fisher")
    with pytest.warns(UserWarning, match=r"Memory\(topC=9\) has no effect: every group has a 'topC' already: 10"):
        Memory(adadelta.param_groups, topC=9)


def test_an_option_that_some_group_takes_or_has_alike_does_not_warn():
    params = parameters(SHAPES)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        groups = [{"params": params[:1], "kappa": 0.5, "memory_dtype": torch.bfloat16}, {"params": params[1:]}]
        Memory(groups, kappa=0.7, memory_dtype="bfloat16")
        Memory(groups, memory_dtype=torch.bfloat16)
