"""Corpus BLEU: sacrebleu's, of rows of word ids."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

ORDER = 4
PIECE_ROWS = 2048  # compared at once: every place with every other
LARGEST_ID = 50_000  # of a word in rows: four of them make a number of 63 bits


def corpus_bleu_of_rows(hypotheses: Tensor, references: Tensor, stops: Tensor) -> float:
    """BLEU of a corpus, 0 to 100: equal to sacrebleu's ``corpus_bleu(tokenize="none")`` with its default smoothing.

    Sentences are rows of word ids, each up to its first stop word; they are counted where they lie: on a GPU thousands in a
    moment. Words are numbers below ``LARGEST_ID - 1``. An order without a match counts as 1/2, 1/4, ... of a match, in
    turn (``exp`` smoothing); an order of which nothing at all was said makes the score 0.

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
