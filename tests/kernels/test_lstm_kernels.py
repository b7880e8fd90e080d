"""The kernels of an LSTM layer give torch's states and gradients, to the rounding of their operands."""

from __future__ import annotations

import os

import pytest
import torch
from torch import nn

from critgrad.lab.run.spec import Trial
from critgrad.lab.tasks.models import lstm
from critgrad.lab.train import train

kernels = pytest.importorskip("critgrad.lab.tasks.models.lstm_kernels")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
if DEVICE == "cpu" and os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("needs a GPU, or TRITON_INTERPRET=1 in a process of its own", allow_module_level=True)


@pytest.fixture(autouse=True)
def taken_anywhere(monkeypatch):
    """On the CPU the layer would be torch's own: here it takes the kernels, in Triton's interpreter."""
    monkeypatch.setattr(lstm.LSTM, "_fits", lambda self, input: True)


def outcome(layer, words, state, weights, dtype=torch.float32):
    """States, the last ones, and the gradients of a weighted sum of all of them by everything."""
    parts = [part.to(dtype).detach().requires_grad_() for part in (words, *(state or ()))]
    layer = layer.to(dtype)
    out, last = layer(parts[0], (parts[1], parts[2]) if state else None)
    found = [out, *last]
    total = sum((part * weight.to(dtype)).sum() for part, weight in zip(found, weights, strict=True))
    return [part.detach() for part in found], torch.autograd.grad(total, [*parts, *layer.parameters()])


def distance(found, right):
    return float((found.double() - right.double()).norm() / right.double().norm())


SHAPES = [
    (4, 3, 5, 8, False, True),
    (6, 20, 7, 20, True, True),
    (5, 17, 4, 40, True, False),
    (9, 1, 3, 33, False, False),
]


@pytest.mark.parametrize("operands, bound", [(torch.float32, 3e-6), (torch.float16, 3e-3)])
@pytest.mark.parametrize("steps, rows, inputs, width, batch_first, given", SHAPES)
def test_states_and_gradients(steps, rows, inputs, width, batch_first, given, operands, bound, monkeypatch):
    if DEVICE == "cuda" and operands == torch.float32:
        bound = 3e-3  # TF32
    monkeypatch.setattr(kernels, "OPERANDS", operands)
    torch.manual_seed(0)
    shape = (rows, steps) if batch_first else (steps, rows)
    ours = lstm.LSTM(inputs, width, batch_first=batch_first).to(DEVICE)
    torchs = nn.LSTM(inputs, width, batch_first=batch_first).to(DEVICE)
    torchs.load_state_dict(ours.state_dict())
    words = torch.randn(*shape, inputs, device=DEVICE)
    state = tuple(torch.randn(1, rows, width, device=DEVICE) for _ in range(2)) if given else None
    weights = [torch.randn(*shape, width, device=DEVICE), *torch.randn(2, 1, rows, width, device=DEVICE)]
    right, derivatives = outcome(torchs, words, state, weights, torch.float64)
    found, gradients = outcome(ours, words, state, weights)
    for mine, theirs in zip([*found, *gradients], [*right, *derivatives], strict=True):
        assert mine.shape == theirs.shape
        assert distance(mine, theirs) < bound


def test_words_that_need_no_gradient_get_none_and_the_last_states_may_be_left_alone():
    torch.manual_seed(0)
    ours, torchs = lstm.LSTM(3, 6).to(DEVICE), nn.LSTM(3, 6).to(DEVICE)
    torchs.load_state_dict(ours.state_dict())
    words = torch.randn(5, 2, 3, device=DEVICE)
    for layer in (ours, torchs):
        layer(words)[0][2:].square().sum().backward()
    assert words.grad is None
    for mine, theirs in zip(ours.parameters(), torchs.parameters(), strict=True):
        assert distance(mine.grad, theirs.grad) < 3e-3


def test_it_is_nn_lstm_by_its_names_and_its_first_weights():
    torch.manual_seed(0)
    ours = lstm.LSTM(3, 6)
    torch.manual_seed(0)
    torchs = nn.LSTM(3, 6)
    assert list(ours.state_dict()) == list(torchs.state_dict())
    assert all(torch.equal(a, b) for a, b in zip(ours.parameters(), torchs.parameters(), strict=True))


def test_a_run_says_that_its_layers_were_the_kernels(monkeypatch):
    trial = Trial("ptb-lstm@tiny", "Adam", {"lr": 1e-3}, settings={"epochs": 1, "epoch_steps": 3})
    monkeypatch.setattr(
        lstm.LSTM, "_fits", lambda self, input: self.training
    )  # evaluations take long in the interpreter
    ours = train(trial, device=DEVICE)
    monkeypatch.setattr(lstm.LSTM, "_fits", lambda self, input: False)
    torchs = train(trial, device=DEVICE)
    assert ours.provenance["lstm"] == "kernels"
    assert "lstm" not in torchs.provenance
    assert ours.summary["valid"] == pytest.approx(torchs.summary["valid"], rel=1e-3)
