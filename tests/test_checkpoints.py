"""Saving, loading, copying: a resumed run is the run itself, and a checkpoint that does not fit changes nothing."""

from __future__ import annotations

import copy
import io
import os
import pickle
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch
from helpers import ALL_AGGREGATIONS, ALL_POLICIES, BASES, GradientStream, assert_close, copies, parameters, run
from torch import nn

import critgrad
from critgrad import memory as m

CLASSES = {
    "SGD_C": (critgrad.SGD_C, {"lr": 0.05}),
    "SGDM_C": (critgrad.SGD_C, {"lr": 0.02, "momentum": 0.9}),
    "RMSprop_C": (critgrad.RMSprop_C, {"lr": 0.01, "momentum": 0.5}),
    "Adam_C": (critgrad.Adam_C, {"lr": 0.05, "amsgrad": True}),
    "AdamW_C": (critgrad.AdamW_C, {"lr": 0.05}),
    "AggMo_C": (critgrad.AggMo_C, {"lr": 0.01}),
    "SGD_F": (critgrad.SGD_F, {"lr": 0.05}),
    "RMSprop_F": (critgrad.RMSprop_F, {"lr": 0.01}),
    "Adam_F": (critgrad.Adam_F, {"lr": 0.05}),
    "AdamW_F": (critgrad.AdamW_F, {"lr": 0.05}),
    **{f"critical({name})": (critgrad.critical(cls), kwargs) for name, (cls, kwargs) in BASES.items()},
}

DISTINCT = [
    name
    for name in CLASSES
    if name not in [f"critical({x})" for x in ("SGD", "SGDM", "RMSprop", "Adam", "AdamW", "AggMo")]
]

# Every policy, aggregation, scope and memory dtype, once at least.
SETTINGS = [
    {"policy": "KotH", "aggr": "mean", "scope": "global", "memory_dtype": None},
    {"policy": "bottomC", "aggr": "sum", "scope": "group", "memory_dtype": "float16"},
    {"policy": "FIFO", "aggr": "mid", "scope": "tensor", "memory_dtype": "bfloat16"},
    {"policy": "random", "aggr": "min", "scope": "global", "memory_dtype": "int8"},
    {"policy": "MNDS", "aggr": "median", "scope": "tensor", "memory_dtype": "float8"},
    {"policy": "CDS", "aggr": "max", "scope": "group", "memory_dtype": "float32"},
    {"policy": "CSS", "aggr": "fisher", "scope": "global", "memory_dtype": None},
    {"policy": "RR", "aggr": "fisher", "scope": "tensor", "memory_dtype": "int8"},
    {"policy": "NCPR", "aggr": "fisher", "scope": "group", "memory_dtype": "bfloat16"},
    {"policy": "sparse", "aggr": "sum", "scope": "global", "memory_dtype": "float8", "every": 2},
    {"policy": "KotH", "aggr": "fisher", "scope": "global", "memory_dtype": "float16", "max_age": 4},
    {"policy": "CDS", "aggr": "mean", "scope": "tensor", "memory_dtype": "int8"},
]


def through_a_file(state_dict):
    file = io.BytesIO()
    torch.save(state_dict, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def everything(optimizer):
    """All that an optimizer is, cloned: parameters, their state, the groups' options."""
    params = [p for group in optimizer.param_groups for p in group["params"]]
    state = [
        {k: v.clone() if torch.is_tensor(v) else v for k, v in optimizer.state[p].items()}
        if p in optimizer.state
        else {}
        for p in params
    ]
    groups = [{k: v for k, v in group.items() if k != "params"} for group in optimizer.param_groups]
    return [p.detach().clone() for p in params], state, groups


def as_bits(tensor):
    return tensor.view(torch.int8) if tensor.dtype == torch.float8_e4m3fn else tensor


def assert_same(one, other):
    if torch.is_tensor(one):
        assert torch.is_tensor(other)
        assert one.dtype == other.dtype
        assert one.shape == other.shape
        assert torch.equal(as_bits(one), as_bits(other))
    elif isinstance(one, dict):
        assert one.keys() == other.keys()
        for key in one:
            assert_same(one[key], other[key])
    elif isinstance(one, (list, tuple)):
        assert len(one) == len(other)
        for a, b in zip(one, other):
            assert_same(a, b)
    else:
        assert one == other


def named(name, params, settings):
    cls, kwargs = CLASSES[name]
    return cls(params, **{**kwargs, "topC": 3, "decay": 0.9, **settings})


def wrapped(name, params, settings):
    cls, kwargs = BASES[name]
    return critgrad.CriticalGradients(cls(params, **kwargs), **{"topC": 3, "decay": 0.9, **settings})


def check_resume(make, dtype=torch.float32, seed=0):
    whole, first = parameters(dtype=dtype), parameters(dtype=dtype)
    stream = GradientStream(whole, seed=seed, missing=0.2)
    uninterrupted = make(whole)
    run(uninterrupted, whole, stream, 16)

    interrupted = make(first)
    run(interrupted, first, stream, 9)
    saved = through_a_file(interrupted.state_dict())
    second = copies(first)
    resumed = make(second)
    resumed.load_state_dict(saved)
    run(resumed, second, stream, 7, start=9)
    assert_same(everything(resumed), everything(uninterrupted))


# Every class with a third of the settings, every setting with a third of the classes.
@pytest.mark.parametrize(
    "name, settings",
    [(name, settings) for i, name in enumerate(DISTINCT) for settings in SETTINGS[i % 3 :: 3]],
    ids=lambda v: v if isinstance(v, str) else "-".join(str(x) for x in v.values()),
)
def test_resumed_run_is_the_run_bit_for_bit(name, settings):
    check_resume(lambda params: named(name, params, settings))


@pytest.mark.parametrize("policy", ALL_POLICIES)
@pytest.mark.parametrize("aggr", ALL_AGGREGATIONS)
def test_resumed_run_for_every_policy_and_aggregation(policy, aggr):
    check_resume(lambda params: named("Adam_C", params, {"policy": policy, "aggr": aggr}), seed=3)


@pytest.mark.parametrize("settings", SETTINGS[4:8:2], ids=lambda s: "-".join(str(v) for v in s.values()))
@pytest.mark.parametrize("name", BASES)
def test_resumed_run_of_the_wrapper(name, settings):
    check_resume(lambda params: wrapped(name, params, settings))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64, torch.complex64])
