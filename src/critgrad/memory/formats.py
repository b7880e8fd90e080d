"""The stored gradients of one parameter: C rows of values, in full precision, in a half type, or in 8 bits with scales.

Rounding saturates instead of overflowing, so a finite gradient is stored as a finite gradient. What a row *holds* is
the rounded value: the running sum adds that, and the Gram matrix is of that, so neither knows of a value that is not
there.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

SCALE_BLOCK = 256  # values that share one scale: 1.6 % on top of one byte a value


@dataclass(frozen=True)
class Format:
    """How values are stored: the dtype, and for 8-bit ones the largest code."""

    dtype: torch.dtype
    largest_code: float | None = None

    @property
    def scaled(self) -> bool:
        """Whether values are codes, to be multiplied with a scale."""
        return self.largest_code is not None


FORMATS = {
    "float64": Format(torch.float64),
    "float32": Format(torch.float32),
    "bfloat16": Format(torch.bfloat16),
    "float16": Format(torch.float16),
    "int8": Format(torch.int8, 127.0),
    "float8": Format(torch.float8_e4m3fn, 448.0),
}


def scaled_format(dtype: torch.dtype) -> Format | None:
    """The format whose 8-bit codes are of ``dtype``, or ``None``."""
    return next((f for f in FORMATS.values() if f.scaled and f.dtype == dtype), None)


def working_dtype(dtype: torch.dtype) -> torch.dtype:
    """The real dtype in which a memory computes for a parameter of ``dtype``: float32, or float64 for float64."""
    return torch.promote_types(dtype.to_real(), torch.float32)


def saturate(values: Tensor, dtype: torch.dtype) -> Tensor:
    """Cast, with what is too large for ``dtype`` brought to its largest value."""
    if values.dtype == dtype:
        return values
    largest = torch.finfo(dtype).max
    if largest < torch.finfo(values.dtype).max:
        values = values.clamp(-largest, largest)
    return values.to(dtype)


def scale_blocks(length: int) -> int:
    """Scales for so many values."""
    return -(-length // SCALE_BLOCK)


@dataclass(eq=False)
class Slots:
    """Rows of stored gradients: ``values`` is ``(C, length)``, ``scale`` ``(C, blocks)`` for the 8-bit formats."""

    values: Tensor
    scale: Tensor | None
    format: Format
    work: torch.dtype
    device: torch.device  # where the arithmetic is done; the rows may live elsewhere (memory_device)

    @property
    def codes(self) -> Tensor:
        """The values for index_select and index_copy_: they know no 8-bit float, but they do know bytes."""
        return self.values.view(torch.int8) if self.format.scaled else self.values

    @property
    def is_exact(self) -> bool:
        """Whether a row holds a gradient as it was: no rounding, no copy to read it."""
        return self.values.dtype == self.work and self.values.device == self.device

    def encode(self, gradient: Tensor) -> tuple[Tensor, Tensor | None]:
        """What a row would store for ``gradient`` (flat, any float dtype): ``(values, scales)``."""
        largest = self.format.largest_code
        if largest is None:
            return saturate(gradient, self.values.dtype), None
        length = gradient.numel()
        blocks = pad(gradient.to(torch.float32), (0, scale_blocks(length) * SCALE_BLOCK - length)).view(-1, SCALE_BLOCK)
        scale = blocks.abs().amax(-1) / largest
        usable = scale >= torch.finfo(torch.float32).tiny  # smaller ones have no reciprocal: such a block is zero
        scale = torch.where(usable, scale, 0.0)
        codes = (blocks * torch.where(usable, 1 / scale, 0.0)[:, None]).clamp(-largest, largest)
        if self.format.dtype == torch.int8:
            codes = codes.round()
        return codes.to(self.format.dtype).view(-1)[:length], scale

    def decode(self, values: Tensor, scale: Tensor | None) -> Tensor:
        """Stored values, on the working device and in the working dtype. ``values`` may start at any block."""
        values = values.to(self.device, self.work, non_blocking=True)
        if scale is None:
            return values
        scale = scale.to(self.device, self.work, non_blocking=True)
        return values * scale.repeat_interleave(SCALE_BLOCK, dim=-1)[..., : values.shape[-1]]

    def row(self, k: int, start: int = 0, stop: int | None = None) -> Tensor:
        """Row ``k``, or a piece of it, as the memory sees it; a view of the store where nothing was rounded.

        ``start`` is a multiple of ``SCALE_BLOCK``, here and below.
        """
        values = self.values[k, start:stop]
        first = start // SCALE_BLOCK
        scale = None if self.scale is None else self.scale[k, first : first + scale_blocks(values.numel())]
        return self.decode(values, scale)

    def columns(self, start: int, stop: int) -> Tensor:
        """All rows of some columns: ``(C, stop - start)``; where autograd looks, a copy: backward comes after later steps."""
        scale = None if self.scale is None else self.scale[:, start // SCALE_BLOCK : scale_blocks(stop)]
        found = self.decode(self.values[:, start:stop], scale)
        return found.clone() if torch.is_grad_enabled() else found

    def write(self, k: int, values: Tensor, scale: Tensor | None, start: int = 0) -> None:
        """Row ``k`` becomes what ``encode`` gave, from ``start`` on."""
        self.values[k, start : start + values.numel()].copy_(values, non_blocking=True)
        if self.scale is not None and scale is not None:
            first = start // SCALE_BLOCK
            self.scale[k, first : first + scale.numel()].copy_(scale, non_blocking=True)
