"""Tensors that are spread over ranks (DTensor): this rank's part of one, and back."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

PLAIN = (Tensor, torch.nn.Parameter)  # the types of tensors that are just what they show


def is_dtensor(tensor: Tensor) -> bool:
    """Whether ``tensor`` is spread over ranks."""
    if type(tensor) in PLAIN:
        return False
    try:
        from torch.distributed.tensor import DTensor  # here, since importing it takes as long as torch
    except ImportError:  # a torch built without distributed
        return False
    return isinstance(tensor, DTensor)


def local(tensor: Any) -> Tensor:
    """Of a DTensor this rank's part; a plain tensor is its own part."""
    return tensor.to_local() if is_dtensor(tensor) else tensor


def like(tensor: Any, part: Tensor) -> Tensor:
    """``part`` with the placements of ``tensor``: the inverse of ``local``."""
    if not is_dtensor(tensor):
        return part
    from torch.distributed.tensor import DTensor

    mesh, placements, shape, stride = tensor.device_mesh, tensor.placements, tensor.shape, tensor.stride()
    return DTensor.from_local(part, mesh, placements, run_check=False, shape=shape, stride=stride)


def aligned(grad: Any, param: Any) -> Tensor:
    """A gradient with the placements of its parameter. Sequence parallelism leaves partial sums, one per rank."""
    if not (is_dtensor(grad) and is_dtensor(param)) or grad.placements == param.placements:
        return grad
    return grad.redistribute(param.device_mesh, param.placements)
