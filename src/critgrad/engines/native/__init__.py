"""The engine on a CPU: a compiled core (``core.c``) makes both passes, for any base; for some it makes the base's update, too.

It takes single precision; a policy object is asked by its own functions between the passes. ``fused=False``,
``CRITGRAD_NATIVE=0`` or ``CRITGRAD_ENGINE=torch`` turn it off.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ...memory.aggregations import Linear
from ...memory.dtensors import PLAIN
from ...memory.gram import settle
from ...memory.layout import same_strides
from ...memory.policies import decide, is_built_in
from ...memory.store import Store
from .. import adding_table
from ..scratch import Scratch, scratch_for
from .build import compiled_core, thread_pool, why_no_core

CHUNK = 1 << 15  # values that a thread takes at a time; a thread more for each so many

# The constants of core.c; a policy that is not here is asked by its functions, -1.
_POLICIES = ("KotH", "bottomC", "FIFO", "random", "MNDS", "RR", "NCPR", "sparse")
_FAMILIES = ("none", "sgd", "sgd momentum", "sgd nesterov", "rmsprop", "rmsprop momentum", "adam", "nadam")
FAMILIES = tuple(dict.fromkeys(name.split()[0] for name in _FAMILIES[1:]))
UNKNOWN_SWITCHES = ("capturable",)


def _structure(name: str, **fields: Sequence[str]) -> type[ctypes.Structure]:
    kinds = {"addresses": ctypes.c_void_p, "integers": ctypes.c_int64, "numbers": ctypes.c_double}
    return type(
        name, (ctypes.Structure,), {"_fields_": [(f, kinds[kind]) for kind, all_ in fields.items() for f in all_]}
    )


_Part: Any = _structure(
    "_Part",
    addresses=("p", "m", "v", "slots", "sum", "step", "product", "out"),
    integers=("length", "row", "group", "number", "refresh_length", "refresh_steps"),
)
_Group: Any = _structure(
    "_Group",
    integers=("family", "maximize", "decoupled"),
    numbers=("lr", "weight_decay", "beta1", "beta2", "eps", "momentum", "momentum_decay"),
)
_TABLES = ("priority", "norm", "born", "clock", "inserted", "stream")
_ROOMS = ("rows", "adding", "damping", "weights", "used", "squares", "dots", "sums", "room")
_Memory: Any = _structure(
    "_Memory",
    addresses=("parts", "groups", "grads", "chunks", *_TABLES, "offered", "gram", *_ROOMS, "parallel"),
    integers=(
        *("part_count", "chunk_count", "row_count", "topC", "damping_count", "threads", "empty"),
        *("policy", "seed", "every", "max_age"),
    ),
    numbers=("decay",),
)


def declines(store: Store) -> str | None:
    """What of a store this engine does not know, or ``None`` where it can take all of it."""
    if os.environ.get("CRITGRAD_NATIVE") == "0":
        return "the native core is turned off (CRITGRAD_NATIVE=0)"
    if store.policy.needs_cosine or store.policy.needs_dots:
        return f"the native core does not take policy {store.policy.name!r}, which compares directions"
    for part in store.parts:
        unknown = None
        if type(part.param) not in PLAIN or part.device.type != "cpu":
            unknown = f"parameters of type {type(part.param).__name__} on {part.device.type}"
        elif part.dtype != torch.float32:
            unknown = "parameters that are not float32"
        elif not (part.damps or isinstance(part.aggregation, Linear)):
            unknown = f"aggr={part.aggregation.name!r}"
        elif part.format_name != "float32":
            unknown = f"slots in {part.format_name}"
        elif not same_strides(part.layout.shape, part.param.stride(), part.layout.strides):
            unknown = "parameters with gaps in memory"
        if unknown is not None:
            return f"the native core does not take {unknown}"
    return why_no_core()


class Engine:
    """The core's tables for one store: addresses, mostly. Only those of the gradients change from step to step."""

    name = "native"

    def __init__(self, store: Store, epilogue: Any) -> None:
        settle(store)
        self.store = store
        self.epilogue: Any = epilogue
        self.stepped = False  # whether the last step was the base's, too
        self.based = False  # whether the tables have the base's state
        known = is_built_in(store.policy) and store.policy.name in _POLICIES
        self.policy = _POLICIES.index(store.policy.name) if known else -1
        self.scratch: Scratch | None = None
        self.read: list[Any] = []  # the options that the tables were filled from
        self.core: Any = compiled_core()
        self._make_tables()

    def _make_tables(self) -> None:
        """What the core reads and writes; ``_Memory`` holds addresses only, so all of it is kept here."""
        store, parts, C = self.store, self.store.parts, self.store.topC
        firsts = list({id(part.options): part for part in parts}.values())  # of each group
        numbers = {id(part.options): i for i, part in enumerate(firsts)}
        self.options = [part.options for part in firsts]
        self.groups = [] if self.epilogue is None else self.epilogue.groups(firsts)
        self.parts = (_Part * len(parts))()
        for row, part in zip(self.parts, parts):
            row.group, row.length, row.row, row.number = numbers[id(part.options)], part.length, part.row, part.number
            row.p, row.slots = part.param.data_ptr(), part.block.slots.values.data_ptr()
            row.sum = None if part.block.sum is None else part.block.sum.data_ptr()
            row.refresh_length, row.refresh_steps = part.block.refresh_span()
        chunks = [
            (i, start, min(start + CHUNK, part.length))
            for i, part in enumerate(parts)
            for start in range(0, part.length, CHUNK)
        ]
        self.most_threads = max(1, sum(part.length for part in parts) // CHUNK)
        self.grads = (ctypes.c_void_p * len(parts))()
        self.group_table = (_Group * len(firsts))()
        groups = len(firsts)

        def room(*shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
            return torch.zeros(shape, dtype=dtype, device="cpu")

        self.offered = room(store.rows)
        self.rooms = {
            "chunks": torch.tensor(chunks, dtype=torch.int64, device="cpu"),
            "rows": room(store.rows, 5, dtype=torch.int64),
            "adding": room(groups, C + 1, 2),
            "damping": room(groups, 2),
            "weights": room(groups, store.rows, C, dtype=torch.float32),
            "used": room(store.rows, C, dtype=torch.int64),
            "squares": room(len(chunks)),
            "dots": room(0 if store.gram is None else len(chunks), C),
            "sums": room(store.rows, 1 if store.gram is None else 2 + C),
            "room": room(C + 1, C),
            **{name: getattr(store, name) for name in _TABLES},
        }
        self.sums = self.rooms["sums"]
        self.memory = _Memory(
            parts=ctypes.addressof(self.parts),
            groups=ctypes.addressof(self.group_table),
            grads=ctypes.addressof(self.grads),
            gram=None if store.gram is None else store.gram.data_ptr(),
            **{name: room.data_ptr() for name, room in self.rooms.items()},
            part_count=len(parts),
            chunk_count=len(chunks),
            row_count=store.rows,
            topC=C,
            damping_count=0 if store.gram is None else groups,
            policy=self.policy,
        )
        self.address = ctypes.addressof(self.memory)

    # -- a step --------------------------------------------------------------------------------------------------------

    def measure(self, grads: Sequence[Tensor | None]) -> Tensor:
        """Pass 1: norms and, where the memory damps, inner products with every slot."""
        # Kept until pass 2 is through: a gradient in another order is a copy.
        self.flats = [None if g is None else part.layout.ordered(g) for part, g in zip(self.store.parts, grads)]
        # An empty gradient, which has no address, is not a missing one.
        self.grads[:] = [None if g is None else g.data_ptr() or 1 for g in self.flats]
        self.memory.threads = min(torch.get_num_threads(), self.most_threads)
        self.memory.parallel = thread_pool()
        self.core.measure(self.address)
        return self.sums

    def decide(self, sums: Tensor, priority: Tensor | None) -> None:
        """Which slot, if any; the tables go on, and the weights of a damping memory are solved for."""
        self._read_options()
        if sums is not self.sums:
            self.sums.copy_(sums)
        self.memory.offered = None
        if self.policy < 0:  # it is an object of functions
            store = self.store
            before = store.asks(self.sums[:, 0], priority)
            decision, live = decide(store.policy, before, store.options["max_age"]), before.live.sum(-1)
            store.advance(before, decision)
            columns = (decision.accept.long(), decision.slot, store.clock, decision.finite.long(), live)
            self.rooms["rows"].copy_(torch.stack(columns, -1))
        elif priority is not None:
            self.memory.offered = self.offered.copy_(priority).data_ptr()
        self.core.decide(self.address)

    def apply(self, fresh: bool) -> list[Tensor | None]:
        """Pass 2: directions (or, with an epilogue, the base's update on them) and insertion."""
        parts, flats = self.store.parts, self.flats
        # NOTE [empty]: a memory without any entry is the base, bit for bit, so the base itself makes that step.
        empty = bool(self.memory.empty)
        self.stepped = self.epilogue is not None and not empty
        directions: list[Tensor | None] = [None] * len(parts)
        if self.stepped:
            self._read_groups()
        elif not empty:
            before, self.scratch = self.scratch, scratch_for(parts, None if fresh else self.scratch)
            if self.scratch is not before:
                for row, flat in zip(self.parts, self.scratch.flats):
                    row.out = flat.data_ptr()
            directions = [None if g is None else d for g, d in zip(flats, self.scratch.shaped)]
            self.scratch = None if fresh else self.scratch
        self.core.apply(self.address)
        if self.stepped:
            # What torch's own operations do by themselves: autograd must notice that a parameter has changed.
            torch.autograd.graph.increment_version([part.param for part, g in zip(parts, flats) if g is not None])
        self.flats = []
        return directions

    def _read_options(self) -> None:
        """Decay and its like may change from step to step."""
        options, memory = self.store.options, self.memory
        memory.decay, memory.seed, memory.every = options["decay"], options["seed"], options["every"]
        memory.max_age = options["max_age"] or 0
        now = [(mine["aggr"], mine["kappa"], mine["rho"]) for mine in self.options]
        if now == self.read:
            return
        self.read = now
        tables = [adding_table(aggr, float(kappa), self.store.topC) for aggr, kappa, _ in now]
        damping = [(float(rho), float(kappa)) for _, kappa, rho in now]
        for name, numbers in (("adding", tables), ("damping", damping)):
            self.rooms[name].copy_(torch.tensor(numbers, dtype=torch.float64, device="cpu"))

    def _read_groups(self) -> None:
        """Learning rates and their like, too; the first time where the base's state is, which is set up by that."""
        epilogue = self.epilogue
        for row, part in zip(self.parts, self.store.parts) if not self.based else ():
            buffers, counters = epilogue.prepare(part, self.groups[row.group])
            row.m, row.v = ([t.data_ptr() for t in buffers] + [None, None])[:2]
            row.step, row.product = ([t.data_ptr() for t in counters] + [None, None])[:2]
        self.based = True
        for row, group in zip(self.group_table, self.groups):
            numbers = epilogue.numbers(group)
            nesterov = epilogue.family.name == "sgd" and group["nesterov"]
            kind = "" if numbers["momentum"] == 0 else " nesterov" if nesterov else " momentum"
            row.family = _FAMILIES.index(epilogue.family.name + kind)
            row.maximize, row.decoupled = bool(group.get("maximize")), epilogue.decoupled(group)
            row.lr = float(group["lr"])
            for name in ("weight_decay", "beta1", "beta2", "eps", "momentum", "momentum_decay"):
                setattr(row, name, numbers[name])
