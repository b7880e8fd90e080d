"""A dialogue model: what was said goes through a bidirectional LSTM, the answer comes from an LSTM with attention."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ...errors import LabError
from .lstm import LSTM
from .sentence import reversed_rows


class Seq2Seq(nn.Module):
    """BiLSTM encoder (``hidden`` / 2 units each way), LSTM decoder of ``hidden`` units, multiplicative attention.

    The decoder looks at the encoder after its recurrence (no input feeding), so that with the answer known all of its
    steps are one call. Embeddings are shared between the two sides. Word 0 is padding.
    """

    def __init__(self, vocabulary: int, embedding: int = 128, hidden: int = 200, dropout: float = 0.0) -> None:
        super().__init__()
        if hidden % 2:
            raise LabError(f"Invalid hidden: {hidden!r}, expected an even number (half of it for each direction)")
        self.embedding = nn.Embedding(vocabulary, embedding, padding_idx=0)
        self.forwards = LSTM(embedding, hidden // 2, batch_first=True)
        self.backwards = LSTM(embedding, hidden // 2, batch_first=True)
        self.decoder = LSTM(embedding, hidden, batch_first=True)
        self.score = nn.Linear(hidden, hidden, bias=False)
        self.combine = nn.Linear(2 * hidden, hidden)
        self.output = nn.Linear(hidden, vocabulary)
        self.drop = nn.Dropout(dropout)

    def encode(self, source: Tensor) -> tuple[Tensor, Tensor, tuple[Tensor, Tensor]]:
        """Of rows ``(B, T)``: the states ``(B, T, hidden)``, where there is padding ``(B, T)``, the decoder's start."""
        padding = source == 0
        lengths = (~padding).sum(dim=1)
        words = self.drop(self.embedding(source))
        there = self.forwards(words)[0]
        turned = self.backwards(reversed_rows(words, lengths))[0]
        # The last word's state each way: at length - 1 there, and there too in the reversed rows.
        last = (lengths - 1).clamp(min=0)[:, None, None].expand(-1, 1, there.shape[2])
        start = torch.cat([there.gather(1, last), turned.gather(1, last)], dim=2).transpose(0, 1)
        states = torch.cat([there, reversed_rows(turned, lengths)], dim=2)
        padding = padding & (
            torch.arange(source.shape[1], device=source.device) > 0
        )  # an empty row attends to something
        return states, padding, (start.contiguous(), torch.zeros_like(start))

    def decode(
        self, words: Tensor, state: tuple[Tensor, Tensor], memory: Tensor, padding: Tensor
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """Logits ``(B, T, vocabulary)`` after each of the words ``(B, T)``, and the decoder's state after the last."""
        hidden, state = self.decoder(self.drop(self.embedding(words)), state)
        scores = self.score(hidden) @ memory.transpose(1, 2)
        weights = scores.masked_fill(padding[:, None], -torch.inf).softmax(dim=2)
        context = weights @ memory
        return self.output(self.drop(torch.tanh(self.combine(torch.cat([hidden, context], dim=2))))), state

    def forward(self, source: Tensor, previous: Tensor) -> Tensor:
        """Logits ``(B, T, vocabulary)`` of the words that follow each of ``previous`` ``(B, T)``."""
        memory, padding, state = self.encode(source)
        return self.decode(previous, state, memory, padding)[0]

    @torch.no_grad()
    def answer(self, source: Tensor, length: int, start: int, never: Tensor) -> Tensor:
        """Greedy answers ``(B, length)``; what follows an end mark is to be cut off. ``never`` lists forbidden words.

        Always ``length`` steps: asking whether all rows have ended would wait for the device in each of them.
        """
        memory, padding, state = self.encode(source)
        word = torch.full((len(source), 1), start, dtype=torch.int64, device=source.device)
        said = []
        for _ in range(length):
            logits, state = self.decode(word, state, memory, padding)
            word = logits.index_fill(2, never, -torch.inf).argmax(dim=2)
            said.append(word)
        return torch.cat(said, dim=1)
