"""Natural language inference: does one sentence follow from another, contradict it, or neither?"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..errors import LabError, MissingFileError, require_known
from .base import Batch, Model, SummingProblem, Task, accuracy_sums
from .data import Dataset
from .data.dataset import words_of
from .models import ENCODERS, PairClassifier

PAD = "<pad>"


class InferenceProblem(SummingProblem):
    """Pairs of sentences with one of three labels.

    With the option ``vectors`` (a file in GloVe's format: a word and its numbers on each line) words have the vectors
    of that file, which are not trained; without it vectors start at random and are.
    """

    def __init__(self, task: Task, data: Dataset, device: torch.device) -> None:
        super().__init__(task, data, device)
        options = task.options
        require_known(options["encoder"], ENCODERS, f"encoder of {task.name}")
        self.vectors: Tensor | None = None
        self.about_vectors = {"vectors": "random, trained"}
        if options["vectors"] is not None:
            words = words_of(data.arrays["vocab"])
            table, found = read_vectors(Path(options["vectors"]), words, int(options["embedding"]))
            self.vectors = torch.as_tensor(table).to(device)
            self.about_vectors = {
                "vectors": f"{Path(options['vectors']).name}, frozen: {found} of {len(words)} words",
                "vectors_sha256": hashlib.sha256(table.tobytes()).hexdigest(),
            }
        self.splits = {split: self._split(split) for split in ("train", "valid", "test")}

    def _split(self, split: str) -> Batch:
        arrays = (self.data.arrays[f"{split}_{part}"] for part in ("premise", "hypothesis", "y"))
        return tuple(torch.as_tensor(array).to(self.device, torch.int64) for array in arrays)

    def build(self) -> nn.Module:
        o = self.task.options
        return PairClassifier(
            o["encoder"],
            int(self.data.info["vocab_size"]),
            size=o["embedding"],
            hidden=o["hidden"],
            fc=o["fc"],
            classes=int(self.data.info["classes"]),
            dropout=o["dropout"],
            vectors=self.vectors,
        ).to(self.device)

    def loss(self, model: Model, batch: Batch, noise: Tensor | None, carry: Any) -> tuple[Tensor, Any]:
        premise, hypothesis, y = batch
        return F.cross_entropy(model(premise, hypothesis), y), None

    def score(self, model: Model, batch: Batch) -> Tensor:
        premise, hypothesis, y = batch
        return accuracy_sums(model(premise, hypothesis), y)

    def details(self) -> dict[str, Any]:
        return {**super().details(), **self.about_vectors}


def read_vectors(path: Path, words: list[str], size: int) -> tuple[np.ndarray, int]:
    """A table of vectors for ``words`` from a file in GloVe's format, and how many of them are in it.

    A word that the file lacks gets a fixed random vector of the others' spread (never trained, like the others); the
    padding gets zeros.
    """
    if not path.is_file():
        raise MissingFileError(
            f"No word vectors at {path}; give a file in GloVe's format (a word and {size} numbers on each line)"
        )
    wanted = {word: i for i, word in enumerate(words)}
    table = np.full((len(words), size), np.nan, np.float32)
    with open(path, encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            # A few of GloVe's words contain spaces: the numbers are counted from the end.
            parts = line.rstrip("\n").rsplit(" ", size)
            if len(parts) != size + 1:
                raise LabError(
                    f"Invalid line {number} of {path}: expected a word and {size} numbers, got {line[:60]!r}"
                )
            i = wanted.get(parts[0])
            if i is not None:
                table[i] = np.asarray(parts[1:], np.float32)
    missing = np.isnan(table[:, 0])
    found = int((~missing).sum())
    if not found:
        raise LabError(f"No word of the vocabulary is in {path}; is it a file of word vectors?")
    spread = float(table[~missing].std())
    table[missing] = np.random.default_rng(0).normal(0, spread, (int(missing.sum()), size)).astype(np.float32)
    if PAD in wanted:
        table[wanted[PAD]] = 0
    return table, found
