"""The fused path on a CPU: a whole step of a memory and its base in one call of the compiled core (``native.c``).

Two passes over memory: norms (and, where the memory damps, inner products with every slot), then direction, base update
and insertion at once. The decision between them is the twin of the plain path's; a policy object is asked by its own
functions. Where an option is not known here or there is no core, ``choose`` declines and the plain path does the step.
``fused=False`` or ``CRITGRAD_NATIVE=0`` turns it off.
"""

from __future__ import annotations

import ctypes
import os
from array import array
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..aggregate import LINEAR
from ..layout import same_strides
from ..memory import Memory, Part
from ..policies import POLICIES, Tables, advance, decide
from . import Step, base_name, follow, groups_of
from .compiled import compiled_core, why_no_core
from .families import BaseState, Family, decoupled_weight_decay, family_of, prepare_state

if TYPE_CHECKING:
    from ..critical import Critical

Groups = dict[Tensor, dict[str, Any]]  # of each parameter

CHUNK = 1 << 15  # values that a thread takes at a time; a thread more for each so many

# The constants of native.c.
_CODES = {
    ("sgd", False): 0,
    ("sgd", True): 1,
    ("rmsprop", False): 2,
    ("rmsprop", True): 3,
    ("adam", False): 4,
    ("nadam", False): 5,
}
_POLICIES = ("KotH", "bottomC", "FIFO", "random", "MNDS", "RR", "NCPR", "sparse")


class _Part(ctypes.Structure):
    _fields_ = [(name, ctypes.c_void_p) for name in ("p", "m", "v", "slots", "sum", "step", "product")] + [
        (name, ctypes.c_int64)
        for name in ("length", "row", "weights", "group", "number", "refresh_length", "refresh_steps")
    ]


class _Group(ctypes.Structure):
    _fields_ = [(name, ctypes.c_int64) for name in ("family", "nesterov", "maximize", "decoupled")] + [
        (name, ctypes.c_double)
        for name in ("lr", "weight_decay", "beta1", "beta2", "eps", "momentum", "momentum_decay")
    ]


_TABLES = ("priority", "norm", "born", "clock", "inserted", "stream", "gram")
_ROOMS = (
    "rows",
    "adding",
    "damping",
    "weights",
    "used",
    "squares",
    "dots",
    "row_square",
    "row_own",
    "row_dots",
    "room",
)
_COUNTS = ("part_count", "chunk_count", "row_count", "topC", "damping_count", "threads")
_OPTIONS = ("policy", "seed", "every", "max_age")


class _Memory(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("parts", "groups", "grads", "chunks", *_TABLES, *_ROOMS)),
        *((name, ctypes.c_int64) for name in (*_COUNTS, *_OPTIONS)),
        ("decay", ctypes.c_double),
    ]


# -- the step ----------------------------------------------------------------------------------------------------------


