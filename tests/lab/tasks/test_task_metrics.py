import math
import random
from itertools import takewhile

import pytest
import torch

from critgrad.lab.tasks import metrics
from critgrad.lab.tasks.metrics import bleu_multiwoz, corpus_bleu, corpus_bleu_of_rows


def corpus(rng):
    """A few sentences with repeated words, sometimes empty, sometimes alike, some much too short."""
    words = [f"w{i}" for i in range(rng.choice([1, 2, 5, 30]))]
    references = [[rng.choice(words) for _ in range(rng.randint(0, 12))] for _ in range(rng.randint(1, 6))]
    hypotheses = []
    for reference in references:
        said = [word if rng.random() < 0.8 else rng.choice(words) for word in reference]
        hypotheses.append(said[: rng.randint(0, 12)] if rng.random() < 0.5 else said + said[: rng.randint(0, 4)])
    return hypotheses, references


def test_corpus_bleu_equals_sacrebleu_on_1000_random_corpora():
    sacrebleu = pytest.importorskip("sacrebleu")
    rng = random.Random(0)
    scores = []
    for _ in range(1000):
        hypotheses, references = corpus(rng)
        said, expected = ([" ".join(s) for s in side] for side in (hypotheses, references))
        theirs = sacrebleu.corpus_bleu(said, [expected], tokenize="none", force=True).score
        scores.append(corpus_bleu(hypotheses, references))
        assert scores[-1] == pytest.approx(theirs, rel=1e-9, abs=1e-9)
    assert sum(0 < score < 99 for score in scores) > 300  # the corpora are not all trivial


def test_word_ids_and_words_have_the_same_bleu():
    hypotheses, references = corpus(random.Random(3))
    ids = [[[int(word[1:]) for word in sentence] for sentence in side] for side in (hypotheses, references)]
    assert corpus_bleu(*ids) == corpus_bleu(hypotheses, references)


def test_bleu_of_the_multiwoz_repository_by_hand():
    # With marks: GO_ a b c EOS_ against GO_ a b d EOS_: 4/5, 2/4, 1/3 and 0/2.
    said, expected = [["a", "b", "c"]], [["a", "b", "d"]]
    precisions = [4 / 5, 2 / 4, 1 / 3, 0.0]
    by_hand = 100 * math.exp(sum(math.log(p + 1e-7) for p in precisions) / 4)
    assert bleu_multiwoz(said, expected) == pytest.approx(by_hand, rel=1e-6)
    plain = [2 / 3, 1 / 2, 0.0, 0.0]
    by_hand = 100 * math.exp(sum(math.log(p + 1e-7) for p in plain) / 4)
    assert bleu_multiwoz(said, expected, markers=False) == pytest.approx(by_hand, rel=1e-5)


def test_both_are_100_for_the_reference_itself_and_0_for_silence():
    references = [["a", "b", "c", "d", "e"], ["f", "g", "h", "i"]]
    for bleu in (corpus_bleu, bleu_multiwoz):
        assert bleu(references, references) == pytest.approx(100, rel=1e-5)
    assert corpus_bleu([[], []], references) == 0
    assert bleu_multiwoz([[]], [["a"]], markers=False) == 0


def test_a_corpus_with_missing_references_is_refused():
    with pytest.raises(ValueError, match="1 of them for 2 hypotheses"):
        corpus_bleu([["a"], ["b"]], [["a"]])


def test_bleu_of_rows_is_that_of_their_words_up_to_a_stop():
    generator = torch.Generator().manual_seed(0)
    stops = torch.tensor([0, 3])
    scores = []
    for case in range(200):
        n, length = (
            int(torch.randint(1, 9, (), generator=generator)),
            int(torch.randint(1, 12, (), generator=generator)),
        )
        # Few different words, so that sentences repeat themselves and one another.
        rows = [torch.randint(0, 7, (n, length), generator=generator) for _ in range(2)]
        rows[0][:, : length // 2] = rows[1][:, : length // 2]
        words = [[list(takewhile(lambda w: w not in (0, 3), row)) for row in side.tolist()] for side in rows]
        scores.append(corpus_bleu(*words))
        assert corpus_bleu_of_rows(*rows, stops) == scores[-1], case
    assert sum(score > 0 for score in scores) > 50


def test_bleu_of_many_rows_is_counted_in_pieces(monkeypatch):
    rows = torch.randint(0, 9, (50, 8), generator=torch.Generator().manual_seed(1))
    other = rows.roll(1, 0)
    stops = torch.tensor([0])
    whole = corpus_bleu_of_rows(rows, other, stops)
    monkeypatch.setattr(metrics, "PIECE_ROWS", 7)
    assert corpus_bleu_of_rows(rows, other, stops) == whole
    with pytest.raises(ValueError, match="Invalid references"):
        corpus_bleu_of_rows(rows, other[:-1], stops)
