"""Checkpoints of the base, of other settings and of older releases; what loading must not do."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from checkpoint_helpers import (
    assert_same,
    entries,
    everything,
    named,
    through_a_file,
    trained,
    wrapped,
)
from helpers import BASES, GradientStream, assert_close, copies, parameters, run
from torch import nn

import critgrad
from critgrad import memory as m
from critgrad.memory import policies

# -- checkpoints of others, and of other settings ----------------------------------------------------------------------


@pytest.mark.parametrize("make", [named, wrapped], ids=["class", "wrapper"])
@pytest.mark.parametrize("name", BASES)
def test_a_checkpoint_of_the_base_loads_with_an_empty_memory(name, make):
    cls, kwargs = BASES[name]
    params = parameters(dtype=torch.float32)  # torch casts NAdam's and ASGD's float32 numbers to wider parameters
    base = cls(params, **kwargs)
    stream = GradientStream(params)
    run(base, params, stream, 5)
    ours = copies(params)
    optimizer = make(f"critical({name})" if make is named else name, ours, {"seed": 7})
    run(optimizer, ours, stream, 3)  # what was in the memory is forgotten
    with torch.no_grad():
        for p, q in zip(ours, params):
            p.copy_(q)
    optimizer.load_state_dict(through_a_file(base.state_dict()))
    for p, q in zip(ours, params):
        theirs = dict(base.state[q])
        mine = {k: v for k, v in optimizer.state[p].items() if not k.startswith("critical_")}
        assert_same(mine, theirs)
        assert optimizer.state[p].get(m.BORN, torch.zeros(1)).sum() == 0
    assert optimizer.param_groups[0]["topC"] == 3
    assert optimizer.param_groups[0]["seed"] == 7
    run(base, params, stream, 1, start=5)
    run(optimizer, ours, stream, 1, start=5)
    assert_close(ours, params, rtol=0, atol=0)  # the first step after it is the base's


class OnMemory(torch.optim.Optimizer):
    """An optimizer of somebody's own; ``flat``: which gives the memory its parameters and not its groups."""

    def __init__(self, params, lr=0.05, flat=False, **memory):
        super().__init__(params, {"lr": lr})
        mine = [p for group in self.param_groups for p in group["params"]]
        self.memory = critgrad.Memory(mine if flat else self.param_groups, state=self, **memory)

    def __setstate__(self, state):
        super().__setstate__(state)
        if not hasattr(self, "memory"):
            self.memory = critgrad.Memory(self.param_groups, state=self)

    @torch.no_grad()
    def step(self):
        params = [(p, group["lr"]) for group in self.param_groups for p in group["params"]]
        for (p, lr), d in zip(params, self.memory.step([p.grad for p, _ in params])):
            if d is not None:
                p.sub_(d, alpha=lr)


WITH_A_MEMORY = {
    "class": lambda params, **memory: critgrad.Adam_C(params, **memory),
    "wrapper": lambda params, **memory: critgrad.CriticalGradients(torch.optim.Adam(params), **memory),
    "Adam_CM": lambda params, **memory: critgrad.Adam_CM(params, **memory),
    "own": lambda params, **memory: OnMemory(params, **memory),
    "own, flat": lambda params, **memory: OnMemory(params, flat=True, **memory),
}
of_all = pytest.mark.parametrize("make", WITH_A_MEMORY.values(), ids=WITH_A_MEMORY.keys())


def started(make, steps=6, params=None, **memory):
    params = params or parameters()
    optimizer = make(params, **memory)
    run(optimizer, params, GradientStream(params), steps)
    return params, optimizer


@of_all
def test_the_allocation_stays_as_constructed_and_the_rest_comes_from_the_checkpoint(make):
    params, source = started(make, topC=5, decay=0.6, kappa=0.5)
    mine, optimizer = started(make, params=copies(params), topC=2, memory_dtype="bfloat16", decay=0.9)
    optimizer.load_state_dict(source.state_dict())
    group = optimizer.param_groups[0]
    assert [group[name] for name in ("topC", "memory_dtype", "decay", "kappa")] == [2, "bfloat16", 0.6, 0.5]
    run(optimizer, mine, GradientStream(mine), 1)
    assert optimizer.state[mine[0]][m.SLOTS].shape[0] == 2
    assert optimizer.state[mine[0]][m.SLOTS].dtype == torch.bfloat16
    assert int(optimizer.state[mine[0]][m.CLOCK]) == 7


