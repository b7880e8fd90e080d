"""The cross entropy of a large output layer, with few passes over its logits.

Most of a word-level language model's step is reading and writing logits: 14,700 words x 33,278 of them are 2 GB. Layer and
loss as two operations go over them ten times (the product, log-softmax, its gradient by way of a matrix of zeros, three
products of that); here it is six times, and the gradient is there when the loss is. On a GPU, where a task allows TF32, no
logit goes to memory at all (softmax_kernels.py).
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

NOT_COUNTED = -100
FEWEST_ROWS = 1 << 9  # for the kernels: the smallest step that was timed with them has 700, and gains
SMALLEST = 1e-37  # of a probability, in any floating type: a loss of at most 85 instead of an infinite one


def linear_cross_entropy(hidden: Tensor, weight: Tensor, bias: Tensor, targets: Tensor) -> Tensor:
    """``F.cross_entropy(F.linear(hidden, weight, bias), targets)``, to rounding; ``hidden`` is ``(N, H)``.

    >>> x, w, b = torch.ones(2, 3), torch.zeros(4, 3), torch.zeros(4)
    >>> linear_cross_entropy(x, w, b, torch.tensor([0, 3]))  # an even guess among four
    tensor(1.3863)
    """
    if torch.is_grad_enabled():
        return _LinearCrossEntropy.apply(hidden, weight, bias, targets)
    return F.cross_entropy(F.linear(hidden, weight, bias), targets)


@torch.no_grad()
def sum_of_losses(hidden: Tensor, weight: Tensor, bias: Tensor, targets: Tensor) -> Tensor:
    """The sum of the losses, for an evaluation; targets of ``NOT_COUNTED`` do not count."""
    if kernels := _kernels_for(hidden, weight):
        return kernels.sum_of_losses(hidden, weight, bias, targets)
    return F.cross_entropy(F.linear(hidden, weight, bias), targets, ignore_index=NOT_COUNTED, reduction="sum")


class _LinearCrossEntropy(torch.autograd.Function):
    """The gradient of the mean loss is ``p - onehot`` over N, made in place of the probabilities ``p``."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor, targets: Tensor) -> Tensor:
        if kernels := _kernels_for(hidden, weight):
            loss, gradients = kernels.loss_and_gradients(hidden, weight, bias, targets)
            ctx.save_for_backward(*gradients)
            return loss
        p = torch.softmax(torch.addmm(bias, hidden, weight.t()), dim=1)
        at = targets.unsqueeze(1)
        loss = -p.gather(1, at).clamp_min(SMALLEST).log().mean()
        p.scatter_add_(1, at, torch.full_like(at, -1, dtype=p.dtype))
        share = 1 / len(targets)
        # Scaled afterwards, for the gradients are smaller than the logits.
        ctx.save_for_backward((p @ weight).mul_(share), (p.t() @ hidden).mul_(share), p.sum(0).mul_(share))
        return loss

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        return (*(gradient * part for part in ctx.saved_tensors), None)


def _kernels_for(hidden: Tensor, weight: Tensor) -> Any:
    """The kernels, where they may, can and should do it: they round as TF32 does, know few widths, and want many rows."""
    fit = (
        hidden.is_cuda
        and torch.backends.cuda.matmul.allow_tf32
        and {hidden.dtype, weight.dtype} == {torch.float32}
        and hidden.is_contiguous()
        and weight.is_contiguous()
        and len(hidden) >= FEWEST_ROWS
    )
    kernels = _kernels() if fit else None
    return kernels if kernels is not None and hidden.shape[1] in kernels.WIDTHS else None


@lru_cache
def _kernels() -> Any:
    """The module of the kernels, which takes a while to import; ``None`` without Triton."""
    try:
        from . import softmax_kernels
    except ImportError:
        return None
    return softmax_kernels
