"""The memory of critical gradients, as a part of its own: the order of a step, and the one cache of what is prepared for it.

Users replace parameters, groups, options and state between steps. What was prepared is looked at before every step, in one
place (``Memory.ready``): an option whose value alone has changed is read; for anything else stores are made anew from what
the state holds (making.py).
"""

from __future__ import annotations

from collections.abc import Callable, MutableMapping, Sequence
from operator import itemgetter
from typing import Any, NamedTuple, cast
from weakref import ref

import torch
from torch import Tensor
from torch.optim import Optimizer

from .. import engines
from . import making, saving
from .layout import aligned, like, local
from .options import DEFAULTS, check_options, default_options, unexpected
from .reducing import all_reduce_
from .store import SLOTS, SUM, State, Store

Vectors = Sequence["Tensor | None"]
Priority = Any  # a number, a 0-dim tensor; under scope="tensor" one for each parameter

# torch's own way to keep dynamo out of a function without importing dynamo, which takes as long as torch.
_without_dynamo = getattr(torch, "_disable_dynamo", None) or torch.compiler.disable
_NOTHING: dict[str, Any] = {}
_PLAIN = (Tensor, torch.nn.Parameter)


class Look(NamedTuple):
    """What was prepared depends on, by identity and address: equal looks, nothing has moved."""

    forms: int  # which options describe the slots: a number that counts their changes
    tensors: Any  # groups, parameters, their state
    engines: Any  # what engines were chosen by, beside all this


