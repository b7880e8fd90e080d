"""What is kept of gradients: slots and their running sum for each parameter, tables that parameters share, state keys.

A ``Store`` is what is decided at once: everything under ``scope="global"``, one group under ``"group"``, the tensors of a
group, a row of the tables each, under ``"tensor"``. A ``Part`` is one parameter's share of it. A ``Block`` is the buffer that
its slots lie in: usually one for each parameter; where torch's operations make the steps on an accelerator, one for all
parameters of a group, since there every operation costs a launch.
"""

from __future__ import annotations

from collections.abc import MutableMapping, Sequence
from operator import attrgetter, eq
from typing import Any
from weakref import proxy

import torch
from torch import Tensor

from .aggregations import Aggregation, aggregation_of
from .dtensors import is_dtensor, local
from .formats import FORMATS, SCALE_BLOCK, Slots, working_dtype
from .keys import TABLE_KEYS
from .layout import Layout
from .policies import Decision, Policy, Tables, advance, policy_of

State = MutableMapping[str, Any]

# A rolling slice of the running sum is summed anew in each step, so that rounding errors cannot pile up. Once round
# takes this many steps per slot, which makes the extra reads 1/16 of a gradient whatever topC is.
REFRESH_STEPS_PER_SLOT = 16
SMALLEST_REFRESH = 4 * SCALE_BLOCK

_form = attrgetter("shape", "dtype", "device", "layout")


class Part:
    """One parameter's share of a store."""

    def __init__(self, param: Tensor, options: dict[str, Any], index: int, row: int, number: int) -> None:
        self.param = param
        self.options = options  # of its group; the same dictionary as long as the store lives, with the values of now
        self.index = index  # among all parameters of the memory
        self.row = row  # of the store's tables
        self.number = number  # within the store; staggers the refreshing of small tensors
        self.layout = Layout(param)
        self.length = self.layout.length  # values: of a complex parameter twice its elements
        self.dtype = param.dtype  # that the memory was laid out for; a model may be cast later
        self.damps = aggregation_of(options["aggr"]).damps
        self.work = working_dtype(param.dtype)
        self.device = local(param).device
        self.format_name: str = options["memory_dtype"] or str(self.layout.real_dtype).removeprefix("torch.")
        self.format = FORMATS[self.format_name]
        self.offloaded = options["memory_device"] == "cpu" and self.device.type != "cpu"  # slots, not the parameter
        self.form = self.format_name, self.damps, self.dtype, self.device, self.offloaded
        self.sharded = is_dtensor(param)
        self.counts = True  # whether this rank adds this tensor's squares to the norm (see ranks)
        self.tensors: dict[str, Tensor] = {}  # what stands in the optimizer's state, our keys only
        self.block: Block
        self.start = 0  # in the block

    @property
    def aggregation(self) -> Aggregation:
        """As the option says now."""
        return aggregation_of(self.options["aggr"])

    @property
    def sum(self) -> Tensor | None:
        """Flat; ``None`` where it damps."""
        total = self.block.sum
        return None if total is None else total[self.start : self.start + self.length]


class Block:
    """Slots in one buffer and, unless they damp, their running sum. Parts begin at multiples of ``SCALE_BLOCK``."""

    def __init__(self, parts: list[Part], values: Tensor, scale: Tensor | None, total: Tensor | None) -> None:
        first = parts[0]
        self.parts, self.sum = parts, total
        self.slots = Slots(values, scale, first.format, first.work, first.device)
        self.options, self.row, self.number = first.options, first.row, first.number
        self.damps, self.work, self.device, self.counts = first.damps, first.work, first.device, first.counts
        self.length = int(values.shape[1])
        for part in parts:
            part.block = proxy(self)  # freed with the store, not when Python looks for cycles

    def refresh_span(self) -> tuple[int, int]:
        """``(length of a slice of the running sum, steps once round)``."""
        steps = REFRESH_STEPS_PER_SLOT * int(self.slots.values.shape[0])
        length = max(-(-self.length // steps), SMALLEST_REFRESH)
        return -(-length // SCALE_BLOCK) * SCALE_BLOCK, steps


class Store:
    """Parts with common tables: priorities, norms, birthdays, a clock; a row of them for each thing that is decided."""

    def __init__(self, parts: list[Part], streams: Sequence[int], by_tensor: bool) -> None:
        self.parts, self.by_tensor = parts, by_tensor
        self.options = parts[0].options  # what there is one of in a store is the same in all of them
        self.topC: int = self.options["topC"]
        self.policy: Policy = policy_of(self.options["policy"])
        self.rows = len(parts) if by_tensor else 1
        self.device = parts[0].device
        self.damps = any(part.damps for part in parts)
        wide = any(part.work == torch.float64 for part in parts)
        self.dtype = torch.float64 if wide else torch.float32
        self.stream = torch.tensor(list(streams), device=self.device)
        self.process_group: Any = None
        self.settings = list({id(part.options): part.options for part in parts}.values())  # of each group
        self.blocks: list[Block] = []
        self.priority: Tensor  # (rows, C), as norm and born
        self.norm: Tensor
        self.born: Tensor
        self.clock: Tensor  # (rows,), as inserted
        self.inserted: Tensor
        self.gram: Tensor | None = None  # (rows, C, C)
        self.attached = False  # whether the optimizer's state holds what is here
        self.engine: Any = None
        self.engine_reason = ""  # why not a faster one
        forms = [(part.layout.shape, part.dtype, part.device, torch.strided) for part in parts]
        self._forms = [None if part.sharded else form for part, form in zip(parts, forms)]

    def fits(self, vectors: Sequence[Tensor]) -> bool:
        """Whether they are plain dense tensors of all parts' shapes, dtypes and devices: fast, as every step asks."""
        return all(map(eq, map(_form, vectors), self._forms)) and len(vectors) == len(self.parts)

    def needs(self, what: str) -> bool:
        """Whether a rule asks for the ``"cosine"`` of gradient and memory, or the ``"dots"`` with every slot."""
        rules = (self.policy, *(aggregation_of(options["aggr"]) for options in self.settings))
        return any(getattr(rule, f"needs_{what}") for rule in rules)

    def tables(self) -> dict[str, Tensor]:
        """By their keys."""
        return dict(zip(TABLE_KEYS, (self.priority, self.norm, self.born, self.clock, self.inserted)))

    def asks(self, square: Tensor, priority: Tensor | None, **products: Tensor | None) -> Tables:
        """What the rules look at, for a gradient of this squared norm."""
        return Tables(
            priority=self.priority,
            norm=self.norm,
            born=self.born,
            t=self.clock + 1,
            g_norm=square.to(self.dtype).sqrt(),
            stream=self.stream,
            seed=self.options["seed"],
            every=self.options["every"],
            g_priority=None if priority is None else priority.to(self.device, self.dtype),
            asker=f"policy {self.policy.name!r}",
            **products,
        )

    def advance(self, tables: Tables, decision: Decision) -> None:
        """The tables go on, as decided."""
        new = advance(self.policy, tables, decision, self.options["decay"])
        for table, values in zip((self.priority, self.norm, self.born), new):
            table.copy_(values)
        self.clock.add_(decision.finite)
        self.inserted.add_(decision.accept)
