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
class Dots:
    """How the pass over the slots is cut.

    ``block`` values of a tile, ``each`` of them in a row for a lane (so 32 times ``warps`` times ``each`` make a block),
    ``stages`` of its loads, ``programs`` a processor, ``span`` values of a chunk, at most so many ``registers``: what is needed
    once a chunk may well be spilled, more warps hide more latency.
    """

    block: int
    warps: int
    each: int
    stages: int = 3
    programs: int = 16
    span: int = 16384
    registers: int | None = None


@dataclass(frozen=True)
class Tuning:
    """Values and warps of a program, by kind of kernel; found by measurement (benchmarks/tune_damping.py)."""

    # By bytes of a stored value.
    adding: tuple[tuple[int, tuple[int, int]], ...] = ((4, (1024, 4)), (2, (1024, 2)), (1, (1024, 2)))
    small: tuple[int, int] | None = None  # instead of these, everywhere
    norms: tuple[int, int] = (4096, 8)
    norms_span: int = 32768  # values of a row of partial sums
    dots: tuple[tuple[int, Dots], ...] = (
        (4, Dots(256, 2, each=4, programs=24, span=8192)),
        (2, Dots(256, 2, each=4, programs=24)),
        (1, Dots(512, 1, each=16, stages=1, programs=24, span=4096)),
    )
    # With a memory for each tensor a program has one chunk of one tensor: longer ones, or there would be too many sums.
    own_span: int = 32768
    # By family, number of its buffers and bytes of a stored value: what reads every slot is sensitive to all of them.
    damping: tuple[tuple[tuple[str, int, int], tuple[int, int]], ...] = (
        (("none", 0, 4), (1024, 4)), (("none", 0, 2), (512, 1)), (("none", 0, 1), (512, 1)),
        (("sgd", 0, 4), (1024, 4)), (("sgd", 0, 2), (512, 1)), (("sgd", 0, 1), (512, 1)),
        (("sgd", 1, 4), (2048, 4)), (("sgd", 1, 2), (512, 2)), (("sgd", 1, 1), (512, 1)),
        (("rmsprop", 1, 4), (2048, 4)), (("rmsprop", 1, 2), (512, 4)), (("rmsprop", 1, 1), (512, 1)),
        (("rmsprop", 2, 4), (1024, 4)), (("rmsprop", 2, 2), (512, 2)), (("rmsprop", 2, 1), (512, 1)),
        (("adam", 2, 4), (1024, 4)), (("adam", 2, 2), (512, 1)), (("adam", 2, 1), (256, 1)),
        (("nadam", 2, 4), (1024, 4)), (("nadam", 2, 2), (512, 1)), (("nadam", 2, 1), (256, 1)),
    )  # fmt: skip

    def update(self, damps: bool, bytes_of_a_value: int, family: str, buffers: int) -> tuple[int, int]:
        if self.small is not None:
            return self.small
        if damps:
            return dict(self.damping)[family, buffers, bytes_of_a_value]
        return dict(self.adding)[bytes_of_a_value]

    def dots_of(self, bytes_of_a_value: int) -> Dots:
        return dict(self.dots)[bytes_of_a_value]


# The interpreter takes its time with every value, so there chunks are small: small tensors have several of them, too.
TUNING = (
    Tuning(
        small=(512, 1),
        norms=(512, 1),
        norms_span=1024,
        own_span=512,
        dots=tuple((size, Dots(256, 1, each=8, stages=1, programs=3, span=1024)) for size in (4, 2, 1)),
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

    def __call__(self, programs: int, *args: Any, warps: int, registers: int | None = None, **constants: Any) -> None:
        key = tuple(constants.values())
        known = self.compiled.get(key)
        if known is not None:
            stream = torch._C._cuda_getCurrentRawStream(self.device)
            known.run(programs, 1, 1, stream, known.function, known.packed_metadata, None, None, None, *args, *key)
            return
        known = self.kernel[(programs,)](*args, **constants, num_warps=warps, maxnreg=registers)
        if SHORT_WAY and known is not None:  # the interpreter gives nothing back
            self.compiled[key] = known
