"""The memory of critical gradients, as a part of its own: the order of a step, and the one cache of what is prepared for it.

Users replace parameters, groups, options and state between steps. What was prepared is looked at before every step, in one
place (``Memory.ready``): an option whose value alone has changed is read; anything else is made anew from what the state
holds.
"""

from __future__ import annotations

from collections.abc import Callable, MutableMapping, Sequence
from operator import itemgetter
from typing import Any, cast
from weakref import ref

import torch
from torch import Tensor
from torch.optim import Optimizer

from .. import engines
from .aggregations import Linear, aggregation_of
from .layout import aligned, like, local
from .options import DEFAULTS, OBJECTS, check_agreement, default_options, normalize_options, saved_form, unexpected
from .ranks import all_reduce_, prepare, refuse_lost_group
from .store import KEYS, SLOTS, SUM, Part, State, Store
from .takeover import check_state, fill

Vectors = Sequence["Tensor | None"]
Priority = Any  # a number, a 0-dim tensor; under scope="tensor" one for each parameter

# torch's own way to keep dynamo out of a function without importing dynamo, which takes as long as torch.
_without_dynamo = getattr(torch, "_disable_dynamo", None) or torch.compiler.disable
_NOTHING: dict[str, Any] = {}
_PLAIN = (Tensor, torch.nn.Parameter)


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

    def __init__(self, params: Any, *, process_group: Any = None, state: Any = None, **options: Any) -> None:
        for name in options:
            if name not in DEFAULTS:
                raise unexpected("Memory", name, [*DEFAULTS, "process_group", "state"])
        usual = default_options(options)
        normalize_options(usual)
        given: list[Any] = [params] if torch.is_tensor(params) else params if isinstance(params, list) else list(params)
        if not given:
            raise ValueError("Memory got an empty list of parameters")
        groups: list[dict[str, Any]] = given if isinstance(given[0], dict) else [{"params": list(given)}]
        for group in groups:  # the same dictionaries, so that what is set in them later counts
            group["params"] = [group["params"]] if torch.is_tensor(group["params"]) else list(group["params"])
            group.update({**usual, **group})
        self._usual = usual
        owner = state if isinstance(state, Optimizer) else None
        held = {} if state is None else state if owner is None else owner.state
        self.set_up(groups, held, {name: name for name in DEFAULTS}, process_group)
        if owner is not None:
            self._owner = ref(owner)
            follow_loading(owner)
        # Others save and pickle their state, where each view of a buffer would bring the whole of it; and freeze parameters.
        self.may_join = self._takes_all = state is None
        self._read_options()

    _usual: dict[str, Any] = _NOTHING  # of groups that an optimizer on a memory is given later
    _takes_all = False  # also what needs no gradient

    def set_up(self, groups: list[dict[str, Any]], state: Any, keys: dict[str, str], process_group: Any) -> None:
        """Over groups and state that somebody else owns; ``keys`` are the names that our options have in those groups."""
        self.groups, self.state = groups, cast("MutableMapping[Tensor, State]", state)
        self.process_group, self.lost_group = process_group, False
        self.may_join = True  # slots of many parameters in one buffer
        self._keys = keys
        self._read: Callable[[dict[str, Any]], Any] = itemgetter(*keys.values())
        self._raw: list[Any] | None = None  # the options as they were read last
        # The same by their plain names, checked; the parts have these dictionaries.
        self._options: list[dict[str, Any]] = []
        self._stores: list[Store] | None = None
        # Groups, with their parameters that have no memory.
        self.outside: list[tuple[dict[str, Any], list[Tensor]]] = []
        self._structure: Any = None  # what the stores were made for (_look); None: they are to be made anew
        self._places: Any = None  # what engines were chosen for (Epilogue.places); None: they are to be chosen again
        self._ids: Any = None  # of groups, parameters and their states
        self.states: list[State] = []  # of each parameter

    _owner: Callable[[], Optimizer | None] = staticmethod(lambda: None)  # an optimizer that is built on this memory

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
        for store in self._stores or ():
            if not store.attached:
                store.attach(self.state)
                self._structure = None if torch.compiler.is_compiling() else self._look()

    def _params(self) -> list[Tensor]:
        return [param for group in self.groups for param in group["params"]]

    def _check_count(self, vectors: Vectors) -> None:
        count = len(self._params())
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
        if given.shape != (len(self._params()),):
            raise ValueError(f"Invalid priority: shape {tuple(given.shape)}, expected one for each parameter")
        return given[[part.index for part in store.parts]]

    # -- what is prepared ----------------------------------------------------------------------------------------------

    def ready(self, epilogue: Any = None, only_torch: bool = False) -> list[Store]:
        """The stores, each with its engine, as groups, options and state are now.

        ``epilogue``: what an engine may do of the base's step in the same pass (bases/families.py).
        """
        self._follow_owner()
        if len(self.groups) != len(self._options):
            for group in self.groups:
                group.update({**self._usual, **group})
        if [self._read(group) for group in self.groups] != self._raw:
            self._read_options()
        if torch.compiler.is_compiling():
            if not self._is_compiled():
                self._prepare(None, True)
        elif self._stores is None or self._look() != self._structure:
            self._prepare(epilogue, only_torch)
        else:
            places = (only_torch, epilogue and epilogue.places(self.states))
            if places != self._places or any(store.engine.waiting for store in self._stores):
                self._choose_engines(epilogue, only_torch)
        assert self._stores is not None
        return self._stores

    def _follow_owner(self) -> None:
        owner = self._owner()
        if owner is not None:
            self.groups, self.state = owner.param_groups, owner.state

    @property
    def ready_stores(self) -> list[Store]:
        """As ``ready`` left them."""
        return self._stores or []

    def _read_options(self) -> None:
        """Check the options that were set since; what describes the slots themselves asks for new stores."""
        options = []
        for group in self.groups:
            options.append({name: group[key] for name, key in self._keys.items()})
            normalize_options(options[-1])
        together = [mine for mine in options if mine["topC"] > 0 and mine["scope"] == "global"]
        if together:
            check_agreement(together)
        if [_form(mine) for mine in options] == [_form(mine) for mine in self._options]:
            if [_kind(mine) for mine in options] != [_kind(mine) for mine in self._options]:
                self._places = None  # another engine may be wanted
            for known, mine in zip(self._options, options):
                known.update(mine)
        else:
            self._options, self._structure = options, None
        for group, mine in zip(self.groups, options):
            group.update({self._keys[name]: value for name, value in mine.items()})
        self._raw = [self._read(group) for group in self.groups]

    def _look(self) -> Any:
        """What the stores depend on, by identity and address: equal looks, nothing has moved."""
        params = self._params()
        ids = [id(self.state), *map(id, self.groups), *map(id, params), *map(id, self.state.values())]
        if ids != self._ids:
            self._ids = ids
            self.states = [self.state.get(param, _NOTHING) for param in params]
            self._plain = [param for param in params if type(param) in _PLAIN]
            # Kept, so that nothing else can have one of these ids.
            self._held = self.state, list(self.groups), params, list(self.state.values())
        tensors = [mine.get(key) for mine in self.states for key in (SLOTS, SUM)]
        self._held_tensors = tensors
        return (
            ids,
            [param.requires_grad for param in params],
            list(map(Tensor.data_ptr, self._plain)),
            list(map(id, tensors)),
            [tensor.data_ptr() for tensor in tensors if type(tensor) is Tensor],
        )

    def look_again(self) -> None:
        """What was prepared does not fit, though nothing seems to have moved: an address may be used a second time."""
        self._structure = None

    def _is_compiled(self) -> bool:
        """A compiled step guards its tensors itself, and would trace a look at every one of them."""
        if self._stores is None or self._options is not self._made_for or self._places != (True, None):
            return False
        for store in self._stores:
            first = store.parts[0]
            held = self.state.get(first.param, _NOTHING).get(SLOTS)
            if (store.attached or held is not None) and held is not first.tensors[SLOTS]:
                return False
        return True

    _made_for: Any = None  # the list of options that the stores were made for

    @_without_dynamo
    def _prepare(self, epilogue: Any, only_torch: bool) -> None:
        if self._stores is None or self._structure is None or self._look() != self._structure:
            self._make_stores(epilogue, only_torch)
        self._structure = self._look()
        self._choose_engines(epilogue, only_torch)

    @torch.no_grad()
    def _make_stores(self, epilogue: Any, only_torch: bool) -> None:
        known = [block for store in self._stores or () for block in store.blocks]
        self._raw, self._stores = None, []
        self._read_options()
        self._made_for = self._options
        index, everyone = 0, []
        together: list[tuple[Tensor, dict[str, Any], int]] = []
        for number, (group, mine) in enumerate(zip(self.groups, self._options)):
            # A frozen parameter that has been in the memory stays in it: its gradients count as zero.
            owners = [
                (param, mine, index + i)
                for i, param in enumerate(group["params"])
                if param.requires_grad or self._takes_all or SLOTS in self.state.get(param, _NOTHING)
            ]
            owners = list({id(owner[0]): owner for owner in owners}.values())  # torch warns of one that comes twice
            if mine["topC"] > 0 and owners:
                if mine["scope"] == "global":
                    together += owners
                elif mine["scope"] == "group":
                    everyone.append((owners, [number + 1], False))
                else:
                    everyone.append((owners, [(1 << 20) + index + i for i in range(len(owners))], True))
            index += len(group["params"])
        if together:
            everyone.insert(0, (together, [0], False))
        for owners, streams, by_tensor in everyone:
            self._stores.append(self._make_store(owners, streams, by_tensor, known, epilogue, only_torch))
        inside = {part.param for store in self._stores for part in store.parts}
        self.outside = [(group, [p for p in group["params"] if p not in inside]) for group in self.groups]
        self._forget(inside)
        for store in self._stores:
            if any(SLOTS in self.state.get(part.param, _NOTHING) for part in store.parts):
                store.attach(self.state)  # made from existing state: what is there now is what counts

    def _make_store(
        self, owners: list[Any], streams: list[int], by_tensor: bool, known: list[Any], epilogue: Any, only_torch: bool
    ) -> Store:
        if self.lost_group:
            refuse_lost_group()
        parts = [Part(p, mine, index, i if by_tensor else 0, i) for i, (p, mine, index) in enumerate(owners)]
        store = Store(parts, streams, by_tensor)
        prepare(store, self.process_group)
        olds = [
            {key: value for key, value in self.state.get(part.param, _NOTHING).items() if key in KEYS} for part in parts
        ]
        fill(store, olds, self.may_join and engines.wants_one_buffer(store, epilogue, only_torch), known)
        return store

    def _choose_engines(self, epilogue: Any, only_torch: bool) -> None:
        for store in self._stores or ():
            engines.choose(store, epilogue, only_torch)
        self._places = (only_torch, epilogue and epilogue.places(self.states))

    def _forget(self, inside: set[Tensor]) -> None:
        """Take our keys out of the state of parameters that are in no memory (any more): nothing keeps them true."""
        for param in [param for param in self._params() if param not in inside]:
            state = self.state.get(param, _NOTHING)
            ours = [state.pop(key) for key in KEYS if key in state]
            if ours and not state:
                del self.state[param]

    # -- saving --------------------------------------------------------------------------------------------------------

    def __getstate__(self) -> dict[str, Any]:
        """What is prepared stays behind: it is made anew from the state. A process group cannot be kept."""
        lost = self.lost_group or self.process_group is not None
        names = ("groups", "state", "may_join", "_usual", "_takes_all", "_keys")
        return {**{name: getattr(self, name) for name in names}, "lost_group": lost}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.set_up(state["groups"], state["state"], state["_keys"], None)
        self.__dict__.update(state)

    def __len__(self) -> int:
        """Entries that are held; over all tensors under ``scope="tensor"``."""
        self._follow_owner()
        if self._stores is None or self._look() != self._structure:
            self.ready()
        return sum(int((store.born > 0).sum()) for store in self.ready_stores)

    def state_dict(self) -> dict[str, Any]:
        """What is held, by the number of the parameter, in tensors of their own."""
        self.ready()
        state = {i: self.state.get(param, _NOTHING) for i, param in enumerate(self._params())}
        return {"state": {i: {k: v.clone() for k, v in mine.items() if k in KEYS} for i, mine in state.items()}}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from ``state_dict``; options stay as they are, another ``topC`` keeps the strongest entries."""
        params = self._params()
        if sorted(state_dict["state"]) != list(range(len(params))):
            raise ValueError(f"Invalid state_dict: {len(state_dict['state'])} parameters, expected {len(params)}")
        for i, param in enumerate(params):
            check_state(param, state_dict["state"].get(i, {}))
        for i, param in enumerate(params):
            mine = self.state.setdefault(param, {})
            for key in KEYS:
                mine.pop(key, None)
            mine.update({key: value.detach().clone() for key, value in state_dict["state"].get(i, {}).items()})
        self._structure = None
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


def follow_loading(optimizer: Optimizer) -> None:
    """Let ``load_state_dict`` of an optimizer that is built on a memory bring back our tensors as they were saved.

    torch casts every tensor to the parameter's dtype, integers too. Objects among the options are saved by their names.
    """
    if optimizer.__dict__.get("_follows_loading"):
        return
    optimizer._follows_loading = True  # type: ignore[attr-defined]
    taken: dict[int, State] = {}

    def before(optimizer: Optimizer, state_dict: dict[str, Any]) -> dict[str, Any]:
        taken.clear()
        taken.update(
            {
                i: {key: value.detach().clone() for key, value in state.items() if key in KEYS}
                for i, state in state_dict["state"].items()
                if isinstance(state, dict)
            }
        )
        groups = [dict(group) for group in state_dict["param_groups"]]
        for group, mine in zip(groups, optimizer.param_groups):
            for name in OBJECTS:
                if saved_form(mine.get(name)) == group.get(name):
                    group[name] = mine[name]
        return {**state_dict, "param_groups": groups}

    def after(optimizer: Optimizer) -> None:
        params = [param for group in optimizer.param_groups for param in group["params"]]
        for i, mine in taken.items():
            if mine:
                optimizer.state[params[i]].update(mine)
        taken.clear()

    def saved(optimizer: Optimizer, state_dict: dict[str, Any]) -> None:
        for group in state_dict["param_groups"]:
            group.update({name: saved_form(group[name]) for name in OBJECTS if name in group})

    optimizer.register_load_state_dict_pre_hook(before)
    optimizer.register_load_state_dict_post_hook(after)
    optimizer.register_state_dict_post_hook(saved)


class MisfitError(RuntimeError):
    """A gradient does not fit the memory's layout."""


def _form(options: dict[str, Any]) -> Any:
    """What new stores are made for when it changes; the other options are only read."""
    aggregation = aggregation_of(options["aggr"])
    adds = type(aggregation) if aggregation.damps else "adds"
    kept = ("topC", "policy", "scope", "memory_dtype", "memory_device")
    return [options[name] for name in kept], adds


def _kind(options: dict[str, Any]) -> Any:
    """What engines are chosen by; of aggregations that every engine knows, no more than that."""
    aggregation = aggregation_of(options["aggr"])
    return type(aggregation) if isinstance(aggregation, Linear) or aggregation.damps else aggregation
