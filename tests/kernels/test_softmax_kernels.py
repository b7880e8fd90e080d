"""The kernels of the large output layer give torch's loss and gradients, to the rounding of float16 operands."""

from __future__ import annotations

import os

import pytest
import torch
import torch.nn.functional as F

from critgrad.lab.tasks.models import softmax

kernels = pytest.importorskip("critgrad.lab.tasks.models.softmax_kernels")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
if DEVICE == "cpu" and os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("needs a GPU, or TRITON_INTERPRET=1 in a process of its own", allow_module_level=True)


def problem(n, words, width, scale=1.0, seed=0):
    generator = torch.Generator().manual_seed(seed)
    hidden = torch.rand(n, width, generator=generator) * 2 - 1
    weight, bias = (scale * torch.randn(s, generator=generator) for s in ((words, width), (words,)))
    return [part.to(DEVICE) for part in (hidden, weight, bias, torch.randint(words, (n,), generator=generator))]


def expected(hidden, weight, bias, targets, operands):
    """Loss and gradients in float64; ``operands``: of weights and hidden units, which the kernels round."""
    parts = [p.to(operands).double().requires_grad_() for p in (hidden, weight)] + [bias.double().requires_grad_()]
    loss = F.cross_entropy(F.linear(*parts), targets)
    return loss.detach(), torch.autograd.grad(loss, parts)


def distance(found, right):
    return float((found.double() - right).norm() / right.norm())


# Rows and words that fill no tile, one tile exactly, and several; a part of the rows that is empty.
@pytest.mark.parametrize(
    "n, words, width", [(128, 128, 64), (37, 51, 64), (129, 200, 128), (300, 129, 64), (1, 3, 64), (20, 900, 64)]
)
@pytest.mark.parametrize("scale", [0.1, 1.0])
@pytest.mark.parametrize("processors", [1, 12])  # many: the words are cut into parts
def test_loss_and_gradients(n, words, width, scale, processors, monkeypatch):
    monkeypatch.setattr(kernels, "_processors", lambda tensor: processors)
    parts = problem(n, words, width, scale)
    loss, gradients = kernels.loss_and_gradients(*parts)
    right, derivatives = expected(*parts, torch.float16)
    assert float((loss - right).abs()) < 1e-5 * max(1.0, float(right))
    for mine, torchs in zip(gradients, derivatives, strict=True):
        assert mine.shape == torchs.shape
        assert distance(mine, torchs) < 1e-3  # probabilities are rounded to 11 bits, each on its own
    # Against the unrounded problem it is what operands of 11 bits make of it.
    right, derivatives = expected(*parts, torch.float32)
    assert float((loss - right).abs()) < 2e-3 * max(1.0, float(right))
    for mine, torchs in zip(gradients, derivatives, strict=True):
        assert distance(mine, torchs) < 1e-2


def test_rare_words_keep_their_gradient():
    """Probabilities below what float16 can hold by itself: a word that is never the target is pushed down all the same."""
    hidden, weight, bias, targets = problem(64, 96, 64, 0.1)
    targets.fill_(5)
    bias[7] -= 14.0  # a probability of about 1e-8
    _, (_, by_weight, by_bias) = kernels.loss_and_gradients(hidden, weight, bias, targets)
    _, (_, right, right_bias) = expected(hidden, weight, bias, targets, torch.float16)
    assert 0 < float(right_bias[7]) < 2e-8
    assert distance(by_weight[7], right[7]) < 2e-3
    assert distance(by_bias[7], right_bias[7]) < 2e-3


def test_a_hopeless_guess_is_finite_and_right():
    hidden, weight, bias, targets = problem(40, 70, 64, 1.0)
    bias[3] = 200.0
    parts = hidden, weight, bias, torch.where(targets == 3, 4, targets)
    loss, gradients = kernels.loss_and_gradients(*parts)
    right, derivatives = expected(*parts, torch.float16)
    assert distance(loss, right) < 1e-5
    for mine, torchs in zip(gradients, derivatives, strict=True):
        assert distance(mine, torchs) < 1e-3


def test_what_is_not_a_number_stays_so():
    hidden, weight, bias, targets = problem(40, 70, 64)
    hidden[1, 1] = float("nan")
    assert torch.isnan(kernels.loss_and_gradients(hidden, weight, bias, targets)[0])


@pytest.mark.parametrize("processors, most", [(1, 2), (3, 4), (200, 4)])
def test_few_rows_are_taken_with_the_words_in_parts(processors, most, monkeypatch):
    cut = []
    ours = kernels.over_words
    monkeypatch.setattr(kernels, "_processors", lambda tensor: processors)
    monkeypatch.setattr(kernels, "over_words", _Watched(ours, cut))
    kernels.loss_and_gradients(*problem(64, 500, 64))
    assert cut == [(1, most)]


class _Watched:
    """A kernel that notes the grids it is launched with."""

    def __init__(self, kernel, grids):
        self.kernel, self.grids = kernel, grids

    def __getitem__(self, grid):
        self.grids.append(grid)
        return self.kernel[grid]


def test_the_same_bits_every_time():
    parts = problem(150, 300, 64)
    first, second = (kernels.loss_and_gradients(*parts) for _ in range(2))
    assert torch.equal(first[0], second[0])
    assert all(torch.equal(a, b) for a, b in zip(first[1], second[1], strict=True))


def test_the_sum_of_an_evaluation_leaves_out_what_does_not_count():
    hidden, weight, bias, targets = problem(200, 300, 64)
    targets[::7] = -100
    found = kernels.sum_of_losses(hidden, weight, bias, targets)
    logits = F.linear(hidden.half().double(), weight.half().double(), bias.double())
    assert distance(found, F.cross_entropy(logits, targets, ignore_index=-100, reduction="sum")) < 1e-5


if DEVICE == "cuda":

    @pytest.fixture
    def tf32():
        """What torch has no attribute of, in the eyes of monkeypatch: it is put back by hand."""
        before = torch.backends.cuda.matmul.allow_tf32
        yield torch.backends.cuda.matmul
        torch.backends.cuda.matmul.allow_tf32 = before

    @pytest.mark.parametrize("allowed", [True, False])
    def test_the_layer_takes_them_where_tf32_is_allowed(allowed, tf32, monkeypatch):
        taken = []
        ours = kernels.loss_and_gradients
        monkeypatch.setattr(kernels, "loss_and_gradients", lambda *parts: (taken.append(1), ours(*parts))[1])
        tf32.allow_tf32 = allowed
        hidden, weight, bias, targets = problem(softmax.FEWEST_ROWS, 500, 64, 0.1)
        parts = [part.requires_grad_() for part in (hidden, weight, bias)]
        loss = softmax.linear_cross_entropy(*parts, targets)
        gradients = torch.autograd.grad(loss, parts)
        assert len(taken) == allowed
        right, derivatives = expected(hidden.detach(), weight.detach(), bias.detach(), targets, torch.float32)
        assert float((loss - right).abs()) < 1e-3
        assert all(distance(mine, torchs) < 1e-2 for mine, torchs in zip(gradients, derivatives, strict=True))
