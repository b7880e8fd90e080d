"""What the tests of saving and loading share: the optimizers to try, and how to compare all that they hold."""

from __future__ import annotations

import io

import torch
from helpers import BASES, GradientStream, copies, parameters, run

import critgrad
from critgrad import memory as m

CLASSES = {
    "SGD_C": (critgrad.SGD_C, {"lr": 0.05}),
    "SGDM_C": (critgrad.SGD_C, {"lr": 0.02, "momentum": 0.9}),
    "RMSprop_C": (critgrad.RMSprop_C, {"lr": 0.01, "momentum": 0.5}),
    "Adam_C": (critgrad.Adam_C, {"lr": 0.05, "amsgrad": True}),
    "AdamW_C": (critgrad.AdamW_C, {"lr": 0.05}),
    "NAdam_C": (critgrad.NAdam_C, {"lr": 0.02}),
    "AggMo_C": (critgrad.AggMo_C, {"lr": 0.01}),
    "SGD_F": (critgrad.SGD_F, {"lr": 0.05}),
    "RMSprop_F": (critgrad.RMSprop_F, {"lr": 0.01}),
    "Adam_F": (critgrad.Adam_F, {"lr": 0.05}),
    "AdamW_F": (critgrad.AdamW_F, {"lr": 0.05}),
    "NAdam_F": (critgrad.NAdam_F, {"lr": 0.02}),
    **{f"critical({name})": (critgrad.critical(cls), kwargs) for name, (cls, kwargs) in BASES.items()},
}

DISTINCT = [
    name
    for name in CLASSES
    if name not in [f"critical({x})" for x in ("SGD", "SGDM", "RMSprop", "Adam", "AdamW", "NAdam", "AggMo")]
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
