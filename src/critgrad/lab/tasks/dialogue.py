"""Answering in a dialogue: trained word by word, judged by the BLEU of whole answers."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..errors import LabError
from .base import Batch, Model, Problem, Scores, Task
from .data import Dataset
from .metrics import LARGEST_ID, corpus_bleu_of_rows
from .models import Seq2Seq

# Rows of one piece of an evaluation: the host waits for none of them, so larger ones only need memory.
PIECE_ROWS = {"cpu": 128, "accelerator": 1024}
PAD, UNKNOWN, START, END = range(4)


class DialogueProblem(Problem):
    """What was said so far, and the next answer. The loss counts the words of the answer and its end, no padding.

    The option ``decoded`` limits how many examples of a split are answered for BLEU (evenly spread over it; 0: all).
    Unknown words are never said, and so never right.
    """

    def __init__(self, task: Task, data: Dataset, device: torch.device) -> None:
        super().__init__(task, data, device)
        self.vocabulary = int(data.info["vocab_size"])
        if self.vocabulary >= LARGEST_ID:
            raise LabError(f"Invalid vocabulary: {self.vocabulary} words, expected fewer than {LARGEST_ID}")
        self.never = torch.tensor([PAD, UNKNOWN, START], device=device)
        self.splits = {split: self._split(split) for split in ("train", "valid", "test")}
        self.stops = torch.tensor([END, PAD], device=device)
        self.piece_rows = PIECE_ROWS["cpu" if device.type == "cpu" else "accelerator"]
        self.references = {split: self.splits[split][1][self._chosen(split)] for split in ("valid", "test")}

    def _split(self, split: str) -> Batch:
        """Sources, the answers' words, and for each of these the word before it."""
        source, target = (
            torch.as_tensor(self.data.arrays[f"{split}_{part}"]).to(self.device, torch.int64)
            for part in ("source", "target")
        )
        return source, target, F.pad(target[:, :-1], (1, 0), value=START)

    def _chosen(self, split: str) -> Tensor:
        """Which examples are answered."""
        n, limit = len(self.data.arrays[f"{split}_target"]), int(self.task.options["decoded"])
        chosen = torch.arange(n, device=self.device)
        return chosen if not 0 < limit < n else chosen[:limit] * n // limit

    def build(self) -> nn.Module:
        o = self.task.options
        return Seq2Seq(self.vocabulary, o["embedding"], o["hidden"], o["dropout"]).to(self.device)

    def loss(self, model: Model, batch: Batch, noise: Tensor | None, carry: Any) -> tuple[Tensor, Any]:
        source, target, previous = batch
        logits = model(source, previous)
        return F.cross_entropy(logits.flatten(0, 1), target.flatten(), ignore_index=PAD), None

    @torch.no_grad()
    def evaluate(self, model: nn.Module, split: str) -> Scores:
        total = torch.zeros(2, dtype=torch.float64, device=self.device)
        for source, target, previous in zip(*(part.split(self.piece_rows) for part in self.splits[split])):
            logits = model(source, previous)
            loss = F.cross_entropy(logits.flatten(0, 1), target.flatten(), ignore_index=PAD, reduction="sum")
            total += torch.stack([loss, (target != PAD).sum()])
        loss_sum, words = total.tolist()
        loss_mean = loss_sum / words
        if not math.isfinite(loss_mean):
            return Scores(loss_mean, self.worst)
        return Scores(loss_mean, corpus_bleu_of_rows(self.answers(model, split), self.references[split], self.stops))

    def answers(self, model: nn.Module, split: str) -> Tensor:
        """Greedy answers to the chosen examples of a split, as rows of words; what follows an end mark does not count."""
        assert isinstance(model, Seq2Seq)
        sources = self.splits[split][0][self._chosen(split)]
        length = self.splits[split][1].shape[1]
        return torch.cat([model.answer(piece, length, START, self.never) for piece in sources.split(self.piece_rows)])
