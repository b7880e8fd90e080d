"""How the Triton kernels are launched: sizes that were found by measurement, and a short way to a compiled kernel."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import torch

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"

try:
    import triton

    # How a compiled kernel is called is Triton's own affair and has changed: only where it was tried.
    SHORT_WAY = triton.__version__.startswith("3.6.")
except ImportError:
    SHORT_WAY = False


@dataclass(frozen=True)
class Tuning:
    """Values and warps of a program, by kind of kernel; found by measurement (docs/performance.md)."""

    # By bytes of a stored value.
    adding: tuple[tuple[int, tuple[int, int]], ...] = ((4, (1024, 4)), (2, (1024, 2)), (1, (1024, 2)))
    small: tuple[int, int] | None = None  # instead of these, everywhere
    norms: tuple[int, int] = (4096, 8)
    norms_span: int = 32768  # values of a row of partial sums
    dots: tuple[int, int] = (256, 2)
    dots_span: int = 16384
    dots_programs: int = 16  # per multiprocessor
    dots_stages: int = 3  # of the pipeline of loads
    # By bytes of a stored value and number of the base's buffers: what reads every slot is sensitive to both.
    damping: tuple[tuple[tuple[int, int], tuple[int, int]], ...] = (
        ((4, 0), (1024, 4)), ((4, 1), (2048, 4)), ((4, 2), (1024, 4)),
        ((2, 0), (512, 1)), ((2, 1), (2048, 4)), ((2, 2), (512, 2)),
        ((1, 0), (512, 1)), ((1, 1), (512, 1)), ((1, 2), (512, 1)),
    )  # fmt: skip

    def update(self, damps: bool, bytes_of_a_value: int, buffers: int) -> tuple[int, int]:
        if self.small is not None:
            return self.small
        return dict(self.damping)[bytes_of_a_value, buffers] if damps else dict(self.adding)[bytes_of_a_value]


# The interpreter takes its time with every value, so there chunks are small: small tensors have several of them, too.
TUNING = (
    Tuning(
        small=(512, 1), norms=(512, 1), norms_span=1024, dots=(512, 1), dots_span=1024, dots_programs=1, dots_stages=1
    )
    if INTERPRETED
    else Tuning()
)


class Launcher:
    """Launches one kernel for one memory: through Triton's front door the first time, then the compiled kernel itself.

    The front door looks at every argument to find the right specialisation, which takes longer than the launch. Here all
    arguments but numbers stay the same, and those numbers are not specialised on; the constants are the key.
    """

    def __init__(self, kernel: Any, device: torch.device) -> None:
        self.kernel = kernel
        self.device = device.index
        self.compiled: dict[Any, Any] = {}

    def __call__(self, programs: int, *args: Any, warps: int, **constants: Any) -> None:
        key = tuple(constants.values())
        known = self.compiled.get(key)
        if known is not None:
            stream = torch._C._cuda_getCurrentRawStream(self.device)
            known.run(programs, 1, 1, stream, known.function, known.packed_metadata, None, None, None, *args, *key)
            return
        known = self.kernel[(programs,)](*args, **constants, num_warps=warps)
        if SHORT_WAY and known is not None:  # the interpreter gives nothing back
            self.compiled[key] = known