@of_all
def test_what_a_checkpoint_lacks_stays_as_it_was_made_and_it_goes_on(make):
    params, source = started(make)
    old, plain = source.state_dict(), started(torch.optim.Adam)[1].state_dict()
    del old["param_groups"][0]["max_age"]
    for saved, steps in ((old, 7), (plain, 1)):
        mine, optimizer = started(make, params=copies(params), topC=3, max_age=9)
        optimizer.load_state_dict({**saved, "param_groups": [{"lr": 0.1, **saved["param_groups"][0]}]})
        assert optimizer.param_groups[0]["max_age"] == 9
        run(optimizer, mine, GradientStream(mine), 1)
        assert int(optimizer.state[mine[0]][m.CLOCK]) == steps
        optimizer.add_param_group({"params": parameters(((2,),))})
        assert optimizer.param_groups[1]["max_age"] == 9


@of_all
def test_rules_that_a_checkpoint_names_and_the_optimizer_has_not_are_refused_before_anything_changed(make):
    rules = {
        "policy": critgrad.Policy("mine", policies.always, policies.oldest),
        "aggr": critgrad.Aggregation("mine", lambda t: (torch.ones_like(t.g_norm), torch.ones_like(t.norm))),
    }
    for name, rule in rules.items():
        _, source = started(make, **{name: rule})
        _, optimizer = started(make, steps=2)
        before = everything(optimizer)
        with pytest.raises(
            ValueError, match=f"Invalid {name}: the checkpoint was made with 'mine', .*construct .* with that"
        ):
            optimizer.load_state_dict(source.state_dict())
        assert_same(everything(optimizer), before)
        _, optimizer = started(make, steps=2, **{name: rule})
        optimizer.load_state_dict(source.state_dict())
        assert optimizer.param_groups[0][name] == rule


@of_all
@pytest.mark.parametrize(
    "copied", [copy.deepcopy, lambda both: pickle.loads(pickle.dumps(both))], ids=["deepcopy", "pickle"]
)
def test_a_copy_goes_on_as_the_original_and_takes_new_groups_as_it_would(make, copied):
    params, optimizer = started(make, topC=3, decay=0.9)
    theirs, other = copied((params, optimizer))
    for mine, stepper in ((params, optimizer), (theirs, other)):
        stepper.add_param_group({"params": parameters(((2,),))})
        mine += stepper.param_groups[1]["params"]
        run(stepper, mine, GradientStream(mine), 4, start=6)
    assert_same([p.detach() for p in theirs], [p.detach() for p in params])
    assert other.param_groups[1]["topC"] == 3


@of_all
def test_a_checkpoint_that_turns_adding_into_damping_warns_whatever_the_optimizer(make):
    _, source = started(make, aggr="fisher")
    params, optimizer = started(make, aggr="sum")
    with pytest.warns(UserWarning, match='had aggr="sum", the checkpoint has aggr="fisher"'):
        optimizer.load_state_dict(source.state_dict())
    run(optimizer, params, GradientStream(params), 1)


@pytest.mark.parametrize("then", ["load", "add", "step", "save"])
@pytest.mark.parametrize("given", [{}, {"topC": 3}], ids=["plain", "topC"])
def test_groups_that_the_inner_optimizer_was_given_or_has_loaded_are_completed(given, then):
    params, added = parameters(), parameters(((2,),))
    for change in (
        lambda inner: inner.add_param_group({"params": added, **given}),
        lambda inner: inner.load_state_dict(torch.optim.RAdam(params).state_dict()),
    ):
        optimizer = critgrad.CriticalGradients(torch.optim.RAdam(params), topC=3, decay=0.8)
        change(optimizer.optimizer)
        if then == "load":
            optimizer.load_state_dict(optimizer.state_dict())
        elif then == "add":
            optimizer.add_param_group({"params": parameters(((3,),))})
        run(optimizer, params, GradientStream(params), 2)
        assert all((group["topC"], group["decay"]) == (3, 0.8) for group in optimizer.param_groups)


