import math

import pytest
import torch
import torch.nn.functional as F

from critgrad.lab.tasks import problem_of
from critgrad.lab.train.loop import new_model


def parameters(model):
    return sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize("vocabulary, size", [(10_000, 2_029_328), (33_278, 6_521_982)])
def test_the_models_have_the_sizes_of_the_plan(vocabulary, size):
    from critgrad.lab.tasks import task_of
    from critgrad.lab.tasks.models import LanguageModel

    o = task_of("ptb-lstm").options
    assert parameters(LanguageModel(vocabulary, o["embedding"], o["hidden"], o["layers"])) == size


def test_columns_are_pieces_of_the_stream_and_targets_follow_inputs():
    problem = problem_of("ptb-lstm@tiny")
    stream = torch.as_tensor(problem.data.arrays["train"]).long()
    rows = len(stream) // 8
    plan = problem.plan(0, 1)
    assert len(plan) == problem.steps == math.ceil((rows - 1) / 10)
    batches = list(problem.batches(plan))
    inputs, targets = (torch.cat([batch[i] for batch in batches]) for i in (0, 1))
    for column in range(8):
        piece = stream[column * rows : (column + 1) * rows]
        assert torch.equal(inputs[:, column], piece[:-1])
        assert torch.equal(targets[:, column], piece[1:])


def test_the_order_does_not_depend_on_seed_or_epoch():
    problem = problem_of("ptb-lstm@tiny")
    assert torch.equal(problem.plan(0, 1), problem.plan(5, 3))


def test_the_state_goes_on_without_its_gradient():
    problem = problem_of("ptb-lstm@tiny")
    model = new_model(problem, 0)
    plan = problem.plan(0, 1)
    first, carry = problem.loss(model, problem.batch(plan[0]), None, None)
    assert not any(part.requires_grad for part in carry)
    second = problem.loss(model, problem.batch(plan[1]), None, carry)[0]
    afresh = problem.loss(model, problem.batch(plan[1]), None, None)[0]
    assert second.item() != afresh.item()
    # Two pieces with the state handed on are one long piece.
    inputs, targets = (torch.cat(pair) for pair in zip(problem.batch(plan[0]), problem.batch(plan[1])))
    whole = F.cross_entropy(model(inputs)[0].flatten(0, 1), targets.flatten())
    assert ((first + second) / 2).item() == pytest.approx(whole.item(), rel=1e-5)


@pytest.mark.parametrize("batch_size", [1, 7, 8])
def test_perplexity_counts_every_word_of_the_split_once(batch_size):
    problem = problem_of("ptb-lstm@tiny", {"batch_size": batch_size})
    model = new_model(problem, 0).eval()
    inputs, targets, count = problem.splits["valid"]
    stream = torch.as_tensor(problem.data.arrays["valid"]).long()
    assert count == len(stream) == (targets >= 0).sum()
    assert torch.equal(targets.t().flatten()[: len(stream)], stream)
    assert torch.equal(inputs.t().flatten()[1 : len(stream)], stream[:-1])
    with torch.no_grad():
        total = 0.0
        for column in range(batch_size):  # each column alone, in one go
            words = targets[:, column][targets[:, column] >= 0]
            logits = model(inputs[: len(words), column : column + 1])[0].squeeze(1)
            total += F.cross_entropy(logits, words, reduction="sum").item()
    scores = problem.evaluate(model, "valid")
    assert scores.loss == pytest.approx(total / len(stream), rel=1e-5)
    assert scores.metric == pytest.approx(math.exp(total / len(stream)), rel=1e-5)


def test_perplexity_ends_at_that_of_a_guess():
    problem = problem_of("ptb-lstm@tiny")
    model = new_model(problem, 0).eval()
    with torch.no_grad():
        model.output.bias[0] = 200.0
    scores = problem.evaluate(model, "valid")
    assert scores.loss > 100
    assert scores.metric == problem.worst == 50


@pytest.mark.parametrize(
    "name, words", [("ptb-lstm", 10_000), pytest.param("wikitext2-lstm", 33_278, marks=pytest.mark.slow)]
)
def test_the_first_loss_on_real_text_is_that_of_a_guess(real_data, name, words):
    problem = problem_of(name)
    assert problem.vocabulary == words
    model = new_model(problem, 0)
    loss, carry = problem.loss(model, problem.batch(problem.plan(0, 1)[0]), None, None)
    assert loss.item() == pytest.approx(math.log(words), rel=0.01)
    assert problem_of(f"{name}@b420").train.shape[1] == 420
    before = sum(p.numel() for p in model.parameters())
    assert before == {"ptb-lstm": 2_029_328, "wikitext2-lstm": 6_521_982}[name]
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    for index in problem.plan(0, 1)[:4]:
        optimizer.zero_grad()
        step_loss, carry = problem.loss(model, problem.batch(index), None, carry)
        step_loss.backward()
        optimizer.step()
    assert step_loss.item() < loss.item() - 0.5
