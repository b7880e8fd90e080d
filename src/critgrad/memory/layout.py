"""How a tensor lies in memory: the flat, real, local view that all arithmetic of a memory works on.

A parameter may be complex, channels-last, or a DTensor that is sharded over ranks. The memory's mathematics knows none
of that: it sees one-dimensional real tensors, in the parameter's own storage order, of this rank's part.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .dtensors import is_dtensor, local


def same_strides(shape: torch.Size, a: tuple[int, ...], b: tuple[int, ...]) -> bool:
    """Whether two orders are the same, dimensions of size 1 apart."""
    return all(size == 1 or x == y for size, x, y in zip(shape, a, b))


def on_host(tensor: Tensor) -> bool:
    """Whether values may be looked at without waiting for a device or breaking a compiled graph."""
    return tensor.device.type == "cpu" and not torch.compiler.is_compiling()


class Layout:
    """The storage order of a parameter, and the way to and from flat real tensors in that order."""

    __slots__ = ("complex", "contiguous", "length", "order", "real_dtype", "shape", "strides")

    def __init__(self, param: Tensor) -> None:
        part = local(param.detach())
        self.shape = part.shape
        self.complex = part.is_complex()
        self.real_dtype = part.dtype.to_real()
        self.length = part.numel() * (2 if self.complex else 1)  # values in the flat view
        ordinary = torch.empty(self.shape, device="meta").stride()
        # NOTE [storage order]: a DTensor's slots are laid out by torch (see Part), always contiguously. Others keep the order
        # of their dimensions; without gaps, as torch lays out what is like them, their very strides.
        own = torch.empty_strided(self.shape, part.stride(), device="meta")
        self.strides = ordinary if is_dtensor(param) or self.length == 0 else torch.empty_like(own).stride()
        self.contiguous = same_strides(self.shape, self.strides, ordinary)
        # Dimensions from the slowest to the fastest, of a complex parameter the pairs last.
        self.order = sorted(range(part.dim()), key=lambda i: -self.strides[i]) + [part.dim()] * self.complex

    def flat(self, tensor: Tensor) -> Tensor:
        """A real view of ``tensor`` in storage order, ``(length,)``; a copy only where its own order differs.

        With leading slots ``(C, length)``. A complex parameter's values may also come as pairs in a last dimension of 2.
        """
        if type(tensor) is Tensor and tensor.shape == self.shape and not self.complex:  # every gradient of every step
            return (tensor if self.contiguous else tensor.permute(self.order)).reshape(-1)
        tensor = local(tensor)
        if tensor.is_complex():
            tensor = torch.view_as_real(tensor.resolve_conj().resolve_neg())
        slots = tensor.dim() - len(self.order)  # how many dimensions of them: one, or none
        tensor = tensor.permute(*range(slots), *(slots + i for i in self.order))
        return tensor.reshape(*tensor.shape[:slots], self.length)

    def ordered(self, tensor: Tensor) -> Tensor:
        """A local tensor whose storage can be read in the parameter's order; a copy only where its own differs."""
        alike = tensor.is_contiguous() if self.contiguous else same_strides(self.shape, tensor.stride(), self.strides)
        if alike and type(tensor) is Tensor and not tensor.is_neg():
            return tensor
        return self.flat(tensor.detach().resolve_neg()).contiguous()

    def empty(self, dtype: torch.dtype, device: torch.device, leading: int | None = None, **options: Any) -> Tensor:
        """An uninitialised tensor of the parameter's shape and order (``leading`` slots of it if given).

        For a complex parameter a complex ``dtype`` keeps the shape, a real one stores pairs in a last dimension of 2.
        """
        shape, strides, span = tuple(self.shape), tuple(self.strides), self.shape.numel()
        if self.complex and not dtype.is_complex:
            shape, strides, span = (*shape, 2), (*(2 * stride for stride in strides), 1), 2 * span
        if leading is not None:
            shape, strides = (leading, *shape), (span, *strides)
        return torch.empty_strided(shape, strides, dtype=dtype, device=device, **options)

    def copy(self, tensor: Tensor) -> Tensor:
        """A copy in the parameter's order: torch's fused loops read a gradient as if it had that."""
        return tensor.clone() if is_dtensor(tensor) else self.empty(tensor.dtype, tensor.device).copy_(tensor)

    def unflatten(self, flat: Tensor) -> Tensor:
        """A tensor of the parameter's shape and order on top of a flat real one."""
        if self.complex:
            flat = torch.view_as_complex(flat.view(-1, 2))
        return flat.view(self.shape) if self.contiguous else flat.as_strided(self.shape, self.strides)
