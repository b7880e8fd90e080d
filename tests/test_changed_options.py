"""Options that are set between steps: a value is read and nothing is made anew; a form is made anew and keeps the entries."""

from __future__ import annotations

import copy

import pytest
import torch
from helpers import GradientStream, ReferenceOptimizer, assert_close, parameters

import critgrad

SHAPES = ((3, 4), (5,), ())
TOPC = 3

# what is set before step t, with the options that make it count
SCHEDULES = {
    "decay": (lambda t: {"decay": 0.3 + 0.04 * t}, {}),
    "kappa": (lambda t: {"kappa": 0.1 * t}, {}),
    "kappa of damping": (lambda t: {"kappa": 0.05 * t}, {"aggr": "fisher"}),
    "rho": (lambda t: {"rho": 0.5 / (t + 1)}, {"aggr": "fisher"}),
    "every": (lambda t: {"every": 1 + t % 3}, {"policy": "sparse"}),
    "max_age": (lambda t: {"max_age": (None, 2, 4)[t % 3]}, {"decay": 1.0}),
    "seed": (lambda t: {"seed": 7 * t}, {"policy": "RR"}),
    "seed of coins": (lambda t: {"seed": 2**33 + t}, {"policy": "random"}),
    "aggr": (lambda t: {"aggr": ("mean", "sum", "mid")[t % 3]}, {"kappa": 0.6}),
    "all": (
        lambda t: {"aggr": ("mid", "mean", "sum")[t % 3], "kappa": 0.2 + 0.1 * t, "decay": 1 - 0.03 * t, "seed": t},
        {"policy": "NCPR"},
    ),
}
STEPS = 14


@pytest.fixture(params=["torch", "native"])
def engine(request, monkeypatch):
    monkeypatch.setenv("CRITGRAD_ENGINE", request.param)
    return request.param


def optimizer_of(kind, params, **options):
    if kind == "class":
        return critgrad.Adam_C(params, lr=0.05, topC=TOPC, **options)
    return critgrad.CriticalGradients(torch.optim.Adam(params, lr=0.05), topC=TOPC, **options)


def reference_of(params, **options):
    theirs = [torch.nn.Parameter(p.detach().double()) for p in params]
    return theirs, ReferenceOptimizer(theirs, lambda ps: torch.optim.Adam(ps, lr=0.05), topC=TOPC, **options)


def step(t, *pairs):
    for params, optimizer in pairs:
        GradientStream(params, seed=4, missing=0.1, zero=0.05, bad=0.1).set(params, t)
        optimizer.step()


def held(optimizer, params):
    """Everything that must stay: the tensors of the state, the stores, their buffers."""
    memory = optimizer._critical_memory()
    tensors = [value for p in params for key, value in optimizer.state[p].items() if key.startswith("critical_")]
    blocks = [block for store in memory.ready_stores for block in store.blocks]
    return [*memory.ready_stores, *blocks, *tensors]


def close(params, theirs):
    tolerance = {} if params[0].dtype == torch.float64 else {"rtol": 2e-4, "atol": 2e-4}
    assert_close([p.double() for p in params], theirs, **tolerance)


@pytest.mark.parametrize("kind", ["class", "wrapper"])
@pytest.mark.parametrize("what", SCHEDULES)
def test_a_value_that_changes_in_every_step_is_read_and_nothing_is_made_anew(engine, what, kind):
    schedule, options = SCHEDULES[what]
    params = parameters(SHAPES, torch.float64 if engine == "torch" else torch.float32)
    optimizer = optimizer_of(kind, params, **{"decay": 0.8, **options, **schedule(0)})
    theirs, reference = reference_of(params, **{"decay": 0.8, **options})
    stays = None
    for t in range(STEPS):
        optimizer.param_groups[0].update(schedule(t))
        for name, value in schedule(t).items():
            setattr(reference.memories[0], name, value)
        step(t, (params, optimizer), (theirs, reference))
        now = held(optimizer, params)
        assert stays is None or [id(a) for a in stays] == [id(b) for b in now]
        stays = now
        close(params, theirs)
    assert critgrad.inspect(optimizer).engine == engine
    born = [0 if entry is None else entry.born for entry in reference.memories[0].entries]
    assert optimizer.state[params[0]]["critical_born"].tolist() == born


@pytest.mark.parametrize("what", ["decay", "kappa", "rho", "aggr"])
def test_the_engine_itself_stays_too(engine, what):
    schedule, options = SCHEDULES[what]
    params = parameters(SHAPES, torch.float32)
    optimizer = optimizer_of("class", params, **options)
    engines = []
    for t in range(6):
        optimizer.param_groups[0].update(schedule(t))
        step(t, (params, optimizer))
        engines.append(optimizer._critical_memory().ready_stores[0].engine)
    assert all(each is engines[-1] for each in engines[2:])  # the native one waits for the first entry


def test_a_pick_and_back_again_changes_no_store(engine):
    params = parameters(SHAPES, torch.float32)
    optimizer = optimizer_of("class", params, decay=0.8)
    theirs, reference = reference_of(params, decay=0.8)
    stays = None
    for t in range(12):
        aggr = ("mean", "median", "sum", "max", "min")[t % 5]
        optimizer.param_groups[0]["aggr"] = reference.memories[0].aggr = aggr
        step(t, (params, optimizer), (theirs, reference))
        now = held(optimizer, params)
        assert stays is None or [id(a) for a in stays] == [id(b) for b in now]
        stays = now
    close(params, theirs)


