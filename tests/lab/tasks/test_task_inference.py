import math

import numpy as np
import pytest
import torch
from torch import nn

from critgrad.lab.tasks import problem_of
from critgrad.lab.tasks.inference import read_vectors
from critgrad.lab.tasks.models import ENCODERS, PairClassifier
from critgrad.lab.tasks.models.sentence import reversed_rows
from critgrad.lab.train.loop import new_model


@pytest.mark.parametrize("encoder, size", [("lstm", 602_603), ("infersent", 1_164_203), ("conv", 3_122_603)])
def test_the_models_have_the_sizes_of_the_plan_without_embeddings(encoder, size):
    frozen = PairClassifier(encoder, 10, vectors=torch.zeros(10, 300))
    trained = PairClassifier(encoder, 10)
    assert sum(p.numel() for p in frozen.parameters()) == size
    assert sum(p.numel() for p in trained.parameters()) == size + 3000


@pytest.mark.parametrize("encoder", ENCODERS)
def test_padding_does_not_change_an_encoding(encoder):
    torch.manual_seed(0)
    model = PairClassifier(encoder, 20, size=8, hidden=6, fc=5).eval()
    short = torch.randint(2, 20, (3, 5))
    longer = torch.cat([short, torch.zeros(3, 4, dtype=torch.int64)], dim=1)
    torch.testing.assert_close(model.encode(short), model.encode(longer))


@pytest.mark.parametrize("encoder", ENCODERS)
def test_sentences_are_encoded_together_as_they_are_one_by_one(encoder):
    torch.manual_seed(0)
    model = PairClassifier(encoder, 20, size=8, hidden=6, fc=5).eval()
    premise, hypothesis = torch.randint(2, 20, (3, 7)), torch.randint(2, 20, (3, 5))
    premise[1, 4:] = hypothesis[2, 1:] = 0
    u, v = model.encode(premise), model.encode(hypothesis)
    apart = model.classifier(torch.cat([u, v, (u - v).abs(), u * v], dim=1))
    torch.testing.assert_close(model(premise, hypothesis), apart)


def test_the_two_directions_are_a_bidirectional_lstm_on_packed_sentences():
    torch.manual_seed(0)
    encoder = ENCODERS["infersent"](4, 3)
    lengths = torch.tensor([5, 2, 3])
    words = torch.randn(3, 5, 4)
    both = nn.LSTM(4, 3, batch_first=True, bidirectional=True)
    state = {**encoder.forwards.state_dict()}
    state |= {f"{key}_reverse": value for key, value in encoder.backwards.state_dict().items()}
    both.load_state_dict(state)
    packed = nn.utils.rnn.pack_padded_sequence(words, lengths, batch_first=True, enforce_sorted=False)
    out, _ = nn.utils.rnn.pad_packed_sequence(both(packed)[0], batch_first=True, padding_value=-torch.inf)
    torch.testing.assert_close(encoder(words, lengths), out.amax(dim=1))


def test_reversed_rows_is_its_own_inverse_and_leaves_padding_where_it_is():
    rows = torch.arange(8).reshape(2, 4)
    lengths = torch.tensor([3, 0])
    turned = reversed_rows(rows, lengths)
    assert turned.tolist() == [[2, 1, 0, 3], [4, 5, 6, 7]]
    assert torch.equal(reversed_rows(turned, lengths), rows)


@pytest.mark.parametrize("encoder", ENCODERS)
def test_an_empty_sentence_has_a_finite_encoding_and_gradient(encoder):
    model = PairClassifier(encoder, 20, size=8, hidden=6, fc=5)
    empty = torch.zeros(2, 5, dtype=torch.int64)
    model(empty, empty).sum().backward()
    assert all(torch.isfinite(p.grad).all() for p in model.parameters() if p.grad is not None)


@pytest.fixture
def glove(tmp_path):
    """Vectors of 4 numbers for the words w2 to w9 of the twin's vocabulary."""
    path = tmp_path / "glove.txt"
    lines = [f"w{i} " + " ".join(f"{i}.{k}" for k in range(4)) for i in range(2, 10)]
    path.write_text("\n".join([*lines, "a word with spaces 1 2 3 4"]) + "\n")
    return path


def test_given_vectors_are_used_and_not_trained_and_the_result_says_so(glove):
    settings = {"vectors": str(glove), "embedding": 4}
    problem = problem_of("snli-lstm@tiny", settings)
    about = problem.details()
    assert about["vectors"] == "glove.txt, frozen: 8 of 50 words"
    assert len(about["vectors_sha256"]) == 64
    model = new_model(problem, 0)
    assert model.vectors[3].tolist() == pytest.approx([3.0, 3.1, 3.2, 3.3])
    assert model.vectors[0].tolist() == [0, 0, 0, 0]
    assert not any(name == "vectors" for name, _ in model.named_parameters())
    problem.loss(model, problem.batch(torch.arange(4)), None, None)[0].backward()


def test_without_vectors_they_are_random_and_trained_and_the_result_says_so():
    problem = problem_of("snli-lstm@tiny")
    assert problem.details() == {"weights": "random", "vectors": "random, trained"}
    model = new_model(problem, 0)
    problem.loss(model, problem.batch(torch.arange(4)), None, None)[0].backward()
    assert model.embedding.weight.grad.abs().sum() > 0


def test_unusable_vector_files_are_explained(glove, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"No word vectors at .*missing.txt; give a file in GloVe's format"):
        read_vectors(tmp_path / "missing.txt", ["w2"], 4)
    with pytest.raises(ValueError, match=r"Invalid line 1 of .*expected a word and 7 numbers"):
        read_vectors(glove, ["w2"], 7)
    with pytest.raises(ValueError, match="No word of the vocabulary"):
        read_vectors(glove, ["other"], 4)
    table, found = read_vectors(glove, ["<pad>", "w2", "unseen"], 4)
    assert found == 1
    assert np.isfinite(table).all()


def test_the_first_loss_on_the_real_pairs_is_that_of_a_guess(real_data):
    for name, size in (("snli-lstm", 602_603), ("snli-infersent", 1_164_203), ("snli-conv", 3_122_603)):
        problem = problem_of(name)
        model = new_model(problem, 0)
        words = problem.data.info["vocab_size"]
        assert sum(p.numel() for p in model.parameters()) == size + 300 * words
        loss, _ = problem.loss(model, problem.batch(problem.plan(0, 1)[0]), None, None)
        assert loss.item() == pytest.approx(math.log(3), rel=0.05)
        loss.backward()