def test_options_missing_in_the_checkpoint_stay_as_constructed():
    params, optimizer, _ = trained({"decay": 0.8, "policy": "FIFO"})
    saved = optimizer.state_dict()
    for group in saved["param_groups"]:
        for name in ("kappa", "rho", "every", "max_age", "seed"):
            del group[name]
    fresh = critgrad.Adam_C(copies(params), topC=4, kappa=0.5, max_age=6)
    fresh.load_state_dict(through_a_file(saved))
    group = fresh.param_groups[0]
    assert (group["kappa"], group["max_age"], group["seed"], group["every"]) == (0.5, 6, 0, 10)
    assert (group["decay"], group["policy"]) == (0.8, "FIFO")
    assert len(entries(fresh)) == 4


@pytest.mark.parametrize("key", [m.INSERTED, m.SUM])
def test_keys_that_an_older_release_did_not_write_are_made(key):
    params, optimizer, _ = trained()
    saved = through_a_file(optimizer.state_dict())
    for state in saved["state"].values():
        del state[key]
    fresh = critgrad.Adam_C(copies(params), lr=0.05, topC=4)
    fresh.load_state_dict(saved)
    state = fresh.state[fresh.param_groups[0]["params"][0]]
    if key == m.SUM:
        torch.testing.assert_close(state[m.SUM], state[m.SLOTS].sum(0))
    else:
        assert state[key] == 0


def test_the_other_options_come_from_the_checkpoint():
    other = {
        "decay": 0.5,
        "aggr": "mid",
        "kappa": 0.25,
        "rho": 0.7,
        "policy": "RR",
        "every": 3,
        "max_age": 9,
        "seed": 5,
    }
    params, optimizer, _ = trained(other, steps=3)
    fresh = critgrad.Adam_C(copies(params), lr=1.0, topC=4, aggr="sum", memory_dtype="bfloat16", scope="group")
    fresh.load_state_dict(through_a_file(optimizer.state_dict()))
    group = fresh.param_groups[0]
    assert {name: group[name] for name in other} == other
    assert group["lr"] == 0.05
    kept = {"topC": 4, "memory_dtype": "bfloat16", "scope": "group", "memory_device": None}
    assert {name: group[name] for name in kept} == kept


@pytest.mark.parametrize("aggr", ["mean", "fisher"])
@pytest.mark.parametrize("memory_dtype", [None, "int8"])
@pytest.mark.parametrize("scope", ["global", "tensor"])
@pytest.mark.parametrize("policy", ["KotH", "FIFO"])
@pytest.mark.parametrize("topC", [1, 2, 7])
def test_another_topC_keeps_the_strongest(topC, policy, scope, memory_dtype, aggr):
    settings = {"policy": policy, "scope": scope, "memory_dtype": memory_dtype, "aggr": aggr}
    params, optimizer, stream = trained(settings)
    saved = through_a_file(optimizer.state_dict())
    fresh = critgrad.Adam_C(ours := copies(params), lr=0.05, **{**settings, "topC": topC})
    fresh.load_state_dict(saved)
    for i, p in enumerate(ours):
        was, now = optimizer.state[params[i]], fresh.state[p]
        assert now[m.SLOTS].shape == (topC, *p.shape)
        by = was[m.BORN] if policy == "FIFO" else was[m.PRIORITY]
        kept = by.argsort(descending=True)[:topC]
        expected = sorted(was[m.BORN][kept].tolist())
        assert [b for b, _, _ in entries(fresh, i)] == expected
        old = {b: g for b, _, g in entries(optimizer, i)}
        if memory_dtype is None:
            for b, _, g in entries(fresh, i):
                assert torch.equal(g, old[b])
        assert now[m.CLOCK] == was[m.CLOCK]
        if aggr == "mean":
            memory = fresh._critical_memory().ready_stores[0]
            part = next(part for part in memory.parts if part.param is p)
            rows = torch.stack([part.block.slots.row(k) for k in range(topC)])
            torch.testing.assert_close(part.sum, rows.sum(0))
    run(fresh, ours, stream, 12, start=8)
    assert all(p.isfinite().all() for p in ours)


def test_of_equal_priorities_the_youngest_are_kept():
    params, optimizer, _ = trained({"decay": 0.0})  # all priorities are 0
    fresh = critgrad.Adam_C(copies(params), topC=2)
    fresh.load_state_dict(optimizer.state_dict())
    assert [b for b, _, _ in entries(fresh)] == [7, 8]


