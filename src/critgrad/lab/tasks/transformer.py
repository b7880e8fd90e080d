"""Language modelling with a small GPT: windows of one long stream, drawn anew in each epoch."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import LabError
from ..train.streams import stream
from .base import Batch, Model, Scores, SummingProblem, Task
from .data import Dataset
from .models import GPT

PIECE_ROWS = 128  # windows in one piece of an evaluation


class TransformerProblem(SummingProblem):
    """A step sees ``batch_size`` windows of ``context`` pieces that begin anywhere; an epoch lies between two evaluations.

    Evaluations cut a split into windows side by side. Every piece is counted once, but for the first and those of a last window
    that is not full; it is judged by what came before it in its window.
    """

    def __init__(self, task: Task, data: Dataset, device: torch.device) -> None:
        super().__init__(task, data, device)
        self.vocabulary = int(data.info["vocab_size"])
        self.context = int(task.options["context"])
        width, heads = task.options["width"], task.options["heads"]
        if width % (2 * heads):
            raise LabError(
                f"Invalid heads of {task.name}: {heads}, expected a divisor of {width // 2} (half the width)"
            )
        self.splits = {part: torch.as_tensor(data.arrays[part]).to(device) for part in ("train", "valid", "test")}

    @property
    def worst(self) -> float:
        return math.log(self.vocabulary)

    @property
    def train_size(self) -> int:
        """Windows that do not overlap."""
        return (len(self.splits["train"]) - 1) // self.context

    def build(self) -> nn.Module:
        options = self.task.options
        sizes = (options["width"], options["layers"], options["heads"], options["bf16"])
        return GPT(self.vocabulary, self.context, *sizes).to(self.device)

    def plan(self, seed: int, epoch: int) -> Tensor:
        last = len(self.splits["train"]) - self.context
        begins = torch.randint(last, (self.steps, self.batch_size), generator=stream(seed, "order", epoch))
        return begins.to(self.device)

    def batch(self, index: Tensor) -> Batch:
        windows = self.splits["train"][index[..., None] + torch.arange(self.context + 1, device=self.device)]
        windows = windows.to(torch.int64)
        return windows[..., :-1], windows[..., 1:]

    def batches(self, plan: Tensor) -> Iterable[Batch]:
        """Gathered for the whole epoch at once: a few million numbers."""
        return zip(*(part.unbind(0) for part in self.batch(plan)))

    def loss(self, model: Model, batch: Batch, noise: Tensor | None, carry: Any) -> tuple[Tensor, Any]:
        return model(*batch), None

    def parts(self, split: str) -> Iterator[Batch]:
        pieces = self.splits[split]
        rows = (len(pieces) - 1) // self.context
        inputs = pieces[: rows * self.context].view(rows, self.context)
        targets = pieces[1 : rows * self.context + 1].view(rows, self.context)
        for begin in range(0, rows, PIECE_ROWS):
            piece = slice(begin, begin + PIECE_ROWS)
            yield inputs[piece].to(torch.int64), targets[piece].to(torch.int64)

    def score(self, model: Model, batch: Batch) -> Tensor:
        loss = model(*batch, total=True)
        return torch.stack([loss, loss, torch.full_like(loss, batch[1].numel())])

    def finish(self, totals: Tensor) -> Scores:
        loss, _, n = totals.tolist()
        mean = loss / n
        return Scores(mean, mean if math.isnan(mean) else min(mean, self.worst))
