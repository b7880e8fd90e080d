"""Which gradients enter the memory and which leave: an admission rule x an eviction rule, by the paper's names.

Everything here is a pure function of the memory's small tables. Tables have the shape ``(rows, C)``, one row for each
memory that is decided at once (the tensors of ``scope="tensor"``, or the models of a bank); scalars have ``(rows,)``.
Nothing here looks at a value on the host, so the same lines serve the CPU, a CUDA stream and a CUDA graph.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from . import checks
from .draws import ADMISSION, EVICTION, uniform

_NEVER = torch.iinfo(torch.int64).max  # a birthday that no entry can have


@dataclass
class Tables:
    """What a rule may look at: the memory before this step's insertion, and the gradient that asks for a place.

    ``priority``, ``norm`` and ``born`` are ``(rows, C)``; a slot is live when ``born > 0``. ``t`` is the number of this
    step, ``g_norm`` the norm of its gradient, ``offered`` what it is ranked by: that norm, unless the caller of
    ``critgrad.Memory`` gave a priority. ``cosine()`` is there for rules with ``needs_cosine``, ``dots`` for those with
    ``needs_dots``.
    """

    priority: Tensor
    norm: Tensor
    born: Tensor
    t: Tensor
    g_norm: Tensor
    stream: Tensor
    seed: int = 0
    every: int = 10
    g_dot_sum: Tensor | None = None  # the gradient times the memory's sum, and the sum's square
    sum_sq: Tensor | None = None
    g_dot_slots: Tensor | None = None
    g_priority: Tensor | None = None  # given by the caller
    asker: str = ""  # whose rules look, for messages

    @property
    def offered(self) -> Tensor:
        """The norm that asks for a place, or the priority in its place."""
        return self.g_norm if self.g_priority is None else self.g_priority

    @property
    def live(self) -> Tensor:
        """Which slots hold a gradient."""
        return self.born > 0

    def draw(self, purpose: int) -> Tensor:
        """A uniform number for ``ADMISSION`` or ``EVICTION``, shape ``(rows,)``."""
        return uniform(self.seed, self.t, self.stream, purpose)

    def cosine(self) -> Tensor:
        """Of the gradient with the memory's sum; 0 where one of them is 0."""
        if self.g_dot_sum is None or self.sum_sq is None:
            raise RuntimeError(f"{self.asker} reads tables.cosine(): make it with needs_cosine=True")
        scale = self.g_norm.to(torch.float64) * self.sum_sq.sqrt()
        cos = self.g_dot_sum / torch.where(scale > 0, scale, 1.0)
        return torch.where(scale > 0, cos, 0.0).clamp(-1, 1)

    @property
    def dots(self) -> Tensor:
        """The inner product of the gradient with every slot, ``(rows, C)`` in float64; 0 for a free one."""
        if self.g_dot_slots is None:
            raise RuntimeError(f"{self.asker} reads tables.dots: make it with needs_dots=True")
        return self.g_dot_slots


# -- evictions: the slot that goes, of a memory that is full -----------------------------------------------------------


def oldest(tables: Tables) -> Tensor:
    """The one stored first."""
    return torch.where(tables.live, tables.born, _NEVER).argmin(-1)


def slot_of_lowest(values: Tensor, born: Tensor) -> Tensor:
    """The slot of the lowest value, of equal ones of the oldest entry."""
    return torch.where(values == values.amin(-1, keepdim=True), born, _NEVER).argmin(-1)


def lowest_priority(tables: Tables) -> Tensor:
    """Of equal priorities the oldest, so that ``decay=0`` is a moving window."""
    return slot_of_lowest(tables.priority, tables.born)


def uniformly(tables: Tables) -> Tensor:
    """Any of them."""
    slots = tables.priority.shape[-1]
    return (tables.draw(EVICTION) * slots).long().clamp(max=slots - 1)