class NativeMemory:
    """The tables of addresses of one memory. Made once; only the gradients' addresses change."""

    def __init__(
        self, optimizer: Critical, memory: Memory, groups: dict[Tensor, dict[str, Any]], family: Family
    ) -> None:
        self.optimizer, self.memory, self.family = optimizer, memory, family
        self.base = optimizer._critical_base
        parts = memory.parts
        self.params = [part.param for part in parts]
        self.groups: list[dict[str, Any]] = []
        for param in self.params:
            if not any(group is groups[param] for group in self.groups):
                self.groups.append(groups[param])
        self.states = [optimizer.state[param] for param in self.params]
        for part, state in zip(parts, self.states):
            prepare_state(state, part.param, groups[part.param], family)
        self.base_state = BaseState(optimizer, self.params, groups, family)
        known = memory.policy is POLICIES.get(memory.policy.name) and memory.policy.name in _POLICIES
        self.policy = _POLICIES.index(memory.policy.name) if known else None  # None: it is asked by its functions
        self._make_tables(groups)
        ours = [tensor for part in parts for tensor in (part.slots.values, part.sum)]
        tables = [getattr(memory, name) for name in _TABLES]
        self.tensors = [tensor for tensor in (*self.params, *ours, *tables) if tensor is not None]
        self.addresses = list(map(Tensor.data_ptr, self.tensors))

    def _make_tables(self, groups: dict[Tensor, dict[str, Any]]) -> None:
        """What the core reads and writes; ``_Memory`` holds addresses only, so all of it is kept here."""
        memory, parts, C = self.memory, self.memory.parts, self.memory.topC
        self.adding = sorted({_adding(part) for part in parts if not part.damps})
        self.damping = sorted({_damping(part) for part in parts if part.damps})
        # (scale, share) for each aggregation in use and each number of live entries.
        adding = [number for key in self.adding for pair in memory.adding_weights(*key) for number in pair]
        number = [next(i for i, mine in enumerate(self.groups) if mine is groups[param]) for param in self.params]
        spans = [
            (i, start, min(start + CHUNK, part.layout.length))
            for i, part in enumerate(parts)
            for start in range(0, part.layout.length, CHUNK)
        ]
        self.threads = max(1, sum(part.layout.length for part in parts) // CHUNK)
        self.grads = (ctypes.c_void_p * len(parts))()
        self.group_table = (_Group * len(self.groups))()
        self.rows = array("q", bytes(8 * 5 * memory.rows))
        self.square, self.own, self.dots = (_numbers(n) for n in (memory.rows, memory.rows, memory.rows * C))
        chunk_dots = len(spans) * C if self.damping else 0
        self.rooms: dict[str, Any] = {
            "parts": (_Part * len(parts))(*[self._row(*row) for row in zip(parts, number, self.states)]),
            "groups": self.group_table,
            "grads": self.grads,
            "chunks": array("q", [number for span in spans for number in span]),
            "rows": self.rows,
            "adding": array("d", adding),
            "damping": array("d", [number for key in self.damping for number in key]),
            "weights": array("f", bytes(4 * len(self.damping) * memory.rows * C)),
            "used": array("q", bytes(8 * memory.rows * C)),
            "squares": _numbers(len(spans)),
            "dots": _numbers(chunk_dots),
            "row_square": self.square,
            "row_own": self.own,
            "row_dots": self.dots,
            "room": _numbers(C * (C + 1)),
            **{name: getattr(memory, name) for name in _TABLES},
        }
        self.core_memory = _Memory(
            **{name: _address(room) for name, room in self.rooms.items()},
            **dict(zip(_COUNTS, (len(parts), len(spans), memory.rows, C, len(self.damping), 1))),
            **dict(zip(_OPTIONS, (self.policy or 0, memory.seed, memory.every, memory.max_age or 0))),
            decay=memory.decay,
        )
        self.address = ctypes.addressof(self.core_memory)

    def _row(self, part: Part, group: int, state: dict[str, Any]) -> _Part:
        buffers = [state[name].data_ptr() for name in self.family.buffers(self.groups[group])]
        counters = [state[name].data_ptr() for name, _ in self.family.counters]
        length, steps = part.refresh_span()
        return _Part(
            part.param.data_ptr(),
            *(buffers + [None, None])[:2],
            part.slots.values.data_ptr(),
            None if part.sum is None else part.sum.data_ptr(),
            *(counters + [None, None])[:2],
            part.layout.length,
            part.row,
            self.damping.index(_damping(part)) if part.damps else self.adding.index(_adding(part)),
            group,
            part.number,
            length,
            steps,
        )

    def fits(self) -> bool:
        """Whether everything whose address the core has still lies there."""
        return list(map(Tensor.data_ptr, self.tensors)) == self.addresses and self.base_state.unchanged()

    @torch.no_grad()
    def step(self, grads: Sequence[Tensor | None]) -> None:
        """The whole step of a memory and its base."""
        core = compiled_core()
        assert core is not None
        flats = [None if g is None else _flat(part, g) for part, g in zip(self.memory.parts, grads)]
        self.grads[:] = [None if g is None else g.data_ptr() for g in flats]
        self.core_memory.threads = min(torch.get_num_threads(), self.threads)
        self._read_groups()
        if self.policy is not None:
            core.step(self.address)
        else:
            core.measure(self.address)
            self._decide_by_functions()
            core.damp(self.address)
            core.update(self.address)
        # What torch's own operations do by themselves: autograd must notice that a parameter has changed.
        torch.autograd.graph.increment_version([p for p, g in zip(self.params, flats) if g is not None])

    def _decide_by_functions(self) -> None:
        """The decision of a policy that is an object of functions."""
        memory = self.memory
        before = Tables(
            priority=memory.priority,
            norm=memory.norm,
            born=memory.born,
            t=memory.clock + 1,
            g_norm=torch.tensor(self.square, dtype=torch.float64, device="cpu").to(memory.dtype).sqrt(),
            stream=memory.stream,
            seed=memory.seed,
            every=memory.every,
            policy=memory.policy.name,
        )
        decision = decide(memory.policy, before, memory.max_age)
        live = before.live.sum(-1)
        after = advance(memory.policy, before, decision, memory.decay)
        for table, new in zip((memory.priority, memory.norm, memory.born), after):
            table.copy_(new)
        memory.clock.add_(decision.finite)
        memory.inserted.add_(decision.accept)
        columns = (decision.accept.long(), decision.slot, memory.clock, decision.finite.long(), live)
        self.rows[:] = array("q", torch.stack(columns, -1).flatten().tolist())

    def _read_groups(self) -> None:
        """Learning rates and their like may change from step to step."""
        for row, group in zip(self.group_table, self.groups):
            numbers = self.family.scalars(group)
            flags = self.family.flags(group)
            row.family = _CODES[self.family.name, numbers.get("momentum", 0) != 0]
            row.nesterov = flags.get("nesterov", False)
            row.maximize = flags["maximize"]
            row.decoupled = decoupled_weight_decay(self.base, group)
            row.lr = float(group["lr"])
            row.weight_decay = numbers["weight_decay"]
            row.beta1 = numbers.get("beta1", 0.0)
            row.beta2 = numbers.get("beta2", numbers.get("alpha", 0.0))
            row.eps = numbers.get("eps", 0.0)
            row.momentum = numbers.get("momentum", 0.0)
            row.momentum_decay = numbers.get("momentum_decay", 0.0)


def _adding(part: Part) -> tuple[str, float]:
    return part.options["aggr"], float(part.options["kappa"])


def _damping(part: Part) -> tuple[float, float]:
    return float(part.options["rho"]), float(part.options["kappa"])


def _numbers(count: int) -> array[float]:
    return array("d", bytes(8 * count))


def _address(room: Any) -> int | None:
    if room is None or (not torch.is_tensor(room) and len(room) == 0):
        return None
    if torch.is_tensor(room):
        return int(room.data_ptr())
    return room.buffer_info()[0] if isinstance(room, array) else ctypes.addressof(room)


def _flat(part: Part, g: Tensor) -> Tensor:
    """A gradient whose storage can be read in the parameter's order; a copy only where its own differs."""
    if type(g) is Tensor and same_strides(part.layout.shape, g.stride(), part.layout.strides):
        return g
    return part.layout.flat(g.detach()).contiguous()


def why_not(memory: Memory, groups: Groups, family: Family) -> str | None:
    """What of a memory this path does not know, or ``None`` where it can take all of it."""
    if memory.dtype != torch.float32 or memory.process_group is not None:
        return "sums over ranks" if memory.process_group is not None else "parameters that are not float32"
    if memory.policy.needs_cosine or memory.policy.needs_dots:
        return f"policy {memory.policy.name!r}, which compares directions"
    for part in memory.parts:
        group, param, aggr = groups[part.param], part.param, part.options["aggr"]
        if type(param) not in (Tensor, torch.nn.Parameter) or param.device.type != "cpu":
            return f"parameters of type {type(param).__name__} on {param.device.type}"
        if param.dtype != torch.float32:
            return "parameters that are not float32"
        if not part.damps and aggr not in LINEAR:
            return f"aggr={aggr!r}"
        if not part.slots.is_exact:
            return f"slots in {part.format_name}"
        if not family.supports(group) or group.get("dampening") or group.get("capturable"):
            return "some option of the base (fused=False, foreach, capturable, amsgrad, centered, dampening, ...)"
        if not same_strides(part.layout.shape, param.stride(), part.layout.strides):
            return "parameters with gaps in memory"
    return None


def why_none(optimizer: Critical, memories: list[Memory]) -> str | None:
    """Why these memories have no native step, in a few words; ``None`` where they have one."""
    if torch.compiler.is_compiling() or os.environ.get("CRITGRAD_NATIVE") == "0":
        return "the native core is turned off (CRITGRAD_NATIVE=0)"
    if any(memory.device.type != "cpu" for memory in memories):
        return "the native core is for parameters on a CPU"
    family = family_of(optimizer._critical_base)
    if family is None:
        return f"{base_name(optimizer)} has no kernels of its own"
    groups = groups_of(optimizer)
    for memory in memories:
        unknown = why_not(memory, groups, family)
        if unknown is not None:
            return f"the native core does not take {unknown}"
    return why_no_core()


def choose(optimizer: Critical, memories: list[Memory]) -> Step | None:
    """The native step for these memories, or ``None`` for the plain path."""
    if not memories or why_none(optimizer, memories) is not None:
        return None
    family = family_of(optimizer._critical_base)
    assert family is not None
    groups = groups_of(optimizer)

    def supported(memory: Memory) -> bool:
        return why_not(memory, groups, family) is None

    def make(memory: Memory) -> NativeMemory:
        return NativeMemory(optimizer, memory, groups, family)

    native: list[NativeMemory] = []

    def step(grads: list[list[Tensor | None]]) -> bool:
        if not native:
            # NOTE [empty]: a memory without any entry is the base, bit for bit, so the base itself makes that step.
            if not any(bool(memory.born.any()) for memory in memories):
                return False
            native.extend(map(make, memories))
        if not follow(optimizer, memories, native, make, supported):
            return False
        for one, these in zip(native, grads):
            one.step(these)
        return True

    return step
