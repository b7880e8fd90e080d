"""Fully connected networks on flat features."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class LogisticRegression(nn.Module):
    """One linear layer; with a weight penalty its training is a convex problem."""

    def __init__(self, features: int, classes: int) -> None:
        super().__init__()
        self.output = nn.Linear(features, classes)

    def forward(self, x: Tensor, squares: bool = False) -> Tensor | tuple[Tensor, Tensor]:
        """``(..., features)`` to logits ``(..., classes)``; with ``squares`` the sum of all squared parameters, too."""
        logits = self.output(x)
        if not squares:
            return logits
        # A method of its own would be out of reach for a functional model: all it has is this call.
        return logits, self.output.weight.square().sum() + self.output.bias.square().sum()


class MLP(nn.Module):
    """One hidden layer of rectified units."""

    def __init__(self, features: int, hidden: int, classes: int) -> None:
        super().__init__()
        self.hidden = nn.Linear(features, hidden)
        self.output = nn.Linear(hidden, classes)

    def forward(self, x: Tensor) -> Tensor:
        """``(..., features)`` to logits ``(..., classes)``."""
        return self.output(torch.relu(self.hidden(x)))
