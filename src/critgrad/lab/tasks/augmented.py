"""Classification of images that are shifted and mirrored at random in training, on the device."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..train.streams import stream
from .base import Batch, Model
from .classification import ClassificationProblem

SHIFT = 4  # pixels at most, in each direction; what comes in is the mean colour


def shifted(x: Tensor, moves: Tensor) -> Tensor:
    """Images ``(N, C, H, W)`` moved and mirrored.

    ``moves`` is ``(N, 3)``: rows and columns from 0 to ``2 * SHIFT``, mirrored or not.
    """
    down, right, mirrored = moves.to(torch.int64).unbind(-1)
    height, width = x.shape[-2:]
    places = torch.arange(width, device=x.device)
    columns = torch.where(mirrored.bool()[:, None], width - 1 - places, places) + right[:, None]
    rows = torch.arange(height, device=x.device) + down[:, None]
    wide = F.pad(x, (SHIFT,) * 4)
    images = torch.arange(len(x), device=x.device)[:, None, None, None]
    channels = torch.arange(x.shape[1], device=x.device)[:, None, None]
    return wide[images, channels, rows[:, None, :, None], columns[:, None, None, :]]


class AugmentedProblem(ClassificationProblem):
    """Each image of a step gets its own move, from the seed's stream: the same on every device and for every optimizer."""

    noise_width = 3

    def noise(self, seed: int, epoch: int) -> Tensor | None:
        """Moves of all images of an epoch, ``(steps, batch_size, 3)``."""
        generator = stream(seed, "moves", epoch)
        shape = (self.steps, self.batch_size)
        moves = torch.randint(2 * SHIFT + 1, (*shape, 2), generator=generator, dtype=torch.uint8)
        mirrored = torch.randint(2, (*shape, 1), generator=generator, dtype=torch.uint8)
        return torch.cat((moves, mirrored), -1).to(self.device)

    def loss(self, model: Model, batch: Batch, noise: Tensor | None, carry: Any) -> tuple[Tensor, Any]:
        x, y = batch
        return F.cross_entropy(model(x if noise is None else shifted(x, noise)), y), None
