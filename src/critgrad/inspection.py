"""Looking into a memory. Nothing is recorded for it during training: a report is made when it is asked for."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from .bases.mixin import Critical
from .bases.optimizer import WithMemory
from .engines.sums import measure, read, squares
from .engines.unseen import joined
from .memory.damping import damping_weights
from .memory.dtensors import aligned, local
from .memory.gram import settled
from .memory.keys import SCALE, SLOTS, SUM
from .memory.memory import Memory
from .memory.prepared import Prepared
from .memory.reducing import all_reduce_
from .memory.store import Part, Store


@dataclass(frozen=True)
class MemoryReport:
    """One memory, as plain Python values. Lists run over the live slots, in slot order."""

    scope: str  # whose norm decides: "global", "group" or "tensor"
    policy: str  # its name
    aggr: tuple[str, ...]  # of its groups, without repetitions
    topC: int  # slots
    live: int  # of them in use
    steps: int  # gradients seen (those that were not finite are not counted)
    inserted: int  # of them stored
    priorities: list[float]  # decayed: the lowest goes first
    norms: list[float]  # at insertion, undecayed
    ages: list[int]  # staleness in steps: 1 = stored by the step before the coming one
    slots: list[int]  # their numbers
    last_slot: int | None  # that the last counted step wrote (see steps); None if it wrote none
    gradient_norm: float | None  # of the gradients standing in p.grad; None without any
    sum_norm: float | None  # of the sum of the stored gradients
    mean_norm: float | None  # of their norms, undecayed
    bytes: int  # on this rank
    spectrum: list[float] = field(default_factory=list)  # eigenvalues of the Gram matrix, largest first (aggr="fisher")
    span_share: float | None = None  # share of |g|^2 that lies in the span of the memory, of what damps
    damped_ratio: float | None = None  # |d| / |g| of what damps, if all of it by one rho and kappa

    @property
    def acceptance_rate(self) -> float | None:
        """Stored gradients per gradient seen."""
        return self.inserted / self.steps if self.steps else None


@dataclass(frozen=True)
class Report:
    """All memories of an optimizer."""

    memories: list[MemoryReport]  # one under scope="global", else one per group or tensor
    engine: str = "torch"  # what makes a step: "torch" (its operations), "native" (C), "triton"
    engine_reason: str = ""  # why not a faster one, in one line

    @property
    def bytes(self) -> int:
        """Held on this rank."""
        return sum(memory.bytes for memory in self.memories)

    def scalars(self) -> dict[str, float]:
        """What one would log every step: means over the memories (one under ``scope="global"``)."""
        out: dict[str, float] = {"critical/bytes": float(self.bytes)}
        names = "live", "acceptance_rate", "gradient_norm", "sum_norm", "mean_norm", "span_share", "damped_ratio"
        numbers: dict[str, list[Any]] = {name: [getattr(m, name) for m in self.memories] for name in names}
        numbers["mean_age"] = [sum(m.ages) / len(m.ages) for m in self.memories if m.ages]
        numbers["max_age"] = [max(m.ages) for m in self.memories if m.ages]
        for name, values in numbers.items():
            known = [float(value) for value in values if value is not None]
            if known:
                out[f"critical/{name}"] = sum(known) / len(known)
        return out

    def __str__(self) -> str:
        lines = []
        for m in self.memories:
            rate = "-" if m.acceptance_rate is None else f"{m.acceptance_rate:.0%}"
            ages = f"ages {min(m.ages)}..{max(m.ages)}" if m.ages else "empty"
            norm = "" if m.gradient_norm is None else f", |g| {m.gradient_norm:.3g}"
            stored = "" if m.mean_norm is None else f", stored |g| {m.mean_norm:.3g}"
            damped = ""
            if m.span_share is not None and m.damped_ratio is not None:
                damped = f", {m.span_share:.0%} of |g|^2 in its span, |d|/|g| {m.damped_ratio:.3g}"
            lines.append(
                f"{m.scope} memory ({m.policy}, {'/'.join(m.aggr)}): {m.live}/{m.topC} slots, {ages}, "
                f"accepted {rate} of {m.steps}{norm}{stored}{damped}, {human_bytes(m.bytes)}"
            )
        if not lines:
            return "no memory (topC=0)"
        return "\n".join([*lines, f"engine: {self.engine} ({self.engine_reason})"])


def human_bytes(count: float) -> str:
    """A number of bytes as one reads it: ``1.5 MiB``."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024 or unit == "GiB":
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    raise AssertionError


@torch.no_grad()
def inspect(optimizer: Any) -> Report:
    """Look into the memory of ``optimizer``: a ``Report``, with one ``MemoryReport`` per memory.

    Cheap enough for every step of a training loop, but it waits for the device. Under sharding the sums run over all
    ranks, so every rank must call it. Call it between ``backward`` and ``zero_grad`` to see the gradient's norm.

    >>> import torch, critgrad
    >>> w = torch.nn.Parameter(torch.tensor([3.0, 4.0]))
    >>> opt = critgrad.SGD_C([w], lr=0.1)
    >>> for _ in range(3):
    ...     opt.zero_grad()
    ...     (w @ w / 2).backward()
    ...     opt.step()
    >>> memory = critgrad.inspect(opt).memories[0]
    >>> memory.live, memory.ages, memory.acceptance_rate
    (3, [3, 2, 1], 1.0)
    """
    memory = _memory_of(optimizer)
    reports = []
    for store in memory.ready_stores:
        rows = [_report(store, row) for row in range(store.rows)]
        if store.gram is not None:
            _add_damping(store, rows)
        reports += rows
    if not memory.ready_stores:
        return Report([], "torch", "there is no memory (topC=0)")
    engines = [(store.engine.name, store.engine_reason) for store in memory.ready_stores]
    names, reasons = (list(dict.fromkeys(each)) for each in zip(*engines))
    return Report([MemoryReport(**row) for row in reports], ", ".join(names), "; ".join(reasons))


