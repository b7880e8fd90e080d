"""Some rows of a table: a view where they are neighbours, a gather where they are not."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


class Rows:
    """Rows of tensors whose first axis is the model.

    >>> table = torch.arange(4)
    >>> Rows([1, 2], "cpu").of(table).tolist(), Rows([0, 3], "cpu").of(table).tolist()
    ([1, 2], [0, 3])
    """

    def __init__(self, numbers: Sequence[int], device: torch.device | str) -> None:
        self.numbers = list(numbers)
        self.span: slice | None = None
        if self.numbers == list(range(self.numbers[0], self.numbers[-1] + 1)):
            self.span = slice(self.numbers[0], self.numbers[-1] + 1)
        self.index = torch.tensor(self.numbers, device=device)

    def of(self, table: Tensor) -> Tensor:
        """These rows of ``table``."""
        return table[self.span] if self.span is not None else table.index_select(0, self.index)

    def put(self, table: Tensor, values: Tensor) -> None:
        """Write ``values`` into these rows of ``table``; columns that ``values`` lacks become 0."""
        if values.dim() > 1 and values.shape[1] < table.shape[1]:
            values = torch.nn.functional.pad(values, (0, table.shape[1] - values.shape[1]))
        if self.span is not None:
            table[self.span].copy_(values)
        else:
            table.index_copy_(0, self.index, values.to(table.dtype))
