"""``Adam_CM``, Adam with critical momenta: a plain optimizer on ``critgrad.Memory``, against the loop it stands for."""

from __future__ import annotations

import copy
import gc
import io
import math
import pickle

import pytest
import torch
from helpers import GradientStream, assert_close, assert_same_bits, copies, parameters
from memory_helpers import RankedMemory, in_pieces, long_vector

import critgrad
from critgrad import Adam_CM
from critgrad.memory import policies
from critgrad.memory.options import KEPT_ON_LOAD

SHAPES = ((3, 4), (5,), ())


class Naive:
    """The docstring's four lines, parameter by parameter; ``groups`` are the options of each parameter."""

    def __init__(self, params, memory, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, decays=None):
        self.params, self.memory, self.lr, self.betas, self.eps = params, memory, lr, betas, eps
        self.decays = decays or [0.0] * len(params)
        self.t, self.m = [0] * len(params), [torch.zeros_like(p) for p in params]
        self.v = [torch.zeros_like(p) for p in params]

    @torch.no_grad()
    def step(self):
        b1, b2 = self.betas
        for i, p in enumerate(self.params):
            if p.grad is not None:
                self.t[i] += 1
                self.m[i] = b1 * self.m[i] + (1 - b1) * p.grad
        momenta = [None if p.grad is None else m for p, m in zip(self.params, self.m)]
        aggregates = momenta
        if self.memory is not None:
            m = long_vector(momenta, self.params)
            aggregates = in_pieces(self.memory.direction(m), momenta, self.params)
            self.memory.insert(m, float(long_vector([p.grad for p in self.params], self.params).norm()))
        for i, (p, a) in enumerate(zip(self.params, aggregates)):
            if a is not None:
                self.v[i] = b2 * self.v[i] + (1 - b2) * a**2
                p *= 1 - self.lr * self.decays[i]
                p -= self.lr * a / (1 - b1 ** self.t[i]) / ((self.v[i] / (1 - b2 ** self.t[i])).sqrt() + self.eps)


def drive(pairs, steps, start=0, **stream):
    for t in range(start, start + steps):
        for params, optimizer in pairs:
            GradientStream(params, **stream).set(params, t)
            optimizer.step()


@pytest.mark.parametrize("policy", ["KotH", "bottomC", "FIFO", "NCPR"])
@pytest.mark.parametrize("aggr", ["sum", "mean", "median", "fisher"])
def test_it_is_the_loop_of_the_paper(policy, aggr):
    params = parameters(SHAPES)
    theirs = copies(params)
    memory = {"topC": 3, "decay": 0.8, "aggr": aggr, "kappa": 0.8, "policy": policy, "seed": 4}
    numbers = {"lr": 0.05, "betas": (0.8, 0.95), "eps": 1e-6}
    naive = Naive(theirs, RankedMemory(**memory), **numbers)
    optimizer = Adam_CM(params, **numbers, **memory)
    for t in range(15):
        drive([(params, optimizer), (theirs, naive)], 1, t, seed=2, missing=0.2, zero=0.1)
        assert_close(params, theirs)
    assert optimizer.state[params[0]]["critical_born"].tolist() == [e.born for e in naive.memory.entries]


def test_what_is_not_given_is_the_papers_sum_of_five_with_decay_seven_tenths():
    params = parameters(SHAPES)
    theirs = copies(params)
    pairs = [(params, Adam_CM(params)), (theirs, Naive(theirs, RankedMemory(topC=5, decay=0.7, aggr="sum")))]
    drive(pairs, 12)
    assert_close(params, theirs)


def test_a_gradient_that_comes_late_has_its_own_count_of_steps():
    params = parameters(SHAPES)
    theirs = copies(params)
    optimizer, naive = Adam_CM(params, lr=0.05), Naive(theirs, RankedMemory(aggr="sum"), lr=0.05)
    for t in range(10):
        for mine, stepper in ((params, optimizer), (theirs, naive)):
            GradientStream(mine).set(mine, t)
            if t < 4:
                mine[1].grad = None
            stepper.step()
        assert_close(params, theirs)
    assert optimizer.state[params[1]]["step"] == 6
    assert optimizer.state[params[1]]["critical_clock"] == 10


