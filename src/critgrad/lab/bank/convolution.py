"""Convolutions of many models at once, as products of matrices.

Under ``vmap`` torch turns the convolutions of S models into one with S groups, which GPU libraries are slow at: for small
networks they were most of a bank's step. Here the patches of an image are laid out as the columns of a matrix, and one
batched product does the rest.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


def compute_as_products(model: nn.Module) -> None:
    """Let the plain convolutions of a model work by products; others (strides, padding, groups) stay as they are.

    The first one stays, too: models of one seed share its input, and torch makes one dense convolution of theirs.
    """
    convolutions = [module for module in model.modules() if type(module) is nn.Conv2d]
    for conv in convolutions[1:]:
        if _is_plain(conv):
            conv.__class__ = ConvolutionByProducts


def _is_plain(conv: nn.Conv2d) -> bool:
    return (conv.stride, conv.padding, conv.dilation, conv.groups) == ((1, 1), (0, 0), (1, 1), 1)


class ConvolutionByProducts(nn.Conv2d):
    """``nn.Conv2d`` with stride 1 and no padding; the same values to rounding."""

    def _conv_forward(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        n, rows, columns = x.shape[0], x.shape[2] - weight.shape[2] + 1, x.shape[3] - weight.shape[3] + 1
        patches = _Patches.apply(x, tuple(weight.shape[2:])).flatten(1, 3).flatten(2)
        # A product for each image, not one for all: the weight's gradient is then a sum over many short products, while
        # a single one with so long an inner dimension would leave most of a GPU idle.
        kernels = weight.flatten(1).expand(n, -1, -1)
        out = torch.bmm(kernels, patches) if bias is None else torch.baddbmm(bias[:, None], kernels, patches)
        return out.view(n, -1, rows, columns)


class _Elementwise(torch.autograd.Function):
    """Something done to the last axes for each index of the others: one more axis in front changes nothing."""

    @classmethod
    def in_front(cls, in_dims: tuple[int | None, ...], x: Tensor, *rest: Any) -> tuple[Tensor, int]:
        dim = in_dims[0]
        assert dim is not None
        return cls.apply(x.movedim(dim, 0), *rest), 0


class _Patches(_Elementwise):
    """``[..., H, W]`` to ``[..., kh, kw, H - kh + 1, W - kw + 1]``: for each offset in the kernel what it meets."""

    @staticmethod
    def forward(x: Tensor, kernel: tuple[int, int]) -> Tensor:
        windows = x.unfold(-2, kernel[0], 1).unfold(-2, kernel[1], 1)  # [..., rows, columns, kh, kw]
        return windows.movedim((-2, -1), (-4, -3)).contiguous()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.kernel = inputs[1]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return _Overlay.apply(grad, ctx.kernel), None

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], x: Tensor, kernel: tuple[int, int]) -> tuple[Tensor, int]:
        return _Patches.in_front(in_dims, x, kernel)


class _Overlay(_Elementwise):
    """The transpose of ``_Patches``: values of patches summed where they overlap."""

    @staticmethod
    def forward(patches: Tensor, kernel: tuple[int, int]) -> Tensor:
        *lead, rows, columns = patches.shape
        kh, kw = kernel
        windows = patches.movedim((-4, -3), (-2, -1))
        middle = torch.ops.aten.unfold_backward(
            windows, [*lead[:-2], rows, columns + kw - 1, kh], windows.dim() - 3, kw, 1
        )
        return torch.ops.aten.unfold_backward(
            middle, [*lead[:-2], rows + kh - 1, columns + kw - 1], middle.dim() - 3, kh, 1
        )

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.kernel = inputs[1]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return _Patches.apply(grad, ctx.kernel), None

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], x: Tensor, kernel: tuple[int, int]) -> tuple[Tensor, int]:
        return _Overlay.in_front(in_dims, x, kernel)
