"""Language modelling with an LSTM over one long stream of words."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .base import Batch, Model, Problem, Scores, Task
from .data import Dataset
from .models import LanguageModel
from .models.softmax import NOT_COUNTED


class LanguageProblem(Problem):
    """The stream is cut into ``batch_size`` columns that are read side by side, ``bptt`` words at a time.

    The order is fixed; a seed changes the weights and nothing else. The recurrent state goes from step to step without
    its gradient and starts at 0 in each epoch. A plan holds positions, on the host: slicing needs no look at the device.
    """

    def __init__(self, task: Task, data: Dataset, device: torch.device) -> None:
        super().__init__(task, data, device)
        self.vocabulary = int(data.info["vocab_size"])
        self.bptt = int(task.options["bptt"])
        stream = torch.as_tensor(data.arrays["train"]).to(torch.int64)
        columns = min(task.batch_size, len(stream) // 2)
        rows = len(stream) // columns
        self.train = stream[: rows * columns].reshape(columns, rows).t().contiguous().to(device)
        self.splits = {split: self._columns(split) for split in ("valid", "test")}

    def _columns(self, split: str) -> tuple[Tensor, Tensor, int]:
        """Words, the words before them, and how many there are; the last column is filled up with uncounted words.

        Every word of the split is counted once. The word before the first one is the last one: an end of sentence.
        """
        stream = torch.as_tensor(self.data.arrays[split]).to(torch.int64)
        before = stream.roll(1)
        columns = min(self.task.batch_size, len(stream))
        missing = -len(stream) % columns
        targets = F.pad(stream, (0, missing), value=NOT_COUNTED).reshape(columns, -1).t()
        inputs = F.pad(before, (0, missing)).reshape(columns, -1).t()
        return inputs.contiguous().to(self.device), targets.contiguous().to(self.device), len(stream)

    @property
    def worst(self) -> float:
        return float(self.vocabulary)

    @property
    def train_size(self) -> int:
        return self.train.numel()

    @property
    def batch_size(self) -> int:
        return self.train.shape[1]

    @property
    def steps(self) -> int:
        return self.at_most(math.ceil((len(self.train) - 1) / self.bptt))

    def build(self) -> nn.Module:
        options = self.task.options
        sizes = (options["embedding"], options["hidden"], options["layers"], options["dropout"])
        return LanguageModel(self.vocabulary, *sizes).to(self.device)

    def plan(self, seed: int, epoch: int) -> Tensor:
        return torch.arange(0, len(self.train) - 1, self.bptt)[: self.steps]

    def batch(self, index: Tensor) -> Batch:
        begin = int(index)
        end = min(begin + self.bptt, len(self.train) - 1)
        return self.train[begin:end], self.train[begin + 1 : end + 1]

    def loss(self, model: Model, batch: Batch, noise: Tensor | None, carry: Any) -> tuple[Tensor, Any]:
        inputs, targets = batch
        loss, state = model(inputs, carry, targets)
        return loss, tuple(part.detach() for part in state)

    @torch.no_grad()
    def evaluate(self, model: nn.Module, split: str) -> Scores:
        inputs, targets, count = self.splits[split]
        total = torch.zeros((), dtype=torch.float64, device=self.device)
        state = None
        for begin in range(0, len(inputs), self.bptt):
            piece = slice(begin, begin + self.bptt)
            loss, state = model(inputs[piece], state, targets[piece], total=True)
            total += loss
        mean = total.item() / count
        return Scores(mean, perplexity(mean, self.worst))


def perplexity(loss: float, worst: float) -> float:
    """``exp(loss)``, at most ``worst``; nan stays nan."""
    return loss if math.isnan(loss) else min(math.exp(min(loss, 100.0)), worst)