def test_two_groups_share_a_memory_and_decay_as_each_says():
    params = parameters(SHAPES)
    theirs = copies(params)
    groups = [{"params": params[:1], "weight_decay": 0.5}, {"params": params[1:]}]
    optimizer = Adam_CM(groups, lr=0.05, topC=3)
    naive = Naive(theirs, RankedMemory(topC=3, aggr="sum"), lr=0.05, decays=[0.5, 0.0, 0.0])
    drive([(params, optimizer), (theirs, naive)], 12, missing=0.2)
    assert_close(params, theirs)


def test_without_slots_it_is_adam_with_v_of_m():
    params = parameters(SHAPES)
    theirs = copies(params)
    optimizer = Adam_CM(params, lr=0.05, weight_decay=0.1, topC=0)
    drive([(params, optimizer), (theirs, Naive(theirs, None, lr=0.05, decays=[0.1] * 3))], 12, missing=0.2)
    assert_close(params, theirs)
    assert not any(key.startswith("critical_") for state in optimizer.state.values() for key in state)


def test_without_memory_and_momentum_it_is_torchs_adamw():
    params = parameters(SHAPES)
    theirs = copies(params)
    options = {"lr": 0.05, "betas": (0.0, 0.9), "weight_decay": 0.1}
    drive([(params, Adam_CM(params, topC=0, **options)), (theirs, torch.optim.AdamW(theirs, **options))], 12)
    assert_close(params, theirs)


def test_the_first_call_makes_a_step_and_stores_the_momentum():
    params = parameters(SHAPES)
    before = copies(params)
    optimizer = Adam_CM(params, lr=0.1)
    drive([(params, optimizer)], 1)
    assert not any(torch.equal(p, was) for p, was in zip(params, before))
    state = optimizer.state[params[0]]
    torch.testing.assert_close(state["critical_slots"][0], 0.1 * params[0].grad)
    norm = long_vector([p.grad for p in params], params).norm()
    torch.testing.assert_close(state["critical_priority"][0], 0.7 * norm)  # ranked by the gradient, decayed once


def test_nothing_of_the_aggregate_goes_back_into_the_momentum():
    params = parameters(SHAPES)
    theirs = copies(params)
    with_memory, without = Adam_CM(params, lr=0.0), Adam_CM(theirs, lr=0.0, topC=0)
    drive([(params, with_memory), (theirs, without)], 8)
    for p, q in zip(params, theirs):
        assert_same_bits([with_memory.state[p]["exp_avg"]], [without.state[q]["exp_avg"]])
        assert not torch.equal(with_memory.state[p]["exp_avg_sq"], without.state[q]["exp_avg_sq"])


def test_complex_parameters_are_pairs_of_real_ones():
    real = parameters(((3, 4, 2), (2,)))
    ours = [torch.nn.Parameter(torch.view_as_complex(p.detach().clone())) for p in real]
    optimizer, other = Adam_CM(ours, lr=0.1, topC=2), Adam_CM(real, lr=0.1, topC=2)
    for t in range(8):
        GradientStream(real).set(real, t)
        for p, q in zip(ours, real):
            p.grad = torch.view_as_complex(q.grad.clone())
        optimizer.step()
        other.step()
    assert_close([torch.view_as_real(p.detach()) for p in ours], real)


def test_sparse_gradients_are_refused_before_anything_changed():
    other, table = torch.nn.Parameter(torch.ones(2)), torch.nn.Embedding(5, 3, sparse=True)
    optimizer = Adam_CM([other, table.weight])
    other.grad = torch.ones(2)
    table(torch.tensor([1, 2])).sum().backward()
    with pytest.raises(RuntimeError, match=r"does not support sparse gradients.*sparse=False"):
        optimizer.step()
    assert not optimizer.state


def test_gradients_are_not_written():
    params = parameters(SHAPES)
    optimizer = Adam_CM(params)
    for t in range(4):
        GradientStream(params).set(params, t)
        grads, versions = [p.grad for p in params], [p.grad._version for p in params]
        optimizer.step()
        assert all(p.grad is g for p, g in zip(params, grads))
        assert [g._version for g in grads] == versions