def has_memory(optimizer: Any) -> bool:
    """Whether it can be looked into: an optimizer with a memory in front, one that is built on a memory, or a memory."""
    return isinstance(optimizer, Critical) or isinstance(getattr(optimizer, "memory", optimizer), Memory)


def _memory_of(optimizer: Any) -> Prepared:
    if not has_memory(optimizer):
        raise TypeError(f"critgrad.inspect takes an optimizer with a memory, got {type(optimizer).__name__}")
    if isinstance(optimizer, Critical):
        return optimizer._critical_memory(looking=True)
    memory: Memory = getattr(optimizer, "memory", optimizer)
    memory.ready(memory.only_torch)
    return memory


def _report(memory: Store, row: int) -> dict[str, Any]:
    parts = [part for part in memory.parts if part.row == row]
    born = memory.born[row].tolist()
    live = [k for k, b in enumerate(born) if b > 0]
    clock = int(memory.clock[row])
    norms = memory.norm[row].tolist()
    priorities = memory.priority[row].tolist()
    gradient, total = _norms(memory, parts)
    return {
        "scope": "tensor" if memory.by_tensor else parts[0].options["scope"],
        "policy": memory.policy.name,
        "aggr": tuple(dict.fromkeys(part.aggregation.name for part in parts)),
        "topC": memory.topC,
        "live": len(live),
        "steps": clock,
        "inserted": int(memory.inserted[row]),
        "priorities": [priorities[k] for k in live],
        "norms": [norms[k] for k in live],
        "ages": [clock + 1 - born[k] for k in live],
        "slots": live,
        "last_slot": next((k for k in live if born[k] == clock), None),
        "gradient_norm": gradient,
        "sum_norm": None if all(part.sum is None for part in parts) else total,
        "mean_norm": sum(norms[k] for k in live) / len(live) if live else None,
        "bytes": slot_bytes(parts) + table_bytes(memory) // memory.rows,
    }


def _bytes(tensors: Iterable[Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def slot_bytes(parts: Sequence[Part]) -> int:
    """Held by this rank for these parameters, the shared tables not counted."""
    return _bytes(local(part.tensors[key]) for part in parts for key in (SLOTS, SCALE, SUM) if key in part.tensors)


def table_bytes(store: Store) -> int:
    """Of the tables alone, which every parameter's state shows but one tensor holds."""
    return _bytes([*store.tables().values(), *([] if store.gram is None else [store.gram])])


def _gradients(parts: list[Part]) -> list[Any]:
    grads = [None if p.param.grad is None else aligned(p.param.grad.detach(), p.param) for p in parts]
    return [None if g is None else p.layout.flat(g) for p, g in zip(parts, grads)]


def _norms(memory: Store, parts: list[Any]) -> tuple[float | None, float]:
    """Norm of the gradients in ``p.grad`` and of the running sums of some parts, over all ranks."""
    grads = _gradients(parts)
    both = torch.stack([squares(each, parts, memory.device).sum() for each in (grads, [p.sum for p in parts])])
    gradient, total = all_reduce_(both, memory).tolist()
    none = all(g is None for g in grads)
    return (None if none else math.sqrt(gradient) if gradient >= 0 else math.nan), math.sqrt(total)


def _add_damping(memory: Store, rows: list[dict[str, Any]]) -> None:
    """What the damping does: the Gram matrix's spectrum, the gradient's share in the span, ``|d| / |g|``."""
    gram = settled(memory)
    spectra = torch.linalg.eigvalsh(gram).flip(-1).clamp(min=0).tolist()
    for row, spectrum, square in zip(rows, spectra, gram.sum((-2, -1)).tolist()):
        row["spectrum"] = spectrum[: row["live"]]
        row["sum_norm"] = math.hypot(row["sum_norm"] or 0.0, math.sqrt(max(square, 0.0)))
    grads = _gradients(memory.parts)
    if all(g is None for g in grads):
        return
    vectors = [joined(block, grads) for block in memory.blocks]
    sums = read(all_reduce_(measure(memory, vectors), memory), memory)
    ways = {(part.options["rho"], part.options["kappa"]) for part in memory.parts if part.damps}
    w = damping_weights(gram, sums.dots, *next(iter(ways)), torch.isfinite(sums.square), memory.dtype)
    for i, row in enumerate(rows):
        square = float(sums.own_square[i])
        if not (math.isfinite(square) and square > 0 and row["live"]):
            continue
        a, K = sums.dots[i], gram[i]
        inside = float(a @ (torch.linalg.pinv(K, hermitian=True) @ a))
        row["span_share"] = min(max(inside / square, 0.0), 1.0)
        if len(ways) == 1:
            damped = square - 2 * float(w[i] @ a) + float(w[i] @ K @ w[i])
            row["damped_ratio"] = math.sqrt(max(damped, 0.0) / square)


def summary(optimizer: WithMemory) -> str:
    """The line that ``repr`` adds: what the memory holds, without looking at a device."""
    memory = optimizer._critical_prepared
    stores = [] if memory is None else memory.ready_stores
    if not stores:
        return "\nCritical gradients: nothing held yet"
    memories, tensors = sum(store.rows for store in stores), sum(len(store.parts) for store in stores)
    held = sum(slot_bytes(store.parts) + table_bytes(store) for store in stores)
    word = "memory" if memories == 1 else "memories"
    return f"\nCritical gradients: {memories} {word} of {tensors} tensors, {human_bytes(held)}"
