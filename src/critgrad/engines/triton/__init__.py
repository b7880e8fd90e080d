"""The engine on CUDA: three launches for a whole memory, whatever the number of tensors.

1. ``norms_kernel`` (or ``dots_kernel``): partial sums over the gradients, and the base's step counts;
2. ``decide_kernel`` (or ``damp_kernel``): the decision, on the device;
3. ``update_kernel``: direction and insertion and, with an epilogue, the base's update; one launch per group and dtype.

Tensors are reached through a table of addresses. Nothing waits for the device, and all of it can be captured in a CUDA
graph.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch._utils import _unflatten_dense_tensors

from ...memory.aggregations import Linear, Pick
from ...memory.formats import FORMATS, SCALE_BLOCK
from ...memory.gram import settle
from ...memory.layout import is_dtensor, local, same_strides
from ...memory.policies import POLICIES
from ...memory.store import SCALE, SLOTS, SUM, Part, Store
from .launch import INTERPRETED, TUNING, Launcher, split

MOST_DAMPING_SLOTS = 32  # their loads are unrolled
FAMILIES = ("sgd", "rmsprop", "adam", "nadam")  # of bases/families.py, that update_kernels.base_update knows
SMALLEST_RHO = 1e-37  # a kernel's numbers are single, and 0 would leave free slots without a pivot

try:
    import triton
    import triton.language as tl

    from .decide_kernel import KNOWN_POLICIES, damp_kernel, decide_kernel
    from .device_functions import CORRECTION_COLUMNS, COUNTERS, DECISION_COLUMNS
    from .measure_kernels import dots_kernel, norms_kernel
    from .update_kernels import update_kernel

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

_CAPTURED: list[Any] = []  # engines whose tables a CUDA graph reads, for as long as somebody may replay it


def _reachable(device: torch.device) -> bool:
    return device.type == "cuda" or (INTERPRETED and device.type == "cpu")


def declines(store: Store) -> str | None:
    """What of a store this engine does not know, or ``None`` where it can take all of it."""
    if not AVAILABLE:
        return "Triton is not installed"
    unknown = _unknown(store)
    return None if unknown is None else f"Triton's kernels do not take {unknown}"


def _unknown(store: Store) -> str | None:
    name = store.policy.name
    if store.policy is not POLICIES.get(name) or name not in KNOWN_POLICIES:
        return f"policy {name!r}"
    if store.dtype != torch.float32:
        return "parameters that are wider than float32"
    for part in store.parts:
        aggregation = part.aggregation
        picks = isinstance(aggregation, Pick) and aggregation.number is not None
        if not (picks or isinstance(aggregation, Linear) or aggregation.name == "fisher"):
            return f"aggr={aggregation.name!r}"
    if store.damps:
        kinds = {(p.damps, p.options["rho"], p.options["kappa"], p.format_name, p.dtype) for p in store.parts}
        if len(kinds) > 1:
            return "several ways of damping in one memory"
        if store.topC > MOST_DAMPING_SLOTS:
            return f"topC={store.topC} with damping (at most {MOST_DAMPING_SLOTS})"
    if store.by_tensor and store.process_group is not None:
        return 'scope="tensor" over ranks'
    for part in store.parts:
        if part.device != store.device or not _reachable(part.device):
            return "parameters on several devices"
        if part.layout.complex or part.dtype not in TYPES or FORMATS[part.format_name].dtype not in TYPES:
            return f"parameters in {part.dtype} with slots in {part.format_name}"
        if part.offloaded:
            return "slots in host memory"
        if not same_strides(part.layout.shape, local(part.param).stride(), part.layout.strides):
            return "parameters with gaps in memory"
        if INTERPRETED and part.format_name == "float8":
            return "float8 in the interpreter"  # which rounds them wrongly
    return None


@dataclass
class Launch:
    """Tensors that one launch updates: same group, same dtypes, same aggregation."""

    group: dict[str, Any] | None  # of the base; None: it steps by itself
    parts: list[int]  # their numbers in the store
    first: Part
    dtype: Any
    code: Any
    largest: float
    chunk_tensor: Tensor
    chunk_start: Tensor
    chunks: int
    block: int
    warps: int


class Engine:
    """The tables of addresses of one store, and its launches. Made once; only the gradients' addresses change."""

    name = "triton"
    waiting = False

    def __init__(self, store: Store, epilogue: Any) -> None:
        self.store, self.epilogue = store, epilogue
        self.stepped = epilogue is not None
        self.family = "none" if epilogue is None else epilogue.family.name
        self.damps = store.damps
        self.rounded = self.damps and not store.parts[0].block.slots.is_exact
        if not self.rounded:
            settle(store)
        self.is_made = False

    def _make_tables(self) -> None:
        """In the first step, not before: they set up the base's state."""
        store, epilogue = self.store, self.epilogue
        parts, device = store.parts, store.device
        self.is_made = True
        self.groups = [None] * len(parts) if epilogue is None else epilogue.groups(parts)
        tensors = [self._tensors(part, group) for part, group in zip(parts, self.groups)]
        addresses = [[0 if t is None else t.data_ptr() for t in row] for row in tensors]
        self.tensors = tensors  # alive as long as the table
        self.static = torch.tensor(addresses, dtype=torch.int64, device="cpu").T.contiguous().to(device)
        self.lengths = torch.tensor([part.length for part in parts], dtype=torch.int64, device=device)
        self.rows = torch.tensor([part.row for part in parts], dtype=torch.int64, device=device)
        self.counted = torch.tensor([int(part.counts) for part in parts], dtype=torch.int32, device=device)
        # Directions of a dtype go to one buffer; those whose length keeps the next one aligned come first.
        starts = [0] * len(parts)
        self.pieces: dict[torch.dtype, list[int]] = {}
        for i in sorted(range(len(parts)), key=lambda i: parts[i].length % SCALE_BLOCK != 0):
            mine = self.pieces.setdefault(parts[i].dtype, [])
            starts[i] = starts[mine[-1]] + parts[mine[-1]].length if mine else 0
            mine.append(i)
        self.shapes = [local(part.param.detach()) for part in parts]
        fits = [
            all(a % 16 == 0 for a in row[:-COUNTERS]) and part.length % 16 == 0 and start % 16 == 0
            for part, row, start in zip(parts, addresses, starts)
        ]
        self.aligned = torch.tensor([int(fit) for fit in fits], dtype=torch.int32, device=device)
        self.starts = torch.tensor(starts, dtype=torch.int64, device=device)
        self.decisions = torch.zeros(store.rows, DECISION_COLUMNS, dtype=torch.int64, device=device)
        self.corrections = torch.ones(len(parts), CORRECTION_COLUMNS, dtype=torch.float32, device=device)
        self.weights = torch.zeros(store.rows, store.topC, dtype=torch.float32, device=device)
        self.offered = torch.zeros(store.rows, dtype=torch.float32, device=device)
        self.adding: dict[Any, Tensor] = {}  # (scale, share) by the number of entries, of each aggregation in use
        self.width = triton.next_power_of_2(max(store.topC, 2))
        # A power of two of slots, and what is left of them.
        # At least two of each: Triton 3.6 cannot compile the loads of a tile of one slot.
        self.high = max(1 << (store.topC.bit_length() - 1), 2)
        self.low = triton.next_power_of_2(max(store.topC - self.high, 2))
        bytes_of_a_value = FORMATS[parts[0].format_name].dtype.itemsize
        self.dots_tuning = TUNING.dots_of(bytes_of_a_value)
        self.span = (
            TUNING.norms_span if not self.damps else TUNING.own_span if store.by_tensor else self.dots_tuning.span
        )
        self.measures = self._measure_launches()
        self.launches = self._update_launches()
        kernels = (norms_kernel, dots_kernel, decide_kernel, damp_kernel, update_kernel)
        self.norms, self.dots, self.decide_, self.damp, self.update = (Launcher(kernel, device) for kernel in kernels)
        self.grad_addresses: list[int] | None = None
        self.captured = False  # whether a CUDA graph holds a step
        self.grads = torch.zeros(len(parts), dtype=torch.int64, device=device)
        self.one_row = torch.tensor([0, 1], device=device)
        self.copied: list[Tensor] = []  # keeps what the device still reads alive until the next step

    def _tensors(self, part: Part, group: dict[str, Any] | None) -> list[Tensor | None]:
        """In the order of the rows of the table: parameter, slots, sum, scales, two buffers, two counters."""
        buffers: list[Any] = []
        counters: list[Any] = []
        if group is not None:
            buffers, counters = self.epilogue.prepare(part, group)
        ours = [part.tensors.get(key) for key in (SLOTS, SUM, SCALE)]
        # The parameter itself where it is plain: an alias would not show that its storage has been replaced.
        param = local(part.param.detach()) if part.sharded else part.param
        return [
            param,
            *(None if t is None else local(t) for t in ours),
            *(buffers + [None, None])[:2],
            *(counters + [None] * COUNTERS)[:COUNTERS],
        ]

    def _chunks(self, numbers: list[int], size: int) -> tuple[Tensor, Tensor]:
        tensor, start = [], []
        for i in numbers:
            for at in range(0, self.store.parts[i].length, size):
                tensor.append(i)
                start.append(at)
        device = self.store.device
        return torch.tensor(tensor, dtype=torch.int32, device=device), torch.tensor(
            start, dtype=torch.int64, device=device
        )

    def _measure_launches(self) -> list[Any]:
        """Coarse chunks by group and dtype (groups have betas of their own); partial sums stand in memory order."""
        memory = self.store
        by_kind: dict[Any, list[int]] = {}
        for i, part in enumerate(memory.parts):
            by_kind.setdefault((id(self.groups[i]), part.dtype), []).append(i)
        span = self.span
        out = []
        rows_of: list[list[tuple[int, int]]] = [[] for _ in range(memory.rows)]
        at = 0
        for numbers in by_kind.values():
            chunk_tensor, chunk_start = self._chunks(numbers, span)
            first = memory.parts[numbers[0]]
            out.append((self.groups[numbers[0]], first, chunk_tensor, chunk_start, at))
            if memory.by_tensor:
                for i in numbers:
                    count = -(-memory.parts[i].length // span)
                    rows_of[memory.parts[i].row].append((at, at + count))
                    at += count
            else:
                at += chunk_tensor.numel()
        columns = 3 if memory.needs_cosine else 1
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
        for i, part in enumerate(self.store.parts):
            kind = (id(self.groups[i]), id(part.options), part.dtype, part.format_name)
            by_kind.setdefault(kind, []).append(i)
        launches = []
        for numbers in by_kind.values():
            part, group = self.store.parts[numbers[0]], self.groups[numbers[0]]
            format_ = FORMATS[part.format_name]
            buffers = 0 if group is None else len(self.epilogue.family.buffers(group))
            size = TUNING.update(self.damps, format_.dtype.itemsize, self.family, buffers)
            chunk_tensor, chunk_start = self._chunks(numbers, size[0])
            launches.append(
                Launch(
                    group,
                    numbers,
                    part,
                    TYPES[part.dtype],
                    TYPES[format_.dtype],
                    format_.largest_code or 0.0,
                    chunk_tensor,
                    chunk_start,
                    chunk_tensor.numel(),
                    *size,
                )
            )
        return [launch for launch in launches if launch.chunks > 0]

    # -- a step --------------------------------------------------------------------------------------------------------------

    def _write_addresses(self, grads: Sequence[Tensor | None]) -> None:
        held: list[Tensor] = []
        addresses = []
        for part, g in zip(self.store.parts, grads):
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
            _CAPTURED.append((self, table))
            self.grads.copy_(table, non_blocking=True)
            self.grad_addresses = None
            return
        table = torch.tensor(addresses, dtype=torch.int64, device="cpu")
        self.grads.copy_(table if INTERPRETED else table.pin_memory(), non_blocking=True)
        self.grad_addresses = addresses

    def _there(self) -> Any:
        """Triton launches on the current device, which need not be the parameters'."""
        elsewhere = not INTERPRETED and torch.cuda.current_device() != self.store.device.index
        return torch.cuda.device(self.store.device) if elsewhere else nullcontext()

    def measure(self, grads: Sequence[Tensor | None]) -> Tensor:
        """Launch 1; partial sums, or, where ranks or many of them are to be added up, their sum."""
        store, tensors = self.store, len(self.store.parts)
        if not self.is_made:
            self._make_tables()
        self.present = [g is not None for g in grads]
        with self._there():
            self._write_addresses(grads)
            for number, (group, first, chunk_tensor, chunk_start, chunks, partials) in enumerate(self.measures):
                if chunks == 0:
                    continue
                beta1, beta2 = (group or {}).get("betas", (0.0, 0.0))
                schedule = (*split(beta1), *split(beta2), *split(0.96 ** (group or {}).get("momentum_decay", 0.0)))
                tables = (self.lengths, self.aligned, self.counted, self.static, self.grads, tensors)
                counts = bool(self.epilogue is not None and self.epilogue.family.counters)
                base: dict[str, Any] = {"DTYPE": TYPES[first.dtype], "FAMILY": self.family, "COUNTS": counts}
                if self.damps:
                    cut, format_ = self.dots_tuning, FORMATS[first.format_name]
                    self.dots(
                        self.programs[number], chunk_tensor, chunk_start, chunks, *tables, self.rows, store.topC, store.gram,
                        partials, self.corrections, *schedule, warps=cut.warps, registers=cut.registers, **base,
                        CODE=TYPES[format_.dtype], LARGEST=format_.largest_code or 0.0, ROUNDED=self.rounded,
                        BY_TENSOR=store.by_tensor, WIDTH=self.width, HIGH=self.high, LOW=self.low,
                        SPLIT=store.topC > self.high, SPAN=self.span, BLOCK=cut.block, STAGES=cut.stages, EACH=cut.each,
                    )  # fmt: skip
                else:
                    self.norms(
                        chunks, chunk_tensor, chunk_start, *tables, partials, self.corrections, *schedule,
                        warps=TUNING.norms[1], **base, COSINE=store.needs_cosine, SPAN=self.span, BLOCK=TUNING.norms[0],
                    )  # fmt: skip
            many = self.damps and not store.by_tensor and self.partials.shape[0] > 256
            return self.partials.sum(0, keepdim=True) if many or store.process_group is not None else self.partials

    def decide(self, sums: Tensor, priority: Tensor | None) -> None:
        """Launch 2; the tables go on."""
        store, options = self.store, self.store.options
        bounds = self.bounds if sums is self.partials else self.one_row
        if priority is not None:
            self.offered.copy_(priority)
        tables = (store.priority, store.norm, store.born, store.clock, store.inserted, store.stream, self.offered)
        numbers = (options["seed"], options["every"], options["max_age"] or 0)
        policy: dict[str, Any] = {
            "GIVEN": priority is not None, "POLICY": store.policy.name, "AGED": options["max_age"] is not None,
        }  # fmt: skip
        with self._there():
            if self.damps:
                mine = store.parts[0].options
                self.damp(
                    store.rows, sums, bounds, store.gram, *tables, self.decisions, self.weights, store.topC,
                    options["decay"], max(float(mine["rho"]), SMALLEST_RHO), float(mine["kappa"]), *numbers, warps=4,
                    **policy, ROUNDED=self.rounded, WIDTH=self.width, BLOCK=64,
                )  # fmt: skip
            else:
                one = store.rows == 1
                picks = any(isinstance(launch.first.aggregation, Pick) for launch in self.launches)
                self.decide_(
                    store.rows, sums, bounds, *tables, self.decisions, store.topC, options["decay"], *numbers,
                    warps=8 if one else 1, **policy, COSINE=store.needs_cosine, PICKS=picks, WIDTH=self.width,
                    BLOCK=1024 if one else 32,
                )  # fmt: skip

    def apply(self, fresh: bool) -> list[Tensor | None]:
        """Launch 3; directions are always in memory of their own."""
        parts = self.store.parts
        out: dict[torch.dtype, Tensor] = {}
        for dtype, numbers in self.pieces.items() if self.epilogue is None else ():
            length = sum(parts[i].length for i in numbers)
            out[dtype] = torch.empty(length, dtype=dtype, device=self.store.device)
        with self._there():
            for launch in self.launches:
                self._update(launch, out.get(launch.first.dtype, self.weights))
        if self.epilogue is not None:
            # What torch's own operations do by themselves: autograd must notice that a parameter has changed.
            changed = [part.param for part, present in zip(parts, self.present) if present]
            shards = [local(param.detach()) for param in changed if is_dtensor(param)]
            torch.autograd.graph.increment_version(changed + shards)
            return [None] * len(parts)
        directions: list[Tensor | None] = [None] * len(parts)
        for dtype, numbers in self.pieces.items():
            shaped = _unflatten_dense_tensors(
                out[dtype], [self.shapes[i] for i in numbers]
            )  # faster than views one by one
            for i, d in zip(numbers, shaped):
                if self.present[i]:
                    layout = parts[i].layout
                    directions[i] = d if layout.contiguous and d.numel() else layout.unflatten(d.reshape(-1))
        return directions

    def forget_what_is_kept(self) -> None:
        """Nothing is: directions are made anew in each step."""

    def _adding(self, part: Part) -> Tensor:
        aggregation, kappa = part.aggregation, float(part.options["kappa"])
        if (aggregation, kappa) not in self.adding:
            if len(self.adding) > 64:  # a schedule of kappa
                self.adding.clear()
            table = self.store.adding_weights(aggregation, kappa)
            self.adding[aggregation, kappa] = torch.tensor(table, dtype=torch.float32, device=self.store.device)
        return self.adding[aggregation, kappa]

    def _update(self, launch: Launch, out: Tensor) -> None:
        group, epilogue, store, part = launch.group, self.epilogue, self.store, launch.first
        aggregation = part.aggregation
        lr: Any = 0.0 if group is None else group["lr"]
        lr_is_tensor = torch.is_tensor(lr)
        # A compiled kernel reads what it was compiled for, whatever dtype comes later.
        lr_tensor = lr.to(store.device, torch.float32, non_blocking=True) if lr_is_tensor else self.weights
        numbers = {"momentum": 0.0} if group is None else epilogue.numbers(group)
        self.update(
            launch.chunks, launch.chunk_tensor, launch.chunk_start, self.lengths, self.rows, self.aligned, self.static,
            self.grads, len(store.parts), self.decisions, self.corrections, self.weights,
            0.0 if lr_is_tensor else float(lr), lr_tensor, self.weights if self.damps else self._adding(part), out, self.starts,
            *kernel_scalars(self.family, numbers), store.topC,
            warps=launch.warps, LR_TENSOR=lr_is_tensor,
            PICK=aggregation.number if isinstance(aggregation, Pick) else -1, FAMILY=self.family,
            BUFFERS=0 if group is None else len(epilogue.family.buffers(group)),
            DECOUPLED=group is not None and epilogue.decoupled(group), MOMENTUM=numbers["momentum"] != 0,
            NESTEROV=bool(group and group.get("nesterov")), MAXIMIZE=bool(group and group.get("maximize")),
            DAMPING=store.topC if self.damps else 0, BY_TENSOR=store.by_tensor, DTYPE=launch.dtype,
            CODE=launch.code, LARGEST=launch.largest, BLOCK=launch.block,
        )  # fmt: skip


def kernel_scalars(family: str, numbers: dict[str, float]) -> tuple[float, ...]:
    """``s0`` to ``s5`` of ``base_update``. One minus a beta is taken here, in double precision."""
    if family == "none":
        return (0.0,) * 6
    decay, momentum = numbers["weight_decay"], numbers["momentum"]
    if family in ("adam", "nadam"):
        beta1, beta2 = numbers["beta1"], numbers["beta2"]
        return decay, beta1, 1 - beta1, beta2, 1 - beta2, numbers["eps"]
    if family == "rmsprop":
        return decay, numbers["alpha"], 1 - numbers["alpha"], numbers["eps"], momentum, 0.0
    return decay, momentum, 0.0, 0.0, 0.0, 0.0