def test_a_smaller_memory_grown_again_equals_a_memory_with_free_slots():
    params, optimizer, stream = trained({"topC": 3}, steps=3)
    grown = critgrad.Adam_C(ours := copies(params), lr=0.05, topC=6, decay=0.9)
    grown.load_state_dict(through_a_file(optimizer.state_dict()))
    theirs = parameters()
    whole = critgrad.Adam_C(theirs, lr=0.05, topC=6, decay=0.9)
    run(whole, theirs, stream, 3)
    run(whole, theirs, stream, 15, start=3)
    run(grown, ours, stream, 15, start=3)
    assert_close(ours, theirs)


def test_topC_0_and_back():
    params, optimizer, _ = trained()
    off = critgrad.Adam_C(ours := copies(params), lr=0.05, topC=0)
    off.load_state_dict(through_a_file(optimizer.state_dict()))
    base = torch.optim.Adam(theirs := copies(params), lr=0.05)
    base.load_state_dict({**optimizer.state_dict(), "state": optimizer.state_dict()["state"]})
    stream = GradientStream(params)
    run(off, ours, stream, 5)
    run(base, theirs, stream, 5)
    assert_close(ours, theirs, rtol=0, atol=0)
    back = critgrad.Adam_C(copies(ours), lr=0.05, topC=4)
    back.load_state_dict(through_a_file(off.state_dict()))
    run(back, back.param_groups[0]["params"], stream, 3)


@pytest.mark.parametrize("before", [None, "float16", "bfloat16", "int8", "float8"])
@pytest.mark.parametrize("after", [None, "float16", "bfloat16", "int8", "float8"])
@pytest.mark.parametrize("aggr", ["mean", "fisher"])
def test_another_memory_dtype_takes_the_entries_along(before, after, aggr):
    params, optimizer, stream = trained({"memory_dtype": before, "aggr": aggr}, dtype=torch.float32)
    fresh = critgrad.Adam_C(ours := copies(params), lr=0.05, topC=4, decay=0.9, memory_dtype=after, aggr=aggr)
    fresh.load_state_dict(through_a_file(optimizer.state_dict()))
    old, new = optimizer._critical_memory().ready_stores[0], fresh._critical_memory().ready_stores[0]
    assert torch.equal(old.born, new.born)
    assert torch.equal(old.priority, new.priority)
    tolerance = {"int8": 1 / 127, "float8": 1 / 8, "bfloat16": 1 / 128, "float16": 1 / 1024, None: 0}[after]
    for part, was in zip(new.parts, old.parts):
        for k in range(4):
            x, y = part.block.slots.row(k), was.block.slots.row(k)
            assert (x - y).abs().max() <= tolerance * y.abs().max()
        if part.sum is not None:
            rows = torch.stack([part.block.slots.row(k) for k in range(4)])
            torch.testing.assert_close(part.sum, rows.sum(0))
    if new.gram is not None:
        flat = torch.cat([torch.stack([part.block.slots.row(k) for k in range(4)]) for part in new.parts], 1).double()
        torch.testing.assert_close(new.gram[0], flat @ flat.T, rtol=1e-5, atol=1e-6)
    run(fresh, ours, stream, 5, start=8)


@pytest.mark.parametrize("how", ["param_groups", "load"])
@pytest.mark.parametrize("scope", ["global", "group", "tensor"])
@pytest.mark.parametrize("before, after", [("mean", "fisher"), ("fisher", "mean"), ("sum", "min")])
def test_switching_the_aggregation_drops_one_derived_key_and_rebuilds_the_other(before, after, scope, how):
    params, optimizer, stream = trained({"aggr": before, "scope": scope})
    if how == "load":
        saved = through_a_file(optimizer.state_dict())
        saved["param_groups"][0]["aggr"] = after
        optimizer = critgrad.Adam_C(params := copies(params), lr=0.05, topC=4, scope=scope)
        optimizer.load_state_dict(saved)
    else:
        optimizer.param_groups[0]["aggr"] = after
    slots = [entries(optimizer, i) for i in range(len(params))]
    run(optimizer, params, stream, 1, start=8)
    for p in params:
        state = optimizer.state[p]
        assert (m.GRAM in state) == (after == "fisher")
        assert (m.SUM in state) == (after != "fisher")
    # One step of Adam on the direction that the textbook gives for the entries as they were.
    reference, base = trained({"aggr": before, "scope": scope})[0:2]
    plain = torch.optim.Adam(theirs := copies(reference), lr=0.05)
    plain.load_state_dict(base.state_dict())
    grads = stream.at(8)
    G = [torch.stack([g.reshape(-1) for _, _, g in mine]) for mine in slots]
    g = [x.reshape(-1) for x in grads]
    if scope != "tensor":
        d = textbook(torch.cat(G, 1), torch.cat(g), after).split([x.numel() for x in g])
    else:
        d = [textbook(a, b, after) for a, b in zip(G, g)]
    for p, x in zip(theirs, d):
        p.grad = x.reshape(p.shape)
    plain.step()
    assert_close(params, theirs, rtol=1e-8)