def by_norm(tables: Tables) -> Tensor:
    """Drawn in proportion to the stored norm, undecayed: the paper's formula (its code takes one minus that share)."""
    share = tables.norm.to(torch.float64).cumsum(-1)
    threshold = tables.draw(EVICTION) * share[..., -1]
    return (share <= threshold[..., None]).sum(-1).clamp(max=share.shape[-1] - 1)


# -- admissions: whether a gradient may take the place of another ------------------------------------------------------


def if_larger_than_lowest(tables: Tables) -> Tensor:
    """King of the hill."""
    return tables.offered > tables.priority.amin(-1)


def if_inverse_larger_than_lowest(tables: Tables) -> Tensor:
    """The same for priorities that are ``inverse_norm``: the smallest gradients stay."""
    return inverse_norm(tables.offered) > tables.priority.amin(-1)


def always(tables: Tables) -> Tensor:
    """Whatever it is."""
    return torch.ones_like(tables.g_norm, dtype=torch.bool)


def on_a_coin(tables: Tables) -> Tensor:
    """With probability 1/2."""
    return tables.draw(ADMISSION) < 0.5


def by_distance_from_mean_norm(tables: Tables) -> Tensor:
    """With probability ``min(1, abs(norm(g) - m) / m)``, ``m`` the mean of the stored norms."""
    live = tables.live
    mean = (tables.norm * live).sum(-1) / live.sum(-1).clamp(min=1)
    return tables.draw(ADMISSION) * mean < (tables.g_norm - mean).abs()


def if_dissimilar(tables: Tables) -> Tensor:
    """With probability ``(1 - cos) / 2``."""
    return tables.draw(ADMISSION) < (1 - tables.cosine()) / 2


def if_similar(tables: Tables) -> Tensor:
    """With probability ``(1 + cos) / 2``."""
    return tables.draw(ADMISSION) < (1 + tables.cosine()) / 2


def one_step_in_every(tables: Tables) -> Tensor:
    """The first of each ``every`` steps."""
    return (tables.t - 1) % tables.every == 0


# -- priorities --------------------------------------------------------------------------------------------------------


def plain_norm(norm: Tensor) -> Tensor:
    """The larger the gradient, the higher."""
    return norm


def inverse_norm(norm: Tensor) -> Tensor:
    """The smaller the gradient, the higher; clamped to what is finite."""
    return norm.reciprocal().clamp(max=torch.finfo(norm.dtype).max)


# -- policies ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Policy:
    """An admission rule x an eviction rule, each a pure function ``Tables -> Tensor``.

    Args:
        name: what a checkpoint remembers it by (functions are not saved); not that of a built-in one.
        admit: ``Tables -> bool (rows,)``: may this gradient replace another?
        evict: ``Tables -> int64 (rows,)``: the slot to replace, in a memory that is full; ``0 <= slot < topC``.
        priority: the norm of a gradient to the priority it is stored with.
        also_while_filling: heed ``admit`` before the memory is full, too.
        needs_cosine: the rules use ``Tables.cosine``, which costs one more dot product with the memory's sum.
        needs_dots: the rules use ``Tables.dots``, which costs a pass over all slots (none where the memory damps).

    Both rules are called in every step, also while slots are free (a free one has ``born == 0`` and zeros elsewhere), and
    must not fail then; what they say counts only as above. What they return is checked before anything is written; on an
    accelerator, where looking would mean waiting, a slot out of range is clamped into the table.

    Example: keep the newest, but only gradients that are larger than the last one stored.

    >>> from critgrad.memory.policies import Policy, oldest
    >>> def larger_than_newest(tables):
    ...     newest = tables.born.argmax(-1, keepdim=True)
    ...     return tables.g_norm > tables.norm.gather(-1, newest).squeeze(-1)
    >>> policy = Policy("rising", larger_than_newest, oldest)
    """

    name: str
    admit: Callable[[Tables], Tensor]
    evict: Callable[[Tables], Tensor]
    priority: Callable[[Tensor], Tensor] = plain_norm
    also_while_filling: bool = False
    needs_cosine: bool = False
    needs_dots: bool = False

    def __post_init__(self) -> None:
        checks.record(self, "admit", "evict", "priority")

    def choose(self, tables: Tables, max_age: int | None) -> tuple[Tensor, Tensor]:
        """``(admitted, slot)`` for a finite gradient that is not zero."""
        live = tables.live
        full = live.all(-1)
        admitted, slot = self.admit(tables), self.evict(tables)
        if not is_built_in(self):
            admitted, slot = checks.returned(self, admitted, slot, self.priority(tables.offered), like=full)
        if not self.also_while_filling:
            admitted = admitted | ~full
        slot = torch.where(full, slot, tables.born.argmin(-1))  # free slots have born 0: the first of them
        if max_age is not None:
            expired = (live & (tables.t[..., None] - tables.born >= max_age)).any(-1)
            admitted = admitted | expired
            slot = torch.where(expired, oldest(tables), slot)
        return admitted, slot


