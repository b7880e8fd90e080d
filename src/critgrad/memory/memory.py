"""The memory of critical gradients, as a part of its own: ``critgrad.Memory``.

Optimizers with a memory in front (bases/) use what it is built on, ``Prepared`` and ``run``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from weakref import ref

import torch
from torch import Tensor
from torch.optim import Optimizer

from .keys import copies, put
from .options import DEFAULTS, OBJECTS, check_options, default_options, saved_form, unexpected
from .prepared import Prepared, Vectors, run
from .store import State, Store
from .takeover import check_state

Priority = Any  # a number, a 0-dim tensor; under scope="tensor" one for each parameter


class Memory(Prepared):
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

    usual: dict[str, Any]  # options of groups that an optimizer on a memory is given later
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
        super().__init__(groups, held, {name: name for name in DEFAULTS}, process_group)
        if owner is not None:
            self._owner = ref(owner)
            _follow_loading(owner)
        # Others save and pickle their state, where each view of a buffer would bring the whole of it; and freeze parameters.
        self.may_join = self.takes_all = state is None
        self._read_options()

    # -- a step --------------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def step(self, vectors: Vectors, priority: Priority = None) -> list[Tensor | None]:
        """Combine the vectors with what is held, then offer them to the memory: one pass, one reduction over ranks.

        ``priority`` stands in the place of the vectors' norm: a number or 0-dim tensor, equal on all ranks; under
        ``scope="tensor"`` one for each parameter, or one for all. Nothing is admitted if it is not finite, or negative.
        """
        return self._run(vectors, priority)

    @torch.no_grad()
    def combine(self, vectors: Vectors) -> list[Tensor | None]:
        """The vectors combined with what is held; while nothing is held, equal to them."""
        return self._run(vectors, None, offer=False)

    @torch.no_grad()
    def offer(self, vectors: Vectors, priority: Priority = None) -> None:
        """Admission, insertion, decay, tick; ``priority`` as in ``step``."""
        self._run(vectors, priority, directions=False)

    def _run(self, vectors: Vectors, priority: Priority, **half: bool) -> list[Tensor | None]:
        count = len(self.params())
        if len(vectors) != count:
            raise ValueError(f"Invalid vectors: {len(vectors)} of them, expected one for each of {count} parameters")
        out: list[Tensor | None] = [None] * count
        if half.get("directions", True):
            out = [None if v is None else v.detach().clone() for v in vectors]
        self.ready(only_torch=bool(half))
        mine = self.vectors(vectors)  # all of them are looked at before any store is written to
        ranks = [self._priority(store, priority) for store in self.ready_stores]
        for store, found, rank in zip(self.ready_stores, mine, ranks):
            for part, d in zip(store.parts, run(store, found, rank, fresh=True, **half)):
                if d is not None:
                    out[part.index] = d
        if half.get("offer", True):
            self.attach()
        return out

    def _priority(self, store: Store, priority: Priority) -> Tensor | None:
        """One for each row of a store's tables."""
        if priority is None:
            return None
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

    def ready(self, only_torch: bool = False) -> list[Store]:
        """The stores as groups, options and state are now; of an owner, which has new ones after loading."""
        owner = self._owner()
        if owner is not None:
            self.groups, self.state = owner.param_groups, owner.state
        if len(self.groups) != len(self.options):
            for group in self.groups:
                group.update({**self.usual, **group})
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
        self.ready(self._only_torch)
        return sum(int((store.born > 0).sum()) for store in self.ready_stores)

    def state_dict(self) -> dict[str, Any]:
        """What is held, by the number of the parameter, in tensors of their own."""
        self.ready()
        return {"state": {i: copies(self.state.get(param, {})) for i, param in enumerate(self.params())}}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from ``state_dict``; options stay as they are, another ``topC`` keeps the strongest entries."""
        params, saved = self.params(), state_dict["state"]
        if sorted(saved) != list(range(len(params))):
            raise ValueError(f"Invalid state_dict: {len(saved)} parameters, expected {len(params)}")
        for i, param in enumerate(params):
            check_state(param, saved[i])  # all of them before anything is changed
        for i, param in enumerate(params):
            put(self.state, param, copies(saved[i]))
        self._seen = None
        self.ready()


def _follow_loading(optimizer: Optimizer) -> None:
    """Let ``load_state_dict`` of an optimizer that is built on a memory bring back our tensors as they were saved.

    torch casts every tensor to the parameter's dtype, integers too. Objects among the options are saved by their names.
    """
    if optimizer.__dict__.get("_follows_loading"):
        return
    optimizer._follows_loading = True  # type: ignore[attr-defined]
    taken: list[State] = []  # of each parameter

    def before(optimizer: Optimizer, state_dict: dict[str, Any]) -> dict[str, Any]:
        ids = [i for group in state_dict["param_groups"] for i in group["params"]]  # numbers, or what others put there
        taken[:] = [copies(state_dict["state"].get(i, {})) for i in ids]
        groups = [dict(group) for group in state_dict["param_groups"]]
        for group, mine in zip(groups, optimizer.param_groups):
            for name in OBJECTS:
                if saved_form(mine.get(name)) == group.get(name):
                    group[name] = mine[name]
        return {**state_dict, "param_groups": groups}

    def after(optimizer: Optimizer) -> None:
        params = [param for group in optimizer.param_groups for param in group["params"]]
        for param, mine in zip(params, taken):
            put(optimizer.state, param, mine)
        taken.clear()

    def saved(optimizer: Optimizer, state_dict: dict[str, Any]) -> None:
        for group in state_dict["param_groups"]:
            group.update({name: saved_form(group[name]) for name in OBJECTS if name in group})

    optimizer.register_load_state_dict_pre_hook(before)
    optimizer.register_load_state_dict_post_hook(after)
    optimizer.register_state_dict_post_hook(saved)
