"""Tasks whose signal is rare: classes with few examples, and examples that are seen in one part of the training only.

Variants of the small classification tasks, for the question whether a memory helps where it has something to keep:
``digits-mlp@longtail``, ``mnist-mlp@continual``. (Very small batches need no variant: ``batch_size`` is a setting.)
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ..errors import LabError
from ..train.streams import stream
from .base import Task
from .classification import ClassificationProblem, DenseRows
from .data import Dataset


class LongTailProblem(ClassificationProblem):
    """Each class has fewer training rows than the one before, the last a share of ``1 / imbalance`` of the first.

    The rows are the same for every seed. Validation and test data stay as they are, so that accuracy counts a rare class
    as much as a common one (where the data set's own classes are of one size, as those of digits and MNIST about are).
    """

    def __init__(self, task: Task, data: Dataset, device: torch.device) -> None:
        super().__init__(task, data, device)
        imbalance = float(task.options["imbalance"])
        if not imbalance >= 1:
            raise LabError(f"Invalid imbalance of {task.name}: {task.options['imbalance']!r}, expected >= 1")
        rows, labels = self.splits["train"]
        assert isinstance(rows, DenseRows)
        kept = self._thinned(labels.cpu(), imbalance).to(device)
        rows.x = rows.x[kept]
        self.splits["train"] = (rows, labels[kept])

    def _thinned(self, labels: Tensor, imbalance: float) -> Tensor:
        order = torch.randperm(len(labels), generator=stream(0, "long tail"))
        most = int(torch.bincount(labels, minlength=self.classes).min())
        shares = [imbalance ** (-c / max(self.classes - 1, 1)) for c in range(self.classes)]
        kept = [order[labels[order] == c][: max(1, round(most * share))] for c, share in enumerate(shares)]
        return torch.cat(kept).sort().values


class ContinualProblem(ClassificationProblem):
    """The training goes through ``phases``: each shuffles the pixels in another way, the first not at all.

    The epochs are divided among them (fewer epochs than phases pass some over). Validation and test are the mean over all
    phases, at whatever epoch, so what was learned in the first one and is forgotten counts.
    """

    def __init__(self, task: Task, data: Dataset, device: torch.device) -> None:
        super().__init__(task, data, device)
        self.phases = task.options["phases"]
        for split, (rows, labels) in self.splits.items():
            assert isinstance(rows, DenseRows)
            flat = rows.x.flatten(1)
            pixels = flat.shape[1]
            shuffled = [flat[:, self._pixels(phase, pixels).to(device)] for phase in range(self.phases)]
            rows.x = torch.cat(shuffled).reshape(-1, *rows.x.shape[1:])
            self.splits[split] = (rows, labels.repeat(self.phases))

    @staticmethod
    def _pixels(phase: int, pixels: int) -> Tensor:
        if phase == 0:
            return torch.arange(pixels)
        return torch.randperm(pixels, generator=stream(phase, "pixels of a phase"))

    @property
    def train_size(self) -> int:
        """Of one phase: an epoch is one pass through its rows."""
        return super().train_size // self.phases

    def phase(self, epoch: int) -> int:
        """The phase (from 0) of an epoch (from 1)."""
        return (epoch - 1) * self.phases // self.task.epochs

    def plan(self, seed: int, epoch: int) -> Tensor:
        return super().plan(seed, epoch) + self.phase(epoch) * self.train_size


RARE = ("longtail", "continual")  # names of the variants


def is_rare(task: str) -> bool:
    """Whether a task's name is one of these variants.

    >>> is_rare("digits-mlp@longtail"), is_rare("digits-mlp")
    (True, False)
    """
    return any(variant in RARE for variant in task.split("@")[1:])


def rare_variants(options: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The variants of a task with these options."""
    return {
        "longtail": {"problem": LongTailProblem, "options": {**options, "imbalance": 50.0}},
        "continual": {"problem": ContinualProblem, "options": {**options, "phases": 5}},
    }