@pytest.mark.parametrize("memory_dtype", [None, "int8", "float16"])
@pytest.mark.parametrize("aggr", ["mean", "fisher"])
def test_resumed_run_for_every_parameter_dtype(dtype, memory_dtype, aggr):
    check_resume(lambda params: named("SGDM_C", params, {"aggr": aggr, "memory_dtype": memory_dtype}), dtype=dtype)


def test_resumed_run_refreshes_the_same_slices_of_a_large_sum():
    """A tensor long enough to be refreshed slice by slice, in more steps than were made before the checkpoint."""
    shapes = ((5000,), (3000,))
    whole = parameters(shapes, dtype=torch.float32)
    first = copies(whole)
    stream = GradientStream(whole)
    a = critgrad.SGD_C(whole, lr=0.1, topC=2)
    run(a, whole, stream, 12)
    b = critgrad.SGD_C(first, lr=0.1, topC=2)
    run(b, first, stream, 5)
    c = critgrad.SGD_C(second := copies(first), lr=0.1, topC=2)
    c.load_state_dict(through_a_file(b.state_dict()))
    run(c, second, stream, 7, start=5)
    assert_same(everything(c), everything(a))


# -- deepcopy and pickle -----------------------------------------------------------------------------------------------


def by_pickle(value):
    return pickle.loads(pickle.dumps(value))


@pytest.mark.parametrize(
    "duplicate, settings",
    [(copy.deepcopy, SETTINGS[0]), (by_pickle, SETTINGS[6]), (copy.deepcopy, SETTINGS[7])],
    ids=["deepcopy-mean", "pickle-fisher", "deepcopy-int8"],
)
@pytest.mark.parametrize("name", [*DISTINCT, *(f"wrapper({base})" for base in BASES)])
def test_a_copy_in_mid_run_continues_bit_for_bit(name, settings, duplicate):
    params = parameters(dtype=torch.float32)
    make = wrapped if name.startswith("wrapper") else named
    optimizer = make(name.removeprefix("wrapper(").removesuffix(")") if make is wrapped else name, params, settings)
    stream = GradientStream(params, missing=0.3)
    run(optimizer, params, stream, 7)
    twins, twin = duplicate((params, optimizer))
    assert type(twin) is type(optimizer)
    assert twin.param_groups[0]["params"][0] is twins[0]
    run(optimizer, params, stream, 8, start=7)
    run(twin, twins, stream, 8, start=7)
    assert_same(everything(twin), everything(optimizer))


@pytest.mark.parametrize("duplicate", [copy.deepcopy, by_pickle], ids=["deepcopy", "pickle"])
@pytest.mark.parametrize("make", [named, wrapped], ids=["class", "wrapper"])
@pytest.mark.parametrize("name", BASES)
def test_a_copy_while_a_parameter_has_only_a_memory(name, make, duplicate):
    """Adam and others expect their own keys in any state that they find."""
    params = parameters(dtype=torch.float32)
    optimizer = make(f"critical({name})" if make is named else name, params, {})
    stream = GradientStream(params)
    for t in range(3):
        stream.set(params, t)
        params[1].grad = None
        optimizer.step()
    twins, twin = duplicate((params, optimizer))
    run(optimizer, params, stream, 3, start=3)
    run(twin, twins, stream, 3, start=3)
    assert_same(everything(twin), everything(optimizer))


def test_the_copy_of_an_optimizer_shares_nothing_with_it():
    params = parameters()
    optimizer = critgrad.Adam_C(params, topC=3)
    stream = GradientStream(params)
    run(optimizer, params, stream, 5)
    twins, twin = copy.deepcopy((params, optimizer))
    before = everything(optimizer)
    run(twin, twins, stream, 5, start=5)
    assert_same(everything(optimizer), before)