class Memory:
    """A memory of critical gradients, or of any other vectors, without an optimizer.

    Args:
        params: parameters or groups of them; a group may have options of its own.
        process_group: for parameters that are sharded without showing it: the ranks to sum norms over.
        state: an optimizer that is built on this memory, or its ``state``: the memory's keys are written there, under each
            parameter, so that the optimizer saves, pickles and reshards them. Of an optimizer itself the memory also follows
            ``load_state_dict``, without which torch would cast its tables to the parameters' dtype.
        **options: ``topC, decay, aggr, kappa, rho, policy, every, scope, max_age, seed, memory_dtype, memory_device``, as in
            ``critgrad.Adam_C``.

    Vectors are one tensor for each parameter, of its shape, dtype and device, or ``None``, which counts as zero. No call writes
    to them or keeps them; results are fresh tensors, ``None`` where the vector is.

    >>> weight = torch.nn.Parameter(torch.zeros(2))
    >>> memory = Memory([weight], topC=2, aggr="sum")
    >>> memory.step([torch.tensor([3.0, 4.0])])  # nothing is held yet
    [tensor([3., 4.])]
    >>> memory.step([torch.tensor([1.0, 1.0])])  # plus the mean of what is held
    [tensor([4., 5.])]
    >>> len(memory)
    2
    """

    usual: dict[str, Any] = _NOTHING  # of groups that an optimizer on a memory is given later
    takes_all = False  # also what needs no gradient
    _owner: Callable[[], Optimizer | None] = staticmethod(lambda: None)  # an optimizer that is built on this memory

    def __init__(self, params: Any, *, process_group: Any = None, state: Any = None, **options: Any) -> None:
        for name in options:
            if name not in DEFAULTS:
                raise unexpected("Memory", name, [*DEFAULTS, "process_group", "state"])
        self.usual = default_options(options)
        check_options([self.usual])
        given: list[Any] = [params] if torch.is_tensor(params) else params if isinstance(params, list) else list(params)
        if not given:
            raise ValueError("Memory got an empty list of parameters")
        groups: list[dict[str, Any]] = given if isinstance(given[0], dict) else [{"params": list(given)}]
        for group in groups:  # the same dictionaries, so that what is set in them later counts
            group["params"] = [group["params"]] if torch.is_tensor(group["params"]) else list(group["params"])
            group.update({**self.usual, **group})
        owner = state if isinstance(state, Optimizer) else None
        held = {} if state is None else state if owner is None else owner.state
        self.set_up(groups, held, {name: name for name in DEFAULTS}, process_group)
        if owner is not None:
            self._owner = ref(owner)
            saving.follow_loading(owner)
        # Others save and pickle their state, where each view of a buffer would bring the whole of it; and freeze parameters.
        self.may_join = self.takes_all = state is None
        self._read_options()

    def set_up(self, groups: list[dict[str, Any]], state: Any, keys: dict[str, str], process_group: Any) -> None:
        """Over groups and state that somebody else owns; ``keys`` are the names that our options have in those groups."""
        self.groups, self.state = groups, cast("MutableMapping[Tensor, State]", state)
        self.process_group, self.lost_group = process_group, False
        self.may_join = True  # slots of many parameters in one buffer
        self.keys = keys
        self._read: Callable[[dict[str, Any]], Any] = itemgetter(*keys.values())
        self._raw: list[Any] | None = None  # the options as they were read last
        self.options: list[
            dict[str, Any]
        ] = []  # the same by their plain names, checked; the parts have these dictionaries
        self._forms = 0
        self.ready_stores: list[Store] = []  # as ``ready`` left them
        self.outside: set[Tensor] = set()  # parameters that are in none of them
        self._seen: Look | None = None  # what they were made for; None: they are to be made anew
        self._ids: Any = None  # of groups, parameters and their states
        self._given: tuple[Any, bool] = (None, False)  # to ``ready``

    # -- a step --------------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def step(self, vectors: Vectors, priority: Priority = None) -> list[Tensor | None]:
        """Combine the vectors with what is held, then offer them to the memory: one pass, one reduction over ranks.

        ``priority`` stands in the place of the vectors' norm: a number or 0-dim tensor, equal on all ranks; under
        ``scope="tensor"`` one for each parameter, or one for all. Nothing is admitted if it is not finite, or negative.
        """
        out = self._copies(vectors)
        for store, mine, rank in self._checked(self.ready(), vectors, priority):
            for part, d in zip(store.parts, run(store, mine, rank, fresh=True)):
                if d is not None:
                    out[part.index] = d
        self.attach()
        return out

    @torch.no_grad()
    def combine(self, vectors: Vectors) -> list[Tensor | None]:
        """The vectors combined with what is held; while nothing is held, equal to them."""
        out = self._copies(vectors)
        for store in self.ready(only_torch=True):
            engine = store.engine
            engine.decide(all_reduce_(engine.measure(self.vectors_of(store, vectors)), store), None, offer=False)
            for part, d in zip(store.parts, engine.apply(fresh=True, offer=False)):
                if d is not None:
                    out[part.index] = like(part.param, d)
        return out

    @torch.no_grad()
    def offer(self, vectors: Vectors, priority: Priority = None) -> None:
        """Admission, insertion, decay, tick; ``priority`` as in ``step``."""
        self._check_count(vectors)
        for store, mine, rank in self._checked(self.ready(only_torch=True), vectors, priority):
            engine = store.engine
            engine.decide(all_reduce_(engine.measure(mine), store), rank)
            engine.apply(fresh=True, directions=False)
        self.attach()

    def attach(self) -> None:
        """Write what is held into the state, where it is not there yet."""
        for store in self.ready_stores:
            if not store.attached:
                store.attach(self.state)
                self._seen = None if torch.compiler.is_compiling() else self._look()

    def params(self) -> list[Tensor]:
        """Of all groups."""
        return [param for group in self.groups for param in group["params"]]

    def _check_count(self, vectors: Vectors) -> None:
        count = len(self.params())
        if len(vectors) != count:
            raise ValueError(f"Invalid vectors: {len(vectors)} of them, expected one for each of {count} parameters")

    def _checked(self, stores: list[Store], vectors: Vectors, priority: Priority) -> list[tuple[Store, Any, Any]]:
        """Each store with its vectors and priorities: all of them looked at before any store is written to."""
        return [(store, self.vectors_of(store, vectors), self._priority(store, priority)) for store in stores]

    def _copies(self, vectors: Vectors) -> list[Tensor | None]:
        self._check_count(vectors)
        return [None if v is None else v.detach().clone() for v in vectors]

    def vectors_of(self, store: Store, vectors: Vectors) -> list[Tensor | None]:
        """The vectors of a store's parts, as their parameters are laid out; ``MisfitError`` for one that does not fit."""
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
                raise MisfitError(
                    f"a gradient of {v.dtype} and shape {tuple(here.shape)} on {here.device} for a parameter of "
                    f"{part.param.dtype} and shape {tuple(part.layout.shape)} on {part.device}"
                )
        return mine

    def _priority(self, store: Store, priority: Priority) -> Tensor | None:
        """One for each row of a store's tables."""
        if priority is None:
            return None
        given = torch.as_tensor(priority, device=store.device).detach()
        if not store.by_tensor:
            if given.numel() != 1:
                raise ValueError(f"Invalid priority: {given.numel()} numbers, expected one")
            return given.reshape(1)
        if given.dim() == 0:
            return given.expand(store.rows)  # one number for all of them: of groups of which some have another scope
        if given.shape != (len(self.params()),):
            raise ValueError(f"Invalid priority: shape {tuple(given.shape)}, expected one for each parameter")
        return given[[part.index for part in store.parts]]

    # -- what is prepared ----------------------------------------------------------------------------------------------

    def ready(self, epilogue: Any = None, only_torch: bool = False) -> list[Store]:
        """The stores, each with its engine, as groups, options and state are now.

        ``epilogue``: what an engine may do of the base's step in the same pass (bases/families.py).
        """
        self._given = epilogue, only_torch
        self.follow_owner()
        if len(self.groups) != len(self.options):
            for group in self.groups:
                group.update({**self.usual, **group})
        if [self._read(group) for group in self.groups] != self._raw:
            self._read_options()
        if torch.compiler.is_compiling():
            if not self._is_compiled():
                self._given = None, True
                self._prepare()
        elif self._look() != self._seen or any(store.engine.waiting for store in self.ready_stores):
            self._prepare()
        return self.ready_stores

    def follow_owner(self) -> None:
        """An optimizer that is built on this memory has new groups and a new state after loading."""
        owner = self._owner()
        if owner is not None:
            self.groups, self.state = owner.param_groups, owner.state

    def _read_options(self) -> None:
        """Check the options that were set since. Those that describe the slots themselves ask for new stores."""
        options = [{name: group[key] for name, key in self.keys.items()} for group in self.groups]
        check_options(options)
        if [making.form(mine) for mine in options] == [making.form(mine) for mine in self.options]:
            for known, mine in zip(self.options, options):
                known.update(mine)
        else:
            self.options, self._forms = options, self._forms + 1
        for group, mine in zip(self.groups, options):
            group.update({self.keys[name]: value for name, value in mine.items()})
        self._kinds = [engines.kind(mine) for mine in options]
        self._raw = [self._read(group) for group in self.groups]

    def _look(self) -> Look:
        params, (epilogue, only_torch) = self.params(), self._given
        ids = [id(self.state), *map(id, self.groups), *map(id, params), *map(id, self.state.values())]
        if ids != self._ids:
            self._ids = ids
            self._states = [self.state.get(param, _NOTHING) for param in params]
            self._plain = [param for param in params if type(param) in _PLAIN]
            # Kept, so that nothing else can have one of these ids.
            self._held = self.state, list(self.groups), params, list(self.state.values())
        ours = self._held_tensors = [mine.get(key) for mine in self._states for key in (SLOTS, SUM)]
        tensors = (
            ids,
            [param.requires_grad for param in params],
            list(map(Tensor.data_ptr, self._plain)),
            list(map(id, ours)),
            [tensor.data_ptr() for tensor in ours if type(tensor) is Tensor],
        )
        return Look(self._forms, tensors, (only_torch, self._kinds, epilogue and epilogue.places(self._states)))

    def look_again(self) -> None:
        """What was prepared does not fit, though nothing seems to have moved: an address may be used a second time."""
        self._seen = None

    def _is_compiled(self) -> bool:
        """A compiled step guards its tensors itself, and would trace a look at every one of them."""
        if self._seen is None or self._seen.forms != self._forms or self._seen.engines != (True, self._kinds, None):
            return False
        for store in self.ready_stores:
            first = store.parts[0]
            held = self.state.get(first.param, _NOTHING).get(SLOTS)
            if (store.attached or held is not None) and held is not first.tensors[SLOTS]:
                return False
        return True

    @_without_dynamo
    def _prepare(self) -> None:
        if self._seen is None or self._look()[:2] != self._seen[:2]:
            self._raw = self._seen = None
            self._read_options()
            with torch.no_grad():
                self.ready_stores = making.make_stores(self, *self._given)
            self.outside = {*self.params()} - {part.param for store in self.ready_stores for part in store.parts}
        for store in self.ready_stores:
            engines.choose(store, *self._given)
        self._seen = self._look()

    # -- saving --------------------------------------------------------------------------------------------------------

    def __getstate__(self) -> dict[str, Any]:
        """What is prepared stays behind: it is made anew from the state. A process group cannot be kept."""
        lost = self.lost_group or self.process_group is not None
        names = ("groups", "state", "may_join", "usual", "takes_all", "keys")
        return {**{name: getattr(self, name) for name in names}, "lost_group": lost}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.set_up(state["groups"], state["state"], state["keys"], None)
        self.__dict__.update(state)

    def __len__(self) -> int:
        """Entries that are held; over all tensors under ``scope="tensor"``."""
        self.follow_owner()
        if self._seen is None or self._look()[:2] != self._seen[:2]:
            self.ready()
        return sum(int((store.born > 0).sum()) for store in self.ready_stores)

    def state_dict(self) -> dict[str, Any]:
        """What is held, by the number of the parameter, in tensors of their own."""
        self.ready()
        return saving.state_dict(self)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from ``state_dict``; options stay as they are, another ``topC`` keeps the strongest entries."""
        saving.load_state_dict(self, state_dict)
        self._seen = None
        self.ready()


def run(store: Store, vectors: Vectors, priority: Tensor | None = None, fresh: bool = False) -> list[Tensor | None]:
    """One step of one memory: Algorithm 1 of the paper, but for the base's update (which an engine with an epilogue does, too).

    Returns for each part its direction; ``None``: the vector itself, or an engine that has updated the parameter.
    """
    engine = store.engine
    sums = engine.measure(vectors)  # norms and, where they are asked for, inner products: this rank's share
    sums = all_reduce_(sums, store)
    engine.decide(sums, priority)  # which slot is written, if any; the tables go on
    directions = engine.apply(fresh)  # combine with what was held before, and insert: one pass
    return [like(part.param, d) if part.sharded and d is not None else d for part, d in zip(store.parts, directions)]


class MisfitError(RuntimeError):
    """A gradient does not fit the memory's layout."""