def test_under_scope_tensor_each_is_ranked_by_its_own_gradient():
    params = parameters(SHAPES)
    theirs = copies(params)
    optimizer = Adam_CM(params, lr=0.05, topC=2, scope="tensor")
    each = [Naive([p], RankedMemory(topC=2, aggr="sum", stream=(1 << 20) + i), lr=0.05) for i, p in enumerate(theirs)]
    for t in range(12):
        for mine in (params, theirs):
            GradientStream(mine, missing=0.2).set(mine, t)
        optimizer.step()
        for naive in each:
            naive.step()
        assert_close(params, theirs)


def test_groups_with_different_scopes_step():
    params = parameters(SHAPES)
    theirs = copies(params)
    groups = [{"params": params[:1], "scope": "tensor"}, {"params": params[1:]}]
    optimizer = Adam_CM(groups, lr=0.05, topC=2)
    drive([(params, optimizer)], 3)
    assert not any(torch.equal(p, q) for p, q in zip(params, theirs))


@pytest.mark.parametrize("engine", ["torch", "native"])
@pytest.mark.parametrize("scope", ["global", "tensor"])
def test_single_precision_is_the_loop_to_rounding_on_every_engine(monkeypatch, engine, scope):
    monkeypatch.setenv("CRITGRAD_ENGINE", engine)
    params = parameters(SHAPES, torch.float32)
    theirs = [torch.nn.Parameter(p.detach().double()) for p in params]
    optimizer = Adam_CM(params, lr=0.05, topC=3, scope=scope)
    naive = [Naive(theirs, RankedMemory(topC=3, aggr="sum"), lr=0.05)]
    if scope == "tensor":
        memories = [RankedMemory(topC=3, aggr="sum", stream=(1 << 20) + i) for i in range(3)]
        naive = [Naive([p], memory, lr=0.05) for p, memory in zip(theirs, memories)]
    for t in range(12):
        for mine in (params, theirs):
            GradientStream(mine, seed=1).set(mine, t)
        optimizer.step()
        for each in naive:
            each.step()
    assert_close([p.double() for p in params], theirs, rtol=1e-4, atol=1e-4)
    assert critgrad.inspect(optimizer).engine == engine


# -- what an optimizer of torch's does -------------------------------------------------------------------------------------


def by_a_file(optimizer):
    file = io.BytesIO()
    torch.save(optimizer.state_dict(), file)
    file.seek(0)
    theirs = copies([p for group in optimizer.param_groups for p in group["params"]])
    kept = {name: optimizer.param_groups[0][name] for name in (*KEPT_ON_LOAD, "aggr")}
    other = Adam_CM([{"params": theirs[:1]}, {"params": theirs[1:]}], lr=7.0, decay=0.1, **kept)
    drive([(theirs, other)], 3, seed=9)  # of which nothing is left
    with torch.no_grad():
        for p, q in zip(theirs, [p for group in optimizer.param_groups for p in group["params"]]):
            p.copy_(q)
    other.load_state_dict(torch.load(file))
    return other


def by_pickle(optimizer):
    return pickle.loads(pickle.dumps(optimizer))


@pytest.mark.parametrize("way", [by_a_file, by_pickle, copy.deepcopy])
@pytest.mark.parametrize("options", [{}, {"scope": "tensor"}, {"aggr": "fisher", "decay": 0.9}], ids=str)
@pytest.mark.parametrize("engine", ["torch", "native"])
def test_saved_pickled_or_copied_it_goes_on_bit_for_bit(monkeypatch, engine, options, way):
    monkeypatch.setenv("CRITGRAD_ENGINE", engine)
    params = parameters(SHAPES, torch.float32)
    groups = [{"params": params[:1], "weight_decay": 0.1}, {"params": params[1:]}]
    optimizer = Adam_CM(groups, lr=0.05, topC=4, **options)
    drive([(params, optimizer)], 7, missing=0.2)
    other = way(optimizer)
    theirs = [p for group in other.param_groups for p in group["params"]]
    assert len(other.memory) == len(optimizer.memory) > 0
    assert [group["topC"] for group in other.param_groups] == [4, 4]
    drive([(params, optimizer), (theirs, other)], 7, 7, missing=0.2)
    assert_same_bits(params, theirs)


