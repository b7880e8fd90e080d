"""The memory: what is stored for each parameter, the tables that parameters share, and the state keys of both.

A ``Memory`` is what is decided at once: everything under ``scope="global"``, one group under ``"group"``, the tensors
of a group, a row each, under ``"tensor"``. A ``Part`` is one parameter's share of it.
"""

from __future__ import annotations

import warnings
from collections.abc import MutableMapping, Sequence
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from .aggregate import adding_weights
from .distributed import prepare
from .layout import Layout, is_dtensor, local
from .measure import gram_from_slots, pending, squares_of_slots
from .options import QUANTIZED
from .policies import Policy, policy_of
from .slots import FORMATS, SCALE_BLOCK, Format, Slots, scale_blocks, working_dtype

# State keys: flat tensors of fixed shape under every parameter, from the first step on.
SLOTS = "critical_slots"  # (C, *shape): the stored gradients
SCALE = "critical_scale"  # (C, blocks): with 8-bit slots, what their codes are multiplied with
SUM = "critical_sum"  # (*shape): the sum of the stored gradients, fp32 or wider; not with aggr="fisher"
PRIORITY = "critical_priority"  # (C,): norm * decay ** age
NORM = "critical_norm"  # (C,): norm when stored
BORN = "critical_born"  # (C,): number of the step that stored it; 0 = free
CLOCK = "critical_clock"  # (): steps seen, not counting those with a gradient that was not finite
INSERTED = "critical_inserted"  # (): gradients stored so far
GRAM = "critical_gram"  # (C, C): inner products of the stored gradients; with aggr="fisher" only

# NOTE [pending]: an entry that a kernel has rounded has inner products that only the next step's pass over the slots
# finds; until then its row and column of the Gram matrix are NaN. A checkpoint keeps them so, and the resumed run finds
# the same bits; whatever else goes on from there settles them first (measure.settle).
TABLE_KEYS = (PRIORITY, NORM, BORN, CLOCK, INSERTED)
DERIVED_KEYS = (SUM, GRAM)
KEYS = (SLOTS, SCALE, SUM, *TABLE_KEYS, GRAM)

State = MutableMapping[str, Any]

# A rolling slice of the running sum is summed anew in each step, so that rounding errors cannot pile up. Once round
# takes this many steps per slot, which makes the extra reads 1/16 of a gradient whatever topC is.
REFRESH_STEPS_PER_SLOT = 16
SMALLEST_REFRESH = 4 * SCALE_BLOCK
# How far a kept inner product may be from one made anew, both summed in float32 within blocks.
GRAM_ROUNDING = 1e-5


