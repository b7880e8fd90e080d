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
    """Let the plain convolutions of a model work by products; others (strides, padding, groups) stay as they are."""
    for module in model.modules():
        if type(module) is nn.Conv2d and _is_plain(module):
            module.__class__ = ConvolutionByProducts


def _is_plain(conv: nn.Conv2d) -> bool:
    return (conv.stride, conv.padding, conv.dilation, conv.groups) == ((1, 1), (0, 0), (1, 1), 1)


class ConvolutionByProducts(nn.Conv2d):
    """``nn.Conv2d`` with stride 1 and no padding; the same values to rounding."""

    def _conv_forward(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        rows, columns = x.shape[2] - weight.shape[2] + 1, x.shape[3] - weight.shape[3] + 1
        patches = _Patches.apply(x, tuple(weight.shape[2:])).flatten(1, 3).flatten(2)
        out = _Products.apply(weight.flatten(1), patches)
        return (out if bias is None else out + bias[:, None]).unflatten(2, (rows, columns))


# -- products ----------------------------------------------------------------------------------------------------------


class _Products(torch.autograd.Function):
    """``[O, K]`` times each of ``[N, K, L]``: ``[N, O, L]``.

    NOTE [shared factors]: models of one seed share the patches of the first layer. Torch's own rule for a batch of models
    would copy them for each; here the models' matrices stand below one another, as one with more rows.
    """

    @staticmethod
    def forward(matrix: Tensor, columns: Tensor) -> Tensor:
        return torch.bmm(matrix.expand(columns.shape[0], -1, -1), columns)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None]:
        matrix, columns = ctx.saved_tensors
        of_matrix = _Sums.apply(grad, columns) if ctx.needs_input_grad[0] else None
        of_columns = _Products.apply(matrix.t(), grad) if ctx.needs_input_grad[1] else None
        return of_matrix, of_columns

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, int | None], matrix: Tensor, columns: Tensor) -> tuple[Tensor, int]:
        m, c = in_dims
        if c is None:
            assert m is not None
            stacked = matrix.movedim(m, 0).flatten(0, 1)
            return _Products.forward(stacked, columns).unflatten(1, (info.batch_size, -1)), 1
        columns = columns.movedim(c, 0)
        images = columns.flatten(0, 1)
        if m is None:
            out = _Products.forward(matrix, images)
        else:
            each = matrix.movedim(m, 0)[:, None].expand(-1, columns.shape[1], -1, -1)
            out = torch.bmm(each.flatten(0, 1), images)
        return out.unflatten(0, (info.batch_size, -1)), 0


class _Sums(torch.autograd.Function):
    """The sum over ``n`` of ``[N, O, L]`` times the transpose of ``[N, K, L]``: ``[O, K]``.

    A product for each image and then their sum: one product with so long an inner dimension leaves most of a GPU idle.
    """

    @staticmethod
    def forward(left: Tensor, right: Tensor) -> Tensor:
        return torch.bmm(left, right.transpose(1, 2)).sum(0)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None]:
        left, right = ctx.saved_tensors
        of_left = _Products.apply(grad, right) if ctx.needs_input_grad[0] else None
        of_right = _Products.apply(grad.t(), left) if ctx.needs_input_grad[1] else None
        return of_left, of_right

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, int | None], left: Tensor, right: Tensor) -> tuple[Tensor, int]:
        a, b = in_dims
        if b is None:
            assert a is not None
            stacked = left.movedim(a, 1).flatten(1, 2)
            return _Sums.forward(stacked, right).unflatten(0, (info.batch_size, -1)), 0
        right = right.movedim(b, 0)
        left = left.expand(info.batch_size, *left.shape) if a is None else left.movedim(a, 0)
        each = torch.bmm(left.flatten(0, 1), right.flatten(0, 1).transpose(1, 2))
        return each.unflatten(0, (info.batch_size, -1)).sum(1), 0


# -- patches -----------------------------------------------------------------------------------------------------------


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
