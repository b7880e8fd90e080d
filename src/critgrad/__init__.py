"""critgrad: a memory of critical gradients for any PyTorch optimizer.

>>> import torch, critgrad
>>> model = torch.nn.Linear(2, 1)
>>> opt = critgrad.Adam_C(model.parameters(), lr=1e-3, topC=5, decay=0.7)
"""

from ._version import __version__
from .aggmo import AggMo
from .classes import critical
from .inspect import inspect
from .optimizers import SGD_C, SGD_F, Adam_C, Adam_F, AdamW_C, AdamW_F, AggMo_C, NAdam_C, NAdam_F, RMSprop_C, RMSprop_F
from .policies import Policy, Replay
from .wrapper import CriticalGradients

__all__ = [
    "SGD_C",
    "SGD_F",
    "AdamW_C",
    "AdamW_F",
    "Adam_C",
    "Adam_F",
    "AggMo",
    "AggMo_C",
    "CriticalGradients",
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
