"""What users replace or move between steps: parameters, groups, state, storage. No path goes on with the old."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch import nn

import critgrad
from critgrad import memory as m
from critgrad.memory.gram import gram_from_slots

PATHS = pytest.mark.parametrize("fused", [None, False], ids=["fastest", "plain"])
BASES = {
    "Adam_C": {"lr": 1e-2},
    "SGD_C": {"lr": 1e-2, "momentum": 0.9},
    "NAdam_F": {"lr": 1e-2, "topC": 4},
    "RMSprop_F": {"lr": 1e-3, "topC": 3, "scope": "tensor"},
}


def make(name: str, params: object, fused: bool | None, **options: object) -> critgrad.critical.Critical:
    return getattr(critgrad, name)(params, fused=fused, **{**BASES.get(name, {}), **options})


def weights(*sizes: int) -> list[nn.Parameter]:
    return [nn.Parameter(torch.ones(size)) for size in sizes]


def step(opt: torch.optim.Optimizer, params: list[nn.Parameter], number: int = 0) -> None:
    generator = torch.Generator().manual_seed(number)
    for p in params:
        p.grad = torch.randn(p.shape, generator=generator) + 1
    opt.step()


# -- another order in memory ---------------------------------------------------------------------------------------------


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 4, 3), nn.Flatten(), nn.Linear(64, 2))


def train(model: nn.Module, opt: torch.optim.Optimizer, first: int, last: int) -> float:
    loss = torch.tensor(0.0)
    for number in range(first, last):
        generator = torch.Generator().manual_seed(number)
        x, y = torch.randn(16, 3, 8, 8, generator=generator), torch.randint(0, 2, (16,), generator=generator)
        loss = nn.functional.cross_entropy(model(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
    return loss.item()


@PATHS
@pytest.mark.parametrize("name", BASES)
@pytest.mark.parametrize("how", ["channels last in mid-run", "a checkpoint of channels last into a contiguous model"])
def test_a_model_that_lies_otherwise_trains_on_as_if_it_did_not(name, how, fused):
    reference = net()
    opt = make(name, reference.parameters(), False)
    expected = train(reference, opt, 0, 24)

    model = net()
    if how.startswith("a checkpoint"):
        model = model.to(memory_format=torch.channels_last)
    opt = make(name, model.parameters(), fused)
    train(model, opt, 0, 12)
    if how.startswith("a checkpoint"):
        saved = model.state_dict(), opt.state_dict()
        model = net()
        model.load_state_dict(saved[0])
        opt = make(name, model.parameters(), fused)
        opt.load_state_dict(saved[1])
    else:
        model.to(memory_format=torch.channels_last)
    assert train(model, opt, 12, 24) == pytest.approx(expected, rel=2e-3)
    for ours, theirs in zip(model.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=2e-3, atol=2e-4)


# -- other storage -------------------------------------------------------------------------------------------------------


@PATHS
@pytest.mark.parametrize("name", BASES)
@pytest.mark.parametrize("how", ["share_memory_", "data ="])
def test_state_whose_storage_has_moved_is_found_again(name, how, fused):
    params, others = weights(40, 7), weights(40, 7)
    opt, other = make(name, params, fused), make(name, others, fused)
    for number in range(6):
        step(opt, params, number)
        step(other, others, number)
    for state in opt.state.values():
        for tensor in state.values():
            if how == "share_memory_":
                tensor.share_memory_()
            else:
                tensor.data = tensor.data.clone()
    room = [torch.zeros(40) for _ in range(50)]  # where the old storage may have been
    for number in range(6, 12):
        step(opt, params, number)
        step(other, others, number)
    assert not any(tensor.any() for tensor in room)
    for a, b in zip(params, others):
        assert torch.equal(a, b)
    for a, b in zip(params, others):
        for key in opt.state[a]:
            assert torch.equal(opt.state[a][key], other.state[b][key]), key


@PATHS
@pytest.mark.parametrize("name", BASES)
def test_a_square_parameter_that_is_transposed_where_it_lies_trains_on_as_a_copy_would(name, fused):
    """Its address and its shape stay."""
    (ours,), (theirs,) = ([nn.Parameter(torch.arange(16.0).view(4, 4))] for _ in range(2))
    opt, other = make(name, [ours], fused), make(name, [theirs], fused)
    for number in range(8):
        if number == 4:
            ours.data, theirs.data = ours.data.t(), theirs.data.t().contiguous()
        step(opt, [ours], number)
        step(other, [theirs], number)
    torch.testing.assert_close(ours, theirs)


# -- other parameters, groups, states ------------------------------------------------------------------------------------


@PATHS
def test_a_parameter_that_takes_anothers_place_is_trained_and_joins_the_memory(fused):
    a, b = weights(3, 3)
    opt = make("Adam_C", [a, b], fused)
    for number in range(4):
        step(opt, [a, b], number)
    new = nn.Parameter(torch.ones(3))
    opt.param_groups[0]["params"][1] = new
    del opt.state[b]
    left = b.detach().clone()
    for number in range(4, 8):
        step(opt, [a, new], number)
    assert torch.equal(b, left)
    assert not torch.equal(new, torch.ones(3))
    assert opt.state[new][m.SLOTS].any()
    assert critgrad.inspect(opt).memories[0].live == 5


@pytest.mark.parametrize("how", ["a group", "a checkpoint"])
def test_what_the_optimizer_inside_a_wrapper_was_given_gets_the_options_of_the_wrapper(how):
    a, b = weights(3, 3)
    inner = torch.optim.RAdam([a], lr=0.1)
    plain = inner.state_dict()
    opt = critgrad.CriticalGradients(inner, topC=2)
    step(opt, [a])
    if how == "a group":
        inner.add_param_group({"params": [b]})
    else:
        inner.load_state_dict(plain)
    step(opt, [a, b], 1)
    assert [group["topC"] for group in opt.param_groups] == [2] * len(inner.param_groups)
    assert critgrad.inspect(opt).memories[0].live == (2 if how == "a group" else 1)


@PATHS
def test_a_group_that_is_another_dictionary_counts(fused):
    (a,) = weights(3)
    opt = make("SGD_C", [a], fused, momentum=0)
    for number in range(3):
        step(opt, [a], number)
    opt.param_groups = [dict(group, lr=0.0) for group in opt.param_groups]
    before = a.detach().clone()
    step(opt, [a], 3)
    assert torch.equal(a, before)


@PATHS
@pytest.mark.parametrize("which", [0, 1])
def test_a_parameter_whose_state_is_reset_starts_anew_and_is_saved(which, fused):
    params = weights(1, 1)
    opt = make("Adam_C", params, fused, lr=0.1, kappa=0.0)
    for _ in range(20):
        for p in params:
            p.grad = torch.ones(1)
        opt.step()
    opt.state[params[which]] = {}
    before = params[which].detach().clone()
    params[which].grad = -torch.ones(1)
    opt.step()
    torch.testing.assert_close(params[which] - before, torch.tensor([0.1]))  # Adam's first step
    saved = opt.state_dict()["state"]
    assert all(m.SLOTS in saved[i] and "exp_avg" in saved[i] for i in (0, 1))
    other = make("Adam_C", weights(1, 1), fused)
    other.load_state_dict(copy.deepcopy(opt.state_dict()))
    theirs = other.param_groups[0]["params"]
    for p, q in zip(params, theirs):
        q.data.copy_(p.data)
    step(opt, params, 3)
    step(other, theirs, 3)
    assert all(torch.equal(p, q) for p, q in zip(params, theirs))


@PATHS
def test_what_has_a_gradient_is_updated_in_or_out_of_the_memory(fused):
    a, b = weights(3, 3)
    b.requires_grad_(False)
    opt = make("Adam_C", [a, b], fused, lr=0.1)
    theirs = nn.Parameter(torch.ones(3))
    base = torch.optim.Adam([theirs], lr=0.1)
    for _ in range(4):
        for p in (a, b, theirs):
            p.grad = torch.ones(3)
        opt.step()
        base.step()
    torch.testing.assert_close(b, theirs.detach(), check_layout=False)


@pytest.mark.filterwarnings("ignore:the parameters of one memory come with different tables")
@PATHS
@pytest.mark.parametrize("scope", ["global", "group", "tensor"])
def test_a_parameter_at_a_border_of_groups_that_changes_sides_is_noticed(scope, fused):
    """The parameters of all groups, one after the other, are the same afterwards."""
    first, moved, last = weights(3, 3, 3)
    groups = [{"params": [first], "lr": 0.1}, {"params": [moved, last], "lr": 0.0}]
    opt = make("SGD_C", groups, fused, scope=scope)
    for number in range(3):
        step(opt, [first, moved, last], number)
    opt.param_groups[0]["params"].append(opt.param_groups[1]["params"].pop(0))
    before = [p.detach().clone() for p in (moved, last)]
    step(opt, [first, moved, last], 3)
    assert not torch.equal(moved, before[0])
    assert torch.equal(last, before[1])
    together = {"global": [3], "group": [2, 1], "tensor": [2, 1]}[scope]
    assert [len(store.parts) for store in opt._critical_memory().ready_stores] == together


class Counting(torch.optim.Optimizer):
    """A base that keeps something else than the state of parameters in its state."""

    def __init__(self, params, lr=0.1):
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure=None):
        self.state["steps"] = (self.state["steps"] or 1000) + 1
        for group in self.param_groups:
            for p in group["params"]:
                p.sub_(p.grad, alpha=group["lr"])


@pytest.mark.parametrize("make", [critgrad.critical(Counting), lambda p: critgrad.CriticalGradients(Counting(p))])
def test_a_base_may_count_its_steps_in_the_state_and_nothing_is_made_anew_for_it(make):
    (a,) = weights(3)
    opt = make([a])
    stores = []
    for number in range(4):
        step(opt, [a], number)
        stores.append(opt._critical_memory().ready_stores[0])
    assert opt.state["steps"] == 1004
    assert stores[-1] is stores[-2]
    opt.load_state_dict(copy.deepcopy(opt.state_dict()))
    step(opt, [a], 4)
    assert critgrad.inspect(opt).memories[0].live == 5


# -- out of the memory ---------------------------------------------------------------------------------------------------


@PATHS
@pytest.mark.parametrize("name", ["Adam_C", "NAdam_F", "RMSprop_C", "SGD_C"])
@pytest.mark.parametrize("how", ["loaded", "all groups", "one group"])
def test_without_a_memory_nothing_of_it_is_left_and_late_parameters_step(name, how, fused):
    a, b = weights(3, 3)
    opt = make(name, [{"params": [a]}, {"params": [b]}], fused)
    a.grad = torch.ones(3)
    opt.step()  # b has no gradient yet: its state holds the memory alone
    if how == "loaded":
        base = make(name, [{"params": [a]}, {"params": [b]}], fused, topC=0)
        base.load_state_dict(opt.state_dict())
        opt = base
    else:
        for group in opt.param_groups[0 if how == "all groups" else 1 :]:
            group["topC"] = 0
    a.grad, b.grad = torch.ones(3), torch.ones(3)
    opt.step()
    assert (b != 1).all()
    out = [b] if how == "one group" else [a, b]
    assert not any(key in m.KEYS for p in out for key in opt.state[p])
    if how == "one group":  # and back: it joins what the other group has
        opt.param_groups[1]["topC"] = opt.param_groups[0]["topC"]
        step(opt, [a, b])
        assert critgrad.inspect(opt).memories[0].live == 3


@PATHS
@pytest.mark.parametrize("how", ["tensor", "group", "one leaves", "one by itself"])
def test_a_gram_matrix_of_other_parts_is_made_anew(how, fused):
    """One group's gradients are ten times as large: with them in the matrix, the other is hardly damped at all."""

    def two() -> list[dict]:
        return [{"params": weights(30)}, {"params": weights(20)}]

    def steps(opt, count):
        for number in range(count):
            for scale, group in zip((1.0, 10.0), opt.param_groups):
                generator = torch.Generator().manual_seed(number)
                group["params"][0].grad = scale * torch.randn(group["params"][0].shape, generator=generator)
            opt.step()

    opt = critgrad.SGD_F(two(), lr=0.1, topC=4, fused=fused)
    steps(opt, 4)
    if how in ("tensor", "group"):
        other = critgrad.SGD_F(two(), lr=0.1, topC=4, fused=fused, scope=how)
        other.load_state_dict(opt.state_dict())
        opt = other
    elif how == "one leaves":
        opt.param_groups[1]["topC"] = 0
    else:
        opt.param_groups[1]["scope"] = "group"
    for memory in opt._critical_memory().ready_stores:
        torch.testing.assert_close(memory.gram, gram_from_slots(memory), rtol=1e-5, atol=1e-4)
    steps(opt, 3)
    for memory in opt._critical_memory().ready_stores:
        torch.testing.assert_close(memory.gram, gram_from_slots(memory), rtol=1e-4, atol=1e-3)