POLICIES: dict[str, Policy] = {
    policy.name: policy
    for policy in (
        Policy("KotH", if_larger_than_lowest, lowest_priority),
        Policy("bottomC", if_inverse_larger_than_lowest, lowest_priority, priority=inverse_norm),
        Policy("FIFO", always, oldest),
        Policy("random", on_a_coin, lowest_priority, also_while_filling=True),
        Policy("MNDS", by_distance_from_mean_norm, lowest_priority),
        Policy("CDS", if_dissimilar, lowest_priority, needs_cosine=True),
        Policy("CSS", if_similar, lowest_priority, needs_cosine=True),
        Policy("RR", if_larger_than_lowest, uniformly),
        Policy("NCPR", if_larger_than_lowest, by_norm),
        Policy("sparse", one_step_in_every, oldest, also_while_filling=True),
    )
}


def policy_of(option: str | Policy) -> Policy:
    """The policy that the option ``policy`` names, or is."""
    return option if isinstance(option, Policy) else POLICIES[option]


def is_built_in(policy: Policy) -> bool:
    """Whether it is one of ours: what those return needs no check, and engines may know them by name."""
    return policy is POLICIES.get(policy.name)


class Decision(NamedTuple):
    """What one step does to the memories: each field ``(rows,)``."""

    finite: Tensor  # the gradient may be used at all; otherwise the memory does nothing, not even tick
    accept: Tensor  # the gradient takes a slot
    slot: Tensor  # which one


def decide(policy: Policy, tables: Tables, max_age: int | None) -> Decision:
    """Step 3 of Algorithm 1: whether the gradient enters, and in whose place."""
    admitted, slot = policy.choose(tables, max_age)
    finite = torch.isfinite(tables.g_norm)
    accept = admitted & finite & (tables.g_norm > 0)
    if tables.g_priority is not None:
        accept = accept & torch.isfinite(tables.g_priority) & (tables.g_priority >= 0)
    if not is_built_in(policy):
        slot = checks.in_range(policy, slot, accept, tables.born.shape[-1])
    return Decision(finite, accept, slot)


def advance(policy: Policy, tables: Tables, decision: Decision, decay: float) -> tuple[Tensor, Tensor, Tensor]:
    """Steps 3 and 4: the tables after the insertion, every priority decayed, the new one included."""
    slots = torch.arange(tables.born.shape[-1], device=tables.born.device)
    hit = (slots == decision.slot[..., None]) & decision.accept[..., None]
    entry = policy.priority(tables.offered)[..., None]
    priority = torch.where(hit, entry, tables.priority)
    priority = torch.where(decision.finite[..., None], priority * decay, priority)
    norm = torch.where(hit, tables.g_norm[..., None], tables.norm)
    born = torch.where(hit, tables.t[..., None], tables.born)
    return priority, norm, born
