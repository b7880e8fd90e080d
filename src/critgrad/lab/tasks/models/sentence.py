"""Encoders of sentences, and a classifier of pairs of them.

NOTE [padding]: sentences are right-padded rows of one width. Packed sequences need the lengths on the host, and the
loop of steps must not wait for the device, so padding is masked here: what a sentence is encoded to does not depend on
how many padding tokens follow it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import pairwise
from types import MappingProxyType

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .lstm import LSTM


def reversed_rows(rows: Tensor, lengths: Tensor) -> Tensor:
    """Each row's first ``length`` entries in reverse order, the rest where it is: ``(B, T, ...)``, its own inverse."""
    t = torch.arange(rows.shape[1], device=rows.device)
    back = lengths[:, None] - 1 - t
    index = torch.where(back >= 0, back, t)
    return rows.gather(1, index.reshape(*index.shape, *[1] * (rows.dim() - 2)).expand_as(rows))


class LSTMEncoder(nn.Module):
    """The state of an LSTM after the last word."""

    def __init__(self, inputs: int, hidden: int) -> None:
        super().__init__()
        self.lstm = LSTM(inputs, hidden, batch_first=True)
        self.size = hidden

    def forward(self, words: Tensor, lengths: Tensor) -> Tensor:
        """Word vectors ``(B, T, inputs)`` to ``(B, size)``."""
        states = self.lstm(words)[0]
        last = (lengths - 1).clamp(min=0)[:, None, None].expand(-1, 1, self.size)
        return states.gather(1, last).squeeze(1)


class InferSentEncoder(nn.Module):
    """The largest value, over the words, of each unit of a bidirectional LSTM."""

    def __init__(self, inputs: int, hidden: int) -> None:
        super().__init__()
        self.forwards = LSTM(inputs, hidden, batch_first=True)
        self.backwards = LSTM(inputs, hidden, batch_first=True)
        self.size = 2 * hidden

    def forward(self, words: Tensor, lengths: Tensor) -> Tensor:
        """Word vectors ``(B, T, inputs)`` to ``(B, size)``."""
        there = self.forwards(words)[0]
        back = reversed_rows(self.backwards(reversed_rows(words, lengths))[0], lengths)
        states = torch.cat([there, back], dim=-1)
        return states.masked_fill(~_mask(words, lengths), -torch.inf).amax(dim=1)


class ConvEncoder(nn.Module):
    """Four convolutions over neighbouring words; the largest value of each channel of each of them."""

    LAYERS = 4

    def __init__(self, inputs: int, hidden: int) -> None:
        super().__init__()
        channels = 2 * hidden
        sizes = [inputs, *[channels] * self.LAYERS]
        self.convolutions = nn.ModuleList(nn.Conv1d(a, b, 3, padding=1) for a, b in pairwise(sizes))
        self.size = channels * self.LAYERS

    def forward(self, words: Tensor, lengths: Tensor) -> Tensor:
        """Word vectors ``(B, T, inputs)`` to ``(B, size)``."""
        mask = _mask(words, lengths).transpose(1, 2)
        x, pooled = words.transpose(1, 2) * mask, []
        for convolution in self.convolutions:
            x = torch.relu(convolution(x)) * mask  # rectified: a 0 never is the largest value by mistake
            pooled.append(x.amax(dim=2))
        return torch.cat(pooled, dim=1)


ENCODERS: Mapping[str, Callable[[int, int], LSTMEncoder | InferSentEncoder | ConvEncoder]] = MappingProxyType(
    {"lstm": LSTMEncoder, "infersent": InferSentEncoder, "conv": ConvEncoder}
)


class PairClassifier(nn.Module):
    """Encodes two sentences alike and classifies ``(u, v, |u - v|, u * v)`` by two hidden layers.

    ``vectors`` are word vectors that stay as they are (a buffer, not saved); without them vectors of ``size`` are
    learnt from random ones. Word 0 is padding.
    """

    vectors: Tensor

    def __init__(
        self,
        encoder: str,
        vocabulary: int,
        size: int = 300,
        hidden: int = 200,
        fc: int = 200,
        classes: int = 3,
        dropout: float = 0.2,
        vectors: Tensor | None = None,
    ) -> None:
        super().__init__()
        if vectors is None:
            self.embedding: nn.Embedding | None = nn.Embedding(vocabulary, size, padding_idx=0)
        else:
            self.embedding = None
            self.register_buffer("vectors", vectors, persistent=False)
        self.encoder = ENCODERS[encoder](size, hidden)
        self.classifier = nn.Sequential(
            nn.Dropout(dropout),
            nn.Linear(4 * self.encoder.size, fc),
            nn.Tanh(),
            nn.Dropout(dropout),
            nn.Linear(fc, fc),
            nn.Tanh(),
            nn.Dropout(dropout),
            nn.Linear(fc, classes),
        )

    def encode(self, words: Tensor) -> Tensor:
        """Rows of word ids ``(B, T)`` to ``(B, size)``."""
        vectors = self.embedding(words) if self.embedding is not None else self.vectors[words]
        return self.encoder(vectors, (words != 0).sum(dim=1))

    def forward(self, premise: Tensor, hypothesis: Tensor) -> Tensor:
        """Logits ``(B, classes)``."""
        # Both at once: a recurrent layer takes a step for each word, not for each sentence.
        width = max(premise.shape[1], hypothesis.shape[1])
        both = torch.cat([F.pad(words, (0, width - words.shape[1])) for words in (premise, hypothesis)])
        u, v = self.encode(both).chunk(2)
        return self.classifier(torch.cat([u, v, (u - v).abs(), u * v], dim=1))


def _mask(words: Tensor, lengths: Tensor) -> Tensor:
    """``(B, T, 1)``: which positions hold a word; the first one always, so that an empty sentence has a value."""
    t = torch.arange(words.shape[1], device=words.device)
    return (t < lengths.clamp(min=1)[:, None])[:, :, None]
