"""Models that torch's own compiler makes faster: ``CRITGRAD_COMPILE=1`` in the environment asks for it.

It pays where much of a step is small operations between large ones, and a run is long: CIFAR-100's network takes three
quarters of the time (H200, bf16, ``benchmarks/conv_net.py``), after a good half minute of compilation, once per machine. A run
says so in its provenance: dropout draws other numbers than without it.
"""

from __future__ import annotations

import os

from torch import nn

ASKED = "CRITGRAD_COMPILE"
BACKEND = "inductor"


def compile_if_asked(model: nn.Module) -> bool:
    """Compile a model in place, for each shape of its input by itself; whether that was asked for.

    The names of its parameters stay. All models of one class and one size in a process share what was compiled.
    """
    if os.environ.get(ASKED) != "1":
        return False
    model.compile(dynamic=False, backend=BACKEND)  # the shapes of a task are few, and never change
    return True
