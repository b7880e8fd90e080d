"""A word-level language model: embedding, LSTM, softmax."""

from __future__ import annotations

from torch import Tensor, nn

from .lstm import LSTM
from .softmax import linear_cross_entropy, sum_of_losses

State = tuple[Tensor, Tensor]


class LanguageModel(nn.Module):
    """Predicts each next word; the recurrent state goes from one piece of text to the following one.

    Time comes first: ``tokens`` is ``(T, B)``. Embedding and output layer are not tied, and start uniform in
    +-``scale``, the output's bias at 0: the first loss is that of an even guess.
    """

    def __init__(
        self, vocabulary: int, embedding: int = 64, hidden: int = 128, layers: int = 1, dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, embedding)
        self.lstm = LSTM(embedding, hidden, layers, dropout=dropout if layers > 1 else 0.0)
        self.output = nn.Linear(hidden, vocabulary)
        self.drop = nn.Dropout(dropout)
        scale = 0.1
        nn.init.uniform_(self.embedding.weight, -scale, scale)
        nn.init.uniform_(self.output.weight, -scale, scale)
        nn.init.zeros_(self.output.bias)

    def forward(
        self, tokens: Tensor, state: State | None = None, targets: Tensor | None = None, total: bool = False
    ) -> tuple[Tensor, State]:
        """Logits ``(T, B, vocabulary)``, or with ``targets`` ``(T, B)`` the mean loss; and the state after the last word.

        ``total``: the sum of the losses instead, for an evaluation; it has no gradient, and may have targets that do not
        count.
        """
        hidden, state = self.lstm(self.drop(self.embedding(tokens)), state)
        hidden = self.drop(hidden)
        if targets is None:
            return self.output(hidden), state
        loss = sum_of_losses if total else linear_cross_entropy
        return loss(hidden.flatten(0, 1), self.output.weight, self.output.bias, targets.flatten()), state
