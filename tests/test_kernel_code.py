"""What the Triton kernels compile to for the GPU that they are tuned for: needs Triton and its assembler, no GPU."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
BASES = ("nadam", "adam", "rmsprop", "sgdm")


@pytest.fixture(scope="module")
def counted() -> dict[str, dict[str, float]]:
    """Of each kernel the figures of ``benchmarks/kernel_code.py``, by the table's heads."""
    pytest.importorskip("triton")
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["PYTHONPATH"] = str(ROOT / "src")
    bases = [word for base in BASES for word in ("--base", base)]
    command = [sys.executable, str(ROOT / "benchmarks" / "kernel_code.py"), *bases]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    head, *lines = done.stdout.splitlines()
    heads = head.replace("a value", "instructions").split()
    rows = {}
    for line in lines:
        words = line.split()
        rows[" ".join(words[: -len(heads)])] = dict(zip(heads, map(float, words[-len(heads) :])))
    return rows


def test_the_damping_kernels_compile_for_the_gpu_they_are_tuned_for(counted):
    assert len(counted) == 3 * (1 + len(BASES))  # float32, bfloat16, int8: the pass over the slots, and the updates
    for name, figures in counted.items():
        assert 0 < figures["regs"] <= 255, name
        assert figures["spill"] == 0, name


def test_no_value_is_loaded_or_stored_in_less_than_a_word(counted):
    """Byte-wise access of 8-bit slots was what made them slow."""
    assert {name: figures["narrow"] for name, figures in counted.items() if figures["narrow"]} == {}


def test_reading_8_bit_slots_converts_no_integers(counted):
    passes = [figures for name, figures in counted.items() if name.startswith("dots int8")]
    assert [figures["convert"] for figures in passes] == [0]
    assert all(figures["convert"] <= 1 for figures in counted.values())  # the one that is stored
