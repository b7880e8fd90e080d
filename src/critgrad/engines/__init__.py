"""Engines: what makes a memory's part of a step. One table, fastest first; an engine declines whatever it does not know.

Each is a class with the same three calls, in the order of ``memory.prepared.run``: ``measure``, ``decide``, ``apply``. An
engine that is given an epilogue (``bases/families.py``) makes the base's update in the same pass, and says so in ``stepped``.

Environment: ``CRITGRAD_ENGINE=torch`` (or ``native``, ``triton``) allows that one and, where it declines, torch's.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from importlib import import_module
from typing import Any

import torch

from ..memory.aggregations import Aggregation, Linear, adding_weights, aggregation_of
from ..memory.store import Store

# engine, which is a module here -> the kind of device that it serves
ENGINES = {"triton": "cuda", "native": "cpu"}


def _chosen(store: Store, epilogue: Any, only_torch: str) -> tuple[Any, Any, str]:
    """``(class of the engine, the epilogue if it takes that, why not a faster one)``."""
    from .torch_ops import TorchOps

    if only_torch:
        return TorchOps, None, f"kernels are turned off ({only_torch})"
    wanted = os.environ.get("CRITGRAD_ENGINE", "")
    if wanted not in ("", "torch", *ENGINES):
        raise ValueError(f"Invalid CRITGRAD_ENGINE: {wanted!r}, expected torch or one of {', '.join(ENGINES)}")
    reasons: list[str] = []
    for name, device in ENGINES.items():
        interpreted = name == "triton" and os.environ.get("TRITON_INTERPRET") == "1"
        if wanted not in ("", name) or not (interpreted or store.device.type == device):
            continue
        module: Any = import_module(f"{__name__}.{name}")  # takes a while
        why = module.declines(store)
        if why is not None:
            reasons.append(why)
            continue
        reasons.append("nothing is faster" + (" on a CPU" if name == "native" else ""))
        if epilogue is not None:
            why = epilogue.why_not(store, module.FAMILIES, module.UNKNOWN_SWITCHES)
            if why is not None:
                reasons.append(f"{epilogue.base_name} makes its own update: {why}")
        return module.Engine, epilogue if why is None else None, "; ".join(reasons)
    if wanted == "torch":
        reasons.append("kernels are turned off (CRITGRAD_ENGINE=torch)")
    return TorchOps, None, "; ".join(reasons) or f"there are no kernels for parameters on {store.device.type}"


def kinds(options: Sequence[dict[str, Any]]) -> Any:
    """What of the groups' options engines are chosen by; of aggregations that every engine knows, no more than that."""
    aggregations = [aggregation_of(mine["aggr"]) for mine in options]
    shared = [
        mine["topC"] > 0 and mine["scope"] == "global" and each.damps for mine, each in zip(options, aggregations)
    ]
    ways = {(mine["rho"], mine["kappa"]) for mine, together in zip(options, shared) if together}  # Triton knows one
    return len(ways) > 1, [type(each) if isinstance(each, Linear) or each.damps else each for each in aggregations]


def wants_one_buffer(store: Store, epilogue: Any, only_torch: str) -> bool:
    """Whether slots are best in one buffer: torch's operations on an accelerator, where each costs a launch."""
    return store.device.type not in ("cpu", "meta") and _chosen(store, epilogue, only_torch)[0].name == "torch"


def choose(store: Store, epilogue: Any, only_torch: str) -> None:
    """Give a store its engine, as everything lies now."""
    engine, usable, store.engine_reason = _chosen(store, epilogue, only_torch)
    store.engine = engine(store, usable)


def adding_table(aggr: str | Aggregation, kappa: float, topC: int) -> list[tuple[float, float]]:
    """``(scale, share)`` for every number of live entries, as plain numbers: for kernels. What damps does not look at it."""
    if aggregation_of(aggr).damps:
        return [(1.0, 0.0)] * (topC + 1)
    counts = torch.arange(topC + 1, device="cpu")
    both = adding_weights(aggr, kappa, counts, torch.ones_like(counts, dtype=torch.bool))
    return list(zip(*(weights.tolist() for weights in both)))