@pytest.mark.parametrize("name", [lambda i: i + 7, lambda i: f"layer.{i}"], ids=["other numbers", "names"])
def test_a_checkpoint_may_call_its_parameters_otherwise(name):
    def made():
        params = [torch.nn.Parameter(torch.full((3,), float(i))) for i in range(2)]
        return critgrad.Adam_CM(params, lr=0.1), params

    optimizer, params = made()
    for number in range(3):
        for p in params:
            p.grad = torch.randn(3, generator=torch.Generator().manual_seed(number))
        optimizer.step()
    saved = optimizer.state_dict()
    saved["state"] = {name(i): state for i, state in saved["state"].items()}
    for group in saved["param_groups"]:
        group["params"] = [name(i) for i in group["params"]]
    other, theirs = made()
    other.load_state_dict(copy.deepcopy(saved))
    for p, q in zip(params, theirs):
        assert optimizer.state[p].keys() == other.state[q].keys()
        for key, value in optimizer.state[p].items():
            assert torch.equal(value, other.state[q][key]), key
            assert value.dtype == other.state[q][key].dtype, key


@pytest.mark.parametrize("copied", [copy.deepcopy, by_pickle])
def test_a_copy_saves_and_loads_before_its_first_step_as_after_it(copied):
    params = parameters(SHAPES, torch.bfloat16)
    policy = critgrad.Policy("mine", policies.always, policies.oldest)
    optimizer = Adam_CM(params, lr=0.05, topC=3, policy=policy)
    drive([(params, optimizer)], 5)
    saved = copy.deepcopy(optimizer.state_dict())
    other = copied(optimizer)
    assert other.state_dict()["param_groups"][0]["policy"] == "mine"
    other.load_state_dict(saved)
    (group,) = other.param_groups
    for i, p in enumerate(group["params"]):
        for key, value in saved["state"][i].items():
            assert other.state[p][key].dtype == value.dtype, key
    drive([(params, optimizer), (group["params"], other)], 3, 5)
    assert_same_bits(group["params"], params)


def test_a_scheduler_sets_the_learning_rate():
    params = parameters(SHAPES)
    theirs = copies(params)
    optimizer, naive = Adam_CM(params, lr=0.1), Naive(theirs, RankedMemory(aggr="sum"), lr=0.1)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    for t in range(6):
        drive([(params, optimizer), (theirs, naive)], 1, t)
        scheduler.step()
        naive.lr *= 0.5
    assert_close(params, theirs)


def test_a_learning_rate_may_be_a_tensor():
    params = parameters(SHAPES)
    theirs = copies(params)
    drive([(params, Adam_CM(params, lr=torch.tensor(0.125))), (theirs, Adam_CM(theirs, lr=0.125))], 4)
    assert_same_bits(params, theirs)


def test_a_closure_is_evaluated_once_with_gradients_and_its_loss_comes_back():
    weight = torch.nn.Parameter(torch.tensor([3.0, 4.0]))
    optimizer, calls = Adam_CM([weight], lr=0.1), []

    def closure():
        optimizer.zero_grad()
        loss = weight.square().sum()
        loss.backward()
        calls.append(loss.item())
        return loss

    assert optimizer.step(closure).item() == 25.0
    assert calls == [25.0]
    assert weight.square().sum() < 25


def test_a_group_that_is_added_later_is_in_the_memory():
    params = parameters(SHAPES)
    optimizer = Adam_CM(params[:2], topC=3)
    drive([(params, optimizer)], 3)
    optimizer.add_param_group({"params": params[2:], "lr": 0.5})
    drive([(params, optimizer)], 3, 3)
    state = optimizer.state[params[2]]
    assert (int(state["critical_clock"]), float(state["step"])) == (6, 3.0)


