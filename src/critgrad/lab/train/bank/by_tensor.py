"""Damping with a memory of its own for each tensor (``scope="tensor"``): the memories of many models, worked on together.

Row ``r`` of all tables is tensor ``r % B`` of model ``r // B``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from critgrad.memory.damping import damping_weights, insert_in_gram

from .members import BY_TENSOR
from .memories import BLOCK
from .selection import Selection

FIRST_STREAM = 1 << 20  # the library's own, of the first tensor's draws


def parts_of(shapes: Sequence[torch.Size]) -> list[slice]:
    """The tensors among the flat parameters.

    >>> parts_of([torch.Size((2, 3)), torch.Size((3,))])
    [slice(0, 6, None), slice(6, 9, None)]
    """
    parts, at = [], 0
    for shape in shapes:
        parts.append(slice(at, at + math.prod(shape)))
        at = parts[-1].stop
    return parts


class TensorMemories(Selection):
    """The memories of ``n`` models with ``B`` tensors each. A step is ``d = look(g)``, the base's update, ``insert(g, t)``."""

    kind = BY_TENSOR

    def __init__(self, options: Sequence[Mapping[str, Any]], like: Tensor, parts: Sequence[slice]) -> None:
        self.parts = list(parts)
        self.n, self.B = len(options), len(parts)
        rows = [o for o in options for _ in parts]
        super().__init__(rows, [None] * len(rows), like)
        self.slots = torch.zeros(self.n, self.C, like.shape[1], dtype=like.dtype, device=like.device)
        self.add_products()
        self.stream.copy_(torch.arange(self.B, device=like.device).repeat(self.n) + FIRST_STREAM)

    def look(self, g: Tensor) -> Tensor:
        """The directions of the gradients ``g [n, P]``, damped tensor by tensor, as a new tensor."""
        norms = [torch.linalg.vector_norm(g[:, part], dim=1, dtype=torch.float64) for part in self.parts]
        self.measure(torch.stack(norms, 1).view(-1))
        table = self.dots.view(self.n, self.B, self.C)
        table.zero_()
        for b, part in enumerate(self.parts):
            for start in range(part.start, part.stop, BLOCK):
                stop = min(start + BLOCK, part.stop)
                table[:, b].add_(torch.bmm(self.slots[:, :, start:stop], g[:, start:stop, None]).squeeze(-1))
        self.weights.copy_(damping_weights(self.gram, self.dots, self.rho, self.kappa, self.finite))
        w = self.weights.to(g.dtype).view(self.n, self.B, 1, self.C)
        pieces = [
            torch.baddbmm(g[:, None, part], w[:, b], self.slots[:, :, part], alpha=-1).squeeze(1)
            for b, part in enumerate(self.parts)
        ]
        return torch.cat(pieces, 1)

    def insert(self, g: Tensor, step: Tensor) -> None:
        """Decide, store, decay, tick."""
        self.decide(g)
        accept, slot = self.accept.view(self.n, self.B), self.slot.view(self.n, self.B)
        for b, part in enumerate(self.parts):
            slots, size = self.slots[:, :, part], part.stop - part.start
            index = slot[:, b, None, None].expand(self.n, 1, size)
            new = torch.where(accept[:, b, None, None], g[:, None, part], slots.gather(1, index))
            slots.scatter_(1, index, new)
        self.gram.copy_(insert_in_gram(self.gram, self.dots, self.square, self.accept, self.slot))
        self.tick()
