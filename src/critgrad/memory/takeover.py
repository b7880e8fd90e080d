"""From state to a store: what an optimizer's state holds is taken over as far as it fits, and the rest is made.

The state may be of another number of slots, scope, dtype or device (a checkpoint, a model that was moved), or not there.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from .aggregations import aggregation_of
from .dtensors import is_dtensor, local
from .formats import SCALE_BLOCK, Slots, scale_blocks, scaled_format
from .gram import agrees, gram_from_slots
from .keys import BORN, CLOCK, GRAM, INSERTED, NORM, PRIORITY, SCALE, SLOTS, SUM, TABLE_KEYS, ours
from .options import KEPT_ON_LOAD, OBJECTS, check_options, read_options, saved_form
from .store import Block, Part, State, Store

Keep = list["Tensor | None"]  # of each row of the tables: the old slots that are kept; None: all, as they are


def fill(store: Store, olds: Sequence[State], together: bool, known: Iterable[Block]) -> None:
    """Give a store its tables and blocks, from ``olds``, the state of each part (our keys only).

    ``together``: new slots lie in one buffer for each group. ``known`` are blocks of before: one whose parts' state is what it
    was is used again, so that nothing is copied when a parameter is added.
    """
    for part, old in zip(store.parts, olds):
        check_state(part.param, old)
    keep = _take_over_tables(store, olds)
    of = {part.param: (part, old) for part, old in zip(store.parts, olds)}
    for block in known:
        if all(_is_still(part, of, keep) for part in block.parts):
            here = [of.pop(before.param)[0] for before in block.parts]
            for part, before in zip(here, block.parts):
                part.start = before.start
                part.tensors = {key: before.tensors[key] for key in (SLOTS, SCALE, SUM) if key in before.tensors}
            store.blocks.append(Block(here, block.slots.values, block.slots.scale, block.sum))
    for parts in _shares([part for part, _ in of.values()], together and not store.by_tensor):
        store.blocks.append(_make_block(parts, [of[part.param][1] for part in parts], keep))
    store.blocks.sort(key=lambda block: block.number)
    if store.damps:
        store.gram = _take_over_gram(store, olds, keep)
    for part in store.parts:
        part.tensors.update({key: table[part.row] for key, table in store.tables().items()})
        if store.gram is not None and part.damps:
            part.tensors[GRAM] = store.gram[part.row]


# -- slots -----------------------------------------------------------------------------------------------------------------


def _is_still(part: Part, of: dict[Tensor, tuple[Part, State]], keep: Keep) -> bool:
    """Whether a part of an old block has its parameter here, in the same form, and its state untouched."""
    if part.param not in of:
        return False
    new, old = of[part.param]
    if new.form != part.form or new.layout.strides != part.layout.strides or keep[new.row] is not None:
        return False
    keys = [key for key in (SLOTS, SCALE, SUM) if key in part.tensors]
    where = part.block.slots.values[:, part.start :].data_ptr() if not part.sharded and part.length else None
    untouched = where is None or part.tensors[SLOTS].data_ptr() == where
    return untouched and all(old.get(key) is part.tensors[key] for key in keys)


def _shares(parts: list[Part], together: bool) -> Iterable[list[Part]]:
    """Who shares a block with whom: of one group and form, and plain tensors on the parameters' device."""
    shares: dict[Any, list[Part]] = {}
    for part in parts:
        alone = not together or part.sharded or part.layout.complex or part.offloaded or part.length == 0
        shares.setdefault(part if alone else (id(part.options), part.form), []).append(part)
    return shares.values()


