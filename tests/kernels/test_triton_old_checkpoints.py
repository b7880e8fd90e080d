"""Checkpoints of the release c0231e6, with the Triton kernels; tests/test_old_checkpoints.py has the other engines."""

from __future__ import annotations

import pytest
from test_triton import DEVICE  # which skips where there is neither GPU nor interpreter

old = pytest.importorskip("test_old_checkpoints")

pytestmark = [
    pytest.mark.usefixtures("_no_native_core"),
    pytest.mark.skipif(DEVICE != "cpu", reason="the files' tensors lie on the CPU: for the interpreter"),
]
# Of what other engines have written some will do every day: the interpreter takes its time.
EVERY_DAY = ("triton-", "torch-sgd", "native-adam_f")
CASES = [
    pytest.param(case, marks=() if case.startswith(EVERY_DAY) else pytest.mark.slow)
    for case in old.CASES
    if "bfloat16" not in case  # which the interpreter cuts off where a GPU, as torch, rounds to the nearest
]


@pytest.fixture
def _no_native_core(monkeypatch):
    monkeypatch.setenv("CRITGRAD_NATIVE", "0")


@pytest.mark.parametrize("case", CASES)
def test_a_checkpoint_loads_bit_for_bit_and_goes_on_as_in_the_old_release(case):
    old.hold(old.loaded(case), case, "triton")


@pytest.mark.parametrize("case", old.PICKLES)
def test_a_pickle_is_found_in_the_old_modules_and_goes_on_as_the_checkpoint(case):
    old.hold_pickle(case, "triton")
