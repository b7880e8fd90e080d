"""The fused path on CUDA: three launches for a whole memory, whatever the number of tensors.

1. ``norms_kernel`` (or ``dots_kernel``): partial sums over the gradients, and the base's step counts;
2. ``decide_kernel`` (or ``damp_kernel``): the decision, on the device;
3. ``update_kernel``: direction, base update and insertion, one launch per group and dtype.

Tensors are reached through a table of addresses. Nothing waits for the device, and all of it can be captured in a CUDA
graph. Where an option is not known here, ``choose`` declines and the plain path does the step.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..aggregate import PICKS
from ..distributed import all_reduce_
from ..layout import is_dtensor, local, same_strides
from ..measure import settle
from ..memory import SCALE, SLOTS, SUM, Memory, Part
from ..policies import POLICIES
from ..slots import FORMATS
from . import Step, base_name, follow, groups_of
from .families import BaseState, Family, decoupled_weight_decay, family_of, kernel_scalars, prepare_state
from .launch import INTERPRETED, TUNING, Launcher, split

if TYPE_CHECKING:
    from ..critical import Critical

MOST_DAMPING_SLOTS = 32  # their loads are unrolled
SMALLEST_RHO = 1e-37  # a kernel's numbers are single, and 0 would leave free slots without a pivot

try:
    import triton
    import triton.language as tl

    from .decide_kernel import KNOWN_POLICIES, damp_kernel, decide_kernel
    from .device_functions import CORRECTION_COLUMNS, COUNTERS, DECISION_COLUMNS
    from .measure_kernels import dots_kernel, norms_kernel
    from .update_kernels import KNOWN_AGGREGATIONS, update_kernel

    TYPES = {
        torch.float32: tl.float32,
        torch.bfloat16: tl.bfloat16,
        torch.float16: tl.float16,
        torch.int8: tl.int8,
        torch.float8_e4m3fn: tl.int8,  # as bytes; the kernels know it by its largest code
    }
    AVAILABLE = True
except ImportError:
    AVAILABLE = False


def _reachable(device: torch.device) -> bool:
    return device.type == "cuda" or (INTERPRETED and device.type == "cpu")


def why_not(memory: Memory, groups: dict[Tensor, dict[str, Any]], family: Family) -> str | None:
    """What of a memory this path does not know, or ``None`` where it can take all of it."""
    name = memory.policy.name
    if memory.policy is not POLICIES.get(name) or name not in KNOWN_POLICIES:
        return f"policy {name!r}"
    if memory.dtype != torch.float32:
        return "parameters that are wider than float32"
    aggrs = {part.options["aggr"] for part in memory.parts}
    for aggr in sorted(aggrs.difference(KNOWN_AGGREGATIONS)):
        return f"aggr={aggr!r}"
    if "fisher" in aggrs:
        same = {(part.options["rho"], part.options["kappa"]) for part in memory.parts}
        formats = {part.format_name for part in memory.parts}
        dtypes = {part.param.dtype for part in memory.parts}
        if aggrs != {"fisher"} or len(same) > 1 or len(formats) > 1 or len(dtypes) > 1:
            return "several ways of damping in one memory"
        if memory.topC > MOST_DAMPING_SLOTS:
            return f"topC={memory.topC} with damping (at most {MOST_DAMPING_SLOTS})"
    if memory.by_tensor and memory.process_group is not None:
        return 'scope="tensor" over ranks'
    for part in memory.parts:
        group = groups[part.param]
        if part.device != memory.device or not _reachable(part.device):
            return "parameters on several devices"
        if part.param.dtype not in TYPES or part.slots.values.dtype not in TYPES:
            return f"parameters in {part.param.dtype} with slots in {part.format_name}"
        if not family.supports(group) or group.get("dampening"):
            return "some option of the base (fused=False, foreach, amsgrad, centered, dampening, ...)"
        if not same_strides(part.layout.shape, local(part.param).stride(), part.layout.strides):
            return "parameters with gaps in memory"
        if INTERPRETED and part.slots.values.dtype == torch.float8_e4m3fn:
            return "float8 in the interpreter"  # which rounds them wrongly
    return None


def why_none(optimizer: Critical, memories: list[Memory]) -> str | None:
    """Why these memories have no step in Triton, in a few words; ``None`` where they have one."""
    if not AVAILABLE:
        return "Triton is not installed"
    if not all(_reachable(memory.device) for memory in memories):
        return "Triton's kernels are for parameters on CUDA"
    family = family_of(optimizer._critical_base)
    if family is None:
        return f"{base_name(optimizer)} has no kernels of its own"
    groups = groups_of(optimizer)
    for memory in memories:
        unknown = why_not(memory, groups, family)
        if unknown is not None:
            return f"Triton's kernels do not take {unknown}"
    return None


@dataclass
class Launch:
    """Tensors that one launch updates: same group, same dtypes, same aggregation."""

    group: dict[str, Any]
    parts: list[int]  # their numbers in the memory
    dtype: Any
    code: Any
    largest: float
    aggr: str
    kappa: float
    chunk_tensor: Tensor
    chunk_start: Tensor
    chunks: int
    block: int
    warps: int


class FusedMemory:
    """The tables of addresses of one memory, and its launches. Made once; only the gradients' addresses change."""

    def __init__(
        self, optimizer: Critical, memory: Memory, groups: dict[Tensor, dict[str, Any]], family: Family
    ) -> None:
        self.memory, self.family, self.groups = memory, family, groups
        self.optimizer = optimizer
        self.base = optimizer._critical_base
        self.damps = memory.parts[0].damps
        parts, device = memory.parts, memory.device
        self.params = [part.param for part in parts]
        for part in parts:
            prepare_state(optimizer.state[part.param], part.param, groups[part.param], family)
        tensors = [self._tensors(part) for part in parts]
        addresses = [[0 if t is None else t.data_ptr() for t in row] for row in tensors]
        tables = (memory.priority, memory.norm, memory.born, memory.clock, memory.inserted, memory.gram)
        self.tensors = [t for row in (*tensors, tables) for t in row if t is not None]
        self.addresses = list(map(Tensor.data_ptr, self.tensors))
        self.base_state = BaseState(optimizer, self.params, groups, family)
        self.static = torch.tensor(addresses, dtype=torch.int64, device="cpu").T.contiguous().to(device)
        self.lengths = torch.tensor([part.layout.length for part in parts], dtype=torch.int64, device=device)
        self.rows = torch.tensor([part.row for part in parts], dtype=torch.int64, device=device)
        self.counted = torch.tensor([int(part.counts) for part in parts], dtype=torch.int32, device=device)
        fits = [
            all(a % 16 == 0 for a in row[:-COUNTERS]) and part.layout.length % 16 == 0
            for part, row in zip(parts, addresses)
        ]
        self.aligned = torch.tensor([int(fit) for fit in fits], dtype=torch.int32, device=device)
        self.decisions = torch.zeros(memory.rows, DECISION_COLUMNS, dtype=torch.int64, device=device)
        self.corrections = torch.ones(len(parts), CORRECTION_COLUMNS, dtype=torch.float32, device=device)
        self.weights = torch.zeros(memory.rows, memory.topC, dtype=torch.float32, device=device)
        self.width = triton.next_power_of_2(max(memory.topC, 2))
        # A power of two of slots, and what is left of them.
        # At least two of each: Triton 3.6 cannot compile the loads of a tile of one slot.
        self.high = max(1 << (memory.topC.bit_length() - 1), 2)
        self.low = triton.next_power_of_2(max(memory.topC - self.high, 2))
        self.rounded = self.damps and not parts[0].slots.is_exact
        self.dots_tuning = TUNING.dots_of(parts[0].slots.values.element_size())
        self.span = (
            TUNING.norms_span if not self.damps else TUNING.own_span if memory.by_tensor else self.dots_tuning.span
        )
        self.measures = self._measure_launches()
        self.launches = self._update_launches()
        self.picks = any(launch.aggr in PICKS for launch in self.launches)
        kernels = (norms_kernel, dots_kernel, decide_kernel, damp_kernel, update_kernel)
        self.norms, self.dots, self.decide, self.damp, self.update = (Launcher(kernel, device) for kernel in kernels)
        self.grad_addresses: list[int] | None = None
        self.captured = False  # whether a CUDA graph holds a step
        self.grads = torch.zeros(len(parts), dtype=torch.int64, device=device)
        self.one_row = torch.tensor([0, 1], device=device)
        self.copied: list[Tensor] = []  # keeps what the device still reads alive until the next step

    def _tensors(self, part: Part) -> list[Tensor | None]:
        """In the order of the rows of the table: parameter, slots, sum, scales, two buffers, two counters."""
        state = self.optimizer.state[part.param]
        keys = self.family.buffers(self.groups[part.param])
        buffers = [local(state[key]) for key in keys] + [None] * (2 - len(keys))
        ours = [part.tensors.get(key) for key in (SLOTS, SUM, SCALE)]
        counters = [state[key] for key, _ in self.family.counters]
        counters += [None] * (COUNTERS - len(counters))
        # The parameter itself where it is plain: an alias would not show that its storage has been replaced.
        param = local(part.param.detach()) if part.sharded else part.param
        return [param, *(None if t is None else local(t) for t in ours), *buffers, *counters]

    def _chunks(self, numbers: list[int], size: int) -> tuple[Tensor, Tensor]:
        tensor, start = [], []
        for i in numbers:
            for at in range(0, self.memory.parts[i].layout.length, size):
                tensor.append(i)
                start.append(at)
        device = self.memory.device
        return torch.tensor(tensor, dtype=torch.int32, device=device), torch.tensor(
            start, dtype=torch.int64, device=device
        )

    def _measure_launches(self) -> list[Any]:
        """Coarse chunks by group and dtype (groups have betas of their own); partial sums stand in memory order."""
        memory = self.memory
        by_kind: dict[Any, list[int]] = {}
        for i, part in enumerate(memory.parts):
            by_kind.setdefault((id(self.groups[part.param]), part.param.dtype), []).append(i)
        span = self.span
        out = []
        rows_of: list[list[tuple[int, int]]] = [[] for _ in range(memory.rows)]
        at = 0
        for numbers in by_kind.values():
            chunk_tensor, chunk_start = self._chunks(numbers, span)
            first = memory.parts[numbers[0]]
            out.append((self.groups[first.param], first, chunk_tensor, chunk_start, at))
            if memory.by_tensor:
                for i in numbers:
                    count = -(-memory.parts[i].layout.length // span)
                    rows_of[memory.parts[i].row].append((at, at + count))
                    at += count
            else:
                at += chunk_tensor.numel()
        columns = 3 if memory.policy.needs_cosine else 1
        firsts = [first_row for *_, first_row in out]
        if self.damps:
            columns = 1 + (2 if self.rounded else 1) * memory.topC
            self.programs = [chunk_tensor.numel() for _, _, chunk_tensor, _, _ in out]
            if not memory.by_tensor:
                processors = 1 if INTERPRETED else torch.cuda.get_device_properties(memory.device).multi_processor_count
                self.programs = [min(count, self.dots_tuning.programs * processors) for count in self.programs]
                firsts = [sum(self.programs[:i]) for i in range(len(out))]
                at = sum(self.programs)
        # A tensor is in one launch only, and the tensors of scope "tensor" are of one group, in their order.
        bounds = [rows[0][0] for rows in rows_of] + [at] if memory.by_tensor else [0, at]
        self.bounds = torch.tensor(bounds, dtype=torch.int64, device=memory.device)
        shape = (max(at, 1), columns)
        self.partials = torch.zeros(shape, dtype=torch.float64, device=memory.device)
        return [(*launch[:4], launch[2].numel(), self.partials[row:]) for launch, row in zip(out, firsts)]

    def _update_launches(self) -> list[Launch]:
        by_kind: dict[Any, list[int]] = {}
        for i, part in enumerate(self.memory.parts):
            kind = (id(self.groups[part.param]), part.param.dtype, part.slots.values.dtype)
            by_kind.setdefault(kind, []).append(i)
        launches = []
        for numbers in by_kind.values():
            part = self.memory.parts[numbers[0]]
            largest = FORMATS[part.format_name].largest_code or 0.0
            buffers = len(self.family.buffers(self.groups[part.param]))
            size = TUNING.update(self.damps, part.slots.values.element_size(), self.family.name, buffers)
            chunk_tensor, chunk_start = self._chunks(numbers, size[0])
            launches.append(
                Launch(
                    self.groups[part.param],
                    numbers,
                    TYPES[part.param.dtype],
                    TYPES[part.slots.values.dtype],
                    largest,
                    part.options["aggr"],
                    float(part.options["kappa"]),
                    chunk_tensor,
                    chunk_start,
                    chunk_tensor.numel(),
                    *size,
                )
            )
        return [launch for launch in launches if launch.chunks > 0]

    # -- a step --------------------------------------------------------------------------------------------------------------

    def fits(self) -> bool:
        """Whether everything whose address is in the table still lies there."""
        return list(map(Tensor.data_ptr, self.tensors)) == self.addresses and self.base_state.unchanged()

    def _write_addresses(self, grads: list[Tensor | None]) -> None:
        held: list[Tensor] = []
        addresses = []
        for part, g in zip(self.memory.parts, grads):
            if g is None:
                addresses.append(0)
                continue
            if part.sharded:
                g = local(g)
            if not (
                g.is_contiguous() if part.layout.contiguous else same_strides(g.shape, g.stride(), part.layout.strides)
            ):
                g = part.layout.flat(g)
                held.append(g)
            address = g.data_ptr()
            if address % 16 != 0:
                g = g.clone()
                held.append(g)
                address = g.data_ptr()
            addresses.append(address)
        self.copied = held
        capturing = not INTERPRETED and torch.cuda.is_current_stream_capturing()
        # A captured graph writes its own addresses at every replay, and nobody is told.
        if addresses == self.grad_addresses and not capturing and not self.captured:
            return
        if capturing:
            self.captured = True
            # The graph reads this buffer at every replay, so it must stay and never be written again.
            table = torch.tensor(addresses, dtype=torch.int64, device="cpu").pin_memory()
            self.optimizer.__dict__.setdefault("_critical_graph_buffers", []).append(table)
            self.grads.copy_(table, non_blocking=True)
            self.grad_addresses = None
            return
        table = torch.tensor(addresses, dtype=torch.int64, device="cpu")
        self.grads.copy_(table if INTERPRETED else table.pin_memory(), non_blocking=True)
        self.grad_addresses = addresses

    def step(self, grads: list[Tensor | None]) -> None:
        # Triton launches on the current device, which need not be the parameters'.
        elsewhere = not INTERPRETED and torch.cuda.current_device() != self.memory.device.index
        with torch.cuda.device(self.memory.device) if elsewhere else nullcontext():
            self._write_addresses(grads)
            self._measure()
            self._decide()
            for launch in self.launches:
                self._update(launch)
        # What torch's own operations do by themselves: autograd must notice that a parameter has changed.
        changed = [part.param for part, g in zip(self.memory.parts, grads) if g is not None]
        shards = [local(param.detach()) for param in changed if is_dtensor(param)]
        torch.autograd.graph.increment_version(changed + shards)

    def _measure(self) -> None:
        memory, tensors = self.memory, len(self.memory.parts)
        for number, (group, first, chunk_tensor, chunk_start, chunks, partials) in enumerate(self.measures):
            if chunks == 0:
                continue
            beta1, beta2 = group.get("betas", (0.0, 0.0))
            schedule = (*split(beta1), *split(beta2), *split(0.96 ** group.get("momentum_decay", 0.0)))
            tables = (self.lengths, self.aligned, self.counted, self.static, self.grads, tensors)
            dtype = TYPES[first.param.dtype]
            if self.damps:
                cut = self.dots_tuning
                self.dots(
                    self.programs[number], chunk_tensor, chunk_start, chunks, *tables, self.rows, memory.topC, memory.gram,
                    partials, self.corrections, *schedule, warps=cut.warps, registers=cut.registers, DTYPE=dtype,
                    CODE=TYPES[first.slots.values.dtype], LARGEST=FORMATS[first.format_name].largest_code or 0.0,
                    ROUNDED=self.rounded, FAMILY=self.family.name, BY_TENSOR=memory.by_tensor,
                    WIDTH=self.width, HIGH=self.high, LOW=self.low, SPLIT=memory.topC > self.high, SPAN=self.span,
                    BLOCK=cut.block, STAGES=cut.stages, EACH=cut.each,
                )  # fmt: skip
            else:
                self.norms(
                    chunks, chunk_tensor, chunk_start, *tables, partials, self.corrections, *schedule, warps=TUNING.norms[1],
                    DTYPE=dtype, FAMILY=self.family.name, COSINE=memory.policy.needs_cosine, SPAN=self.span,
                    BLOCK=TUNING.norms[0],
                )  # fmt: skip

    def _decide(self) -> None:
        memory = self.memory
        partials, bounds = self.partials, self.bounds
        many = self.damps and not memory.by_tensor and partials.shape[0] > 256
        if memory.process_group is not None or many:
            partials = all_reduce_(self.partials.sum(0, keepdim=True), memory)
            bounds = self.one_row
        tables = (memory.priority, memory.norm, memory.born, memory.clock, memory.inserted, memory.stream)
        numbers = (memory.seed, memory.every, memory.max_age or 0)
        policy: dict[str, Any] = {"POLICY": memory.policy.name, "AGED": memory.max_age is not None}
        if self.damps:
            options = memory.parts[0].options
            self.damp(
                memory.rows, partials, bounds, memory.gram, *tables, self.decisions, self.weights, memory.topC, memory.decay,
                max(float(options["rho"]), SMALLEST_RHO), float(options["kappa"]), *numbers, warps=4,
                **policy, ROUNDED=self.rounded, WIDTH=self.width, BLOCK=64,
            )  # fmt: skip
        else:
            one = memory.rows == 1
            self.decide(
                memory.rows, partials, bounds, *tables, self.decisions, memory.topC, memory.decay, *numbers,
                warps=8 if one else 1,
                **policy, COSINE=memory.policy.needs_cosine, PICKS=self.picks, WIDTH=self.width, BLOCK=1024 if one else 32,
            )  # fmt: skip

    def _update(self, launch: Launch) -> None:
        group, family = launch.group, self.family
        numbers, flags = family.scalars(group), family.flags(group)
        lr = group["lr"]
        lr_is_tensor = torch.is_tensor(lr)
        # A compiled kernel reads what it was compiled for, whatever dtype comes later.
        lr_tensor = lr.to(self.memory.device, torch.float32, non_blocking=True) if lr_is_tensor else self.weights
        self.update(
            launch.chunks, launch.chunk_tensor, launch.chunk_start, self.lengths, self.rows, self.aligned, self.static,
            self.grads, len(self.memory.parts), self.decisions, self.corrections, self.weights,
            0.0 if lr_is_tensor else float(lr), lr_tensor, launch.kappa, *kernel_scalars(family, numbers), self.memory.topC,
            warps=launch.warps, LR_TENSOR=lr_is_tensor, AGGR=launch.aggr, FAMILY=family.name,
            BUFFERS=len(family.buffers(group)), DECOUPLED=decoupled_weight_decay(self.base, group),
            MOMENTUM=bool(numbers.get("momentum", 0)), NESTEROV=flags.get("nesterov", False), MAXIMIZE=flags["maximize"],
            DAMPING=self.memory.topC if self.damps else 0, BY_TENSOR=self.memory.by_tensor, DTYPE=launch.dtype,
            CODE=launch.code, LARGEST=launch.largest, BLOCK=launch.block,
        )  # fmt: skip


def choose(optimizer: Critical, memories: list[Memory]) -> Step | None:
    """The fused step for these memories, or ``None`` for the plain path."""
    if not memories or torch.compiler.is_compiling() or why_none(optimizer, memories) is not None:
        return None
    family = family_of(optimizer._critical_base)
    assert family is not None
    groups = groups_of(optimizer)

    def supported(memory: Memory) -> bool:
        return why_not(memory, groups, family) is None

    def make(memory: Memory) -> FusedMemory:
        return FusedMemory(optimizer, memory, groups, family)

    fused = [make(memory) for memory in memories]
    for one in fused:
        if not one.rounded:
            settle(one.memory)

    def step(grads: list[list[Tensor | None]]) -> bool:
        if not follow(optimizer, memories, fused, make, supported):
            return False
        for one, these in zip(fused, grads):
            one.step(these)
        return True

    return step
