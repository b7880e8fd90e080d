"""A resumed, copied or killed run is the run itself, bit for bit."""

from __future__ import annotations

import copy
import os
import pickle
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch
from checkpoint_helpers import (
    DISTINCT,
    SETTINGS,
    assert_same,
    check_resume,
    everything,
    named,
    through_a_file,
    wrapped,
)
from helpers import ALL_AGGREGATIONS, ALL_POLICIES, BASES, GradientStream, copies, parameters, run

import critgrad


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
        critgrad.NAdam_F,
        critgrad.critical(torch.optim.RAdam),
        critgrad.critical(torch.optim.Adadelta, aggr="fisher", topC=4),
        critgrad.critical(critgrad.AggMo),
    ],
)
def test_classes_pickle_to_themselves(cls):
    assert by_pickle(cls) is cls
    assert copy.deepcopy(cls) is cls


def test_a_made_class_unpickles_in_another_process(tmp_path):
    cls = critgrad.critical(torch.optim.RAdam, topC=7)
    (tmp_path / "class").write_bytes(pickle.dumps(cls))
    code = (
        f"import pickle; cls = pickle.load(open({str(tmp_path / 'class')!r}, 'rb'));"
        "print(cls.__name__, cls._critical_base.__name__, cls._critical_defaults['topC'])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment())
    assert out.stdout.split() == ["RAdam_C", "RAdam", "7"]


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
