"""A layer of ``nn.LSTM`` that on a GPU can take a batch through time in one kernel.

cuDNN's own recurrence is the faster one by itself, and has the whole GPU for it: processes that share one wait for one another.
The kernels take a few of its processors each.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

ASKED = "CRITGRAD_LSTM_KERNELS"  # in the environment: 1 takes them, anything else leaves the layer to torch
FEWEST_STEPS = 4  # a decoder that goes on word by word is no sequence
State = tuple[Tensor, Tensor]


class LSTM(nn.LSTM):
    """``nn.LSTM``, to rounding, with its parameters under its names. The kernels (lstm_kernels.py) take one layer in one
    direction, of at most 256 units, where recurrent layers may use TF32 (``torch.backends.cudnn.allow_tf32``, torch's default);
    everything else, and every other device, is torch's own. They are taken where ``CRITGRAD_LSTM_KERNELS=1`` asks for them;
    ``by_kernels`` says whether they ever were.
    """

    by_kernels = False

    def forward(self, input: Tensor, hx: State | None = None) -> tuple[Tensor, State]:  # type: ignore[override]
        """States after each word and after the last one, as ``nn.LSTM`` gives them."""
        if not self._fits(input):
            return super().forward(input, hx)
        self.by_kernels = True
        words = input.transpose(0, 1) if self.batch_first else input
        if hx is None:
            zeros = words.new_zeros(words.shape[1], self.hidden_size)
            state, cell = zeros, zeros
        else:
            state, cell = (part[0] for part in hx)
        weights = (getattr(self, name) for name in ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0"))
        out, last, cell = _Recurrence.apply(words, state, cell, *weights)
        return out.transpose(0, 1) if self.batch_first else out, (last[None], cell[None])

    def _fits(self, input: Tensor) -> bool:
        if os.environ.get(ASKED) != "1":
            return False
        plain = self.num_layers == 1 and self.bias and not self.bidirectional and not self.proj_size
        if not (plain and input.is_cuda and input.dim() == 3 and torch.backends.cudnn.allow_tf32):
            return False
        floats = {input.dtype, self.weight_hh_l0.dtype} == {torch.float32} and not torch.is_autocast_enabled("cuda")
        steps = input.shape[1 if self.batch_first else 0]
        kernels = _kernels() if floats and steps >= FEWEST_STEPS else None
        return kernels is not None and self.hidden_size <= kernels.WIDEST


class _Recurrence(torch.autograd.Function):
    """Of words ``(T, B, inputs)`` and the state and cell ``(B, H)`` before them: all states, the last one, and its cell."""

    @staticmethod
    def forward(ctx: Any, words: Tensor, state: Tensor, cell: Tensor, *weights: Tensor) -> tuple[Tensor, ...]:
        of_inputs, recurrent, *biases = weights
        steps, rows, inputs = words.shape
        with _products_of_recurrent_layers():
            gates = torch.addmm(biases[0] + biases[1], words.reshape(-1, inputs), of_inputs.t())
        gates = gates.view(steps, rows, -1)
        states, cells = _kernels().forward(gates, recurrent.contiguous(), state, cell)
        ctx.save_for_backward(words, of_inputs, recurrent, gates, states, cells)
        return states[1:], states[steps].clone(), cells[steps].clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, by_states: Tensor, by_last: Tensor, by_cell: Tensor) -> tuple[Tensor | None, ...]:
        words, of_inputs, recurrent, gates, states, cells = ctx.saved_tensors
        outside = (part.contiguous() for part in (by_states, by_last, by_cell))
        by_gates, by_first, by_first_cell = _kernels().backward(*outside, gates, cells, recurrent.contiguous())
        flat = by_gates.flatten(0, 1)
        with _products_of_recurrent_layers():
            by_inputs = flat.t() @ words.reshape(-1, words.shape[2])
            by_recurrent = flat.t() @ states[:-1].flatten(0, 1)
            by_words = (flat @ of_inputs).view_as(words) if ctx.needs_input_grad[0] else None
        by_bias = flat.sum(0)
        return by_words, by_first, by_first_cell, by_inputs, by_recurrent, by_bias, by_bias


@contextmanager
def _products_of_recurrent_layers() -> Iterator[None]:
    """TF32 for these products as torch allows it to recurrent layers; other matrix products have a switch of their own."""
    switch: Any = torch.backends.cuda.matmul
    before = switch.allow_tf32
    switch.allow_tf32 = torch.backends.cudnn.allow_tf32
    try:
        yield
    finally:
        switch.allow_tf32 = before


@lru_cache
def _kernels() -> Any:
    """The module of the kernels; ``None`` without Triton."""
    try:
        from . import lstm_kernels
    except ImportError:
        return None
    return lstm_kernels
