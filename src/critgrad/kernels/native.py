"""The fused path on a CPU: ``native.c``, compiled by the system's compiler at first use and kept in a cache folder.

Two passes over memory for a whole step: squared norms, then direction, base update, insertion and running sum at once.
The decision between them is the twin of the plain path's; a policy object is asked by its own functions. Whatever is
missing (a compiler, a writable folder, an option that the C file does not know), ``choose`` declines and the plain path
does the step. ``CRITGRAD_NATIVE=0`` turns it off.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..aggregate import LINEAR, adding_weights
from ..layout import same_strides
from ..memory import Memory, Part
from ..policies import POLICIES, Tables, advance, decide
from . import Step
from .families import Family, decoupled_weight_decay, family_of, prepare_state

if TYPE_CHECKING:
    from ..critical import Critical

Groups = dict[Tensor, dict[str, Any]]  # of each parameter

SOURCE = Path(__file__).with_name("native.c")
FLAGS = ("-std=gnu11", "-O3", "-march=native", "-fno-math-errno", "-fPIC", "-shared", "-pthread")
CHUNK = 1 << 15  # values that a thread takes at a time; a thread more for each so many

# The constants of native.c.
_CODES = {
    ("sgd", False): 0,
    ("sgd", True): 1,
    ("rmsprop", False): 2,
    ("rmsprop", True): 3,
    ("adam", False): 4,
}
_POLICIES = ("KotH", "bottomC", "FIFO", "random", "MNDS", "RR", "NCPR", "sparse")


class _Part(ctypes.Structure):
    _fields_ = [(name, ctypes.c_void_p) for name in ("p", "m", "v", "slots", "sum", "step")] + [
        (name, ctypes.c_int64)
        for name in ("length", "row", "weights", "group", "number", "refresh_length", "refresh_steps")
    ]


class _Group(ctypes.Structure):
    _fields_ = [(name, ctypes.c_int64) for name in ("family", "nesterov", "maximize", "decoupled")] + [
        (name, ctypes.c_double) for name in ("lr", "weight_decay", "beta1", "beta2", "eps", "momentum")
    ]


# -- the library: compiled once per machine and source -----------------------------------------------------------------


def _cpu_flags() -> str:
    """What ``-march=native`` depends on: a home folder may be shared by different machines."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line for line in lines if line.startswith(("flags", "Features"))), "")


def _cache_folder() -> Path:
    home = os.environ.get("CRITGRAD_CACHE") or os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    folder = Path(home) / "critgrad"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = folder.stat()
    if hasattr(os, "getuid") and (found.st_uid != os.getuid() or found.st_mode & 0o022):
        raise PermissionError(f"{folder} can be written by others")
    return folder


def build() -> Path:
    """Compile ``native.c`` if this source, compiler and CPU have not been seen before; returns the library's path."""
    command = shlex.split(os.environ.get("CC", "")) or [shutil.which("cc") or shutil.which("gcc") or "cc"]
    version = subprocess.run([*command, "--version"], capture_output=True, timeout=20, check=True).stdout
    source = SOURCE.read_bytes()
    key = b"\0".join([source, version, " ".join([*command, *FLAGS]).encode(), _cpu_flags().encode()])
    target = _cache_folder() / f"native-{hashlib.sha256(key).hexdigest()[:24]}.so"
    if not target.exists():
        # Under another name first: a second process sees the whole file or none.
        handle, name = tempfile.mkstemp(suffix=".so", dir=target.parent)
        os.close(handle)
        try:
            subprocess.run(
                [*command, *FLAGS, str(SOURCE), "-o", name, "-lm"], capture_output=True, timeout=120, check=True
            )
            os.replace(name, target)
        finally:
            if os.path.exists(name):
                os.unlink(name)
    return target


