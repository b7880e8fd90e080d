"""Room for directions on a CPU, used again in the next step: fresh memory costs more there than the arithmetic."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..memory.store import Part


class Scratch:
    """One buffer for each dtype and, for each part, a flat piece of it and the same in the parameter's shape."""

    def __init__(self, parts: Sequence[Part]) -> None:
        self.flats: list[Tensor] = [torch.empty(0)] * len(parts)
        self.shaped: list[Tensor] = list(self.flats)
        buffers = []
        for dtype in {part.layout.real_dtype for part in parts}:
            mine = [i for i, part in enumerate(parts) if part.layout.real_dtype == dtype]
            sizes = [-(-parts[i].length // 64) * 64 for i in mine]  # so that each begins at a line of the cache
            buffers.append(torch.empty(sum(sizes), dtype=dtype, device=parts[0].device))
            for i, piece in zip(mine, buffers[-1].split(sizes)):
                self.flats[i] = piece[: parts[i].length]
                self.shaped[i] = parts[i].layout.unflatten(self.flats[i])
        self._storages = [buffer.untyped_storage() for buffer in buffers]
        self._usual: Any = None

    def _references(self) -> tuple[list[int], list[int]]:
        count = getattr(torch._C, "_storage_Use_Count", None)  # torch's own; without it every step has fresh room
        counts = [-1 if count is None else count(storage._cdata) for storage in self._storages]
        return counts, list(map(sys.getrefcount, self.shaped))

    def is_made(self) -> Scratch:
        """Note how many references there are when nobody else has one."""
        self._usual = self._references()
        return self

    def is_kept(self) -> bool:
        """Whether somebody else has a direction, or a view of one: a base that remembers ``p.grad``."""
        now = self._references()
        return now != self._usual or -1 in now[0]
