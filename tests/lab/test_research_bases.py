"""Muon and schedule-free Adam, the bases that the lab brings itself: what they compute, alone and with a memory."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from critgrad.lab.run.spec import Trial
from critgrad.lab.tasks.base import SummingProblem
from critgrad.lab.train.bases import ScheduleFree, learnt
from critgrad.lab.train.bases.muon import RMS, Muon, orthogonalised
from critgrad.lab.train.loop import train
from critgrad.lab.train.optimizers import RESEARCH, STARTING_LR, TRAINED


@pytest.mark.parametrize("shape", [(4, 9), (9, 4), (6, 6), (1, 5)])
def test_an_orthogonalised_matrix_keeps_its_directions_and_loses_their_lengths(shape):
    generator = torch.Generator().manual_seed(0)
    u, _, v = torch.linalg.svd(torch.randn(shape, generator=generator), full_matrices=False)
    lengths = torch.linspace(1.0, 0.2, len(v))
    found = orthogonalised(u @ torch.diag(lengths) @ v)
    values = torch.diagonal(u.t() @ found @ v.t())
    assert found.shape == shape
    assert ((values > 0.6) & (values < 1.3)).all()
    torch.testing.assert_close(u @ torch.diag(values) @ v, found, atol=1e-4, rtol=0)


def test_muon_takes_matrices_as_a_whole_and_vectors_as_adam():
    generator = torch.Generator().manual_seed(0)
    kernel, bias = (nn.Parameter(torch.zeros(s)) for s in ((8, 3, 2, 2), (8,)))
    bound = nn.Parameter(bias.detach().clone())
    ours, adam = Muon([kernel, bias], lr=0.1), torch.optim.Adam([bound], lr=0.1, betas=(0.9, 0.95))
    for _ in range(3):
        kernel.grad, bias.grad = (torch.randn(p.shape, generator=generator) for p in (kernel, bias))
        bound.grad = bias.grad.clone()
        before = kernel.detach().clone()
        ours.step()
        adam.step()
        moved = (kernel.detach() - before) / 0.1
        # Eight orthogonal rows of twelve: entries of about 0.2, as Adam's.
        assert 0.6 * RMS < float(moved.square().mean().sqrt()) < 1.3 * RMS
        torch.testing.assert_close(bias, bound)


def test_schedule_free_is_adam_without_momentum_and_the_mean_of_its_iterates():
    lr, beta1, beta2, eps = 0.1, 0.9, 0.99, 1e-8
    p = nn.Parameter(torch.tensor([1.0, -2.0], dtype=torch.float64))
    optimizer = ScheduleFree([p], lr=lr, betas=(beta1, beta2), eps=eps)
    z, v, iterates = p.detach().clone(), torch.zeros(2, dtype=torch.float64), []
    for k in range(1, 8):
        p.grad = 2 * p.detach()  # of |p|^2, at y
        g = p.grad.clone()
        v = beta2 * v + (1 - beta2) * g**2
        z = z - lr * g / ((v / (1 - beta2**k)).sqrt() + eps)
        iterates.append(z)
        optimizer.step()
        x = torch.stack(iterates).mean(0)
        # The steps' number is float32, which a capture needs: its powers have as many digits.
        torch.testing.assert_close(p.detach(), (1 - beta1) * z + beta1 * x, rtol=1e-5, atol=1e-6)
        at = p.detach().clone()
        with learnt(optimizer):
            torch.testing.assert_close(p.detach(), x, rtol=1e-5, atol=1e-6)
        assert torch.equal(p.detach(), at)


def test_what_was_learnt_is_evaluated_and_training_goes_on_from_where_it_was():
    plain = nn.Parameter(torch.ones(3))
    with learnt(torch.optim.SGD([plain], lr=0.1)):
        assert plain.tolist() == [1, 1, 1]
    fresh = ScheduleFree([nn.Parameter(torch.ones(3))])
    with learnt(fresh):  # before the first step there is nothing else
        assert fresh.param_groups[0]["params"][0].tolist() == [1, 1, 1]


@pytest.mark.parametrize("name", ["Muon", "Muon_F", "ScheduleFree", "ScheduleFree_F"])
def test_they_train_resume_and_carry_a_memory(name, tmp_path):
    trial = Trial("digits-mlp@tiny", name, {"lr": 0.01}, settings={"epochs": 4})
    whole = train(trial)
    assert whole.curves["train_loss"][-1] < whole.curves["train_loss"][0]
    train(trial, checkpoint=tmp_path / "run.pt", stop_after=2)
    second = train(trial, checkpoint=tmp_path / "run.pt")
    assert list(second.curves["test"]) == list(whole.curves["test"])
    assert RESEARCH[name].has_memory == name.endswith("_F")


def test_every_family_has_a_learning_rate_to_start_from():
    assert set(STARTING_LR) == {recipe.family for recipe in TRAINED.values()}


@pytest.mark.parametrize("name", ["ScheduleFree", "ScheduleFree_F"])
def test_the_training_loop_evaluates_what_schedule_free_has_learnt_and_trains_where_it_was(name, monkeypatch):
    """Steps are taken at y; each of the evaluations after the first epoch sees x, and leaves y behind."""
    evaluate, optimizers, at_mean = SummingProblem.evaluate, [], []

    def is_at(point):
        (group,) = optimizers[-1].param_groups
        states = [(p, optimizers[-1].state[p]) for p in group["params"]]
        return all(torch.equal(p.detach(), point(state, group["betas"][0])) for p, state in states)

    def seen(problem, model, split):
        if optimizers:
            at_mean.append(is_at(lambda state, _: state["x"]))
        return evaluate(problem, model, split)

    def at_y(optimizer):
        optimizers.append(optimizer)
        assert is_at(lambda state, beta1: state["z"].lerp(state["x"], beta1))

    monkeypatch.setattr(SummingProblem, "evaluate", seen)
    trial = Trial("digits-mlp@tiny", name, {"lr": 0.01}, settings={"epochs": 2})
    train(trial, on_step=at_y, on_epoch=lambda progress: at_y(progress.optimizer))
    assert at_mean == [True] * 4  # validation and test, twice


@pytest.mark.parametrize("cls", [Muon, ScheduleFree])
def test_a_state_dict_goes_on_bit_for_bit(cls):
    generator = torch.Generator().manual_seed(0)
    model = nn.Linear(4, 3)
    optimizer = cls(model.parameters(), lr=0.01, weight_decay=0.1)

    def go(model, optimizer, grads):
        for pair in grads:
            for p, g in zip(model.parameters(), pair, strict=True):
                p.grad = g.clone()
            optimizer.step()

    grads = [[torch.randn(p.shape, generator=generator) for p in model.parameters()] for _ in range(6)]
    go(model, optimizer, grads[:3])
    other = copy.deepcopy(model)
    loaded = cls(other.parameters(), lr=1.0)
    loaded.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    go(model, optimizer, grads[3:])
    go(other, loaded, grads[3:])
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters(), strict=True))


@pytest.mark.parametrize("cls", [Muon, ScheduleFree])
def test_wrong_arguments_are_refused(cls):
    for arguments in ({"lr": -1.0}, {"betas": (1.0, 0.9)}, {"betas": (0.9, -0.1)}):
        with pytest.raises(ValueError, match="Invalid"):
            cls([nn.Parameter(torch.zeros(2))], **arguments)