def _make_block(parts: list[Part], olds: list[State], keep: Keep) -> Block:
    """Slots and sums for these parts, with what the state holds of them: as it lies, copied bit for bit, or brought over."""
    first, alone = parts[0], len(parts) == 1
    buffer = None if alone else _one_buffer(parts)
    if alone:
        first.tensors = _own_tensors(first)
    doubtful = False
    for part, old in zip(parts, olds):
        for key, new in list(part.tensors.items()) if _is_exact(part, old, keep) else ():
            if not _same_values(old.get(key), new):
                doubtful = True  # the sum
            elif alone and _same_storage(old[key], new):
                part.tensors[key] = old[key]
            else:
                new.copy_(old[key])
    if buffer is None:
        flat = {key: first.layout.flat(first.tensors[key]) for key in (SLOTS, SUM) if key in first.tensors}
        buffer = flat[SLOTS], first.tensors.get(SCALE), flat.get(SUM)
    block = Block(parts, *buffer)
    for part, old in zip(parts, olds):
        if SLOTS in old and not _is_exact(part, old, keep):
            _copy_slots(part, old, keep[part.row])
            doubtful = True
    if doubtful and block.sum is not None:
        for start in range(0, block.length, 1 << 16):
            stop = min(start + (1 << 16), block.length)
            block.sum[start:stop] = block.slots.columns(start, stop).sum(0)
    return block


def _is_exact(part: Part, old: State, keep: Keep) -> bool:
    """Whether its slots hold, bit for bit, what the state held."""
    stored = [key for key in (SLOTS, SCALE) if key in part.tensors]
    return keep[part.row] is None and all(_same_values(old.get(key), part.tensors[key]) for key in stored)


