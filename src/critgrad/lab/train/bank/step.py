"""One step of all models of a bank: a function of tensors that stay where they are, and its capture as a CUDA graph."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import torch
from torch import Tensor

from ...tasks import SummingProblem
from ..capture import unharmed
from .by_tensor import TensorMemories, parts_of
from .families import Update
from .members import BY_TENSOR, NONE, Crew, Member
from .memories import Memories
from .models import Models

WARM_UP_STEPS = 3  # eager ones before a capture: libraries set themselves up in them


@dataclass
class BankBlock:
    """Neighbours of one kind: models without a memory, or with memories that work alike."""

    span: slice
    memories: Memories | TensorMemories | None
    updates: list[tuple[slice, Update]]  # slices of the block's rows
    decisions: Tensor | None  # the slots written, [steps, models], where they are recorded of a model


class Bank:
    """All models of a bank, their optimizers and memories, and the data of one epoch.

    NOTE [static tensors]: ``step`` changes tensors in place and keeps no value on the host, not even which batch is
    next: a captured graph of it does the whole of a step, each time it is replayed, on what these tensors hold then.
    """

    def __init__(self, problem: SummingProblem, crew: Crew) -> None:
        self.problem = problem
        self.crew = crew
        seeds = [member.trial.seed for member in crew.members]
        self.models = Models(problem, seeds)
        self.seeds = self.models.cohorts.seeds
        self.theta = self.models.theta
        device = self.theta.device
        self.number = torch.zeros((), dtype=torch.int64, device=device)  # steps begun since the start
        by_kind = _runs(crew.members, lambda member: member.kind)
        self.blocks = [self._block(span, members) for span, members in by_kind]
        self.at = torch.zeros(1, dtype=torch.int64, device=device)  # the step of the epoch that is next
        self.total = torch.zeros(len(seeds), dtype=torch.float64, device=device)  # of the losses of the epoch
        self.plan: Tensor | None = None
        self.noise: Tensor | None = None

    def begin_epoch(self, epoch: int) -> None:
        """Lay out the data order and the dropout of an epoch (from 1)."""
        for u, seed in enumerate(self.seeds):
            plan, noise = self.problem.plan(seed, epoch), self.problem.noise(seed, epoch)
            if self.plan is None:
                self.plan = plan.new_empty(len(self.seeds), *plan.shape)
            self.plan[u] = plan
            if noise is not None:
                if self.noise is None:
                    self.noise = noise.new_empty(len(self.seeds), *noise.shape)
                self.noise[u] = noise
        self.at.zero_()
        self.total.zero_()

    def step(self) -> None:
        """Forward, backward, clipping, directions, updates, insertions: of all models."""
        assert self.plan is not None
        self.number.add_(1)
        batch = self.problem.batch(self.plan.index_select(1, self.at).squeeze(1))
        noise = None if self.noise is None else self.noise.index_select(1, self.at).squeeze(1)
        gradients, losses = self.models.gradients(batch, noise)
        with torch.no_grad():
            self.total.add_(losses)
            if self.problem.task.clip:
                _clip(gradients, self.problem.task.clip)
            self._update(gradients)
            self.at.add_(1)

    def _update(self, gradients: Tensor) -> None:
        t = self.number.double()
        for block in self.blocks:
            g, theta = gradients[block.span], self.theta[block.span]
            d = g if block.memories is None else block.memories.look(g)
            for rows, update in block.updates:
                update(theta[rows], d[rows], t)
            if block.memories is not None:
                block.memories.insert(g, self.number)
                if block.decisions is not None:
                    block.decisions.index_copy_(0, self.at, block.memories.last_slot()[None])

    def _block(self, span: slice, members: list[Member]) -> BankBlock:
        theta = self.theta[span]
        updates = [
            (rows, alike[0].family.make([member.options for member in alike], theta[rows]))
            for rows, alike in _runs(members, lambda member: member.update_key)
        ]
        kind = members[0].kind
        if kind == NONE:
            return BankBlock(span, None, updates, None)
        options = [member.memory for member in members if member.memory is not None]
        donors = [None if donor is None else donor - span.start for donor in self.crew.donors[span]]
        memories: Memories | TensorMemories
        if kind == BY_TENSOR:
            memories = TensorMemories(options, theta, parts_of(self.models.shapes))
        else:
            memories = Memories(kind, options, donors, theta)
        recorded = any("decisions" in member.trial.probe for member in members)
        shape = (self.problem.steps, len(members))
        decisions = torch.zeros(shape, dtype=torch.int64, device=theta.device) if recorded else None
        return BankBlock(span, memories, updates, decisions)


def _runs(members: Sequence[Member], key: Callable[[Member], Any]) -> Iterator[tuple[slice, list[Member]]]:
    """Neighbours that are alike, and where they stand."""
    at = 0
    for _, group in groupby(members, key):
        alike = list(group)
        yield slice(at, at + len(alike)), alike
        at += len(alike)


def _clip(gradients: Tensor, largest: float) -> None:
    """What ``clip_grad_norm_`` does, for each model by itself."""
    norm = torch.linalg.vector_norm(gradients, dim=1, keepdim=True)
    gradients.mul_((largest / (norm + 1e-6)).clamp(max=1.0))


class Stepper:
    """Takes the steps of a bank: on CUDA as a graph that is captured after a few eager steps, else eagerly.

    The eager steps are steps of the training as all others, so nothing must be put back after them; a capture runs
    nothing, so after one that failed the eager steps simply go on.
    """

    def __init__(self, bank: Bank, graph: bool) -> None:
        self.bank = bank
        self.wanted = graph and bank.theta.is_cuda
        self.taken = 0
        self.graph: torch.cuda.CUDAGraph | None = None
        self.warning: str | None = None

    def __call__(self) -> None:
        """One step."""
        if self.wanted and self.graph is None and self.taken >= WARM_UP_STEPS:
            self._capture()
        if self.graph is not None:
            self.graph.replay()
        elif self.wanted:
            self._on_a_side_stream()
        else:
            self.bank.step()
        self.taken += 1

    def _on_a_side_stream(self) -> None:
        side, here = torch.cuda.Stream(), torch.cuda.current_stream()
        side.wait_stream(here)
        with torch.cuda.stream(side):
            self.bank.step()
        here.wait_stream(side)

    def _capture(self) -> None:
        try:
            graph = torch.cuda.CUDAGraph()
            with unharmed(self.bank.theta.device), torch.cuda.graph(graph):
                self.bank.step()
            self.graph = graph
        except RuntimeError as error:
            self.wanted = False
            self.warning = "no CUDA graph: " + (str(error).strip().splitlines() or ["unknown error"])[0]
