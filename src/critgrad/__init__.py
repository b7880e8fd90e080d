"""critgrad: a memory of critical gradients for any PyTorch optimizer.

>>> import torch, critgrad
>>> model = torch.nn.Linear(2, 1)
>>> opt = critgrad.Adam_C(model.parameters(), lr=1e-3, topC=5, decay=0.7)
"""

import sys as _sys
from importlib import import_module as _import_module
from typing import Any as _Any

from . import inspection as _inspection
from ._version import __version__
from .adam_cm import Adam_CM
from .aggmo import AggMo
from .bases import factory as _factory
from .bases import mixin as _mixin
from .bases import wrapper as _wrapper
from .bases.factory import critical
from .bases.wrapper import CriticalGradients
from .inspection import inspect
from .memory import Memory, policies
from .memory.aggregations import Aggregation
from .memory.policies import Policy
from .memory.replay import Replay
from .optimizers import SGD_C, SGD_F, Adam_C, Adam_F, AdamW_C, AdamW_F, AggMo_C, NAdam_C, NAdam_F, RMSprop_C, RMSprop_F

# Where these stood in earlier releases: pickles name them, and scripts may import them.
_earlier = {"classes": _factory, "critical": _mixin, "inspect": _inspection, "policies": policies, "wrapper": _wrapper}
_sys.modules.update({f"{__name__}.{name}": module for name, module in _earlier.items()})
vars(policies)["Replay"] = Replay

__all__ = [
    "SGD_C",
    "SGD_F",
    "AdamW_C",
    "AdamW_F",
    "Adam_C",
    "Adam_CM",
    "Adam_F",
    "AggMo",
    "AggMo_C",
    "Aggregation",
    "CriticalGradients",
    "Memory",
    "NAdam_C",
    "NAdam_F",
    "Policy",
    "RMSprop_C",
    "RMSprop_F",
    "Replay",
    "__version__",
    "critical",
    "inspect",
]


def __getattr__(name: str) -> _Any:
    """What is imported when it is asked for."""
    if name in ("integrations", "lab", "theory"):
        return _import_module(f"{__name__}.{name}")
    hint = (
        f"; for any optimizer class there is critgrad.critical(torch.optim.{name[:-2]})"
        if name[-2:] in ("_C", "_F")
        else ""
    )
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}{hint}")
