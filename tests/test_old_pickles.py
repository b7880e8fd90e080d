"""Pickles of an older release, which did not have every option: they load, step and take groups."""

from __future__ import annotations

import pytest
import torch
from helpers import GradientStream, parameters, run

import critgrad
from critgrad.memory.options import DEFAULTS

LATER = ("rho", "every", "max_age", "kappa", "seed", "memory_dtype", "memory_device")
BASES = [torch.optim.SGD, torch.optim.Adam, torch.optim.Adadelta]


def older(optimizer, missing):
    """What ``pickle.loads`` hands to ``__setstate__`` of a new object, without the options in ``missing``."""
    payload = optimizer.__getstate__()
    keys = {optimizer._critical_keys()[name] for name in missing}
    inner = payload.get("optimizer")
    groups = inner.param_groups if inner is not None else payload["param_groups"]
    for group in groups:
        for key in keys:
            del group[key]
    payload["defaults"] = {key: value for key, value in payload["defaults"].items() if key not in keys}
    return payload


@pytest.mark.parametrize("missing", [*((name,) for name in LATER), LATER], ids="-".join)
@pytest.mark.parametrize("base", BASES, ids=lambda base: base.__name__)
@pytest.mark.parametrize("way", ["class", "wrapper"])
def test_a_pickle_without_an_option_has_its_default(way, base, missing):
    params = parameters()
    if way == "class":
        optimizer = critgrad.critical(base)(params, lr=0.1, topC=3)
    else:
        optimizer = critgrad.CriticalGradients(base(params, lr=0.1), topC=3)
    stream = GradientStream(params)
    run(optimizer, params, stream, 4)
    twin = object.__new__(type(optimizer))
    twin.__setstate__(older(optimizer, missing))
    theirs = [group.get("rho") for group in twin.param_groups]
    run(twin, params, stream, 3, start=4)
    twin.add_param_group({"params": parameters(((2,),))})
    for group in (*twin.param_groups, twin.defaults):
        assert {name: group[twin._critical_keys()[name]] for name in missing} == {
            name: DEFAULTS[name] for name in missing
        }
    assert critgrad.inspect(twin).memories[0].steps == 7
    if base is torch.optim.Adadelta:  # it has a rho of its own
        assert (twin._critical_keys()["rho"], theirs) == ("critical_rho", [0.9])
