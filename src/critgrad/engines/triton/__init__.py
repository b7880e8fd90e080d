"""The engine on CUDA: three launches for a whole memory, whatever the number of tensors.

1. ``norms_kernel`` (or ``dots_kernel``): partial sums over the gradients, and the base's step counts;
2. ``decide_kernel``: the decision, on the device;
3. ``update_kernel``: direction and insertion and, with an epilogue, the base's update; one launch per group and dtype.

Tensors are reached through a table of addresses. Nothing waits for the device, and all of it can be captured in a CUDA
graph.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch._utils import _unflatten_dense_tensors

from ...memory.aggregations import Pick
from ...memory.dtensors import is_dtensor, local
from ...memory.formats import SCALE_BLOCK
from ...memory.gram import settle
from ...memory.keys import SCALE, SLOTS, SUM
from ...memory.store import Part, Store
from .. import adding_table
from .launch import INTERPRETED, TUNING, Launcher

FAMILIES = ("sgd", "rmsprop", "adam", "nadam")  # of bases/families.py, that update_kernels.base_update knows
UNKNOWN_SWITCHES = ()
SMALLEST_RHO = 1e-37  # a kernel's numbers are single, and 0 would leave free slots without a pivot

try:
    import triton

    from .decide_kernel import decide_kernel
    from .device_functions import CORRECTION_COLUMNS, COUNTERS, DECISION_COLUMNS
    from .limits import TYPES, unknown_to_kernels
    from .measure_kernels import dots_kernel, norms_kernel
    from .update_kernels import update_kernel

    AVAILABLE = True
except ImportError:
    AVAILABLE = False


def declines(store: Store) -> str | None:
    """What of a store this engine does not know, or ``None`` where it can take all of it."""
    if not AVAILABLE:
        return "Triton is not installed"
    unknown = unknown_to_kernels(store)
    return None if unknown is None else f"Triton's kernels do not take {unknown}"


@dataclass
class Launch:
    """Tensors that are measured and updated together: same group, same options, same dtype."""

    group: dict[str, Any] | None  # of the base; None: it steps by itself
    first: Part
    buffers: int  # of the base, for each tensor
    measured: Tensor  # chunks: of which tensor, and where it starts
    updated: Tensor
    programs: int  # that measure
    row: int  # of the partial sums, where theirs begin
    block: int
    warps: int


class Engine:
    """The tables of addresses of one store, and its launches. Made once; only the gradients' addresses change."""

    name = "triton"

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
        parts, device, C = store.parts, store.device, store.topC
        self.is_made = True
        self.groups = [None] * len(parts) if epilogue is None else epilogue.groups(parts)
        # Alive as long as the table of their addresses.
        self.held = [self._tensors(part, group) for part, group in zip(parts, self.groups)]
        # Directions of a dtype go to one buffer; those whose length keeps the next one aligned come first.
        starts = [0] * len(parts)
        self.pieces: dict[torch.dtype, list[int]] = {}
        for i in sorted(range(len(parts)), key=lambda i: parts[i].length % SCALE_BLOCK != 0):
            mine = self.pieces.setdefault(parts[i].dtype, [])
            starts[i] = starts[mine[-1]] + parts[mine[-1]].length if mine else 0
            mine.append(i)
        self.shapes = [local(part.param.detach()) for part in parts]
        rows = []
        for part, tensors, start in zip(parts, self.held, starts):
            addresses = [0 if t is None else t.data_ptr() for t in tensors]
            aligned = all(a % 16 == 0 for a in (*addresses[:-COUNTERS], part.length, start))
            rows.append((*addresses, part.length, part.row, start, aligned, part.counts))
        self.tensors = self._table(rows)
        self.decisions = torch.zeros(store.rows, DECISION_COLUMNS.value, dtype=torch.int64, device=device)
        self.corrections = torch.ones(len(parts), CORRECTION_COLUMNS.value, dtype=torch.float32, device=device)
        self.weights = torch.zeros(store.rows, C, dtype=torch.float32, device=device)
        self.offered = torch.zeros(store.rows, dtype=torch.float32, device=device)
        self.adding: dict[Any, Tensor] = {}  # (scale, share) by the number of entries, of each aggregation in use
        self.width = triton.next_power_of_2(max(C, 2))
        # A power of two of slots, and what is left of them.
        # At least two of each: Triton 3.6 cannot compile the loads of a tile of one slot.
        self.high = max(1 << (C.bit_length() - 1), 2)
        self.low = triton.next_power_of_2(max(C - self.high, 2))
        self.cut = TUNING.dots_of(parts[0].format.dtype.itemsize)
        self.span = TUNING.norms_span if not self.damps else TUNING.own_span if store.by_tensor else self.cut.span
        self._make_launches()
        kernels = (norms_kernel, dots_kernel, decide_kernel, update_kernel)
        self.norms, self.dots, self.decide_, self.update = (Launcher(kernel, device) for kernel in kernels)
        self.grad_addresses: list[int] | None = None
        self.captured: list[Tensor] = []  # what CUDA graphs that hold a step read at every replay
        self.grads = torch.zeros(len(parts), dtype=torch.int64, device=device)
        self.copied: list[Tensor] = []  # keeps what the device still reads alive until the next step

    def _table(self, values: list[Any]) -> Tensor:
        return torch.tensor(values, dtype=torch.int64, device=self.store.device)

    def _tensors(self, part: Part, group: dict[str, Any] | None) -> list[Tensor | None]:
        """In the order of the table's columns: parameter, slots, sum, scales, two buffers, two counters."""
        buffers, counters = ([], []) if group is None else self.epilogue.prepare(part, group)
        ours = [part.tensors.get(key) for key in (SLOTS, SUM, SCALE)]
        # The parameter itself where it is plain: an alias would not show that its storage has been replaced.
        param = local(part.param.detach()) if part.sharded else part.param
        return [
            param,
            *(None if t is None else local(t) for t in ours),
            *(buffers + [None, None])[:2],
            *(counters + [None] * COUNTERS)[:COUNTERS],
        ]

    def _make_launches(self) -> None:
        """And room for partial sums: a row for each chunk that is measured, or for each program where those take many."""
        store = self.store

        def chunks(numbers: list[int], size: int, least: int = 0) -> Tensor:
            starts = ((i, range(0, max(store.parts[i].length, least), size)) for i in numbers)
            return self._table([(i, start) for i, each in starts for start in each])

        alike: dict[Any, list[int]] = {}
        for i, part in enumerate(store.parts):
            alike.setdefault((id(self.groups[i]), id(part.options), part.dtype), []).append(i)
        rows, most = 0, self.cut.programs
        if not INTERPRETED:
            most *= torch.cuda.get_device_properties(store.device).multi_processor_count
        bounds = [[0, 0] for _ in range(store.rows)]
        self.launches: list[Launch] = []
        for numbers in alike.values():
            first, group = store.parts[numbers[0]], self.groups[numbers[0]]
            buffers = 0 if group is None else len(self.epilogue.family.buffers(group))
            bytes_of_a_value = first.format.dtype.itemsize
            block, warps = TUNING.update(self.damps, bytes_of_a_value, self.family, buffers)
            measured = chunks(numbers, self.span, least=1)  # steps are counted there: of empty tensors (shards), too
            many = self.damps and not store.by_tensor
            programs = min(len(measured), most) if many else len(measured)
            updated = chunks(numbers, block)
            self.launches.append(Launch(group, first, buffers, measured, updated, programs, rows, block, warps))
            at = rows
            for i in numbers if store.by_tensor else ():
                bounds[store.parts[i].row] = [at, at - (-max(store.parts[i].length, 1) // self.span)]
                at = bounds[store.parts[i].row][1]
            rows += programs
        self.bounds = self._table(bounds if store.by_tensor else [[0, rows]])
        self.one_row = self._table([[0, 1]])
        columns = 1 + (2 if self.rounded else 1) * store.topC if self.damps else 3 if store.needs("cosine") else 1
        self.partials = torch.zeros(max(rows, 1), columns, dtype=torch.float64, device=store.device)

    # -- a step --------------------------------------------------------------------------------------------------------------

    def _write_addresses(self, grads: Sequence[Tensor | None]) -> None:
        self.copied = []
        addresses = []
        for part, g in zip(self.store.parts, grads):
            if g is None:
                addresses.append(0)
                continue
            g = local(g) if part.sharded else g
            here = part.layout.ordered(g)
            address = here.data_ptr() or 16  # an empty one is not a missing one
            if address % 16 != 0:
                here = here.clone()
                address = here.data_ptr()
            if here is not g:
                self.copied.append(here)
            addresses.append(address)
        capturing = not INTERPRETED and torch.cuda.is_current_stream_capturing()
        # A captured graph writes its own addresses at every replay, and nobody is told.
        if addresses == self.grad_addresses and not capturing and not self.captured:
            return
        self.grad_addresses = addresses
        table = torch.tensor(addresses, dtype=torch.int64, device="cpu", pin_memory=not INTERPRETED)
        if capturing:
            # The graph reads this buffer at every replay, so it must stay and never be written again.
            self.captured.append(table)
        self.grads.copy_(table, non_blocking=True)

    def _there(self) -> Any:
        """Triton launches on the current device, which need not be the parameters'."""
        elsewhere = not INTERPRETED and torch.cuda.current_device() != self.store.device.index
        return torch.cuda.device(self.store.device) if elsewhere else nullcontext()

    def measure(self, grads: Sequence[Tensor | None]) -> Tensor:
        """Launch 1; partial sums, or, where ranks or many of them are to be added up, their sum."""
        if not self.is_made:
            self._make_tables()
        store, cut = self.store, self.cut
        self.present = [g is not None for g in grads]
        counts = bool(self.epilogue is not None and self.epilogue.family.counters)
        with self._there():
            self._write_addresses(grads)
            for launch in self.launches:
                group, first, format_ = launch.group or {}, launch.first, launch.first.format
                schedule = (*group.get("betas", (0.0, 0.0)), 0.96 ** group.get("momentum_decay", 0.0))
                tables = (launch.measured, self.tensors, self.grads, self.partials[launch.row :], self.corrections)
                base: dict[str, Any] = {"DTYPE": TYPES[first.dtype], "FAMILY": self.family, "COUNTS": counts}
                if self.damps:
                    self.dots(
                        launch.programs, *tables, *schedule, store.gram, len(launch.measured), store.topC,
                        warps=cut.warps, registers=cut.registers, **base,
                        CODE=TYPES[format_.dtype], LARGEST=format_.largest_code or 0.0, ROUNDED=self.rounded,
                        BY_TENSOR=store.by_tensor, WIDTH=self.width, HIGH=self.high, LOW=self.low,
                        SPLIT=store.topC > self.high, SPAN=self.span, BLOCK=cut.block, STAGES=cut.stages, EACH=cut.each,
                    )  # fmt: skip
                else:
                    self.norms(
                        launch.programs, *tables, *schedule,
                        warps=TUNING.norms[1], **base, COSINE=store.needs("cosine"), SPAN=self.span, BLOCK=TUNING.norms[0],
                    )  # fmt: skip
            many = self.damps and not store.by_tensor and self.partials.shape[0] > 256
            return self.partials.sum(0, keepdim=True) if many or store.process_group is not None else self.partials

    def decide(self, sums: Tensor, priority: Tensor | None) -> None:
        """Launch 2; the tables go on."""
        store, options, first = self.store, self.store.options, self.store.parts[0].options
        if priority is not None:
            self.offered.copy_(priority)
        # As many lanes as one program can use; programs of many memories have little to add up.
        block, warps = (64, 4) if self.damps else (1024, 8) if store.rows == 1 else (32, 1)
        with self._there():
            self.decide_(
                store.rows, sums, self.bounds if sums is self.partials else self.one_row,
                self.weights if store.gram is None else store.gram, *store.tables().values(), store.stream, self.offered,
                self.decisions, self.weights, store.topC, float(options["decay"]), max(float(first["rho"]), SMALLEST_RHO),
                float(first["kappa"]), options["seed"], options["every"], options["max_age"] or 0,
                warps=warps, GIVEN=priority is not None, POLICY=store.policy.name, AGED=options["max_age"] is not None,
                COSINE=store.needs("cosine"), PICKS=any(isinstance(x.first.aggregation, Pick) for x in self.launches),
                DAMPS=self.damps, ROUNDED=self.rounded, WIDTH=self.width, BLOCK=block,
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
                if len(launch.updated) > 0:
                    self._update(launch, out.get(launch.first.dtype, self.weights))
        if self.epilogue is not None:
            # What torch's own operations do by themselves: autograd must notice that a parameter has changed.
            changed = [part.param for part, present in zip(parts, self.present) if present]
            shards = [local(param.detach()) for param in changed if is_dtensor(param)]
            torch.autograd.graph.increment_version(changed + shards)
        directions: list[Tensor | None] = [None] * len(parts)
        for dtype, buffer in out.items():
            # Faster than views one by one.
            shaped = _unflatten_dense_tensors(buffer, [self.shapes[i] for i in self.pieces[dtype]])
            for i, d in zip(self.pieces[dtype], shaped):
                if self.present[i]:
                    layout = parts[i].layout
                    directions[i] = d if layout.contiguous and d.numel() else layout.unflatten(d.reshape(-1))
        return directions

    def _adding(self, part: Part) -> Tensor:
        aggregation, kappa = part.aggregation, float(part.options["kappa"])
        if (aggregation, kappa) not in self.adding:
            # A schedule of kappa leaves many. A captured graph reads the one that it was made with.
            if len(self.adding) > 64 and not self.captured:
                self.adding.clear()
            table = adding_table(aggregation, kappa, self.store.topC)
            self.adding[aggregation, kappa] = torch.tensor(table, dtype=torch.float32, device=self.store.device)
        return self.adding[aggregation, kappa]

    def _update(self, launch: Launch, out: Tensor) -> None:
        epilogue, store, part = self.epilogue, self.store, launch.first
        group = launch.group or {}
        format_, aggregation = part.format, part.aggregation
        lr = group.get("lr", 0.0)
        lr_is_tensor = torch.is_tensor(lr)
        # A compiled kernel reads what it was compiled for, whatever dtype comes later.
        lr = lr.to(store.device, torch.float32, non_blocking=True) if lr_is_tensor else float(lr)
        n: dict[str, float] = defaultdict(float) if epilogue is None else epilogue.numbers(group)
        self.update(
            len(launch.updated), launch.updated, self.tensors, self.grads, self.decisions, self.corrections,
            self.weights if self.damps else self._adding(part), out,
            # One minus a beta is taken here, in double precision.
            lr, n["weight_decay"], n["beta1"], 1 - n["beta1"], n["beta2"], 1 - n["beta2"], n["eps"], n["momentum"], store.topC,
            warps=launch.warps, LR_TENSOR=lr_is_tensor,
            PICK=aggregation.number if isinstance(aggregation, Pick) else -1, FAMILY=self.family, BUFFERS=launch.buffers,
            DECOUPLED=epilogue is not None and epilogue.decoupled(group),
            NESTEROV=bool(group.get("nesterov")), MAXIMIZE=bool(group.get("maximize")),
            DAMPING=store.topC if self.damps else 0, BY_TENSOR=store.by_tensor, DTYPE=TYPES[part.dtype],
            CODE=TYPES[format_.dtype], LARGEST=format_.largest_code or 0.0, BLOCK=launch.block,
        )  # fmt: skip
