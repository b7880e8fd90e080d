"""A slim residual network with batch normalisation for 32 x 32 colour images."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


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
