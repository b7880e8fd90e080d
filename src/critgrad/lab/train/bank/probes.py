"""What a bank's models record beside their curves: the names, shapes and rules of ``critgrad.lab.train.probes``.

Recorders look at tables before and after a step and change nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ..probes import UPDATE_EVERY
from .by_tensor import TensorMemories
from .members import DAMPS
from .memories import Memories
from .step import Bank


class BankProbes:
    """The recorders of all models; ``epoch`` gives and clears what was gathered since the last call."""

    def __init__(self, bank: Bank) -> None:
        self.bank = bank
        self.names = [set(member.trial.probe) for member in bank.crew.members]
        asked = set().union(*self.names)
        self.update = "update" in asked
        self.steps = 0
        self.before: Tensor | None = None
        self.squares: list[Tensor] = []
        self.looks = [
            (block, MemoryProbe(block.memories, self.names[block.span]))
            for block in bank.blocks
            if block.memories is not None
        ]

    def before_step(self) -> None:
        """Called before a step."""
        self.steps += 1
        if self.steps % UPDATE_EVERY:
            return
        if self.update:
            self.before = self.bank.theta.clone()
        for _, look in self.looks:
            look.before_step()

    def after_step(self) -> None:
        """Called after it."""
        if self.steps % UPDATE_EVERY:
            return
        if self.before is not None:
            change = (self.bank.theta - self.before).double()
            self.squares.append(change.square_().mean(1))
            self.before = None
        for _, look in self.looks:
            look.after_step()

    def epoch(self) -> list[dict[str, Any]]:
        """The values of the epoch that has just ended, for each model."""
        out: list[dict[str, Any]] = [{} for _ in self.names]
        if self.squares:
            sizes = torch.stack(self.squares).mean(0).sqrt().tolist()
            for values, names, size in zip(out, self.names, sizes):
                if "update" in names:
                    values["update_rms"] = size
            self.squares = []
        for block, look in self.looks:
            if block.decisions is not None:
                written = block.decisions.t().tolist()
                for values, names, slots in zip(out[block.span], self.names[block.span], written):
                    if "decisions" in names:
                        values["decisions"] = slots
            look.epoch(out[block.span])
        return out


class MemoryProbe:
    """The memory and damping probes of one block of memories."""

    def __init__(self, memories: Memories | TensorMemories, names: Sequence[set[str]]) -> None:
        self.memories = memories
        self.names = names
        self.memory = any("memory" in mine for mine in names)
        self.damping = any("damping" in mine for mine in names)
        self.gram: Tensor | None = None
        self.live: Tensor | None = None
        self.seen: list[Mapping[str, Any]] = []

    def before_step(self) -> None:
        """Keep the memory as the coming step finds it."""
        if self.damping:
            self.live = (self.memories.born > 0).sum(-1)
            self.gram = self.memories.gram.clone() if self.memories.kind == DAMPS else None

    def after_step(self) -> None:
        """What the step's gradient was to that memory: its share in the span, ``|d| / |g|``, the spectrum."""
        if self.live is None:
            return
        live = self.live.tolist()
        seen: dict[str, Any] = {"spectrum": [[] for _ in live], "span_share": None, "damped_ratio": None}
        if self.gram is not None:
            m, K = self.memories, self.gram
            a, w, square = m.dots, m.weights, m.square
            usable = torch.isfinite(m.g_norm) & (square > 0) & (self.live > 0)
            inside = torch.einsum("nc,ncd,nd->n", a, torch.linalg.pinv(K, hermitian=True), a)
            damped = square - 2 * (w * a).sum(-1) + torch.einsum("nc,ncd,nd->n", w, K, w)
            nothing = torch.nan
            seen["span_share"] = torch.where(usable, (inside / square).clamp(0, 1), nothing).tolist()
            seen["damped_ratio"] = torch.where(usable, (damped.clamp(min=0) / square).sqrt(), nothing).tolist()
            spectra = torch.linalg.eigvalsh(K).flip(-1).clamp(min=0).tolist()
            seen["spectrum"] = [spectrum[:n] for spectrum, n in zip(spectra, live)]
        self.seen.append(seen)
        self.live = self.gram = None

    def epoch(self, out: Sequence[dict[str, Any]]) -> None:
        """Write what was gathered into the values of each model."""
        if self.memory:
            self._memory(out)
        for i, (values, names) in enumerate(zip(out, self.names)):
            if "damping" not in names or not self.seen:
                continue
            for name in ("span_share", "damped_ratio"):
                numbers = [seen[name][i] for seen in self.seen if seen[name] is not None]
                numbers = [number for number in numbers if number == number]
                values[name] = sum(numbers) / len(numbers) if numbers else float("nan")
            values["spectrum"] = self._filled(self.seen[-1]["spectrum"][i], i, 0.0)
        self.seen = []

    def _memory(self, out: Sequence[dict[str, Any]]) -> None:
        m = self.memories
        clocks, inserted, born = m.clock.tolist(), m.inserted.tolist(), m.born.tolist()
        norms, squares = m.norm.tolist(), m.square.tolist()
        for i, (values, names) in enumerate(zip(out, self.names)):
            if "memory" not in names:
                continue
            live = [k for k, b in enumerate(born[i]) if b > 0]
            values["ages"] = self._filled([clocks[i] + 1 - born[i][k] for k in live], i, 0)
            values["g_norm"] = squares[i] ** 0.5
            values["gc_norm"] = sum(norms[i][k] for k in live) / len(live) if live else float("nan")
            values["accepted"] = inserted[i] / clocks[i] if clocks[i] else float("nan")

    def _filled(self, values: list[Any], i: int, filler: Any) -> list[Any]:
        """``values`` filled up to the model's own ``topC``."""
        return [*values, *[filler] * (self.memories.options[i]["topC"] - len(values))]
