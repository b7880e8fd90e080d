import random

import pytest
import torch

from critgrad.lab.tasks import metrics
from critgrad.lab.tasks.metrics import corpus_bleu_of_rows

WIDTH = 20


def corpus(rng):
    """A few sentences with repeated words, sometimes empty, sometimes alike, some much too short."""
    words = range(1, 1 + rng.choice([1, 2, 5, 30]))
    references = [[rng.choice(words) for _ in range(rng.randint(0, 12))] for _ in range(rng.randint(1, 6))]
    hypotheses = []
    for reference in references:
        said = [word if rng.random() < 0.8 else rng.choice(words) for word in reference]
        hypotheses.append(said[: rng.randint(0, 12)] if rng.random() < 0.5 else said + said[: rng.randint(0, 4)])
    return hypotheses, references


def rows_of(sentences, stop=0, after=()):
    """Sentences as rows: each ends with a stop, and what follows is not said."""
    tails = [[stop, *after, *[stop] * WIDTH][: WIDTH - len(sentence)] for sentence in sentences]
    return torch.tensor([[*sentence, *tail] for sentence, tail in zip(sentences, tails)])


def test_bleu_equals_sacrebleu_on_1000_random_corpora():
    sacrebleu = pytest.importorskip("sacrebleu")
    rng = random.Random(0)
    stops = torch.tensor([0, 99])
    scores = []
    for case in range(1000):
        hypotheses, references = corpus(rng)
        said, expected = ([" ".join(map(str, s)) for s in side] for side in (hypotheses, references))
        theirs = sacrebleu.corpus_bleu(said, [expected], tokenize="none", force=True).score
        rows = rows_of(hypotheses, *((0, (1, 2)), (99, (1, 0, 1)))[case % 2]), rows_of(references)
        scores.append(corpus_bleu_of_rows(*rows, stops))
        assert scores[-1] == pytest.approx(theirs, rel=1e-9, abs=1e-9)
    assert sum(0 < score < 99 for score in scores) > 300  # the corpora are not all trivial


def test_bleu_is_100_for_the_reference_itself_and_0_for_silence():
    references = rows_of([[1, 2, 3, 4, 5], [6, 7, 8, 9]])
    assert corpus_bleu_of_rows(references, references, torch.tensor([0])) == pytest.approx(100, rel=1e-5)
    assert corpus_bleu_of_rows(rows_of([[], []]), references, torch.tensor([0])) == 0


def test_bleu_of_many_rows_is_counted_in_pieces(monkeypatch):
    rows = torch.randint(0, 9, (50, 8), generator=torch.Generator().manual_seed(1))
    other = rows.roll(1, 0)
    stops = torch.tensor([0])
    whole = corpus_bleu_of_rows(rows, other, stops)
    monkeypatch.setattr(metrics, "PIECE_ROWS", 7)
    assert corpus_bleu_of_rows(rows, other, stops) == whole
    with pytest.raises(ValueError, match="Invalid references"):
        corpus_bleu_of_rows(rows, other[:-1], stops)
