"""A small GPT as they are built now: normalised before each layer (RMS), rotary positions, no biases."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

BASE = 10_000.0  # of the rotary frequencies


def rotations(context: int, size: int) -> tuple[Tensor, Tensor]:
    """Cosine and sine by which each pair of a head's ``size`` numbers is turned at each place."""
    frequencies = BASE ** (-torch.arange(0, size, 2).double() / size)
    angles = torch.arange(context).double()[:, None] * frequencies
    return angles.cos().float(), angles.sin().float()


def turned(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Heads ``(batch, heads, context, size)`` with each pair of numbers turned by its angle."""
    a, b = x.chunk(2, -1)
    return torch.cat((a * cosine - b * sine, b * cosine + a * sine), -1)


class GptLayer(nn.Module):
    """Attention to what came before, then a layer of four times the width."""

    def __init__(self, width: int, heads: int, layers: int) -> None:
        super().__init__()
        self.heads = heads
        self.before_attention, self.before_hidden = nn.RMSNorm(width, eps=1e-6), nn.RMSNorm(width, eps=1e-6)
        self.attention, self.mixed = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.hidden, self.output = nn.Linear(width, 4 * width, bias=False), nn.Linear(4 * width, width, bias=False)
        for matrix in (self.attention, self.hidden):
            nn.init.normal_(matrix.weight, std=0.02)
        for matrix in (self.mixed, self.output):  # 2 * layers of them are added up
            nn.init.normal_(matrix.weight, std=0.02 / (2 * layers) ** 0.5)

    def forward(self, x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
        """Rows ``(batch, context, width)`` to the same."""
        batch, context, width = x.shape
        parts = self.attention(self.before_attention(x)).view(batch, context, 3, self.heads, -1)
        query, key, value = parts.permute(2, 0, 3, 1, 4).unbind(0)
        query, key = (turned(part, cosine, sine).to(value.dtype) for part in (query, key))
        seen = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.mixed(seen.transpose(1, 2).reshape(batch, context, width))
        return x + self.output(F.gelu(self.hidden(self.before_hidden(x))))


class GPT(nn.Module):
    """Pieces to the loss of those that follow. The matrix of the pieces is also that of the output.

    ``bf16``: on a GPU, activations and products in bfloat16 (torch's autocast); weights, their gradients and the loss stay as
    they are.
    """

    cosine: Tensor
    sine: Tensor

    def __init__(
        self, vocabulary: int, context: int, width: int = 256, layers: int = 4, heads: int = 4, bf16: bool = False
    ) -> None:
        super().__init__()
        self.bf16 = bf16
        self.pieces = nn.Embedding(vocabulary, width)
        nn.init.normal_(self.pieces.weight, std=0.02)
        self.blocks = nn.ModuleList(GptLayer(width, heads, layers) for _ in range(layers))
        self.last = nn.RMSNorm(width, eps=1e-6)
        cosine, sine = rotations(context, width // heads)
        self.register_buffer("cosine", cosine, persistent=False)
        self.register_buffer("sine", sine, persistent=False)

    def forward(self, inputs: Tensor, targets: Tensor, total: bool = False) -> Tensor:
        """Mean loss (``total``: their sum) of rows of pieces ``(batch, context)`` and what comes after each."""
        with torch.autocast("cuda", torch.bfloat16, enabled=self.bf16 and inputs.is_cuda):
            x = self.pieces(inputs)
            cosine, sine = (part[: inputs.shape[1]] for part in (self.cosine, self.sine))
            for block in self.blocks:
                x = block(x, cosine, sine)
            logits = F.linear(self.last(x), self.pieces.weight)
        return F.cross_entropy(logits.float().flatten(0, 1), targets.flatten(), reduction="sum" if total else "mean")
