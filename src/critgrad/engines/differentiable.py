"""A step of torch's operations that autograd can follow, for bases with ``differentiable=True``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..memory.damping import damping_weights
from ..memory.reducing import all_reduce_
from ..memory.store import Store
from .torch_ops import TorchOps


def differentiable(store: Store, grads: Sequence[Tensor | None]) -> list[Tensor | None]:
    """``memory.run`` with directions that are functions of ``grads``; what was held before the step is a constant."""
    engine: TorchOps = store.engine
    with torch.no_grad():
        engine.decide(all_reduce_(engine.measure(grads), store), None, offer=False)
    directions = _directions(engine, grads)
    with torch.no_grad():
        engine.advance()
        engine.apply(fresh=True, directions=False)
    return directions


def _directions(engine: TorchOps, grads: Sequence[Tensor | None]) -> list[Tensor | None]:
    store, usable = engine.store, engine.decision.finite
    flats = [None if g is None else part.layout.flat(g) for part, g in zip(store.parts, grads)]
    # Copies: the slots are written in later steps, and backward comes after those.
    rows = [part.block.slots.columns(0, part.length).clone() if part.damps else None for part in store.parts]
    dots: list[Any] = [0.0] * store.rows
    for part, g, G in zip(store.parts, flats, rows):
        if G is not None and g is not None:
            dots[part.row] = dots[part.row] + (G * g).sum(-1, dtype=torch.float64)
    out: list[Tensor | None] = []
    for part, g, G in zip(store.parts, flats, rows):
        if g is None:
            out.append(None)
            continue
        if G is not None:
            assert store.gram is not None
            row, rho, kappa = slice(part.row, part.row + 1), part.options["rho"], part.options["kappa"]
            w = damping_weights(store.gram[row], dots[part.row][None], rho, kappa, usable[row], engine.rounding)
            d = g - (w[0].to(part.work)[:, None] * G).sum(0)
        else:
            scale, share, picked = engine.weights[store.blocks.index(part.block)]
            scale, share = scale.to(part.device, part.work), share.to(part.device, part.work)
            if share.dim():
                d = g * scale + (share[:, None] * part.block.slots.columns(0, part.length)).sum(0)
            else:
                d = (g + engine.source(part.block, picked).clone() * share) * scale
        out.append(part.layout.unflatten(d.to(g.dtype)))
    return out