def textbook(G, g, aggr, rho=0.3):
    if aggr == "mean":
        return (g + G.sum(0)) / (1 + len(G))
    if aggr == "min":
        return g + min(G, key=lambda row: row.norm())
    eye = torch.eye(len(g), dtype=g.dtype)
    return torch.linalg.solve(eye + G.T @ G / (rho * (G * G).sum()), g)


@pytest.mark.parametrize("damage", ["missing", "nan", "shape"])
def test_a_missing_or_doubtful_gram_is_rebuilt_from_the_slots(damage):
    params, optimizer, stream = trained(cls=critgrad.SGD_F)
    saved = through_a_file(optimizer.state_dict())
    for state in saved["state"].values():
        if damage == "missing":
            del state[m.GRAM]
        elif damage == "nan":
            state[m.GRAM][0, 0] = float("nan")
        else:
            state[m.GRAM] = state[m.GRAM][:2, :2].clone()
    fresh = critgrad.SGD_F(ours := copies(params), lr=0.05, topC=4, decay=0.9)
    fresh.load_state_dict(saved)
    torch.testing.assert_close(fresh.state[ours[0]][m.GRAM], optimizer.state[params[0]][m.GRAM], rtol=1e-12, atol=1e-12)
    run(fresh, ours, stream, 5, start=8)
    run(optimizer, params, stream, 5, start=8)
    assert_close(ours, params)


def test_the_tables_are_one_tensor_again_after_loading():
    params, optimizer, _ = trained()
    fresh = critgrad.Adam_C(ours := copies(params), topC=4)
    fresh.load_state_dict(through_a_file(optimizer.state_dict()))
    for key in (*m.TABLE_KEYS,):
        assert len({fresh.state[p][key].data_ptr() for p in ours}) == 1


def rising(tables):
    newest = tables.born.argmax(-1, keepdim=True)
    return tables.g_norm > tables.norm.gather(-1, newest).squeeze(-1)


def oldest(tables):
    return tables.born.argmin(-1)


def test_a_policy_object_is_saved_by_name_and_asked_for_again():
    policy = critgrad.Policy("rising", rising, oldest)
    params, optimizer, stream = trained({"policy": policy})
    saved = through_a_file(optimizer.state_dict())
    assert saved["param_groups"][0]["policy"] == "rising"
    assert optimizer.param_groups[0]["policy"] is policy

    without = critgrad.Adam_C(ours := copies(params), topC=4)
    before = everything(without)
    with pytest.raises(ValueError, match=r"'rising'.*construct the optimizer with that critgrad.Policy"):
        without.load_state_dict(saved)
    assert_same(everything(without), before)

    again = critgrad.Adam_C(ours, lr=0.05, topC=4, policy=critgrad.Policy("rising", rising, oldest))
    again.load_state_dict(saved)
    run(again, ours, stream, 6, start=8)
    run(optimizer, params, stream, 6, start=8)
    assert_close(ours, params, rtol=0, atol=0)


# -- what loading must not do ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cls", [critgrad.SGD_C, critgrad.SGD_F])
def test_loading_does_not_alias_the_callers_tensors(cls):
    params, optimizer, stream = trained(cls=cls)
    saved = copy.deepcopy(optimizer.state_dict())
    before = copy.deepcopy(saved)
    fresh = cls(ours := copies(params), lr=0.05, topC=4, decay=0.9)
    fresh.load_state_dict(saved)
    run(fresh, ours, stream, 5, start=8)
    assert_same(saved["state"], before["state"])
    assert_same(saved["param_groups"], before["param_groups"])


def test_integer_tables_survive_bfloat16_parameters_exactly():
    params, optimizer, _ = trained(dtype=torch.bfloat16, cls=critgrad.SGD_C)
    for memory in optimizer._critical_memory().ready_stores:
        memory.clock.add_(300)  # 301 is no bfloat16
        memory.born.add_(293)
    fresh = critgrad.SGD_C(ours := copies(params), lr=0.05, topC=4)
    fresh.load_state_dict(through_a_file(optimizer.state_dict()))
    for p, q in zip(ours, params):
        for key in (*m.TABLE_KEYS, m.SUM):
            assert fresh.state[p][key].dtype == optimizer.state[q][key].dtype
            assert torch.equal(fresh.state[p][key], optimizer.state[q][key])
    assert fresh.state[ours[0]][m.CLOCK] == 308