def test_inspect_looks_into_it():
    params = parameters(SHAPES, torch.float32)
    optimizer = Adam_CM(params, topC=3)
    assert critgrad.inspect(optimizer).memories[0].live == 0
    drive([(params, optimizer)], 5)
    report = critgrad.inspect(optimizer)
    memory = report.memories[0]
    assert (memory.live, memory.steps, memory.aggr, memory.topC) == (3, 5, ("sum",), 3)
    norm = float(long_vector([p.grad for p in params], params).norm())
    assert math.isclose(memory.gradient_norm, norm, rel_tol=1e-5)
    assert "engine: native (" in str(report)
    assert critgrad.inspect(Adam_CM(params, topC=0)).memories == []


@pytest.mark.parametrize(
    "options, error, message",
    [
        ({"lr": -1.0}, ValueError, r"Invalid lr, .*: -1.0"),
        ({"betas": (1.0, 0.9)}, ValueError, "Invalid lr, eps, weight_decay or betas"),
        ({"eps": -1e-8}, ValueError, "Invalid lr, eps"),
        ({"weight_decay": -0.1}, ValueError, "Invalid lr, eps"),
        ({"decay": 2.0}, ValueError, "Invalid decay: 2.0, expected 0 <= decay <= 1"),
        ({"topC": 1.5}, ValueError, "Invalid topC: 1.5"),
        ({"aggr": "sums"}, ValueError, "Invalid aggr: 'sums'"),
        ({"topc": 3}, TypeError, "Adam_CM got an unexpected argument 'topc' .did you mean 'topC'"),
        ({"amsgrad": True}, TypeError, "Adam_CM got an unexpected argument 'amsgrad'"),
    ],
)
def test_options_that_are_wrong_are_refused(options, error, message):
    with pytest.raises(error, match=message):
        Adam_CM(parameters(SHAPES), **options)


def test_a_wrong_option_of_a_group_is_refused():
    params = parameters(SHAPES)
    with pytest.raises(ValueError, match="Invalid decay: 3"):
        Adam_CM([{"params": params, "decay": 3}])
    with pytest.raises(ValueError, match=r"Invalid topC: .* in groups that share one memory"):
        Adam_CM([{"params": params[:1], "topC": 3}, {"params": params[1:]}])


# -- all of a step or nothing, and who is ranked by whose gradient -----------------------------------------------------------


def test_a_step_that_is_refused_moves_nothing():
    params = parameters(SHAPES)
    optimizer = Adam_CM(params, topC=2)
    drive([(params, optimizer)], 2)
    before, weights = copy.deepcopy(optimizer.state_dict()["state"]), copies(params)
    for name, value in (("decay", 2.0), ("policy", "none")):
        was = optimizer.param_groups[0][name]
        optimizer.param_groups[0][name] = value
        with pytest.raises(ValueError, match=f"Invalid {name}"):
            drive([(params, optimizer)], 1, 2)
        optimizer.param_groups[0][name] = was
    for i, state in optimizer.state_dict()["state"].items():
        assert all(torch.equal(value, before[i][key]) for key, value in state.items())
    assert_same_bits(params, weights)


def test_groups_without_parameters_step():
    Adam_CM([{"params": []}]).step()
    params = parameters(SHAPES)
    optimizer = Adam_CM([{"params": []}, {"params": params}], topC=2)
    drive([(params, optimizer)], 3)
    assert len(optimizer.memory) == 2


def held_slots(shape):
    gc.collect()
    return sum(torch.is_tensor(x) and x.shape == shape for x in gc.get_objects())


@pytest.mark.filterwarnings("ignore")  # of what torch deprecates, when the collector is asked for its objects
def test_a_checkpoint_that_is_refused_is_not_kept():
    params = parameters(((3, 4),))
    optimizer = Adam_CM(params, topC=7)
    drive([(params, optimizer)], 2)
    saved, before = optimizer.state_dict(), held_slots((7, 3, 4))

    def refuse(optimizer, state_dict):
        raise RuntimeError("mine")

    handle = optimizer.register_load_state_dict_pre_hook(refuse)
    with pytest.raises(RuntimeError, match="mine"):
        optimizer.load_state_dict(saved)
    handle.remove()
    for damaged in (
        {**saved, "param_groups": saved["param_groups"] * 2},
        {**saved, "state": {0: {"critical_slots": 1}}},
    ):
        with pytest.raises(ValueError, match=r"parameter groups|critical_slots"):
            optimizer.load_state_dict(damaged)
    assert held_slots((7, 3, 4)) == before


