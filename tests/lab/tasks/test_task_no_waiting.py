"""No step may wait for the device: tensors without values ("meta") show that none is read on the host."""

import pytest
import torch
from torch import nn

from critgrad.lab.tasks import TASKS, SummingProblem, problem_of


def a_step(name):
    if name == "multiwoz-roberta":
        pytest.importorskip("transformers")
    problem = problem_of(f"{name}@tiny", device="meta")
    with torch.device("meta"):
        model = problem.build()
    plan = problem.plan(0, 1)
    keep = torch.ones(problem.batch_size, problem.noise_width, dtype=torch.bool, device="meta")
    return problem, model, plan, keep if problem.noise_width else None


@pytest.mark.parametrize("name", TASKS)
def test_a_step_reads_no_value_on_the_host(name):
    problem, model, plan, keep = a_step(name)
    parameters = list(model.parameters())
    carry = None
    for _, batch in zip(range(2), problem.batches(plan)):
        loss, carry = problem.loss(model, batch, keep, carry)
        loss.backward()
        nn.utils.clip_grad_norm_(parameters, 1.0)
    assert all(p.grad.shape == p.shape for p in parameters)


@pytest.mark.parametrize("name", [name for name in TASKS if "lstm" not in name or "snli" in name])
def test_a_piece_of_an_evaluation_reads_no_value_on_the_host(name):
    problem, model, _, _ = a_step(name)
    assert isinstance(problem, SummingProblem)
    for batch in problem.parts("train"):
        assert problem.score(model, batch).shape == (3,)


def test_greedy_answers_are_made_without_a_look_at_them():
    problem, model, _, _ = a_step("multiwoz-bilstm")
    assert model.answer(problem.splits["valid"][0], 8, 2, problem.never).shape == (80, 8)
