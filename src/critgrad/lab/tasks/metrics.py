"""Corpus BLEU, in two ways: sacrebleu's, which the lab reports, and that of the MultiWOZ repository, for comparison."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Sequence

import torch
from torch import Tensor

Sentence = Sequence[Hashable]
ORDER = 4
PIECE_ROWS = 2048  # compared at once: every place with every other
LARGEST_ID = 50_000  # of a word in rows: four of them make a number of 63 bits


def _counts(sentence: Sentence, n: int) -> Counter[tuple[Hashable, ...]]:
    return Counter(zip(*(sentence[i:] for i in range(n))))


def _statistics(
    hypotheses: Sequence[Sentence], references: Sequence[Sentence]
) -> tuple[list[int], list[int], int, int]:
    """Per order the n-grams found in their reference and the n-grams said; the lengths of both sides."""
    if len(hypotheses) != len(references):
        raise ValueError(f"Invalid references: {len(references)} of them for {len(hypotheses)} hypotheses")
    right, said = [0] * ORDER, [0] * ORDER
    for hypothesis, reference in zip(hypotheses, references):
        for n in range(1, ORDER + 1):
            if len(hypothesis) < n:
                break
            said[n - 1] += len(hypothesis) - n + 1
            if len(reference) >= n:
                known = _counts(reference, n)
                right[n - 1] += sum(min(k, known[gram]) for gram, k in _counts(hypothesis, n).items() if gram in known)
    return right, said, sum(map(len, hypotheses)), sum(map(len, references))


def corpus_bleu(hypotheses: Sequence[Sentence], references: Sequence[Sentence]) -> float:
    """BLEU of a corpus, 0 to 100: equal to sacrebleu's ``corpus_bleu(tokenize="none")`` with its default smoothing.

    Sentences are sequences of words or of word ids. An order without a match counts as 1/2, 1/4, ... of a match, in
    turn (``exp`` smoothing); an order of which nothing at all was said makes the score 0.

    >>> round(corpus_bleu([["the", "cat", "sat", "down"]], [["the", "cat", "sat", "up"]]), 2)
    59.46
    """
    return _bleu(*_statistics(hypotheses, references))


def corpus_bleu_of_rows(hypotheses: Tensor, references: Tensor, stops: Tensor) -> float:
    """``corpus_bleu`` of rows of word ids, each up to its first stop word, where the rows lie: on a GPU thousands in a moment.

    Words are numbers below ``LARGEST_ID - 1``.

    >>> a, b = torch.tensor([[5, 6, 7, 8, 1, 9]]), torch.tensor([[5, 6, 7, 4, 1, 1]])
    >>> round(corpus_bleu_of_rows(a, b, torch.tensor([0, 1])), 2)
    59.46
    """
    if len(hypotheses) != len(references):
        raise ValueError(f"Invalid references: {len(references)} of them for {len(hypotheses)} hypotheses")
    pieces = [_counted(*piece, stops) for piece in zip(hypotheses.split(PIECE_ROWS), references.split(PIECE_ROWS))]
    counts = torch.stack(pieces).sum(0).tolist()  # waits for the device, once
    return _bleu(counts[:ORDER], counts[ORDER : 2 * ORDER], *counts[2 * ORDER :])


def _counted(hypotheses: Tensor, references: Tensor, stops: Tensor) -> Tensor:
    """Per order the n-grams that are right, per order those that were said, and the lengths of both sides."""
    (mine, spoken), (known, expected) = (_until(rows, stops) for rows in (hypotheses, references))
    right, said = [], []
    grams, theirs, whole = mine, known, spoken
    for n in range(1, ORDER + 1):
        if n > 1:  # a word more, as one number
            grams, theirs = (
                rows[:, :-1] * LARGEST_ID + words[:, n - 1 :] for rows, words in ((grams, mine), (theirs, known))
            )
            whole = spoken[:, n - 1 :]  # what stops comes last, so that the last word tells of all
        # What a sentence says for the k-th time is right if the reference says it k times at least.
        times = (grams[:, :, None] == grams[:, None]).tril().sum(2)
        allowed = (grams[:, :, None] == theirs[:, None]).sum(2)
        right.append((whole & (times <= allowed)).sum())
        said.append(whole.sum())
    return torch.stack([*right, *said, spoken.sum(), expected.sum()])


def _until(rows: Tensor, stops: Tensor) -> tuple[Tensor, Tensor]:
    """Rows with another word from the first stop on, one that nobody says; and where there are words."""
    words = torch.isin(rows, stops).cumsum(1) == 0
    return rows.masked_fill(~words, LARGEST_ID - 1), words


def _bleu(right: Sequence[int], said: Sequence[int], length: int, expected: int) -> float:
    if not all(said) or not any(right):
        return 0.0
    logs, smooth = 0.0, 1.0
    for found, total in zip(right, said):
        if not found:
            smooth *= 2
        logs += math.log(100 * found / total if found else 100 / (smooth * total))
    brevity = 1.0 if length >= expected else math.exp(1 - expected / length)
    return brevity * math.exp(logs / ORDER)


def bleu_multiwoz(hypotheses: Sequence[Sentence], references: Sequence[Sentence], markers: bool = True) -> float:
    """BLEU as the MultiWOZ repository's scorer gives it, in per cent; for comparison only.

    It puts a mark before and after every sentence, which are n-grams too and nearly always right (``markers``), and
    adds 1e-7 to each precision instead of smoothing. It therefore reads higher than ``corpus_bleu``.
    """
    if markers:
        hypotheses, references = ([("GO_", *s, "EOS_") for s in side] for side in (hypotheses, references))
    right, said, length, expected = _statistics(hypotheses, references)
    if not length:
        return 0.0
    tiny = 1e-7
    logs = math.fsum(math.log(found / (total + tiny) + tiny) for found, total in zip(right, said))
    brevity = 1.0 if length > expected else math.exp(1 - expected / length)
    return 100 * brevity * math.exp(logs / ORDER)