@pytest.mark.parametrize("key", ["critical_slots", "critical_born", "critical_sum"])
def test_a_memory_that_is_damaged_is_refused_before_anything_changed(key):
    params = parameters(SHAPES)
    optimizer = Adam_CM(params, topC=2)
    drive([(params, optimizer)], 3)
    saved, before = optimizer.state_dict(), copy.deepcopy(optimizer.state_dict())
    saved["state"] = {**saved["state"], 1: {**saved["state"][1], key: torch.zeros(2, 9)}}
    with pytest.raises(ValueError, match=f"Invalid {key}"):
        optimizer.load_state_dict(saved)
    after = optimizer.state_dict()
    assert after["param_groups"] == before["param_groups"]
    assert all(torch.equal(v, before["state"][i][k]) for i, state in after["state"].items() for k, v in state.items())


def priorities(optimizer):
    return [float(optimizer.state[p]["critical_priority"][0]) if "critical_priority" in optimizer.state[p] else None
            for group in optimizer.param_groups for p in group["params"]]  # fmt: skip


@pytest.mark.parametrize(
    "scopes, topCs, owners",
    [
        (["global"] * 4, [1] * 4, [(0, 1, 2, 3)] * 4),
        (["global"] * 4, [1, 0, 1, 1], [(0, 2, 3), (), (0, 2, 3), (0, 2, 3)]),
        (["group"] * 4, [1] * 4, [(0,), (1,), (2,), (3,)]),
        (["tensor", "group", "global", "global"], [1] * 4, [(0,), (1,), (2, 3), (2, 3)]),
        (["tensor", "global", "global", "global"], [1, 1, 0, 1], [(0,), (1, 3), (), (1, 3)]),
    ],
    ids=["global", "one without", "group", "mixed", "mixed, one without"],
)
def test_a_memory_is_ranked_by_the_gradients_of_those_that_are_in_it(scopes, topCs, owners):
    params = parameters(((3, 4), (5,), (), (2, 2)))
    groups = [{"params": [p], "scope": scope, "topC": topC} for p, scope, topC in zip(params, scopes, topCs)]
    optimizer = Adam_CM(groups, decay=1.0)
    drive([(params, optimizer)], 1)
    for found, mine in zip(priorities(optimizer), owners):
        if not mine:
            assert found is None
            continue
        norm = long_vector([params[i].grad for i in mine], [params[i] for i in mine]).norm()
        assert math.isclose(found, norm, rel_tol=1e-9)


def test_a_model_that_becomes_a_narrower_one_goes_on():
    params = parameters(SHAPES)
    optimizer = Adam_CM(params, topC=2)
    drive([(params, optimizer)], 3)
    for p in params:
        p.data, p.grad = p.data.float(), None
    drive([(params, optimizer)], 2, 3)
    state = optimizer.state[params[0]]
    assert {state[key].dtype for key in ("exp_avg", "exp_avg_sq", "critical_slots")} == {torch.float32}
    assert (int(state["step"]), int(state["critical_clock"])) == (5, 5)


def test_its_memory_can_be_asked_as_any_other():
    params = parameters(SHAPES)
    optimizer = Adam_CM(params, topC=2)
    drive([(params, optimizer)], 3)
    ones = [torch.ones_like(p) for p in params]
    before = [optimizer.state[p]["critical_sum"] for p in params]
    for d, total in zip(optimizer.memory.combine(ones), before):
        torch.testing.assert_close(d, 1 + total / 2)
    optimizer.memory.offer(ones, priority=1e9)
    optimizer.memory.step(ones)
    assert int(optimizer.state[params[0]]["critical_clock"]) == 5
