"""What a step works on: stores over groups and state that somebody else owns, prepared once, looked at before every step.

Users replace parameters, groups, options and state between steps. All that is noticed in one place (``Prepared.ready``): an
option whose value alone has changed is read; for anything else stores are made anew from what the state holds (making.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, MutableMapping, Sequence
from operator import itemgetter
from typing import Any, cast

import torch
from torch import Tensor

from .. import engines
from . import making
from .dtensors import PLAIN, aligned, is_dtensor, like, local
from .keys import SLOTS, SUM
from .options import read_options
from .reducing import all_reduce_
from .store import State, Store

Vectors = Sequence["Tensor | None"]
COMPILED = "a compiled step"

# torch's own way to keep dynamo out of a function without importing dynamo, which takes as long as torch.
_without_dynamo = getattr(torch, "_disable_dynamo", None) or torch.compiler.disable


class Prepared:
    """Stores, each with its engine; ``keys`` are the names that our options have in the groups."""

    takes_all = False  # also what needs no gradient
    usual: Mapping[str, Any]  # by their keys, the options of groups that lack them
    epilogue: Any = None  # what an engine may do of the base's step in the same pass (bases/families.py)

    def __init__(self, groups: list[dict[str, Any]], state: Any, keys: dict[str, str], process_group: Any) -> None:
        self.groups, self.state = groups, cast("MutableMapping[Tensor, State]", state)
        self.process_group, self.lost_group = process_group, False
        self.may_join = True  # slots of many parameters in one buffer
        self.keys = keys
        self._read: Callable[[dict[str, Any]], Any] = itemgetter(*keys.values())
        self._raw: list[Any] | None = None  # the options as they were read last
        # The same by their plain names, checked; the parts have these dictionaries.
        self.options: list[dict[str, Any]] = []
        self._forms = 0
        self.ready_stores: list[Store] = []  # as ``ready`` left them
        self.outside: set[Tensor] = set()  # parameters that are in none of them
        self._seen: Any = None  # the look that they were made after; None: they are to be made anew
        self._ids: Any = None  # of groups, parameters and their states
        self.only_torch = ""  # as it was said to ``ready``
        self._replayed: list[Any] = []  # engines of before whose tables a CUDA graph reads

    def ready(self, only_torch: str = "") -> list[Store]:
        """The stores, each with its engine, as groups, options and state are now; ``only_torch``: why none but torch's."""
        # Compiled code has torch's operations alone: the compiler makes kernels of them.
        self.only_torch = only_torch or (COMPILED if torch.compiler.is_compiling() else "")
        self._follow()
        return self.ready_stores

    @_without_dynamo
    def _follow(self) -> None:
        try:
            is_read = [self._read(group) for group in self.groups] == self._raw
        except KeyError:  # a group that others have made or loaded
            is_read = False
        if not is_read:
            self._read_options()
        if self._look() != self._seen:
            self._prepare()

    def _read_options(self) -> None:
        """Check the options that were set since. Those that describe the slots themselves ask for new stores."""
        options = read_options(self.groups, self.keys, self.usual)
        if [making.form(mine) for mine in options] == [making.form(mine) for mine in self.options]:
            for known, mine in zip(self.options, options):
                known.update(mine)
        else:
            self.options, self._forms = options, self._forms + 1
        self._kinds = engines.kinds(options)
        self._raw = [self._read(group) for group in self.groups]

    def _look(self) -> tuple[Any, Any]:
        """What stores are made for, and beside it what engines are chosen by: of tensors who they are, and where."""
        params, epilogue = self.params(), self.epilogue
        held = [self.state, *(mine for mine in self.state.values() if isinstance(mine, dict))]  # not a count of steps
        held += [each for group in self.groups for each in (group, *group["params"])]  # who is in which group, too
        ids = list(map(id, held))
        if ids != self._ids:
            self._ids = ids
            self._states = [self.state.get(param, {}) for param in params]
            self._plain = [param for param in params if type(param) in PLAIN]
            self._sharded: list[Any] = [param for param in params if is_dtensor(param)]
            self._held = held  # so that nothing else can have one of these ids
        here = [*self._plain, *(param._local_tensor for param in self._sharded)] if self._sharded else self._plain
        ours = self._held_tensors = [mine.get(key) for mine in self._states for key in (SLOTS, SUM)]
        tensors = (
            ids,
            [param.requires_grad for param in params],
            list(map(Tensor.data_ptr, here)),
            list(map(Tensor.stride, here)),  # p.data = p.data.t()
            list(map(id, ours)),
            [tensor.data_ptr() for tensor in ours if type(tensor) is Tensor],
        )
        takes = epilogue is not None and any(store.engine.name != "torch" for store in self.ready_stores)
        return (self._forms, tensors), (self.only_torch, self._kinds, epilogue.places(self._states) if takes else None)

    def _prepare(self) -> None:
        before = self.ready_stores
        self._replayed += [store.engine for store in before if getattr(store.engine, "captured", None)]
        joined = any(len(block.parts) > 1 for store in before for block in store.blocks)
        if joined and not all(engines.wants_one_buffer(store, self.epilogue, self.only_torch) for store in before):
            self._seen = None  # an engine that goes by each tensor's own rows takes over from torch's operations
        if self._seen is None or self._look()[0] != self._seen[0]:
            self._raw = self._seen = None
            self._read_options()
            with torch.no_grad():
                self.ready_stores = making.make_stores(self, self.only_torch)
            _let_go(before)
        for store in self.ready_stores:
            engines.choose(store, self.epilogue, self.only_torch)
        self._seen = self._look()

    def __del__(self) -> None:
        _let_go(self.__dict__.get("ready_stores", ()))

    @_without_dynamo
    def attach(self) -> None:
        """Write what is held into the state, where it is not there yet."""
        for store in self.ready_stores:
            if not store.attached:
                making.attach(store, self.state)
                self._seen = self._look()

    def params(self) -> list[Tensor]:
        """Of all groups."""
        return [param for group in self.groups for param in group["params"]]

    def vectors(self, given: Vectors) -> list[list[Tensor | None]]:
        """The vectors of each store's parts, as their parameters are laid out; raises for one that does not fit."""
        try:
            return [self._vectors_of(store, given) for store in self.ready_stores]
        except RuntimeError:
            # Though nothing seems to have moved: an address may be used a second time.
            self._seen = None
            return [self._vectors_of(store, given) for store in self.ready(self.only_torch)]

    def _vectors_of(self, store: Store, vectors: Vectors) -> list[Tensor | None]:
        mine = [vectors[part.index] for part in store.parts]
        if store.fits([v for v in mine if v is not None]):
            return mine
        for i, (part, v) in enumerate(zip(store.parts, mine)):
            if v is None:
                continue
            if v.layout is not torch.strided:
                raise RuntimeError(
                    f"a memory of whole gradients is dense and does not support sparse gradients (layout {v.layout}): "
                    "use a dense embedding (sparse=False), or topC=0 for that group"
                )
            mine[i] = v = aligned(v, part.param)
            here = local(v)
            if here.shape != part.layout.shape or here.device != part.device or v.dtype != part.dtype:
                raise RuntimeError(
                    f"a gradient of {v.dtype} and shape {tuple(here.shape)} on {here.device} for a parameter of "
                    f"{part.param.dtype} and shape {tuple(part.layout.shape)} on {part.device}"
                )
        return mine


def _let_go(stores: Iterable[Store]) -> None:
    """Stores that nobody uses any more are freed at once: they and their engines know each other."""
    for store in stores:
        store.engine = None


def run(
    store: Store, vectors: Vectors, priority: Tensor | None = None, fresh: bool = False, **half: bool
) -> list[Tensor | None]:
    """One step of one memory: Algorithm 1 of the paper, but for the base's update (which an engine with an epilogue does, too).

    Returns for each part its direction; ``None``: the vector itself, or an engine that has updated the parameter. torch's
    operations can leave one half out: ``directions=False`` or ``offer=False``.
    """
    engine = store.engine
    sums = engine.measure(vectors)  # norms and, where they are asked for, inner products: this rank's share
    sums = all_reduce_(sums, store)
    engine.decide(sums, priority)  # which slot is written, if any
    directions = engine.apply(fresh, **half)  # combine with what was held before, and insert: one pass
    return [like(part.param, d) if part.sharded and d is not None else d for part, d in zip(store.parts, directions)]