def test_groups_have_schedules_of_their_own(engine):
    params = parameters(SHAPES, torch.float32)
    groups = [{"params": params[:1]}, {"params": params[1:]}]
    optimizer = critgrad.SGD_C(groups, lr=0.1, topC=TOPC, decay=0.8)
    theirs = [reference_of(params, decay=0.8) for _ in range(2)]
    for both in theirs:
        both[1].optimizer = torch.optim.SGD(both[0], lr=0.1)
        both[1].memories[0].aggr = "sum"
    for t in range(STEPS):
        for i, (_, reference) in enumerate(theirs):
            optimizer.param_groups[i]["kappa"] = reference.memories[0].kappa = 0.1 * t * (i + 1)
        step(t, (params, optimizer), *theirs)
    close(params[:1], theirs[0][0][:1])
    close(params[1:], theirs[1][0][1:])


def test_memories_of_their_own_read_what_changes(engine):
    params = parameters(SHAPES, torch.float32)
    optimizer = optimizer_of("class", params, scope="tensor", decay=0.8)
    theirs, reference = reference_of(params, scope="tensor", decay=0.8)
    for t in range(STEPS):
        optimizer.param_groups[0].update({"decay": 1 - 0.05 * t, "kappa": 0.1 * t})
        for memory in reference.memories:
            memory.decay, memory.kappa = 1 - 0.05 * t, 0.1 * t
        step(t, (params, optimizer), (theirs, reference))
    close(params, theirs)


@pytest.mark.parametrize("kind", ["class", "wrapper"])
@pytest.mark.parametrize(
    "wrong, message",
    [({"decay": 2}, "Invalid decay: 2"), ({"kappa": -1}, "Invalid kappa"), ({"topC": "5"}, "Invalid topC")],
)
def test_a_wrong_value_is_told_and_the_old_one_goes_on(engine, kind, wrong, message):
    params = parameters(SHAPES, torch.float32)
    optimizer = optimizer_of(kind, params, decay=0.8)
    theirs, reference = reference_of(params, decay=0.8)
    for t in range(8):
        if t == 4:
            (group,) = optimizer.param_groups
            was = {name: group[name] for name in wrong}
            group.update(wrong)
            GradientStream(params).set(params, t)
            with pytest.raises(ValueError, match=message):
                optimizer.step()
            group.update(was)
        step(t, (params, optimizer), (theirs, reference))
    close(params, theirs)


# -- forms -----------------------------------------------------------------------------------------------------------------


def keep_two(memory):
    strongest = sorted(memory.live, key=lambda entry: (-entry.priority, -entry.born))[:2]
    memory.entries = [entry for entry in memory.entries if entry in strongest]


FORMS = {
    "more slots": ({"topC": 5}, lambda m: m.entries.extend([None, None])),
    "fewer slots": ({"topC": 2}, keep_two),
    "policy": ({"policy": "FIFO"}, lambda m: None),
    "scope": ({"scope": "group"}, lambda m: setattr(m, "stream", 1)),
    "to damping": ({"aggr": "fisher", "rho": 0.3}, lambda m: None),
    "from damping": ({"aggr": "mean"}, lambda m: None),
}


@pytest.mark.parametrize("kind", ["class", "wrapper"])
@pytest.mark.parametrize("what", FORMS)
def test_another_form_is_made_anew_and_the_entries_are_kept(engine, what, kind):
    change, to_reference = FORMS[what]
    options = {"decay": 0.9, "policy": "RR", "aggr": "fisher" if what == "from damping" else "mean"}
    params = parameters(SHAPES, torch.float64 if engine == "torch" else torch.float32)
    optimizer = optimizer_of(kind, params, **options)
    theirs, reference = reference_of(params, **options)
    for t in range(14):
        if t == 7:
            before = held(optimizer, params)[0]
            optimizer.param_groups[0].update(change)
            to_reference(reference.memories[0])
            for name, value in change.items():
                setattr(reference.memories[0], name, value)
        step(t, (params, optimizer), (theirs, reference))
        if t == 7:
            assert held(optimizer, params)[0] is not before
        close(params, theirs)
        born = [0 if entry is None else entry.born for entry in reference.memories[0].entries]
        assert optimizer.state[params[0]]["critical_born"].tolist() == born
    assert critgrad.inspect(optimizer).engine == engine


@pytest.mark.parametrize("memory_dtype", ["bfloat16", "float16", "int8", "float8"])
def test_another_memory_dtype_rounds_the_entries_and_keeps_them(monkeypatch, memory_dtype):
    monkeypatch.setenv("CRITGRAD_ENGINE", "torch")
    params = parameters(SHAPES, torch.float32)
    optimizer = optimizer_of("class", params, decay=1.0)
    for t in range(5):
        step(t, (params, optimizer))
    before, store = copy.deepcopy(dict(optimizer.state[params[0]])), held(optimizer, params)[0]
    optimizer.param_groups[0]["memory_dtype"] = memory_dtype
    for p in params:
        p.grad = torch.zeros_like(p)  # which is not stored
    optimizer.step()
    after = optimizer.state[params[0]]
    assert held(optimizer, params)[0] is not store
    assert torch.equal(before["critical_born"], after["critical_born"])
    assert torch.equal(before["critical_norm"], after["critical_norm"])
    slots = after["critical_slots"].float()
    if memory_dtype in ("int8", "float8"):
        slots = slots * after["critical_scale"].view(-1, 1, 1)
    scale = before["critical_slots"].abs().max()
    assert (slots - before["critical_slots"]).abs().max() < 0.04 * scale
    torch.testing.assert_close(after["critical_sum"], slots.sum(0))
    optimizer.param_groups[0]["memory_dtype"] = None
    optimizer.step()
    assert optimizer.state[params[0]]["critical_slots"].dtype == torch.float32
    torch.testing.assert_close(optimizer.state[params[0]]["critical_slots"], slots)
