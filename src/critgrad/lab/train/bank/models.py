"""Many models of one architecture as rows of one matrix, with their losses, gradients and scores in one call."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call, grad_and_value, vmap

from ...errors import LabError
from ...tasks import Batch, SummingProblem
from ..loop import new_model
from .convolution import compute_as_products

# Examples times models that are scored at once: what bounds the memory of an evaluation.
SCORED_AT_ONCE = {"cpu": 1 << 14, "cuda": 1 << 17}


class Models:
    """The models of a bank.

    ``theta`` is ``[S, P]``: every trainable parameter of a model, flat, in one row. ``extras`` are its buffers and frozen
    parameters, stacked.
    """

    def __init__(self, problem: SummingProblem, seeds: Sequence[int]) -> None:
        self.problem = problem
        modules = {seed: new_model(problem, seed) for seed in dict.fromkeys(seeds)}
        self.skeleton = modules[seeds[0]]
        trained = {name: p for name, p in self.skeleton.named_parameters() if p.requires_grad}
        self.names = list(trained)
        self.shapes = [p.shape for p in trained.values()]
        self.sizes = [prod(shape) for shape in self.shapes]
        rows: dict[int, Tensor] = {}
        extras: dict[int, dict[str, Tensor]] = {}
        for seed, module in modules.items():
            tensors = {name: tensor.detach() for name, tensor in (*module.named_parameters(), *module.named_buffers())}
            rows[seed] = torch.cat([tensors.pop(name).reshape(-1) for name in self.names])
            extras[seed] = tensors
        self.theta = torch.stack([rows[seed] for seed in seeds])
        self.extras = {name: torch.stack([extras[seed][name] for seed in seeds]) for name in extras[seeds[0]]}
        self.cohorts = Cohorts(seeds, self.theta.device)
        self.skeleton.requires_grad_(False).train()
        compute_as_products(self.skeleton)

    def _model(self, flat: Tensor, extras: dict[str, Tensor]) -> Any:
        """One model as a callable: a row of ``theta`` in the place of its parameters."""
        # split, not slices: its backward is one concatenation.
        pieces = flat.split(self.sizes)
        tensors = {name: piece.view(shape) for name, piece, shape in zip(self.names, pieces, self.shapes)}
        return lambda *args, **kwargs: functional_call(self.skeleton, {**tensors, **extras}, args, kwargs)

    def _loss(self, flat: Tensor, extras: dict[str, Tensor], batch: Batch, noise: Tensor | None) -> Tensor:
        loss, carry = self.problem.loss(self._model(flat, extras), batch, noise, None)
        if carry is not None:
            name = self.problem.task.name
            raise LabError(f"Invalid task for a bank: {name} hands a state from step to step; use --engine single")
        return loss

    def gradients(self, batch: Batch, noise: Tensor | None) -> tuple[Tensor, Tensor]:
        """``(gradients [S, P], losses [S])`` of one batch for each seed (leading axis, in the order of ``cohorts``)."""
        of_noise = None if noise is None else 0
        # randomness="error": a layer that draws by itself would draw other numbers than in a single run.
        each = vmap(grad_and_value(self._loss), in_dims=(0, 0, None, None), randomness="error")
        if self.cohorts.is_one:
            only = None if noise is None else noise[0]
            gradients, losses = each(self.theta, self.extras, tuple(tensor[0] for tensor in batch), only)
            return gradients, losses
        if not self.cohorts.shared:
            each = vmap(grad_and_value(self._loss), in_dims=(0, 0, 0, of_noise), randomness="error")
            gradients, losses = each(self.theta, self.extras, *self.cohorts.for_models(batch, noise))
            return gradients, losses
        gather, scatter = self.cohorts.gather, self.cohorts.scatter
        extras = {name: gather(tensor) for name, tensor in self.extras.items()}
        by_seed = vmap(each, in_dims=(0, 0, 0, of_noise), randomness="error")
        gradients, losses = by_seed(gather(self.theta), extras, batch, noise)
        return scatter(gradients), scatter(losses)

    @torch.no_grad()
    def scores(self, split: str) -> Tensor:
        """The sums of ``problem.score`` over a split: ``[S, 3]``, float64."""
        self.skeleton.eval()
        count = self.theta.shape[0]
        totals = torch.zeros(count, 3, dtype=torch.float64, device=self.theta.device)

        def score(flat: Tensor, extras: dict[str, Tensor], batch: Batch) -> Tensor:
            return self.problem.score(self._model(flat, extras), batch)

        each = vmap(score, in_dims=(0, 0, None))
        at_once = SCORED_AT_ONCE.get(self.theta.device.type, SCORED_AT_ONCE["cpu"])
        for batch in self.problem.parts(split):
            chunk = max(1, at_once // max(1, batch[0].shape[0]))
            for start in range(0, count, chunk):
                here = slice(start, start + chunk)
                extras = {name: tensor[here] for name, tensor in self.extras.items()}
                totals[here] += each(self.theta[here], extras, batch).double()
        self.skeleton.train()
        return totals


class Cohorts:
    """The models of a bank by seed: those of one seed see the same batches, so a batch is computed on once for all.

    NOTE [shared batches]: an inner ``vmap`` over the models of a seed has the batch as it is, without a model axis. The
    first layer is then one product (or convolution) with the weights of all of them, which is most of what a small
    convolutional network costs. Cohorts are filled up to the size of the largest with models that are there already, and
    what these extra ones give is dropped; where that were a waste, each model gets its own copy of the batch instead.
    """

    MOST_EXTRA = 1.25  # models computed on, as a multiple of those asked for

    def __init__(self, seeds: Sequence[int], device: torch.device) -> None:
        self.seeds = list(dict.fromkeys(seeds))
        numbers = [[i for i, seed in enumerate(seeds) if seed == mine] for mine in self.seeds]
        size = max(map(len, numbers))
        self.size = size
        self.is_one = len(self.seeds) == 1
        self.shared = len(self.seeds) * size <= self.MOST_EXTRA * len(seeds) and size > 1
        filled = [i for mine in numbers for i in mine + mine[:1] * (size - len(mine))]
        place = {i: u * size + k for u, mine in enumerate(numbers) for k, i in enumerate(mine)}
        self._rows = torch.tensor(filled, device=device)
        self._places = torch.tensor([place[i] for i in range(len(seeds))], device=device)
        self._owners = torch.tensor([self.seeds.index(seed) for seed in seeds], device=device)

    def gather(self, by_model: Tensor) -> Tensor:
        """``[S, ...]`` to ``[seeds, size, ...]``."""
        return by_model.index_select(0, self._rows).unflatten(0, (len(self.seeds), self.size))

    def scatter(self, by_cohort: Tensor) -> Tensor:
        """``[seeds, size, ...]`` to ``[S, ...]``."""
        return by_cohort.flatten(0, 1).index_select(0, self._places)

    def for_models(self, batch: Batch, noise: Tensor | None) -> tuple[Batch, Tensor | None]:
        """A copy of its seed's batch and noise for each model."""
        copies = tuple(tensor.index_select(0, self._owners) for tensor in batch)
        return copies, None if noise is None else noise.index_select(0, self._owners)
