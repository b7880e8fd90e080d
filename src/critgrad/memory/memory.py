"""The memory of critical gradients, as a part of its own: ``critgrad.Memory``.

Optimizers with a memory in front (bases/) use what it is built on, ``Prepared`` and ``run``.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, MutableMapping
from typing import Any
from weakref import ref

import torch
from torch import Tensor
from torch.optim import Optimizer

from .keys import copies, put
from .options import DEFAULTS, default_options, saved_form, unexpected
from .prepared import Prepared, Vectors, run
from .store import Store
from .takeover import check_state, incoming

_PLAIN = {name: name for name in DEFAULTS}  # in the groups our options have their own names
_TAKEN = "critical_taken"  # in a group, while torch loads: what the checkpoint holds of each parameter's memory
Priority = Any  # a number, a 0-dim tensor; under scope="tensor" one for each parameter


class Memory(Prepared):
    """A memory of critical gradients, or of any other vectors, without an optimizer.

    Args:
        params: parameters or groups of them. A group may have options of its own: the others are written into it, and one that
            is there already counts.
        process_group: for parameters that are sharded without showing it: the ranks to sum norms over.
        state: an optimizer that is built on this memory, or its ``state``: the memory's keys are written there, under each
            parameter, so that the optimizer saves, pickles and reshards them. With an optimizer itself the memory (one
            for each) is over all its parameters, and follows ``add_param_group`` and ``load_state_dict``, where torch alone
            would cast its tables to the parameters' dtype: ``topC, scope, memory_dtype`` and ``memory_device`` stay as they
            are, the other options come from the checkpoint.
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

    _owner: Callable[[], Optimizer | None] = staticmethod(lambda: None)  # an optimizer that is built on this memory

    def __init__(self, params: Any, *, process_group: Any = None, state: Any = None, **options: Any) -> None:
        for name in options:
            if name not in DEFAULTS:
                raise unexpected("Memory", name, [*DEFAULTS, "process_group", "state"])
        self.usual = default_options(options)
        owner = state if isinstance(state, Optimizer) else None
        held = {} if state is None else state if owner is None else owner.state
        if not isinstance(held, MutableMapping):
            raise TypeError(f"Invalid state: {state!r}, expected an optimizer or its state")
        super().__init__(_groups(params), held, _PLAIN, process_group)
        if owner is not None:
            given, self.groups = self.params(), owner.param_groups
            if list(map(id, given)) != list(map(id, self.params())):
                raise ValueError(f"Invalid params: they are not those of this {type(owner).__name__}, in their order")
        for name in options:
            used = [saved_form(group[name]) for group in self.groups if name in group]
            if len(used) == len(self.groups) and saved_form(self.usual[name]) not in used:
                why = f"every group has a {name!r} already: {used[0]!r}"
                warnings.warn(f"Memory({name}={options[name]!r}) has no effect: {why}", stacklevel=2)
        if owner is not None:  # by its defaults torch brings them to new groups, pickles and copies
            self.usual = {name: owner.defaults.setdefault(name, value) for name, value in self.usual.items()}
        # Others save and pickle their state, where each view of a buffer would bring the whole of it; and freeze parameters.
        self.may_join = self.takes_all = state is None
        self._read_options()
        if owner is not None:
            _follow_loading(owner)
            self._owner, owner._critical_newest = ref(owner), ref(self)  # type: ignore[attr-defined]

    # -- a step --------------------------------------------------------------------------------------------------------

    def step(self, vectors: Vectors, priority: Priority = None) -> list[Tensor | None]:
        """Combine the vectors with what is held, then offer them to the memory: one pass, one reduction over ranks.

        ``priority`` stands in the place of the vectors' norm: a number or 0-dim tensor, equal on all ranks; under
        ``scope="tensor"`` one for each parameter, or one for all. Nothing is admitted if it is not finite, or negative.
        Whatever it is, ``MNDS``, ``NCPR`` and the picks (``min``, ``median``, ``max``) go by the vectors' own norms.
        """
        return self._run(vectors, priority)

    def combine(self, vectors: Vectors) -> list[Tensor | None]:
        """The vectors combined with what is held; while nothing is held, equal to them."""
        return self._run(vectors, None, offer=False)

    def offer(self, vectors: Vectors, priority: Priority = None) -> None:
        """Admission, insertion, decay, tick; ``priority`` as in ``step``."""
        self._run(vectors, priority, directions=False)

    @torch.no_grad()
    def _run(self, vectors: Any, priority: Priority, **half: bool) -> list[Tensor | None]:
        self.ready("combine() or offer() alone" if half else "")
        params = self.params()
        wanted = f"one for each of {len(params)} parameters"
        given: list[Any] = [vectors] if torch.is_tensor(vectors) else list(vectors)
        if torch.is_tensor(vectors) or not all(v is None or torch.is_tensor(v) for v in given):
            kinds = f"a {type(vectors).__name__} of {', '.join({type(v).__name__: v for v in given})}"
            raise TypeError(f"Invalid vectors: {kinds}, expected a list of tensors or None, {wanted}")
        if len(given) != len(params):
            raise ValueError(f"Invalid vectors: {len(given)} of them, expected {wanted}")
        out: list[Tensor | None] = [None] * len(params)
        if half.get("directions", True):
            out = [None if v is None else v.detach().clone() for v in given]
        try:
            mine = self.vectors(given)  # all of them are looked at before any store is written to
        except RuntimeError as error:
            for i, (v, p) in enumerate(zip(given, params)):
                if v is not None and (v.shape, v.dtype, v.device, v.layout) != (p.shape, p.dtype, p.device, p.layout):
                    raise RuntimeError(f"vectors[{i}]: {error}") from None
            raise
        ranks = [self._priority(store, priority) for store in self.ready_stores]
        for store, found, rank in zip(self.ready_stores, mine, ranks):
            for part, d in zip(store.parts, run(store, found, rank, fresh=True, **half)):
                if d is not None:
                    out[part.index] = d if part.sharded else d.data  # changed in place, it is nobody else's change
        if half.get("offer", True):
            self.attach()
        return out

    def _priority(self, store: Store, priority: Priority) -> Tensor | None:
        """One for each row of a store's tables."""
        if priority is None or callable(priority):
            return priority(store) if priority else None  # Adam_CM's goes by who is in the store
        # Python's numbers would become single ones, and the tables may be wider.
        dtype = priority.dtype if torch.is_tensor(priority) else store.dtype
        given = torch.as_tensor(priority, dtype=dtype, device=store.device).detach()
        if not store.by_tensor:
            if given.numel() != 1:
                raise ValueError(f"Invalid priority: {given.numel()} numbers, expected one")
            return given.reshape(1)
        if given.dim() == 0:
            return given.expand(store.rows)  # one number for all of them: of groups of which some have another scope
        if given.shape != (len(self.params()),):
            raise ValueError(f"Invalid priority: shape {tuple(given.shape)}, expected one for each parameter")
        return given[[part.index for part in store.parts]]

    def ready(self, only_torch: str = "") -> list[Store]:
        """The stores as groups, options and state are now; of an owner, which has new ones after loading."""
        owner = self._owner()
        if owner is not None:
            if owner._critical_newest() is not self:  # type: ignore[attr-defined]
                raise RuntimeError(
                    f"another critgrad.Memory was made on this {type(owner).__name__} since, under the same keys of its state: "
                    "one for each optimizer (others with a state of their own: state={})"
                )
            self.groups, self.state = owner.param_groups, owner.state
        return super().ready(only_torch)

    # -- saving --------------------------------------------------------------------------------------------------------

    def __getstate__(self) -> dict[str, Any]:
        """What is prepared stays behind: it is made anew from the state. A process group cannot be kept."""
        lost = self.lost_group or self.process_group is not None
        names = ("groups", "state", "may_join", "usual", "takes_all", "keys")
        return {**{name: getattr(self, name) for name in names}, "lost_group": lost}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__init__(state["groups"], state["state"], state["keys"], None)
        self.__dict__.update(state)

    def __len__(self) -> int:
        """Entries that are held; over all tensors under ``scope="tensor"``."""
        self.ready(self.only_torch)
        return sum(int((store.born > 0).sum()) for store in self.ready_stores)

    def state_dict(self) -> dict[str, Any]:
        """What is held, by the number of the parameter, in tensors of their own."""
        self.ready()
        return {"state": {i: copies(self.state.get(param, {})) for i, param in enumerate(self.params())}}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from ``state_dict``; options stay as they are, another ``topC`` keeps the strongest entries."""
        self.ready()  # its owner may have loaded
        params, saved = self.params(), state_dict.get("state") if isinstance(state_dict, Mapping) else None
        if not isinstance(saved, Mapping) or saved.keys() != {*range(len(params))}:
            found = f"{len(saved)} parameters" if isinstance(saved, Mapping) else "no 'state' of parameters"
            raise ValueError(f"Invalid state_dict: {found}, expected {len(params)}, by their numbers")
        for i, param in enumerate(params):
            check_state(param, saved[i])  # all of them before anything is changed
        for i, param in enumerate(params):
            put(self.state, param, copies(saved[i]))
        self._seen = None
        self.ready()


def _groups(params: Any) -> list[dict[str, Any]]:
    """Groups of lists of tensors: the same dictionaries that were given, so that what is set in them later counts."""
    given: list[Any] = [params] if torch.is_tensor(params) else params if isinstance(params, list) else list(params)
    if not given:
        raise ValueError("Memory got an empty list of parameters")
    groups = given if all(isinstance(each, dict) and "params" in each for each in given) else [{"params": given}]
    for group in groups:
        group["params"] = [group["params"]] if torch.is_tensor(group["params"]) else list(group["params"])
    params = [param for group in groups for param in group["params"]]
    for param in params:
        if not torch.is_tensor(param):
            raise TypeError(
                f"Invalid params: a {type(param).__name__} among them, expected tensors, or groups of them with 'params' "
                "(parameters(), not named_parameters())"
            )
    if sum(len({*group["params"]}) for group in groups) > len({*params}):
        raise ValueError("Invalid params: some are in more than one group, expected each in one")
    return groups


def _follow_loading(optimizer: Optimizer) -> None:
    """Let ``load_state_dict`` of an optimizer that is built on a memory bring back our tensors as they were saved.

    torch casts every tensor to the parameter's dtype, integers too. Ours go past that in the groups, which it copies: nothing
    is left of them if it refuses the checkpoint.
    """
    if optimizer.__dict__.get("_critical_newest") is not None:
        return

    def before(optimizer: Optimizer, state_dict: dict[str, Any]) -> dict[str, Any]:
        brought = zip(state_dict["param_groups"], incoming(optimizer, state_dict, _PLAIN))
        groups = [{**group, **options, _TAKEN: states} for group, (options, states) in brought]
        return {**state_dict, "param_groups": groups}

    def after(optimizer: Optimizer) -> None:
        for group in optimizer.param_groups:
            for param, mine in zip(group["params"], group.pop(_TAKEN)):
                put(optimizer.state, param, mine)

    def saved(optimizer: Optimizer, state_dict: dict[str, Any]) -> None:
        for group in state_dict["param_groups"]:
            group.update({name: saved_form(group[name]) for name in DEFAULTS if name in group})

    optimizer.register_load_state_dict_pre_hook(before)
    optimizer.register_load_state_dict_post_hook(after)
    optimizer.register_state_dict_post_hook(saved)
