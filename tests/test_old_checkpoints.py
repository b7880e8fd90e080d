"""Checkpoints of the release c0231e6, by each of its engines: they load bit for bit and go on as they did there.

``old_checkpoints/make.py`` writes the files. kernels/test_triton_old_checkpoints.py holds Triton's kernels to the same.
"""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
import torch

import critgrad

FOLDER = Path(__file__).with_name("old_checkpoints")
CASES = sorted(path.stem for path in FOLDER.glob("*.pt"))
PICKLES = sorted(path.stem for path in FOLDER.glob("*.pickle"))

GRAM = "critical_gram"
# No order of adding up changes what a slot holds, the gradient itself, nor in these files whether it is stored. Half
# types and 8 bits are no exception: they round the same bits, none of which lies half-way, and what is computed from
# them needs no more room than with float32.
EXACT = ("critical_slots", "critical_born", "critical_clock", "critical_inserted")


def read(case):
    return torch.load(FOLDER / f"{case}.pt", weights_only=True)


def parameters_of(saved):
    return [torch.nn.Parameter(p.clone()) for p in saved["params"]]


def construct(saved, params):
    """The optimizer that a file describes."""
    groups = [{**group, "params": [params[i] for i in group["params"]]} for group in saved["groups"]]
    way, _, name = saved["class"].rstrip(")").rpartition("(")
    if way == "CriticalGradients":
        return critgrad.CriticalGradients(getattr(torch.optim, name)(groups, **saved["base"]), **saved["memory"])
    cls = critgrad.critical(getattr(torch.optim, name)) if way == "critical" else getattr(critgrad, name)
    return cls(groups, **saved["base"], **saved["memory"])


def parameters_in(optimizer):
    return [p for group in optimizer.param_groups for p in group["params"]]


def ours_of(state):
    return {key: value for key, value in state.items() if key.startswith("critical_")}


def memory_of(optimizer):
    """The memory's keys of every parameter's state."""
    return [ours_of(optimizer.state[p]) for p in parameters_in(optimizer)]


def go_on(optimizer, grads, missing):
    """A step for each list of parameters that are without a gradient in it."""
    for t, without in enumerate(missing):
        for i, p in enumerate(parameters_in(optimizer)):
            p.grad = None if i in without else torch.empty_like(p).copy_(grads[i][t])
        optimizer.step()


def bits(tensor):
    return tensor.reshape(-1).contiguous().view(torch.uint8)


def assert_same_bits(ours, theirs, key):
    assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape), key
    if key == GRAM:  # NaN is what the next step finds out; a load may find it out at once
        known = ~theirs.isnan()
        ours, theirs = ours[known], theirs[known]
    assert torch.equal(bits(ours), bits(theirs)), key


def assert_close(ours, theirs, key, wide, largest=1.0):
    """To rounding: of each number, and of the largest that sums and inner products are made with."""
    assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape), key
    if key == GRAM:
        known = ~(ours.isnan() | theirs.isnan())
        assert int((~known).diagonal().sum()) <= 1, "more than one entry waits for its inner products"
        ours, theirs = ours[known], theirs[known]
    rtol, atol = (1e-12, 1e-13) if wide else (1e-5, 1e-6)
    atol *= max(largest, float(theirs.abs().max()))
    torch.testing.assert_close(ours, theirs, rtol=rtol, atol=atol, msg=lambda text: f"{key}: {text}")


def assert_like_the_old_release(optimizer, saved):
    """Parameters and memory after the further steps."""
    wide = saved["params"][0].dtype == torch.float64
    # What has passed through a running sum leaves its rounding there.
    passed = {"critical_sum": max(float(g.abs().max()) for g in saved["grads"])}
    for ours, theirs in zip(parameters_in(optimizer), saved["after"]["params"], strict=True):
        assert_close(ours.detach(), theirs, "parameter", wide)
    for ours, theirs in zip(memory_of(optimizer), saved["after"]["memory"], strict=True):
        assert ours.keys() == theirs.keys()
        for key, value in theirs.items():
            if key in EXACT:
                assert_same_bits(ours[key], value, key)
            else:
                assert_close(ours[key], value, key, wide, passed.get(key, 1.0))


def assert_memory_of_the_file(optimizer, case):
    saved = read(case)["state_dict"]["state"]
    for i, ours in enumerate(memory_of(optimizer)):
        theirs = ours_of(saved[i])
        assert ours.keys() == theirs.keys()
        for key, value in theirs.items():
            assert_same_bits(ours[key], value, key)


def loaded(case):
    saved = read(case)
    optimizer = construct(saved, parameters_of(saved))
    optimizer.load_state_dict(saved["state_dict"])
    return optimizer


def hold(optimizer, case, engine):
    """The optimizer has the memory of the file, and goes on from there as the old release did."""
    assert_memory_of_the_file(optimizer, case)
    saved = read(case)
    go_on(optimizer, saved["grads"], saved["missing"])
    if engine in ("torch", saved["engine"]):  # the others may not know all of its options
        assert critgrad.inspect(optimizer).engine == engine
    assert_like_the_old_release(optimizer, saved)


def hold_pickle(case, engine):
    """The same of a whole optimizer, which equals the one that has loaded the checkpoint."""
    optimizer, other = pickle.loads((FOLDER / f"{case}.pickle").read_bytes()), loaded(case)
    assert type(optimizer) is type(other)
    hold(optimizer, case, engine)
    hold(other, case, engine)
    for ours, theirs in zip(parameters_in(optimizer), parameters_in(other), strict=True):
        assert_close(ours.detach(), theirs.detach(), "parameter", wide=False)


@pytest.fixture(params=["torch", "native"])
def engine(request, monkeypatch):
    if request.param == "torch":
        monkeypatch.setenv("CRITGRAD_NATIVE", "0")
    else:
        monkeypatch.delenv("CRITGRAD_NATIVE", raising=False)
        if critgrad.inspect(critgrad.SGD_C([torch.nn.Parameter(torch.ones(2))], lr=0.1)).engine != "native":
            pytest.skip("no C compiler")
    return request.param


@pytest.mark.parametrize("case", CASES)
def test_a_checkpoint_loads_bit_for_bit_and_goes_on_as_in_the_old_release(case, engine):
    hold(loaded(case), case, engine)


@pytest.mark.parametrize("case", PICKLES)
def test_a_pickle_is_found_in_the_old_modules_and_goes_on_as_the_checkpoint(case, engine):
    hold_pickle(case, engine)


def test_every_engine_of_the_old_release_has_written_some_that_store_in_the_further_steps():
    files = [read(case) for case in CASES]
    assert {saved["engine"] for saved in files} == {"torch", "native", "triton"}
    assert len(PICKLES) == 3
    for saved in files:
        for i, after in enumerate(saved["after"]["memory"]):
            assert after["critical_inserted"] > saved["state_dict"]["state"][i]["critical_inserted"]
    assert any(state[GRAM].isnan().any() for saved in files for state in saved["after"]["memory"] if GRAM in state)
