import math

import pytest
import torch
import torch.nn.functional as F

from critgrad.lab.tasks import problem_of
from critgrad.lab.tasks.language import NOT_COUNTED
from critgrad.lab.train.loop import new_model

transformers = pytest.importorskip("transformers")


@pytest.fixture(scope="module")
def problem():
    return problem_of("multiwoz-roberta@tiny")


def test_only_the_answers_tokens_count(problem):
    arrays = problem.data.arrays
    tokens, targets = problem.splits["train"]
    for row in range(5):
        first = int(arrays["train_response"][row])
        length = int((arrays["train_tokens"][row] != 1).sum())
        counted = (targets[row] != NOT_COUNTED).nonzero().flatten().tolist()
        assert counted == list(range(first - 1, length - 1))  # each is predicted from the position before
        assert targets[row][counted].tolist() == tokens[row, first:length].tolist()


def test_the_models_own_loss_on_the_same_labels_is_the_same(problem):
    model = new_model(problem, 0).eval()
    tokens, targets = batch = problem.batch(torch.arange(6))
    labels = F.pad(targets[:, :-1], (1, 0), value=NOT_COUNTED)  # transformers shifts them itself
    theirs = model(input_ids=tokens, attention_mask=(tokens != problem.pad).long(), labels=labels).loss
    assert problem.loss(model, batch, None, None)[0].item() == pytest.approx(theirs.item(), rel=1e-5)


def test_no_token_sees_a_later_one(problem):
    model = new_model(problem, 0).eval()
    tokens = problem.splits["train"][0][:2].clone()
    before = problem._logits(model, tokens).unflatten(0, (2, -1))
    tokens[:, 6] = 40
    after = problem._logits(model, tokens).unflatten(0, (2, -1))
    torch.testing.assert_close(before[:, :6], after[:, :6])
    assert not torch.allclose(before[:, 6], after[:, 6])


def test_perplexity_is_over_all_counted_tokens(problem):
    model = new_model(problem, 0).eval()
    tokens, targets = problem.splits["valid"]
    with torch.no_grad():
        loss = F.cross_entropy(problem._logits(model, tokens), targets.flatten()).item()  # -100 is left out
    scores = problem.evaluate(model, "valid")
    assert scores.loss == pytest.approx(loss, rel=1e-5)
    assert scores.metric == pytest.approx(min(math.exp(loss), 50), rel=1e-5)


def test_pretrained_weights_come_from_the_folder_and_the_result_says_so(problem, tmp_path):
    assert problem.details() == {"weights": "random"}
    folder = tmp_path / "weights"
    model = new_model(problem, 7)
    model.save_pretrained(folder)
    loaded = problem_of("multiwoz-roberta@tiny", {"pretrained": str(folder)})
    about = loaded.details()
    assert about["weights"] == "pretrained: weights"
    assert len(about["weights_sha256"]) == 64
    again = new_model(loaded, 0)
    assert all(torch.equal(p, dict(again.named_parameters())[name]) for name, p in model.named_parameters())
    tokens = problem.splits["valid"][0][:2]
    torch.testing.assert_close(problem._logits(model.eval(), tokens), problem._logits(again.eval(), tokens))


def test_a_folder_without_weights_is_explained(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"No pretrained model at .*expected config.json"):
        problem_of("multiwoz-roberta@tiny", {"pretrained": str(tmp_path)})


def test_the_full_model_has_124_point_7_million_weights_and_a_tied_head(problem):
    from critgrad.lab.tasks import task_of

    full = type(problem)(task_of("multiwoz-roberta"), problem.data, torch.device("meta"))
    full.vocabulary = 50_265
    with torch.device("meta"):
        model = full.build()
    assert round(sum(p.numel() for p in model.parameters()) / 1e6, 1) == 124.7
    assert model.lm_head.decoder.weight is model.roberta.embeddings.word_embeddings.weight


@pytest.mark.slow
def test_the_first_loss_on_the_real_dialogues_is_that_of_a_guess(real_data):
    problem = problem_of("multiwoz-roberta")
    model = new_model(problem, 0)
    loss, _ = problem.loss(model, problem.batch(problem.plan(0, 1)[0]), None, None)
    assert loss.item() == pytest.approx(math.log(50_265), rel=0.05)
    loss.backward()
    assert all(p.grad is not None for p in model.parameters())