def _one_buffer(parts: list[Part]) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Slots, scales and sums for all of them, and views of these in the shapes that the state has."""
    first, C, at = parts[0], parts[0].options["topC"], 0
    for part in parts:
        part.start = at
        at += scale_blocks(part.length) * SCALE_BLOCK
    format_, device = first.format, first.device
    values = torch.zeros(C, at, dtype=torch.int8 if format_.scaled else format_.dtype, device=device)
    values = values.view(format_.dtype)
    scale = torch.zeros(C, at // SCALE_BLOCK, dtype=torch.float32, device=device) if format_.scaled else None
    total = None if first.damps else torch.zeros(at, dtype=first.work, device=device)
    for part in parts:
        shape, strides = tuple(part.layout.shape), tuple(part.layout.strides)
        part.tensors = {SLOTS: values.as_strided((C, *shape), (at, *strides), part.start)}
        if scale is not None:
            begin = part.start // SCALE_BLOCK
            part.tensors[SCALE] = scale[:, begin : begin + scale_blocks(part.length)]
        if total is not None:
            part.tensors[SUM] = total.as_strided(shape, strides, part.start)
    return values, scale, total


def _own_tensors(part: Part) -> dict[str, Tensor]:
    """Zeroed slots, scales and a sum in the layout and format that the options ask for."""
    format_, topC, memory_dtype = part.format, part.options["topC"], part.options["memory_dtype"]
    complex_ = part.layout.complex and memory_dtype is None
    dtype = part.param.dtype if complex_ else format_.dtype
    if part.sharded:
        if format_.scaled or part.offloaded or (part.layout.complex and not complex_):
            raise TypeError(
                f"memory_dtype={memory_dtype!r}, memory_device={part.options['memory_device']!r} "
                "with a sharded parameter (DTensor): 8-bit slots and slots in host memory are for plain tensors; "
                'use memory_dtype="bfloat16"'
            )
        # NOTE [DTensor]: new_zeros would be replicated without a word; only this shifts every kind of placement.
        tensors = {SLOTS: _zeros(part, dtype).unsqueeze(0).repeat(topC, *[1] * part.param.dim())}
    else:
        place: dict[str, Any] = {"pin_memory": True} if part.offloaded else {}
        device = torch.device("cpu") if part.offloaded else part.device
        tensors = {SLOTS: part.layout.empty(dtype, device, leading=topC, **place)}
        (tensors[SLOTS].view(torch.int8) if format_.scaled else tensors[SLOTS]).zero_()
        if format_.scaled:
            tensors[SCALE] = torch.zeros(topC, scale_blocks(part.length), dtype=torch.float32, device=device, **place)
    if not part.damps:
        tensors[SUM] = _zeros(part, part.work.to_complex() if part.layout.complex else part.work)
    return tensors


def _zeros(part: Part, dtype: torch.dtype) -> Tensor:
    if part.sharded:
        return torch.zeros_like(part.param, dtype=dtype, memory_format=torch.contiguous_format)
    return part.layout.empty(dtype, part.device).zero_()


def _copy_slots(part: Part, old: State, keep: Tensor | None) -> None:
    """Bring slots of another number, order, dtype or device into ours, rounding where ours are narrower."""
    was, slots = local(old[SLOTS]), part.block.slots
    # Reading asks for values and scales alone: codes that somebody has cast (torch's load_state_dict does) are read, too.
    source = Slots(part.layout.flat(was), old.get(SCALE), slots.format, part.work, part.device)
    for k, row in enumerate(range(was.shape[0]) if keep is None else keep.tolist()):
        slots.write(k, *slots.encode(source.row(row)), start=part.start)


def _same_values(old: Tensor | None, new: Tensor) -> bool:
    """Whether ``old`` can be taken over as it is, or copied without rounding."""
    return old is not None and type(old) is type(new) and (old.shape, old.dtype) == (new.shape, new.dtype)


def _same_storage(old: Tensor, new: Tensor) -> bool:
    if (old.device, old.stride(), old.is_pinned()) != (new.device, new.stride(), new.is_pinned()):
        return False
    # No view of a large buffer.
    return is_dtensor(old) or old.untyped_storage().nbytes() <= 2 * new.untyped_storage().nbytes()


# -- tables ----------------------------------------------------------------------------------------------------------------


def _take_over_tables(store: Store, olds: Sequence[State]) -> Keep:
    """Make the tables; each row is taken over by itself. Returns the old slots to keep of each whose number changes."""
    C = store.topC
    kinds = {PRIORITY: store.dtype, NORM: store.dtype, BORN: torch.int64}
    blank = {key: torch.zeros(C, dtype=dtype, device=store.device) for key, dtype in kinds.items()}
    blank |= {key: torch.zeros((), dtype=torch.int64, device=store.device) for key in (CLOCK, INSERTED)}
    rows: list[dict[str, Tensor]] = []
    keep: Keep = [None] * store.rows
    for row in range(store.rows):
        mine = [old for old in (olds[row : row + 1] if store.by_tensor else olds) if old]
        if not all(_same_tables(mine[0], other) for other in mine[1:]):
            warnings.warn(
                "the parameters of one memory come with different tables (was the scope another one?): "
                "this memory starts empty",
                stacklevel=2,
            )
            mine = []
            for old in olds:
                old.clear()
        old = mine[0] if mine else {}
        tables = {key: local(old[key]).to(new) if key in old else new for key, new in blank.items()}
        if tables[BORN].shape[0] != C:
            by_age = store.policy.name == "FIFO"
            keep[row] = kept = strongest(tables[PRIORITY], tables[BORN], min(C, tables[BORN].shape[0]), by_age)
            for key in kinds:
                tables[key] = torch.nn.functional.pad(tables[key][kept], (0, C - kept.shape[0]))
        rows.append(tables)
    stacked = [torch.stack([tables[key] for tables in rows]) for key in TABLE_KEYS]
    store.priority, store.norm, store.born, store.clock, store.inserted = stacked
    return keep


def _same_tables(one: State, other: State) -> bool:
    pairs = [(one[key], other[key]) for key in (PRIORITY, BORN, CLOCK)]
    return one[BORN].is_meta or all(a is b or torch.equal(local(a).cpu(), local(b).cpu()) for a, b in pairs)


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


def _take_over_gram(store: Store, olds: Sequence[State], keep: Keep) -> Tensor:
    """The Gram matrix of the old state, or, where that is missing or doubtful, the one made from the slots."""
    made = gram_from_slots(store)  # in any case: ranks must not wait for each other in different sums
    gram, trusted = torch.zeros_like(made), True
    for part, old in zip(store.parts, olds):
        if SLOTS not in old:
            continue  # a newcomer: its zero slots change no inner product
        was = old.get(GRAM)
        if not part.damps:
            trusted &= was is None  # it used to damp: the others' matrix still counts it
        elif was is None or (was.shape, was.dtype) != (gram.shape[1:], gram.dtype) or not _is_exact(part, old, keep):
            trusted = False
        else:
            gram[part.row] = local(was).to(store.device)
    if gram.is_meta:
        return gram  # there are no numbers to doubt
    return gram if trusted and agrees(gram, made) else made


def check_state(param: Tensor, state: State) -> None:
    """Raise ``ValueError`` if what ``state`` holds for ``param`` cannot be its memory."""
    if not state:
        return
    slots: Any = state.get(SLOTS)
    shape = tuple(param.shape)
    known, of_complex = torch.is_tensor(slots), param.is_complex()
    if of_complex and known and not slots.is_complex():
        shape = (*shape, 2)  # in another dtype they are pairs
    if not known or tuple(slots.shape[1:]) != shape or slots.dim() < 1 or slots.is_complex() > of_complex:
        found = f"{tuple(slots.shape)}{' complex' * slots.is_complex()}" if known else type(slots).__name__
        of = f"a {'complex ' * of_complex}parameter of shape {tuple(param.shape)}"
        raise ValueError(f"Invalid {SLOTS}: {found} for {of}, expected (topC, *{shape})")
    C = slots.shape[0]
    expected = {PRIORITY: (C,), NORM: (C,), BORN: (C,), CLOCK: (), INSERTED: (), SUM: tuple(param.shape)}
    if scaled_format(slots.dtype) is not None:
        expected[SCALE] = (C, scale_blocks(slots[0].numel()))
    for key, must in expected.items():
        if key in (INSERTED, SUM) and key not in state:
            continue  # a memory can do without
        table = state.get(key)
        if not torch.is_tensor(table) or tuple(table.shape) != must:
            found = str(tuple(table.shape)) if torch.is_tensor(table) else type(table).__name__
            raise ValueError(f"Invalid {key}: {found}, expected the shape {must}, as {SLOTS} is {tuple(slots.shape)}")


# -- checkpoints -----------------------------------------------------------------------------------------------------------


def incoming(
    optimizer: Optimizer, checkpoint: Mapping[str, Any], keys: dict[str, str]
) -> list[tuple[dict[str, Any], list[State]]]:
    """What a checkpoint brings to each group: its options, and of each parameter what it holds of a memory.

    The options that it lacks, and those of the allocation, stay as they are. Raises before anything is changed for what does
    not fit; warns where damping becomes adding, or the other way round.
    """
    here, groups = optimizer.param_groups, checkpoint["param_groups"]
    found, expected = ([len(group["params"]) for group in each] for each in (groups, here))
    if found != expected:  # not every optimizer looks
        raise ValueError(f"Invalid state_dict: parameter groups of {found} parameters, expected {expected}")
    held: list[list[State]] = [[ours(checkpoint["state"].get(i, {})) for i in group["params"]] for group in groups]
    for group, states in zip(here, held):
        for param, state in zip(group["params"], states):
            check_state(param, state)
    was, loaded = read_options(here, keys, optimizer.defaults), []
    for mine, group in zip(was, groups):
        taken = {name: group[key] for name, key in keys.items() if name not in KEPT_ON_LOAD and key in group}
        loaded.append(options := {**mine, **taken})
        for name, (kind, built_in) in OBJECTS.items():
            named = options[name]
            if named == saved_form(mine[name]):
                options[name] = mine[name]
            elif isinstance(named, str) and named not in built_in:
                raise ValueError(
                    f"Invalid {name}: the checkpoint was made with {named!r}, which is no built-in one: "
                    f"construct the optimizer with that critgrad.{kind.__name__} (its functions are not saved), then load"
                )
    check_options(loaded)
    for mine, options in zip(was, loaded):
        old, new = aggregation_of(mine["aggr"]), aggregation_of(options["aggr"])
        if options["topC"] > 0 and old.damps != new.damps:
            warnings.warn(
                f'this {type(optimizer).__name__} had aggr="{old.name}", the checkpoint has aggr="{new.name}", and that is '
                f'used from here on; to go on with the former, set group["aggr"] = "{old.name}" in param_groups after loading',
                stacklevel=4,
            )
            break
    return list(zip(loaded, held))
