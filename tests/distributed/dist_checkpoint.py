"""Saving on some ranks and loading on others, with torch.distributed.checkpoint."""

from __future__ import annotations

import warnings
from pathlib import Path

import dist_problem as problem
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)

import critgrad

HALF = 12  # steps before the checkpoint, and as many after it

# name -> (optimizer, options, whether a layer never gets a gradient)
KINDS = {
    "mean": (*problem.OPTIMIZERS["mean"], False),
    "fisher": (*problem.OPTIMIZERS["fisher"], False),
    "sum-unused": (critgrad.SGD_C, {"lr": 0.02, "topC": 5, "decay": 0.97}, True),
    # With state of its own for used layers only, torch's Adam cannot be loaded whole: it needs allow_partial_load.
    "fisher-unused-partial": (*problem.OPTIMIZERS["fisher"], True),
    # Has its state right after construction, so torch makes no dummy step for it.
    "adagrad": (critgrad.critical(torch.optim.Adagrad), {"lr": 0.05, "topC": 5, "decay": 0.97}, False),
}
CASES = [f"{kind}-{form}" for kind in KINDS for form in ("flat", "nested")]
# Two ranks to one: every case. The other ways share them, each kind in one form, to save time.
FROM_FOUR = [f"{kind}-{form}" for kind, form in zip(KINDS, ("flat", "nested", "flat", "nested", "flat"))]
FROM_ONE = [case for case in CASES if case not in FROM_FOUR]


def parse(case: str) -> tuple[str, bool]:
    kind, form = case.rsplit("-", 1)
    return kind, form == "flat"


def make(kind: str, shard, seed: int = 0):
    cls, given, unused = KINDS[kind]
    model = shard(problem.net(unused, seed=seed))
    return model, cls(model.parameters(), **given)


def save(model, opt, folder: Path, flat: bool) -> None:
    options = StateDictOptions(flatten_optimizer_state_dict=flat)
    state = {"model": get_model_state_dict(model), "optim": get_optimizer_state_dict(model, opt, options=options)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # outside of a process group it says that there is none
        dcp.save(state, checkpoint_id=folder)


def load(model, opt, folder: Path, flat: bool, partial: bool = False) -> None:
    options = StateDictOptions(flatten_optimizer_state_dict=flat)
    state = {"model": get_model_state_dict(model), "optim": get_optimizer_state_dict(model, opt, options=options)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dcp.load(state, checkpoint_id=folder, planner=DefaultLoadPlanner(allow_partial_load=partial))
    set_model_state_dict(model, state["model"])
    set_optimizer_state_dict(model, opt, state["optim"], options=options)


def first_half(kind: str, shard, folder: Path, flat: bool, **ranks) -> None:
    model, opt = make(kind, shard)
    problem.train(model, opt, problem.data(HALF), **ranks)
    save(model, opt, folder, flat)


def second_half(kind: str, shard, folder: Path, flat: bool, **ranks):
    """Load into a model and an optimizer that know nothing, and go on."""
    model, opt = make(kind, shard, seed=99)
    load(model, opt, folder, flat, partial=kind.endswith("partial"))
    decisions = problem.train(model, opt, problem.data(2 * HALF)[HALF:], **ranks)
    return model, decisions


def assert_resumed_equals_uninterrupted(kind: str, model, decisions) -> None:
    cls, given, unused = KINDS[kind]
    reference = problem.alone((cls, given), steps=2 * HALF, unused=unused)
    assert decisions == reference[1][HALF:]
    apart = problem.distance(problem.weights(model), reference[2])
    assert apart < problem.TOLERANCE, f"weights {apart:.2e} from the uninterrupted run's"
