"""How memory and gradient become a direction: one record for each aggregation, pure functions on the small tables.

Three kinds. *Linear* (the paper): ``d = scale * (g + share * sum of M)``. A *pick*: ``d = g + kappa * M[k]``, ``k`` one
slot. *Damping* (``"fisher"``): ``d = g - sum_i w_i M[i]``, with ``w`` from ``damping_weights``. All give ``d = g`` for an
empty memory and for a gradient that is not finite. A user's own is an ``Aggregation``: any weights of the gradient and of
every slot. Shapes as in ``policies``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from . import checks
from .damping import damping_weights
from .policies import Tables, slot_of_lowest


@dataclass(frozen=True)
class Aggregation:
    """How gradient and memory are combined, by weights from the memory's small tables.

    Args:
        name: what a checkpoint remembers it by (functions are not saved); not that of a built-in one.
        weights: ``Tables -> (of_the_gradient, of_the_slots)``, shapes ``(rows,)`` and ``(rows, C)``; the direction is
            ``of_the_gradient * g + sum of of_the_slots[k] * M[k]``.
        needs_cosine: ``weights`` uses ``Tables.cosine``, which costs one more dot product with the memory's sum.
        needs_dots: ``weights`` uses ``Tables.dots``, which costs one more pass over all slots.

    Free slots are ignored, an empty memory gives ``g``, and ``kappa`` plays no part. Every slot is read in each step, with
    torch's operations.

    Example: the gradient plus the newest entry.

    >>> from critgrad import Aggregation
    >>> def newest(tables):
    ...     slots = torch.nn.functional.one_hot(tables.born.argmax(-1), tables.born.shape[-1])
    ...     return torch.ones_like(tables.g_norm), slots.to(tables.g_norm.dtype)
    >>> aggr = Aggregation("newest", newest)
    """

    name: str
    weights: Callable[[Tables], tuple[Tensor, Tensor]]
    needs_cosine: bool = False
    needs_dots: bool = False
    damps = False  # whether the memory keeps inner products of its slots instead of their sum

    def __post_init__(self) -> None:
        checks.record(self, "weights")

    def slot_weights(self, tables: Tables, usable: Tensor) -> tuple[Tensor, Tensor]:
        """``weights`` where the memory can be used, ``(1, 0)`` elsewhere; raises for other shapes, or if not finite."""
        result = self.weights(replace(tables, asker=f"aggregation {self.name!r}"))
        of_gradient, of_slots = checks.weights_of(self, result, tables.g_norm, tables.born)
        live = tables.live
        use = usable & live.any(-1)
        weights = torch.where(use, of_gradient, 1.0), torch.where(use[..., None] & live, of_slots, 0.0)
        checks.finite(self, *weights)
        return weights


@dataclass(frozen=True)
class Linear(Aggregation):
    """Of the memory's sum: ``weights(kappa, n)`` is ``(scale, share)`` for ``n`` entries; every engine goes by these."""

    weights: Callable[..., Any]


@dataclass(frozen=True)
class Pick(Aggregation):
    """Of one entry: ``weights(norm, born)`` is its slot; ``number`` is its column in what Triton's decision leaves."""

    weights: Callable[..., Any]
    number: int | None = None  # None: no kernel knows it


@dataclass(frozen=True)
class Damping(Aggregation):
    """Of the span of the memory."""

    weights: Callable[..., Any]
    damps = True


# -- linear: (scale, share) for kappa and a count of entries, both as float64 tensors ------------------------------------


def _mean(kappa: Any, n: Tensor) -> tuple[Tensor, Tensor]:
    """``(g + kappa * sum of M) / (1 + kappa * n)``"""
    return 1 / (1 + kappa * n), torch.ones_like(n) * kappa


def _sum(kappa: Any, n: Tensor) -> tuple[Tensor, Tensor]:
    """``g + kappa * (sum of M) / n``"""
    return torch.ones_like(n), kappa / n


def _mid(kappa: Any, n: Tensor) -> tuple[Tensor, Tensor]:
    """``(g + kappa * mean of M) / (1 + kappa)``"""
    return torch.ones_like(n) / (1 + kappa), kappa / n


# -- picks: a slot by its stored norm; of equal norms the oldest -----------------------------------------------------------


def _smallest(norm: Tensor, born: Tensor) -> Tensor:
    return slot_of_lowest(torch.where(born > 0, norm, torch.inf), born)


def _lower_median(norm: Tensor, born: Tensor) -> Tensor:
    live = born > 0
    # The minor key first, then stably the major one, which brings free slots to the end.
    by_age = born.argsort(dim=-1, stable=True)
    norms = torch.where(live, norm, torch.inf).gather(-1, by_age)
    order = by_age.gather(-1, norms.argsort(dim=-1, stable=True))
    middle = (live.sum(-1) - 1).clamp(min=0) // 2
    return order.gather(-1, middle[..., None]).squeeze(-1)


def _largest(norm: Tensor, born: Tensor) -> Tensor:
    return slot_of_lowest(torch.where(born > 0, -norm, torch.inf), born)


# -- the table -------------------------------------------------------------------------------------------------------------

AGGREGATIONS: dict[str, Aggregation] = {
    aggregation.name: aggregation
    for aggregation in (
        Linear("mean", _mean),
        Linear("sum", _sum),
        Linear("mid", _mid),
        Pick("min", _smallest, number=0),
        Pick("median", _lower_median, number=1),
        Pick("max", _largest, number=2),
        Damping("fisher", damping_weights),
    )
}
LINEAR = tuple(name for name, aggregation in AGGREGATIONS.items() if isinstance(aggregation, Linear))
PICKS = tuple(name for name, aggregation in AGGREGATIONS.items() if isinstance(aggregation, Pick))


def aggregation_of(option: str | Aggregation) -> Aggregation:
    """The aggregation that the option ``aggr`` names, or is."""
    return option if isinstance(option, Aggregation) else AGGREGATIONS[option]


def adding_weights(aggr: str | Aggregation, kappa: Any, n: Tensor, usable: Tensor) -> tuple[Tensor, Tensor]:
    """``(scale, share)`` in float64, for ``n`` live entries; ``(1, 0)`` where the memory is empty or not ``usable``.

    >>> scale, share = adding_weights("mean", 1.0, torch.tensor([4]), torch.tensor([True]))
    >>> scale.item(), share.item()
    (0.2, 1.0)
    """
    aggregation = aggregation_of(aggr)
    use = usable & (n > 0)
    count = n.to(torch.float64).clamp(min=1)
    if isinstance(aggregation, Linear):
        scale, share = aggregation.weights(kappa, count)
    elif isinstance(aggregation, Pick):
        scale, share = torch.ones_like(count), torch.ones_like(count) * kappa
    else:
        raise ValueError(f"Invalid aggr: {aggregation.name!r}, expected one that adds: {', '.join(LINEAR + PICKS)}")
    return torch.where(use, scale, 1.0), torch.where(use, share, 0.0)