@pytest.mark.parametrize("make", [named, wrapped], ids=["class", "wrapper"])
@pytest.mark.parametrize("name", BASES)
def test_a_parameter_that_never_had_a_gradient_loads_and_can_have_one_later(name, make):
    params = parameters(dtype=torch.float32)
    name = f"critical({name})" if make is named else name
    optimizer = make(name, params, {})
    stream = GradientStream(params)
    for t in range(4):
        stream.set(params, t)
        params[2].grad = None
        optimizer.step()
    fresh = make(name, ours := copies(params), {})
    fresh.load_state_dict(through_a_file(optimizer.state_dict()))
    run(fresh, ours, stream, 4, start=4)
    run(optimizer, params, stream, 4, start=4)
    assert_same(everything(fresh), everything(optimizer))


@pytest.mark.parametrize("aggr", ["mean", "fisher"])
@pytest.mark.parametrize("memory_dtype", [None, "int8", "float8"])
def test_a_checkpoint_in_another_memory_order_continues_bit_for_bit(memory_dtype, aggr):
    """Tools that store tensors contiguously (safetensors, DCP) lose channels_last."""

    def conv(params):
        return [nn.Parameter(p.detach().clone().to(memory_format=torch.channels_last)) for p in params]

    shapes = ((4, 3, 2, 5),)
    params = conv(parameters(shapes))
    stream = GradientStream(params)
    options = {"topC": 3, "decay": 0.9, "aggr": aggr, "memory_dtype": memory_dtype}
    optimizer = critgrad.SGD_C(params, lr=0.05, **options)
    run(optimizer, params, stream, 5)
    saved = optimizer.state_dict()
    saved["state"] = {i: {k: v.contiguous() for k, v in s.items()} for i, s in saved["state"].items()}
    fresh = critgrad.SGD_C(ours := conv(params), lr=0.05, **options)
    fresh.load_state_dict(saved)
    run(fresh, ours, stream, 12, start=5)
    run(optimizer, params, stream, 12, start=5)
    assert_same(everything(fresh), everything(optimizer))


@pytest.mark.parametrize("make", [named, wrapped], ids=["class", "wrapper"])
def test_state_hooks_of_torch_fire_once(make):
    params = parameters()
    optimizer = make("Adam_C" if make is named else "Adam", params, {})
    run(optimizer, params, GradientStream(params), 2)
    seen = []
    optimizer.register_state_dict_pre_hook(lambda opt: seen.append("before saving"))
    optimizer.register_state_dict_post_hook(lambda opt, state: seen.append("after saving"))
    optimizer.register_load_state_dict_pre_hook(lambda opt, state: seen.append("before loading"))
    optimizer.register_load_state_dict_post_hook(lambda opt: seen.append("after loading"))
    optimizer.load_state_dict(optimizer.state_dict())
    assert seen == ["before saving", "after saving", "before loading", "after loading"]


@pytest.mark.parametrize("make", [named, wrapped], ids=["class", "wrapper"])
def test_a_load_hook_that_renames_parameters_takes_the_memory_along(make):
    params = parameters()
    optimizer = make("Adam_C" if make is named else "Adam", params, {})
    stream = GradientStream(params)
    run(optimizer, params, stream, 4)
    backwards = list(reversed(copies(params)))
    fresh = make("Adam_C" if make is named else "Adam", backwards, {})

    def reorder(_, state_dict):
        last = len(params) - 1
        state_dict["state"] = {last - i: state for i, state in state_dict["state"].items()}

    fresh.register_load_state_dict_pre_hook(reorder)
    fresh.load_state_dict(through_a_file(optimizer.state_dict()))
    run(fresh, list(reversed(backwards)), stream, 4, start=4)
    run(optimizer, params, stream, 4, start=4)
    assert_close(reversed(backwards), params)


def test_state_that_was_thrown_away_starts_anew():
    params, optimizer, stream = trained()
    optimizer.state.clear()
    run(optimizer, params, stream, 1)
    assert len(entries(optimizer)) == 1
