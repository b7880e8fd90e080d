"""Whatever users do to an optimizer, in any order: every step is the reference's. The machine is in stateful.py."""

from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test
from stateful import Machine

# Of tables of another scope, and of options without effect.
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")
MEMORY_DTYPES = ("float32", "bfloat16", "float16", "int8", "float8")


class TorchOperations(Machine):
    bases = ("Adam", "SGDM", "RMSprop", "RAdam", "Adagrad")
    wrapped = (False, False, True)
    dtypes = (torch.float64, torch.float32, torch.bfloat16)
    memory_dtypes = MEMORY_DTYPES
    fused = False
    rhos = (1e-3, 0.3, 3.0)


class Native(Machine):
    bases = ("Adam", "AdamW", "SGD", "SGDM", "RMSprop", "NAdam")
    dtypes = (torch.float32, torch.float64)
    memory_dtypes = ("float32", "bfloat16")


def hold(machine, examples: int, steps: int) -> None:
    machine.steps = machine.fast_steps = 0
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            derandomize=True,
            database=None,
            suppress_health_check=list(HealthCheck),
            # Making a failure smaller takes minutes: that is for the long runs.
            phases=[Phase.generate, Phase.shrink] if examples > 100 else [Phase.generate],
        ),
    )


@pytest.fixture
def _no_native_core(monkeypatch):
    monkeypatch.setenv("CRITGRAD_NATIVE", "0")


@pytest.fixture
def _native_core(monkeypatch):
    compiled = pytest.importorskip("critgrad.engines.native.build")
    if compiled.compiled_core() is None:
        pytest.skip("no C compiler")
    monkeypatch.delenv("CRITGRAD_NATIVE", raising=False)


SIZES = pytest.mark.parametrize("examples", [40, pytest.param(3000, marks=pytest.mark.slow)], ids=["few", "many"])


@SIZES
@pytest.mark.usefixtures("_no_native_core")
def test_torch_operations(examples):
    hold(TorchOperations, examples, 20)
    assert TorchOperations.fast_steps == 0


@SIZES
@pytest.mark.usefixtures("_native_core")
def test_native(examples):
    hold(Native, examples, 20)
    # No share of them, which any change of the machine would move. test_engines.py holds which engine makes which step.
    assert Native.fast_steps > 0
