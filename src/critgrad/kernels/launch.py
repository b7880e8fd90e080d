"""How the Triton kernels are launched: sizes that were found by measurement, and a short way to a compiled kernel."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"


@dataclass(frozen=True)
class Tuning:
    """Values and warps of a program, by kind of kernel; found by measurement (docs/performance.md)."""

    update: tuple[int, int] = (2048, 4)
    norms: tuple[int, int] = (4096, 8)
    norms_span: int = 32768  # values of a row of partial sums
    dots: tuple[int, int] = (256, 2)
    dots_span: int = 16384
    dots_programs: int = 16  # per multiprocessor
    dots_stages: int = 3  # of the pipeline of loads
    # By bytes of a stored value: what reads every slot has its best size where a thread reads one or two vectors of each.
    damping: tuple[tuple[int, tuple[int, int]], ...] = ((4, (1024, 4)), (2, (512, 2)), (1, (512, 1)))

    def damping_update(self, bytes_of_a_value: int) -> tuple[int, int]:
        return dict(self.damping)[bytes_of_a_value]


# The interpreter takes its time with every value, so there chunks are small: small tensors have several of them, too.
TUNING = (
    Tuning((512, 1), (512, 1), 1024, (512, 1), 1024, 1, 1, tuple((size, (512, 1)) for size in (4, 2, 1)))
    if INTERPRETED
    else Tuning()
)


class Launcher:
    """Launches one kernel for one memory: through Triton's front door the first time, then the compiled kernel itself.

    The front door looks at every argument to find the right specialisation, which takes longer than the launch. Here all
    arguments but numbers stay the same, and those numbers are not specialised on; the constants are the key.
    """

    def __init__(self, kernel: Any) -> None:
        self.kernel = kernel
        self.compiled: dict[Any, Any] = {}

    def __call__(self, programs: int, *args: Any, warps: int, **constants: Any) -> None:
        key = tuple(constants.values())
        known = self.compiled.get(key)
        if known is None:
            known = self.kernel[(programs,)](*args, **constants, num_warps=warps)
            if known is not None:  # the interpreter gives nothing back
                self.compiled[key] = known
        else:
            known[(programs, 1, 1)](*args, *key)
