"""Whatever users do to an optimizer, in any order, with the Triton kernels; tests/test_stateful.py has the other engines."""

from __future__ import annotations

import pytest
import torch
from test_triton import DEVICE  # which skips where there is neither GPU nor interpreter
from test_triton_replaced import one_buffer_as_on_cuda

from critgrad import engines

stateful = pytest.importorskip("stateful")
hold = pytest.importorskip("test_stateful").hold

pytestmark = [
    pytest.mark.filterwarnings("ignore::UserWarning"),  # as in test_stateful.py
    pytest.mark.usefixtures("_no_native_core"),
    pytest.mark.skipif(DEVICE != "cpu", reason="the machine's tensors lie on the CPU: for the interpreter"),
]


@pytest.fixture
def _no_native_core(monkeypatch):
    monkeypatch.setenv("CRITGRAD_NATIVE", "0")
    monkeypatch.setattr(engines, "wants_one_buffer", one_buffer_as_on_cuda)


class Triton(stateful.Machine):
    bases = ("Adam", "AdamW", "SGD", "SGDM", "RMSprop", "NAdam")
    # Not bfloat16: the interpreter cuts it off where a GPU, as torch, rounds to the nearest (test_triton.py has it).
    dtypes = (torch.float32,)
    memory_dtypes = ("float32", "float16", "int8")

    def check_pending(self, gram, known):
        """One entry that was rounded may have inner products that the next step finds: its row and column are NaN."""
        unknown = ~known.diagonal()
        assert int(unknown.sum()) <= 1
        assert torch.equal(~known, unknown[:, None] | unknown[None, :])


@pytest.mark.parametrize("examples", [15, pytest.param(1000, marks=pytest.mark.slow)], ids=["few", "many"])
def test_triton(examples):
    hold(Triton, examples, 20)
    assert Triton.fast_steps > Triton.steps / 5
