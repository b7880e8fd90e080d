"""Networks on flat features, and convolutional ones for 32 x 32 colour images."""

from __future__ import annotations

import torch
import torch.nn.functional as F
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


class LeNet(nn.Module):
    """Two 5 x 5 convolutions (6 and 16 channels), layers of 120 and 84 units: 62,006 parameters with 10 classes.

    Dropout is handed in: ``keep`` says, as booleans ``(..., 204)``, which of the 120 + 84 hidden units stay. So both
    engines drop the same units, and the layers draw no random numbers under ``vmap``.
    """

    WIDTHS = (120, 84)

    def __init__(self, classes: int = 10, dropout: float = 0.25) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 6, 5)
        self.conv2 = nn.Conv2d(6, 16, 5)
        self.hidden1 = nn.Linear(16 * 5 * 5, self.WIDTHS[0])
        self.hidden2 = nn.Linear(self.WIDTHS[0], self.WIDTHS[1])
        self.output = nn.Linear(self.WIDTHS[1], classes)
        self.gain = 1 / (1 - dropout)

    def forward(self, x: Tensor, keep: Tensor | None = None) -> Tensor:
        """Images ``(N, 3, 32, 32)`` to logits ``(N, classes)``; without ``keep`` nothing is dropped."""
        x = F.max_pool2d(torch.relu(self.conv1(x)), 2)
        x = F.max_pool2d(torch.relu(self.conv2(x)), 2)
        x = torch.relu(self.hidden1(x.flatten(1)))
        if keep is not None:
            x = x * (keep[..., : self.WIDTHS[0]] * self.gain)
        x = torch.relu(self.hidden2(x))
        if keep is not None:
            x = x * (keep[..., self.WIDTHS[0] :] * self.gain)
        return self.output(x)


class DeepConvNet(nn.Module):
    """Three blocks of two 3 x 3 convolutions, then 4096-1024-512: 5.9 million parameters with 100 classes.

    Each block has one batch normalisation, after its first convolution, and ends in 2 x 2 pooling; ``width`` is the
    number of channels of the first convolution. ``bf16``: on a GPU, activations and products in bfloat16 (torch's autocast);
    weights, their gradients and the logits stay as they are.
    """

    def __init__(
        self,
        classes: int = 100,
        width: int = 32,
        dropout2d: float = 0.05,
        dropout: float = 0.1,
        bf16: bool = False,
    ) -> None:
        super().__init__()
        self.bf16 = bf16
        w = width
        self.blocks = nn.Sequential(
            *_block(3, w, 2 * w),
            *_block(2 * w, 4 * w, 4 * w),
            nn.Dropout2d(dropout2d),
            *_block(4 * w, 8 * w, 8 * w),
        )
        self.head = nn.Sequential(
            nn.Dropout(dropout),
            nn.Linear(8 * w * 4 * 4, 32 * w),
            nn.ReLU(),
            nn.Linear(32 * w, 16 * w),
            nn.ReLU(),
            nn.Dropout(dropout),
            nn.Linear(16 * w, classes),
        )

    def forward(self, x: Tensor) -> Tensor:
        """Images ``(N, 3, 32, 32)`` to logits ``(N, classes)``."""
        if x.is_cuda:
            # cuDNN's convolutions are made for channels last. The weights stay as everybody has them: a memory's slots need
            # not know.
            x = x.contiguous(memory_format=torch.channels_last)
        with torch.autocast("cuda", torch.bfloat16, enabled=self.bf16 and x.is_cuda):
            logits = self.head(self.blocks(x).flatten(1))
        return logits.to(x.dtype)


def _block(inputs: int, middle: int, outputs: int) -> list[nn.Module]:
    return [
        nn.Conv2d(inputs, middle, 3, padding=1),
        nn.BatchNorm2d(middle),
        nn.ReLU(inplace=True),
        nn.Conv2d(middle, outputs, 3, padding=1),
        # Pooled first: the largest value is the same, so is its place where it is positive; a quarter is left to rectify.
        nn.MaxPool2d(2),
        nn.ReLU(inplace=True),
    ]


class Residual(nn.Module):
    """Two 3 x 3 convolutions, added to their input; where sizes change, the input goes through a 1 x 1 convolution."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(outputs)
        changes = stride != 1 or inputs != outputs
        self.short = nn.Conv2d(inputs, outputs, 1, stride, bias=False) if changes else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        """Images to images."""
        y = F.relu(self.norm1(self.conv1(x)))
        return F.relu(self.norm2(self.conv2(y)) + self.short(x))


class ResNet(nn.Module):
    """``blocks`` residual blocks at each of three sizes (32, 16, 8), their channels ``width``, twice and four times that.

    ``bf16``: on a GPU, activations and products in bfloat16 (torch's autocast); weights, their gradients and the logits stay as
    they are.
    """

    def __init__(self, classes: int = 10, width: int = 32, blocks: int = 1, bf16: bool = False) -> None:
        super().__init__()
        self.bf16 = bf16
        self.first = nn.Sequential(nn.Conv2d(3, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU())
        made, inputs = [], width
        for outputs, stride in ((width, 1), (2 * width, 2), (4 * width, 2)):
            for block in range(blocks):
                made.append(Residual(inputs, outputs, stride if block == 0 else 1))
                inputs = outputs
        self.blocks = nn.Sequential(*made)
        self.output = nn.Linear(inputs, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Images ``(N, 3, 32, 32)`` to logits ``(N, classes)``."""
        if x.is_cuda:
            x = x.contiguous(memory_format=torch.channels_last)  # what cuDNN's convolutions are made for
        with torch.autocast("cuda", torch.bfloat16, enabled=self.bf16 and x.is_cuda):
            logits = self.output(self.blocks(self.first(x)).mean((2, 3)))
        return logits.to(x.dtype)
