"""Which memories there are: from groups, options and state to stores. Only when something has changed; no ordinary step."""

from __future__ import annotations

from collections.abc import MutableMapping, Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor

from .. import engines
from .aggregations import aggregation_of
from .keys import SLOTS, ours, put
from .options import KEPT_ON_LOAD
from .ranks import prepare
from .store import Part, State, Store
from .takeover import fill

if TYPE_CHECKING:
    from .prepared import Prepared


def form(options: dict[str, Any]) -> Any:
    """What new stores are made for when it changes; the other options are only read."""
    return [options[name] for name in (*KEPT_ON_LOAD, "policy")], aggregation_of(options["aggr"]).damps


def make_stores(memory: Prepared, only_torch: str) -> list[Store]:
    """One under ``scope="global"``, one for each group of another scope; what the state holds is in them."""
    known = [block for store in memory.ready_stores for block in store.blocks]
    # Who decides together, and by which streams they draw random numbers; the first is scope="global".
    shares: list[tuple[list[Any], Sequence[int]]] = [([], [0])]
    index = 0
    for number, (group, options) in enumerate(zip(memory.groups, memory.options)):
        # A frozen parameter that has been in the memory stays in it: its gradients count as zero.
        owners = {
            id(param): (param, options, index + i)  # torch warns of one that comes twice
            for i, param in enumerate(group["params"])
            if param.requires_grad or memory.takes_all or SLOTS in memory.state.get(param, {})
        }
        mine = list(owners.values()) if options["topC"] > 0 else []
        own = (1 << 20) + index
        if options["scope"] == "global":
            shares[0][0].extend(mine)
        else:
            shares.append((mine, [number + 1] if options["scope"] == "group" else range(own, own + len(mine))))
        index += len(group["params"])
    stores = []
    for mine, streams in shares:
        if not mine:
            continue
        by_tensor = mine[0][1]["scope"] == "tensor"
        parts = [Part(param, options, i, n if by_tensor else 0, n) for n, (param, options, i) in enumerate(mine)]
        store = Store(parts, streams, by_tensor)
        prepare(store, memory.process_group, memory.lost_group)
        olds = [ours(memory.state.get(part.param, {})) for part in parts]
        together = memory.may_join and engines.wants_one_buffer(store, memory.epilogue, only_torch)
        fill(store, olds, together, [block for block in known if together or len(block.parts) == 1])
        stores.append(store)
    memory.outside = {*memory.params()} - {part.param for store in stores for part in store.parts}
    for param in memory.outside:
        put(memory.state, param, {})  # it is in no memory (any more): nothing keeps true what its state holds
    for store in stores:
        if any(SLOTS in memory.state.get(part.param, {}) for part in store.parts):
            attach(store, memory.state)  # made from existing state: what is there now is what counts
    return stores


def attach(store: Store, state: MutableMapping[Tensor, State]) -> None:
    """Write our keys into the optimizer's state, and take out those that this store does not use."""
    for part in store.parts:
        put(state, part.param, part.tensors)
    store.attached = True