class Part:
    """One parameter's share of a memory: its slots and, unless it damps, their running sum."""

    def __init__(self, param: Tensor, options: dict[str, Any], row: int, number: int) -> None:
        self.param = param
        self.options = options
        self.row = row  # of the memory's tables
        self.number = number  # within the memory; staggers the refreshing of small tensors
        self.layout = Layout(param)
        self.dtype = param.dtype  # that the memory was laid out for; a model may be cast later
        self.damps = options["aggr"] == "fisher"
        self.work = working_dtype(param.dtype)
        self.device = local(param).device
        self.sharded = is_dtensor(param)
        self.counts = True  # whether this rank adds this tensor's squares to the norm (see distributed)
        self.tensors: dict[str, Tensor] = {}  # what stands in the optimizer's state, our keys only
        self.slots: Slots
        self.same_values = False  # whether the slots hold, bit for bit, what the state held that they were made from
        self.sum: Tensor | None = None  # flat
        self.scratch: Tensor | None = None  # the plain path's direction, kept on a CPU

    # -- allocation ----------------------------------------------------------------------------------------------------

    @property
    def format_name(self) -> str:
        """The key of ``FORMATS`` that the slots are stored by."""
        name = self.options["memory_dtype"]
        return str(self.layout.real_dtype).removeprefix("torch.") if name is None else name

    def allocate(self, old: State, keep: Tensor | None) -> None:
        """Take over what ``old`` state holds, as far as it fits, and make the rest.

        ``keep`` names the old slots that are kept, when the number of slots changes.
        """
        self.tensors = self._empty_slots(self.options["topC"])
        self.same_values = keep is None and all(_same_values(old.get(key), new) for key, new in self.tensors.items())
        if self.same_values:
            self._take_over(old, *self.tensors)
        self.slots = self._view_slots(self.tensors)
        if SLOTS in old and not self.same_values:
            self._copy_slots(old, keep)
        if not self.damps:
            self.tensors[SUM] = self._zeros(self._sum_dtype())
            trusted = self.same_values and _same_values(old.get(SUM), self.tensors[SUM])
            if trusted:
                self._take_over(old, SUM)
            self.sum = self.layout.flat(self.tensors[SUM])
            if SLOTS in old and not trusted:
                self.refresh_all()

    def _take_over(self, old: State, *keys: str) -> None:
        """Old tensors in the place of new ones; copied, bit for bit, where they lie elsewhere or in another order."""
        for key in keys:
            new = self.tensors[key]
            self.tensors[key] = old[key] if _same_storage(old[key], new) else new.copy_(old[key])

    def _sum_dtype(self) -> torch.dtype:
        return self.work.to_complex() if self.layout.complex else self.work

    def _zeros(self, dtype: torch.dtype) -> Tensor:
        if is_dtensor(self.param):
            return torch.zeros_like(self.param, dtype=dtype, memory_format=torch.contiguous_format)
        return self.layout.empty(dtype, self.device).zero_()

    def _empty_slots(self, topC: int) -> dict[str, Tensor]:
        """Zeroed slots (and scales) in the layout and format that the options ask for."""
        format_ = FORMATS[self.format_name]
        complex_ = self.layout.complex and self.options["memory_dtype"] is None
        dtype = self.param.dtype if complex_ else format_.dtype
        on_host = self.options["memory_device"] == "cpu" and self.device.type != "cpu"
        if is_dtensor(self.param):
            if self.options["memory_dtype"] in QUANTIZED or on_host or (self.layout.complex and not complex_):
                raise TypeError(
                    f"memory_dtype={self.options['memory_dtype']!r}, memory_device={self.options['memory_device']!r} "
                    "with a sharded parameter (DTensor): 8-bit slots and slots in host memory are for plain tensors; "
                    'use memory_dtype="bfloat16"'
                )
            # NOTE [DTensor]: new_zeros would be replicated without a word; only this shifts every kind of placement.
            zeros = torch.zeros_like(self.param, dtype=dtype, memory_format=torch.contiguous_format)
            return {SLOTS: zeros.unsqueeze(0).repeat(topC, *[1] * self.param.dim())}
        place: dict[str, Any] = {"pin_memory": True} if on_host else {}
        device = torch.device("cpu") if on_host else self.device
        tensors = {SLOTS: self.layout.empty(dtype, device, leading=topC, **place)}
        (tensors[SLOTS].view(torch.int8) if format_.scaled else tensors[SLOTS]).zero_()
        if format_.scaled:
            blocks = scale_blocks(self.layout.length)
            tensors[SCALE] = torch.zeros(topC, blocks, dtype=torch.float32, device=device, **place)
        return tensors

    def _view_slots(self, tensors: dict[str, Tensor]) -> Slots:
        rows = self.layout.flat_rows(tensors[SLOTS])
        return Slots(rows, tensors.get(SCALE), FORMATS[self.format_name], self.work, self.device)

    def _copy_slots(self, old: State, keep: Tensor | None) -> None:
        """Bring slots of another number, order, dtype or device into ours, rounding where ours are narrower."""
        was = local(old[SLOTS])
        flat = torch.stack([self._flat_old(slot) for slot in was.unbind(0)])
        scaled = [format_ for format_ in FORMATS.values() if format_.scaled and format_.dtype == was.dtype]
        scale, format_ = (old[SCALE], scaled[0]) if scaled else (None, Format(flat.dtype))
        source = Slots(flat, scale, format_, self.work, self.device)
        rows = range(was.shape[0]) if keep is None else keep.tolist()
        for k, row in enumerate(rows):
            self.slots.write(k, *self.slots.encode(source.row(row)))

    def _flat_old(self, slot: Tensor) -> Tensor:
        if self.layout.complex and not slot.is_complex():
            return slot.reshape(-1) if self.layout.contiguous else self.layout.flat(torch.view_as_complex(slot.float()))
        if slot.dtype in (torch.float8_e4m3fn, torch.int8):
            return self.layout.flat(slot.view(torch.int8)).view(slot.dtype)
        return self.layout.flat(slot)

    # -- the running sum -----------------------------------------------------------------------------------------------

    def refresh_all(self) -> None:
        """Make the running sum anew from the slots."""
        assert self.sum is not None
        for start in range(0, self.layout.length, 1 << 16):
            stop = min(start + (1 << 16), self.layout.length)
            self.sum[start:stop] = self.slots.columns(start, stop).sum(0)

    def refresh_span(self) -> tuple[int, int]:
        """``(length of a slice, steps once round)``."""
        steps = REFRESH_STEPS_PER_SLOT * self.options["topC"]
        length = max(-(-self.layout.length // steps), SMALLEST_REFRESH)
        return -(-length // SCALE_BLOCK) * SCALE_BLOCK, steps

    @property
    def bytes(self) -> int:
        """Held by this rank for this parameter, the shared tables not counted."""
        mine = [local(self.tensors[key]) for key in (SLOTS, SCALE, SUM) if key in self.tensors]
        return sum(tensor.numel() * tensor.element_size() for tensor in mine)


class Memory:
    """Parts with common tables: priorities, norms, birthdays, a clock; a row of them for each thing that is decided."""

    def __init__(
        self,
        owners: Sequence[tuple[Tensor, dict[str, Any]]],
        states: Sequence[State],
        streams: Sequence[int],
        by_tensor: bool,
        process_group: Any = None,
    ) -> None:
        common = owners[0][1]
        self.topC: int = common["topC"]
        self.decay: float = common["decay"]
        self.policy: Policy = policy_of(common["policy"])
        self.max_age: int | None = common["max_age"]
        self.seed: int = common["seed"]
        self.every: int = common["every"]
        self.by_tensor = by_tensor
        self.parts = [Part(p, o, i if by_tensor else 0, i) for i, (p, o) in enumerate(owners)]
        self.rows = len(owners) if by_tensor else 1
        self.device = self.parts[0].device
        wide = any(part.work == torch.float64 for part in self.parts)
        self.dtype = torch.float64 if wide else torch.float32
        self.streams = list(streams) if by_tensor else [streams[0]]
        self.stream = torch.tensor(self.streams, device=self.device)
        self._adding: dict[Any, list[tuple[float, float]]] = {}
        self.attached = False  # whether the optimizer's state holds what is here
        self.process_group: Any = None
        prepare(self, process_group)

        olds = [{key: state[key] for key in KEYS if key in state} for state in states]
        self._check(olds)
        keep = self._take_over_tables(olds)
        for part, old in zip(self.parts, olds):
            part.allocate(old, None if keep is None else keep[part.row])
        self.gram: Tensor | None = None
        if any(part.damps for part in self.parts):
            self.gram = self._take_over_gram(olds, keep is None)
        for part in self.parts:
            part.tensors.update({key: table[part.row] for key, table in self._tables().items()})
            if self.gram is not None and part.damps:
                part.tensors[GRAM] = self.gram[part.row]
        # The parts that keep a sum, and where each ends when they are laid end to end.
        adding = [part for part in self.parts if part.sum is not None]
        self.summed = (list(accumulate(part.layout.length for part in adding)), adding)

    def _tables(self) -> dict[str, Tensor]:
        tables = (self.priority, self.norm, self.born, self.clock, self.inserted)
        return dict(zip(TABLE_KEYS, tables))

    def adding_weights(self, aggr: str, kappa: float) -> list[tuple[float, float]]:
        """``(scale, share)`` by the number of live entries, as numbers: for paths that decide on the host."""
        if (aggr, kappa) not in self._adding:
            counts = torch.arange(self.topC + 1, device="cpu")
            both = adding_weights(aggr, kappa, counts, torch.ones_like(counts, dtype=torch.bool))
            self._adding[aggr, kappa] = list(zip(*(weights.tolist() for weights in both)))
        return self._adding[aggr, kappa]

    def attach(self, states: Sequence[State]) -> None:
        """Write our keys into the optimizer's state, and take out those that this memory does not use."""
        for part, state in zip(self.parts, states):
            for key in KEYS:
                if key not in part.tensors:
                    state.pop(key, None)
            state.update(part.tensors)
        self.attached = True

    # -- taking over old state: another number of slots, another scope, missing keys -----------------------------------

    def _check(self, olds: Sequence[State]) -> None:
        for part, old in zip(self.parts, olds):
            check_state(part.param, old)

    def _take_over_tables(self, olds: Sequence[State]) -> Tensor | None:
        """Make the tables. Returns the old slots to keep, ``(rows, topC)``, if their number changes."""
        holders: list[State] = []
        for row in range(self.rows):
            mine = [old for part, old in zip(self.parts, olds) if part.row == row and SLOTS in old and BORN in old]
            if any(not _same_tables(mine[0], other) for other in mine[1:]):
                warnings.warn(
                    "the parameters of one memory come with different tables (was the scope another one?): "
                    "this memory starts empty",
                    stacklevel=2,
                )
                mine = []
                for old in olds:
                    old.clear()
            holders.append(mine[0] if mine else {})
        C = max((holder[BORN].shape[0] for holder in holders if holder), default=self.topC)

        def stacked(key: str, dtype: torch.dtype, *shape: int) -> Tensor:
            blank = torch.zeros(shape, dtype=dtype, device=self.device)
            rows = []
            for holder in holders:
                table = local(holder[key]).to(self.device, dtype) if key in holder else blank
                rows.append(blank if table.shape != blank.shape else table)
            return torch.stack(rows)

        self.priority = stacked(PRIORITY, self.dtype, C)
        self.norm = stacked(NORM, self.dtype, C)
        self.born = stacked(BORN, torch.int64, C)
        self.clock = stacked(CLOCK, torch.int64)
        self.inserted = stacked(INSERTED, torch.int64)
        if self.topC == C:
            return None
        keep = strongest(self.priority, self.born, min(C, self.topC), by_age=self.policy.name == "FIFO")
        free = self.topC - keep.shape[1]
        for name in ("priority", "norm", "born"):
            table = getattr(self, name).gather(1, keep)
            setattr(self, name, torch.nn.functional.pad(table, (0, free)))
        return keep

    def _take_over_gram(self, olds: Sequence[State], same_slots: bool) -> Tensor:
        """The Gram matrix of the old state, or, where that is missing or doubtful, a new one made from the slots."""
        gram = torch.zeros(self.rows, self.topC, self.topC, dtype=torch.float64, device=self.device)
        trusted = same_slots
        for part, old in zip(self.parts, olds):
            if SLOTS not in old:
                continue  # a newcomer: its zero slots change no inner product
            was = old.get(GRAM)
            if not part.damps:
                trusted &= was is None  # it used to damp: the others' matrix still counts it
            elif was is None or was.shape != gram.shape[1:] or not part.same_values:
                trusted = False
            else:
                gram[part.row] = local(was).to(self.device, torch.float64)
        if gram.is_meta:
            return gram  # there are no numbers to doubt
        waits = pending(gram)
        unknown = waits[..., :, None] | waits[..., None, :]
        as_left = torch.equal(~torch.isfinite(gram), unknown) and bool((waits.sum(-1) <= 1).all())
        return gram if trusted and as_left and self._is_of_these_parts(gram) else gram_from_slots(self)

    def _is_of_these_parts(self, gram: Tensor) -> bool:
        """Whether the matrix counts these parts and no others: under another scope, or before one left, it counted more."""
        squares = squares_of_slots(self)
        found = torch.diagonal(gram, dim1=-2, dim2=-1)
        return bool((found.isnan() | ((found - squares).abs() <= GRAM_ROUNDING * squares)).all())

    @property
    def table_bytes(self) -> int:
        """Of the tables alone, which every parameter's state shows but one tensor holds."""
        tables = [*self._tables().values(), *([] if self.gram is None else [self.gram])]
        return sum(table.numel() * table.element_size() for table in tables)

    @property
    def bytes(self) -> int:
        """Held by this rank: slots, sums and tables."""
        return sum(part.bytes for part in self.parts) + self.table_bytes


def _same_values(old: Tensor | None, new: Tensor) -> bool:
    """Whether ``old`` can be taken over as it is, or copied without rounding."""
    return old is not None and type(old) is type(new) and (old.shape, old.dtype) == (new.shape, new.dtype)


def _same_storage(old: Tensor, new: Tensor) -> bool:
    return (old.device, old.stride(), old.is_pinned()) == (new.device, new.stride(), new.is_pinned())


def _same_tables(one: State, other: State) -> bool:
    keys = (PRIORITY, BORN, CLOCK)
    if all(one.get(key) is other.get(key) for key in keys) or one[BORN].is_meta:
        return True
    return all(
        key in one and key in other and torch.equal(local(one[key]).cpu(), local(other[key]).cpu()) for key in keys
    )


def strongest(priority: Tensor, born: Tensor, count: int, by_age: bool) -> Tensor:
    """The ``count`` slots of the highest priority, of equal ones the youngest, in slot order: ``(rows, count)``.

    >>> strongest(torch.tensor([[3.0, 1.0, 3.0]]), torch.tensor([[1, 2, 3]]), 1, by_age=False)
    tensor([[2]])
    """
    order = born.argsort(dim=-1, descending=True, stable=True)
    if not by_age:
        live = torch.where(born > 0, priority, -torch.inf).gather(-1, order)
        order = order.gather(-1, live.argsort(dim=-1, descending=True, stable=True))
    return order[..., :count].sort(-1).values


def check_state(param: Tensor, state: State) -> None:
    """Raise ``ValueError`` if what ``state`` holds for ``param`` cannot be its memory."""
    if not state:
        return
    slots = state.get(SLOTS)
    shape = tuple(param.shape)
    if not torch.is_tensor(slots) or tuple(slots.shape[1:]) not in (shape, (*shape, 2)) or slots.dim() < 1:
        found = tuple(slots.shape) if torch.is_tensor(slots) else type(slots).__name__
        raise ValueError(f"Invalid {SLOTS}: {found} for a parameter of shape {shape}, expected (topC, *{shape})")
    C = slots.shape[0]
    expected = {PRIORITY: (C,), NORM: (C,), BORN: (C,), CLOCK: (), INSERTED: (), SUM: shape}
    if any(format_.scaled and format_.dtype == slots.dtype for format_ in FORMATS.values()):
        expected[SCALE] = (C, scale_blocks(slots[0].numel()))
    for key, must in expected.items():
        if key in (INSERTED, SUM) and key not in state:
            continue  # a memory can do without
        table = state.get(key)
        if not torch.is_tensor(table) or tuple(table.shape) != must:
            found = tuple(table.shape) if torch.is_tensor(table) else type(table).__name__
            raise ValueError(f"Invalid {key}: {found}, expected the shape {must}, as {SLOTS} is {tuple(slots.shape)}")