@PATHS
@pytest.mark.parametrize("damps", [False, True], ids=["adds", "damps"])
@pytest.mark.parametrize("few, many", [(3, 5), (3, 2), (5, 3)])
def test_a_tensor_that_moves_to_a_group_of_another_topC_is_cut_by_itself(few, many, damps, fused):
    """Each tensor has a memory of its own: how many slots the others had plays no part. (A sum of what was forgotten had.)"""
    make = critgrad.SGD_F if damps else critgrad.SGD_C
    first, second = weights(4, 4)
    opt = make(
        [{"params": [first], "topC": few}, {"params": [second], "topC": many}], scope="tensor", fused=fused, decay=0.9
    )
    for number in range(7):
        step(opt, [first, second], number)
    before = critgrad.inspect(opt).memories
    opt.param_groups[0]["params"].append(opt.param_groups.pop()["params"][0])
    after = critgrad.inspect(opt).memories
    assert after[0].norms == before[0].norms
    strongest = sorted(zip(before[1].priorities, before[1].norms), reverse=True)[:few]
    assert sorted(after[1].norms) == sorted(norm for _, norm in strongest)
    for number in range(7, 9):
        step(opt, [first, second], number)
        for part in (part for store in opt._critical_memory().ready_stores for part in store.parts):
            held = part.tensors[m.SLOTS][part.tensors[m.BORN] > 0]
            kept = part.tensors[m.GRAM].sum() if damps else part.tensors[m.SUM]
            torch.testing.assert_close(kept.float(), held.sum(0).square().sum() if damps else held.sum(0))


# -- classes and wrappers ------------------------------------------------------------------------------------------------


class Outer:
    class Mine(critgrad.Adam_C):
        """Somebody's subclass, in a class."""


def test_a_nested_subclass_comes_back_from_pickle_as_itself():
    opt = Outer.Mine(weights(3), lr=0.1)
    assert type(pickle.loads(pickle.dumps(opt))) is Outer.Mine


def test_a_local_subclass_is_refused_by_pickle_and_not_replaced():
    class Local(critgrad.Adam_C):
        pass

    with pytest.raises((AttributeError, pickle.PicklingError), match="Local"):
        pickle.dumps(Local(weights(3), lr=0.1))


def test_an_optimizer_is_wrapped_once():
    inner = torch.optim.NAdam(weights(3), lr=0.1)
    critgrad.CriticalGradients(inner, topC=5)
    with pytest.raises(TypeError, match="has a memory already"):
        critgrad.CriticalGradients(inner, topC=10)
