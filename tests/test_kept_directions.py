"""A base that keeps what stood in ``p.grad``: it stays as it was; one that keeps nothing gets the same room again."""

from __future__ import annotations

import gc

import pytest
import torch
from helpers import GradientStream, parameters

import critgrad

SHAPES = ((3, 4), (70,), ())

KEEPS = {
    "the tensor": lambda g: g,
    "detached": lambda g: g.detach(),
    "a view": lambda g: g.view(-1),
    "a slice": lambda g: g.reshape(-1)[:1],
    "data": lambda g: g.data,
    "an array": lambda g: g.numpy(),
    "a view of a view": lambda g: g.detach().view(-1).view(1, -1),
}


class Keeping(torch.optim.Optimizer):
    """Plain descent that remembers the gradients it has seen, each in some form."""

    def __init__(self, params, lr=0.1, keep=None, last=100):
        super().__init__(params, {"lr": lr})
        self.keep, self.last = keep, last
        self.kept: list = []  # (what is kept, its values then)
        self.places: list[list[int]] = []  # where the gradients lay, step by step

    @torch.no_grad()
    def step(self, closure=None):
        params = [p for group in self.param_groups for p in group["params"] if p.grad is not None]
        self.places.append([p.grad.data_ptr() for p in params])
        for p in params:
            if self.keep is not None:
                mine = self.keep(p.grad)
                self.kept = [*self.kept, (mine, torch.as_tensor(mine).clone())][-self.last :]
            p.sub_(p.grad, alpha=self.param_groups[0]["lr"])


def unchanged(base) -> bool:
    return all(torch.equal(torch.as_tensor(mine), then) for mine, then in base.kept)


@pytest.fixture(params=["torch", "native"])
def engine(request, monkeypatch):
    monkeypatch.setenv("CRITGRAD_ENGINE", request.param)
    return request.param


def steps(optimizer, params, count, start=0, **stream):
    for t in range(start, start + count):
        GradientStream(params, **stream).set(params, t)
        optimizer.step()


@pytest.mark.parametrize("how", KEEPS)
@pytest.mark.parametrize("wrapped", [False, True], ids=["class", "wrapper"])
@pytest.mark.parametrize("aggr", ["mean", "fisher"])
def test_what_a_base_has_kept_stays_as_it_was(engine, how, wrapped, aggr):
    params = parameters(SHAPES, torch.float32)
    if wrapped:
        base = Keeping(params, keep=KEEPS[how])
        optimizer = critgrad.CriticalGradients(base, topC=3, aggr=aggr)
    else:
        base = optimizer = critgrad.critical(Keeping)(params, keep=KEEPS[how], topC=3, aggr=aggr)
    for t in range(7):
        steps(optimizer, params, 1, t)
        assert unchanged(base)
    assert len(base.kept) == 7 * 3
    assert critgrad.inspect(optimizer).engine == engine


@pytest.mark.parametrize("how", KEEPS)
def test_what_a_base_keeps_for_one_step_only_stays_as_long(engine, how):
    params = parameters(SHAPES, torch.float32)
    optimizer = critgrad.critical(Keeping)(params, keep=KEEPS[how], last=3, topC=3)
    for t in range(7):
        before = list(optimizer.kept)
        steps(optimizer, params, 1, t)
        assert all(torch.equal(torch.as_tensor(mine), then) for mine, then in before)


def test_one_tensor_that_is_kept_is_enough(engine):
    params = parameters(SHAPES, torch.float32)
    optimizer = critgrad.critical(Keeping)(params, keep=lambda g: g if g.dim() == 0 else g.clone(), topC=3)
    steps(optimizer, params, 7)
    assert unchanged(optimizer)


@pytest.mark.parametrize("wrapped", [False, True], ids=["class", "wrapper"])
@pytest.mark.parametrize("aggr", ["mean", "fisher"])
def test_a_base_that_keeps_nothing_gets_the_same_room_again(engine, wrapped, aggr):
    params = parameters(SHAPES, torch.float32)
    if wrapped:
        base = Keeping(params)
        optimizer = critgrad.CriticalGradients(base, topC=3, aggr=aggr)
    else:
        base = optimizer = critgrad.critical(Keeping)(params, topC=3, aggr=aggr)
    gc.disable()  # nothing may wait for it
    try:
        steps(optimizer, params, 9)
    finally:
        gc.enable()
    assert len({tuple(places) for places in base.places[1:]}) == 1  # the first has nothing to be combined with
    held = {p.grad.data_ptr() for p in params} | {p.data_ptr() for p in params}
    assert not held & set(base.places[-1])


@pytest.mark.parametrize("how", [torch.optim.RAdam, torch.optim.Adamax, torch.optim.ASGD, torch.optim.Rprop])
def test_bases_of_torchs_keep_nothing(engine, how):
    params = parameters(SHAPES, torch.float32)
    optimizer = critgrad.critical(how)(params, topC=3)
    steps(optimizer, params, 3)
    (store,) = optimizer._critical_memory().ready_stores
    room = store.engine.scratch
    steps(optimizer, params, 4, 3)
    assert room is not None
    assert store.engine.scratch is room


def test_room_is_used_again_once_the_base_lets_go(engine):
    params = parameters(SHAPES, torch.float32)
    optimizer = critgrad.critical(Keeping)(params, keep=lambda g: g, topC=3)
    steps(optimizer, params, 4)
    optimizer.keep, optimizer.kept = None, []
    steps(optimizer, params, 5, 4)
    assert len({tuple(places) for places in optimizer.places[5:]}) == 1


def test_the_gradient_itself_is_not_handed_out(engine):
    """While nothing is held, the direction is the gradient: the base gets a copy that it may keep or write to."""
    params = parameters(SHAPES, torch.float32)
    optimizer = critgrad.critical(Keeping)(params, keep=lambda g: g, topC=3)
    GradientStream(params).set(params, 0)
    before = [p.grad.clone() for p in params]
    optimizer.step()
    assert all(torch.equal(p.grad, g) for p, g in zip(params, before))
    places = {p.grad.data_ptr() for p in params}
    assert not places & {mine.data_ptr() for mine, _ in optimizer.kept}


def test_missing_gradients_do_not_disturb(engine):
    params = parameters(SHAPES, torch.float32)
    optimizer = critgrad.critical(Keeping)(params, keep=lambda g: g.detach(), topC=3)
    steps(optimizer, params, 10, missing=0.4, zero=0.1, bad=0.1)
    assert all(
        torch.equal(torch.nan_to_num(torch.as_tensor(mine)), torch.nan_to_num(then)) for mine, then in optimizer.kept
    )
