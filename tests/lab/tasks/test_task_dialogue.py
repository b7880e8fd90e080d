import math
from itertools import takewhile

import pytest
import torch
import torch.nn.functional as F

from critgrad.lab.tasks import problem_of
from critgrad.lab.tasks.dialogue import END, PAD, START, UNKNOWN
from critgrad.lab.tasks.models import Seq2Seq
from critgrad.lab.train.loop import new_model


@pytest.fixture
def problem():
    return problem_of("multiwoz-bilstm@tiny")


def test_the_model_has_568_thousand_weights_besides_its_words():
    model = Seq2Seq(3059)
    words = sum(p.numel() for m in (model.embedding, model.output) for p in m.parameters())
    assert sum(p.numel() for p in model.parameters()) - words == 568_200


def test_each_word_of_the_answer_is_predicted_from_the_one_before(problem):
    _, target, previous = problem.batch(torch.arange(3))
    assert (previous[:, 0] == START).all()
    assert torch.equal(previous[:, 1:], target[:, :-1])


def test_the_loss_counts_the_words_of_the_answer_and_no_padding(problem):
    model = new_model(problem, 0).eval()
    source, target, previous = batch = problem.batch(torch.arange(5))
    logits = model(source, previous)
    losses = F.cross_entropy(logits.flatten(0, 1), target.flatten(), reduction="none")
    expected = losses[target.flatten() != PAD].mean()
    assert (target == PAD).any()
    assert problem.loss(model, batch, None, None)[0].item() == pytest.approx(expected.item(), rel=1e-6)


def test_padding_of_the_question_does_not_change_the_answer():
    torch.manual_seed(0)
    model = Seq2Seq(20, 8, 6).eval()
    source, previous = torch.randint(4, 20, (3, 5)), torch.randint(4, 20, (3, 4))
    padded = torch.cat([source, torch.zeros(3, 2, dtype=torch.int64)], dim=1)
    torch.testing.assert_close(model(source, previous), model(padded, previous))


def test_greedy_answers_are_the_likeliest_words_one_by_one(problem):
    model = new_model(problem, 0).eval()
    source = problem.splits["valid"][0][:4]
    said = model.answer(source, 6, START, problem.never)
    previous = torch.cat([torch.full((4, 1), START), said[:, :-1]], dim=1)
    logits = model(source, previous)  # all steps at once, given the answer's own words
    logits[..., [PAD, UNKNOWN, START]] = -torch.inf
    assert torch.equal(logits.argmax(2), said)


def test_the_metric_is_the_bleu_of_the_answers_until_their_end(problem):
    model = new_model(problem, 0).eval()
    said = problem.answers(model, "test")
    assert len(said) == 80
    answers, references = (
        [list(takewhile(lambda word: word not in (PAD, END), row)) for row in rows.tolist()]
        for rows in (said, problem.references["test"])
    )
    assert not any(word in (UNKNOWN, START) for answer in answers for word in answer)
    targets = problem.data.arrays["test_target"]
    assert references[0] == [w for w in targets[0].tolist() if w not in (PAD, END)]
    words = [[" ".join(map(str, sentence)) for sentence in side] for side in (answers, references)]
    theirs = pytest.importorskip("sacrebleu").corpus_bleu(words[0], [words[1]], tokenize="none", force=True).score
    assert problem.evaluate(model, "test").metric == pytest.approx(theirs, rel=1e-9)


def test_perfect_answers_have_a_bleu_of_100(problem, monkeypatch):
    monkeypatch.setattr(problem, "answers", lambda model, split: problem.references[split])
    assert problem.evaluate(new_model(problem, 0).eval(), "valid").metric == pytest.approx(100)


def test_the_number_of_decoded_examples_can_be_limited():
    problem = problem_of("multiwoz-bilstm@tiny", {"decoded": 10})
    assert problem._chosen("valid").tolist() == list(range(0, 80, 8))
    assert len(problem.references["valid"]) == len(problem.answers(new_model(problem, 0), "valid")) == 10


@pytest.mark.parametrize("name", ["multiwoz-bilstm", "sgd-bilstm"])
def test_the_first_loss_on_the_real_dialogues_is_that_of_a_guess(real_data, name):
    problem = problem_of(name, {"decoded": 8})
    model = new_model(problem, 0)
    loss, _ = problem.loss(model, problem.batch(problem.plan(0, 1)[0]), None, None)
    assert loss.item() == pytest.approx(math.log(problem.vocabulary), rel=0.02)
    loss.backward()
    assert len(problem.answers(model.eval(), "valid")) == 8
