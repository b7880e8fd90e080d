"""The one reduction of a step over ranks; ranks.py finds out over which, when a store is made."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch import Tensor

if TYPE_CHECKING:
    from .store import Store


def all_reduce_(sums: Tensor, store: Store) -> Tensor:
    """Add up ``sums`` over the ranks of a memory, in place where that is possible."""
    group = store.process_group
    if group is None:
        return sums
    # With parameters offloaded to the host, the group may know accelerators only.
    known = {device.type for device in getattr(group, "_device_types", [])}
    there = sums.contiguous()
    if known and sums.device.type not in known:
        there = there.to(torch.device(sorted(known)[-1]))
    dist.all_reduce(there, group=group)
    return there.to(sums.device)