@functools.cache
def compiled_core() -> ctypes.CDLL | None:
    """The compiled core, or ``None`` where it cannot be had."""
    try:
        found = ctypes.CDLL(str(build()))
        pointer, number = ctypes.c_void_p, ctypes.c_int64
        found.norms.argtypes = [pointer, pointer, pointer, number, pointer, pointer, number]
        found.decide.argtypes = [*[pointer] * 8, *[number] * 3, ctypes.c_double, *[number] * 3]
        found.update.argtypes = [pointer, number, *[pointer] * 3, number, pointer, pointer, number, number]
        found.norms.restype = found.decide.restype = found.update.restype = None
    except Exception:
        return None  # the plain path needs none of this
    return found


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
            if family.counts_steps and (state["step"].dtype, state["step"].device.type) != (torch.float32, "cpu"):
                state["step"] = state["step"].to("cpu", torch.float32)
        self.keys = sorted({(part.options["aggr"], part.options["kappa"]) for part in parts})
        # (scale, share) for each aggregation in use and each number of live entries.
        counts = torch.arange(memory.topC + 1)
        usable = torch.ones_like(counts, dtype=torch.bool)
        self.weights = torch.stack([torch.stack(adding_weights(*key, counts, usable), -1) for key in self.keys])
        self.weights = self.weights.contiguous()
        known = memory.policy is POLICIES.get(memory.policy.name)
        self.policy = _POLICIES.index(memory.policy.name) if known else None
        self.rows = array("q", bytes(8 * 5 * memory.rows))
        self.square = torch.zeros(memory.rows, dtype=torch.float64)
        number = [next(i for i, mine in enumerate(self.groups) if mine is groups[param]) for param in self.params]
        self.names = [
            (*family.buffers(groups[param]), *(["step"] if family.counts_steps else [])) for param in self.params
        ]
        self.held = [[state[name] for name in names] for state, names in zip(self.states, self.names)]
        self.addresses = [param.data_ptr() for param in self.params]
        self.parts = (_Part * len(parts))(*[self._row(*row) for row in zip(parts, number, self.states)])
        self.group_table = (_Group * len(self.groups))()
        spans = [
            (i, start, min(start + CHUNK, part.layout.length))
            for i, part in enumerate(parts)
            for start in range(0, part.layout.length, CHUNK)
        ]
        self.chunks = array("q", [number for span in spans for number in span])
        self.chunk_count = len(spans)
        self.squares = array("d", bytes(8 * max(len(spans), 1)))
        self.threads = max(1, sum(part.layout.length for part in parts) // CHUNK)

    def _row(self, part: Part, group: int, state: dict[str, Any]) -> _Part:
        assert part.sum is not None
        buffers = [state[name].data_ptr() for name in self.family.buffers(self.groups[group])]
        length, steps = part.refresh_span()
        return _Part(
            part.param.data_ptr(),
            *(buffers + [None, None])[:2],
            part.slots.values.data_ptr(),
            part.sum.data_ptr(),
            state["step"].data_ptr() if self.family.counts_steps else None,
            part.layout.length,
            part.row,
            self.keys.index((part.options["aggr"], part.options["kappa"])),
            group,
            part.number,
            length,
            steps,
        )

    def fits(self) -> bool:
        """Whether parameters and base state still lie where they lay."""
        return all(
            param.data_ptr() == address and all(state.get(name) is tensor for name, tensor in zip(names, held))
            for param, address, state, names, held in zip(
                self.params, self.addresses, self.states, self.names, self.held
            )
        )

    @torch.no_grad()
    def step(self, grads: Sequence[Tensor | None]) -> None:
        """The whole step of a memory and its base."""
        memory, core = self.memory, compiled_core()
        assert core is not None
        flats = [None if g is None else _flat(part, g) for part, g in zip(memory.parts, grads)]
        pointers = array("Q", [0 if g is None else g.data_ptr() for g in flats])
        threads = min(torch.get_num_threads(), self.threads)
        rows = self.rows.buffer_info()[0]
        tables = (ctypes.addressof(self.parts), pointers.buffer_info()[0], self.chunks.buffer_info()[0])
        self.square.zero_()
        core.norms(*tables, self.chunk_count, self.squares.buffer_info()[0], self.square.data_ptr(), threads)
        if self.policy is not None:
            of_memory = (memory.priority, memory.norm, memory.born, memory.clock, memory.inserted, memory.stream)
            core.decide(
                *(table.data_ptr() for table in (*of_memory, self.square)),
                rows,
                memory.rows,
                memory.topC,
                self.policy,
                memory.decay,
                memory.seed,
                memory.every,
                memory.max_age or 0,
            )
        else:
            self._decide_by_functions()
        self._read_groups()
        core.update(
            tables[0],
            len(self.params),
            ctypes.addressof(self.group_table),
            *tables[1:],
            self.chunk_count,
            rows,
            self.weights.data_ptr(),
            memory.topC,
            threads,
        )
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
            g_norm=self.square.to(memory.dtype).sqrt(),
            stream=memory.stream,
            seed=memory.seed,
            every=memory.every,
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
            row.decoupled = self.family.name == "adam" and decoupled_weight_decay(self.base, group)
            row.lr = float(group["lr"])
            row.weight_decay = numbers["weight_decay"]
            row.beta1 = numbers.get("beta1", 0.0)
            row.beta2 = numbers.get("beta2", numbers.get("alpha", 0.0))
            row.eps = numbers.get("eps", 0.0)
            row.momentum = numbers.get("momentum", 0.0)


def _flat(part: Part, g: Tensor) -> Tensor:
    """A gradient whose storage can be read in the parameter's order; a copy only where its own differs."""
    if type(g) is Tensor and same_strides(part.layout.shape, g.stride(), part.layout.strides):
        return g
    return part.layout.flat(g.detach()).contiguous()


def supports(memory: Memory, groups: Groups, family: Family) -> bool:
    """Whether every part of a memory can take this path."""
    if memory.dtype != torch.float32 or memory.process_group is not None or memory.policy.needs_cosine:
        return False
    for part in memory.parts:
        group, param = groups[part.param], part.param
        if type(param) not in (Tensor, torch.nn.Parameter) or (param.dtype, param.device.type) != (
            torch.float32,
            "cpu",
        ):
            return False
        if not (part.slots.is_exact and part.sum is not None and part.options["aggr"] in LINEAR):
            return False
        if group.get("fused") is not True or not family.supports(group) or group.get("dampening"):
            return False
        if group.get("capturable") or not same_strides(part.layout.shape, param.stride(), part.layout.strides):
            return False
    return True


def choose(optimizer: Critical, memories: list[Memory]) -> Step | None:
    """The native step for these memories, or ``None`` for the plain path."""
    if not memories or torch.compiler.is_compiling() or os.environ.get("CRITGRAD_NATIVE") == "0":
        return None
    family = family_of(optimizer._critical_base)
    if family is None or any(memory.device.type != "cpu" for memory in memories):
        return None
    groups = {p: group for group in optimizer.param_groups for p in group["params"]}
    if not all(supports(memory, groups, family) for memory in memories) or compiled_core() is None:
        return None
    native = [NativeMemory(optimizer, memory, groups, family) for memory in memories]

    def step(grads: list[list[Tensor | None]]) -> None:
        for i, (one, these) in enumerate(zip(native, grads)):
            if not one.fits():
                one = native[i] = NativeMemory(optimizer, one.memory, groups, family)
            one.step(these)

    return step