@pytest.mark.parametrize(
    "cls",
    [
        critgrad.Adam_C,
        critgrad.SGD_F,
        critgrad.critical(torch.optim.NAdam),
        critgrad.critical(torch.optim.Adadelta, aggr="fisher", topC=4),
        critgrad.critical(critgrad.AggMo),
    ],
)
def test_classes_pickle_to_themselves(cls):
    assert by_pickle(cls) is cls
    assert copy.deepcopy(cls) is cls


def test_a_made_class_unpickles_in_another_process(tmp_path):
    cls = critgrad.critical(torch.optim.NAdam, topC=7)
    (tmp_path / "class").write_bytes(pickle.dumps(cls))
    code = (
        f"import pickle; cls = pickle.load(open({str(tmp_path / 'class')!r}, 'rb'));"
        "print(cls.__name__, cls.__mro__[2].__name__, cls._critical_defaults['topC'])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment())
    assert out.stdout.split() == ["NAdam_C", "NAdam", "7"]


def environment():
    here = Path(__file__).parent
    return {**os.environ, "PYTHONPATH": f"{here.parent / 'src'}{os.pathsep}{here}", "OMP_NUM_THREADS": "1"}


# -- a process that is killed ------------------------------------------------------------------------------------------

TRAINING = """
import os, sys, torch
from helpers import GradientStream, parameters
import critgrad

torch.set_num_threads(1)


def train(steps, path, pause):
    params = parameters(dtype=torch.float32)
    optimizer = critgrad.Adam_C(params, lr=0.05, topC=4, decay=0.9, policy="CDS", memory_dtype="bfloat16")
    stream, start = GradientStream(params, missing=0.2), 0
    if path and os.path.exists(path):
        saved = torch.load(path, weights_only=True)
        start = saved["step"]
        optimizer.load_state_dict(saved["optimizer"])
        with torch.no_grad():
            for p, value in zip(params, saved["params"]):
                p.copy_(value)
    for t in range(start, steps):
        stream.set(params, t)
        optimizer.step()
        if path and (t + 1) % 5 == 0:
            saved = {"step": t + 1, "params": [p.detach() for p in params], "optimizer": optimizer.state_dict()}
            torch.save(saved, path + ".new")
            os.replace(path + ".new", path)
        if pause and t + 1 == pause:
            print("ready", flush=True)
            sys.stdin.read()  # until it is killed
    return params, optimizer
"""


def test_a_killed_and_resumed_process_equals_the_uninterrupted_run(tmp_path):
    module = tmp_path / "training.py"
    module.write_text(textwrap.dedent(TRAINING))
    path = str(tmp_path / "checkpoint.pt")
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import training; training.train(40, {path!r}, pause=18)"
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment()
    )
    try:
        assert process.stdout.readline().strip() == "ready"
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert process.returncode == -signal.SIGKILL

    namespace: dict = {}
    exec(TRAINING, namespace)
    assert torch.load(path, weights_only=True)["step"] == 15
    resumed_params, resumed = namespace["train"](40, path, pause=0)
    params, uninterrupted = namespace["train"](40, None, pause=0)
    assert_same(everything(resumed), everything(uninterrupted))
    assert_same([p.detach() for p in resumed_params], [p.detach() for p in params])


# -- checkpoints of others, and of other settings ----------------------------------------------------------------------


def trained(settings=None, steps=8, cls=critgrad.Adam_C, dtype=torch.float64, seed=0, **kwargs):
    params = parameters(dtype=dtype)
    optimizer = cls(params, lr=0.05, **{"topC": 4, "decay": 0.9, **(settings or {})}, **kwargs)
    stream = GradientStream(params, seed=seed)
    run(optimizer, params, stream, steps)
    return params, optimizer, stream


def entries(optimizer, number=0):
    """``[(norm, born, gradient)]`` of the live slots of one parameter, by birthday."""
    state = optimizer.state[optimizer.param_groups[0]["params"][number]]
    born, norm, slots = state[m.BORN].tolist(), state[m.NORM].tolist(), state[m.SLOTS]
    return sorted((b, n, slots[k].double().clone()) for k, (b, n) in enumerate(zip(born, norm)) if b > 0)


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
            memory = fresh._critical_memories()[0]
            part = next(part for part in memory.parts if part.param is p)
            rows = torch.stack([part.slots.row(k) for k in range(topC)])
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
    old, new = optimizer._critical_memories()[0], fresh._critical_memories()[0]
    assert torch.equal(old.born, new.born)
    assert torch.equal(old.priority, new.priority)
    tolerance = {"int8": 1 / 127, "float8": 1 / 8, "bfloat16": 1 / 128, "float16": 1 / 1024, None: 0}[after]
    for part, was in zip(new.parts, old.parts):
        for k in range(4):
            x, y = part.slots.row(k), was.slots.row(k)
            assert (x - y).abs().max() <= tolerance * y.abs().max()
        if part.sum is not None:
            rows = torch.stack([part.slots.row(k) for k in range(4)])
            torch.testing.assert_close(part.sum, rows.sum(0))
    if new.gram is not None:
        flat = torch.cat([torch.stack([part.slots.row(k) for k in range(4)]) for part in new.parts], 1).double()
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
    for memory in optimizer._critical_memories():
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
