"""Room for directions on a CPU, used again in the next step: fresh memory costs more there than the arithmetic."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import torch

from ..memory.store import Part


class Scratch:
    """One buffer for each dtype and, for each part, a flat piece of it and the same in the parameter's shape."""

    usual: Any  # how many references there are when nobody else has one

    def __init__(self, parts: Sequence[Part]) -> None:
        self.flats = [torch.empty(0)] * len(parts)
        self.shaped = list(self.flats)
        self._storages = []
        for dtype in {part.layout.real_dtype for part in parts}:
            mine = [i for i, part in enumerate(parts) if part.layout.real_dtype == dtype]
            sizes = [-(-parts[i].length // 64) * 64 for i in mine]  # so that each begins at a line of the cache
            buffer = torch.empty(sum(sizes), dtype=dtype, device=parts[0].device)
            self._storages.append(buffer.untyped_storage())
            for i, piece in zip(mine, buffer.split(sizes)):
                self.flats[i] = piece[: parts[i].length]
                self.shaped[i] = parts[i].layout.unflatten(self.flats[i])

    def references(self) -> Any:
        """To the storages and to the directions."""
        count = getattr(torch._C, "_storage_Use_Count", None)  # torch's own; without it every step has fresh room
        counts = [object() if count is None else count(storage._cdata) for storage in self._storages]
        return counts, list(map(sys.getrefcount, self.shaped))


def scratch_for(parts: Sequence[Part], before: Scratch | None) -> Scratch:
    """What was used before, unless somebody has kept a direction, or a view of one: a base that remembers ``p.grad``."""
    if before is not None and before.references() == before.usual:
        return before
    made = Scratch(parts)
    made.usual = made.references()
    return made
