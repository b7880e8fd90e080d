"""The optimizers by their names: the paper's (``_C``), and the same with a memory that damps (``_F``).

Each is its torch base with a memory in front; the options of the memory are the same everywhere and stand once, in
``MEMORY_OPTIONS``, which is appended to every docstring.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from .aggmo import AggMo
from .bases.factory import declare
from .bases.mixin import Critical

MEMORY_OPTIONS = """

    Everything that the base takes is taken and means the same. The options of the memory, each of which may differ from
    group to group:

    Args:
        topC: gradients in the memory; 0 is the base optimizer, bit for bit. 5 to 20 is the range to tune.
        decay: what every priority is multiplied with in each step, 0 to 1. 0.7 to 0.99; 0 is a moving window.
        aggr: how gradient ``g`` and memory ``M`` (of ``n`` entries) become the direction. ``"mean"``:
            ``(g + sum of M) / (n + 1)``; ``"sum"``: ``g + mean of M``, which doubles the effective step; ``"mid"``:
            ``(g + mean of M) / 2``; ``"min"``, ``"median"``, ``"max"``: ``g`` + the stored gradient of that norm;
            ``"fisher"``: damp the directions in the memory (experimental); or a ``critgrad.Aggregation``.
        kappa: the memory's share; 1 is the paper, 0 the base.
        rho: damping of ``"fisher"``, > 0; 1e-5 (nearly a projection) to 1; the larger, the nearer to the base.
        policy: which gradients are kept: ``"KotH"`` (the largest norms), ``"bottomC"``, ``"FIFO"``, ``"random"``,
            ``"MNDS"``, ``"CDS"``, ``"CSS"``, ``"RR"``, ``"NCPR"``, ``"sparse"``, or a ``critgrad.Policy``.
        every: with ``"sparse"``, one step in so many is stored.
        scope: whose norm decides: ``"global"`` (all groups together), ``"group"``, ``"tensor"``.
        max_age: an entry this old is replaced by the next gradient, whatever its norm. ``None``: no bound.
        seed: of the policies that draw.
        memory_dtype: of the stored gradients: the parameter's (``None``), ``torch.bfloat16``, ``torch.float16``,
            ``"int8"``, ``"float8"``, ...
        memory_device: ``"cpu"`` keeps the stored gradients in (pinned) host memory.
        process_group: for engines that shard parameters behind the optimizer's back: the ranks to sum norms over.
            Not saved, and not per group.
    """


def _documented(**defaults: Any) -> Callable[[type[Critical]], Any]:
    """``declare`` with these defaults, and the options of the memory in the docstring."""

    def decorate(cls: type[Critical]) -> Any:
        cls.__doc__ = (cls.__doc__ or "") + MEMORY_OPTIONS
        return declare(cls, defaults)

    return decorate


@_documented()
class SGD_C(Critical, torch.optim.SGD):
    """SGD with a memory of critical gradients; with ``momentum=`` it is the paper's SGDM_C.

    >>> weight = torch.nn.Parameter(torch.tensor([3.0, 4.0]))
    >>> opt = SGD_C([weight], lr=0.1, topC=5, decay=0.7)
    """


@_documented()
class RMSprop_C(Critical, torch.optim.RMSprop):
    """RMSprop with a memory of critical gradients.

    >>> weight = torch.nn.Parameter(torch.tensor([3.0, 4.0]))
    >>> opt = RMSprop_C([weight], lr=1e-3, topC=5, decay=0.7)
    """


@_documented()
class Adam_C(Critical, torch.optim.Adam):
    """Adam with a memory of critical gradients.

    >>> weight = torch.nn.Parameter(torch.tensor([3.0, 4.0]))
    >>> opt = Adam_C([weight], lr=1e-3, topC=5, decay=0.7)
    """


@_documented()
class AdamW_C(Critical, torch.optim.AdamW):
    """AdamW with a memory of critical gradients; the decay of the weights is the base's, after the memory.

    >>> weight = torch.nn.Parameter(torch.tensor([3.0, 4.0]))
    >>> opt = AdamW_C([weight], lr=1e-3, weight_decay=0.01, topC=5, decay=0.7)
    """


@_documented()
class NAdam_C(Critical, torch.optim.NAdam):
    """NAdam (Adam with Nesterov's momentum) with a memory of critical gradients.

    >>> weight = torch.nn.Parameter(torch.tensor([3.0, 4.0]))
    >>> opt = NAdam_C([weight], lr=1e-3, topC=5, decay=0.7)
    """


@_documented()
class AggMo_C(Critical, AggMo):
    """Aggregated momentum with a memory of critical gradients.

    >>> weight = torch.nn.Parameter(torch.tensor([3.0, 4.0]))
    >>> opt = AggMo_C([weight], lr=0.1, topC=5, decay=0.7)
    """


@_documented(aggr="fisher")
class SGD_F(Critical, torch.optim.SGD):
    """SGD with a memory that damps the directions it holds (``aggr="fisher"``). Experimental.

    >>> weight = torch.nn.Parameter(torch.tensor([3.0, 4.0]))
    >>> opt = SGD_F([weight], lr=0.1, momentum=0.9, nesterov=True, rho=0.03)
    """


@_documented(aggr="fisher")
class RMSprop_F(Critical, torch.optim.RMSprop):
    """RMSprop with a memory that damps the directions it holds (``aggr="fisher"``). Experimental."""


@_documented(aggr="fisher")
class Adam_F(Critical, torch.optim.Adam):
    """Adam with a memory that damps the directions it holds (``aggr="fisher"``). Experimental.

    >>> weight = torch.nn.Parameter(torch.tensor([3.0, 4.0]))
    >>> opt = Adam_F([weight], lr=1e-3, topC=10, decay=0.99, rho=0.3)
    """


@_documented(aggr="fisher")
class AdamW_F(Critical, torch.optim.AdamW):
    """AdamW with a memory that damps the directions it holds (``aggr="fisher"``). Experimental."""


@_documented(aggr="fisher")
class NAdam_F(Critical, torch.optim.NAdam):
    """NAdam with a memory that damps the directions it holds (``aggr="fisher"``). Experimental.

    >>> weight = torch.nn.Parameter(torch.tensor([3.0, 4.0]))
    >>> opt = NAdam_F([weight], lr=1e-3, topC=10, decay=0.99, rho=0.3)
    """
