"""Classification of images and feature rows, dense or sparse: the tasks that the bank engine runs, too."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..errors import LabError, require_known
from ..train.streams import stream
from .base import TRAIN_LOSS, Batch, Model, Scores, SummingProblem, Task, accuracy_sums
from .data import Dataset
from .models import MLP, DeepConvNet, LeNet, LogisticRegression, ResNet

# Numbers that are kept ready as floats, or gathered for a whole epoch at once: what fits in a processor's cache.
SMALL = 1 << 20
# Numbers in one piece of an evaluation.
PIECE = 1 << 22

SHIFT = 4  # pixels at most, in each direction; what comes in is the mean colour

DTYPES = {"float32": torch.float32, "float64": torch.float64}


def dtype_of(task: Task) -> torch.dtype:
    """The floating type that a task's ``dtype`` option names."""
    name = task.options.get("dtype", "float32")
    require_known(name, DTYPES, f"dtype of {task.name}")
    return DTYPES[name]


class DenseRows:
    """Rows of one split, kept as they were stored and turned into normalised floats where they are used."""

    def __init__(self, x: np.ndarray, info: Mapping[str, Any], dtype: torch.dtype, device: torch.device) -> None:
        mean, std = (np.asarray(info.get(name, value), np.float64) for name, value in (("mean", 0.0), ("std", 1.0)))
        channels = (-1, *[1] * (x.ndim - 2)) if mean.ndim else ()
        # x * factor + offset, one rounding each, is the same on every device.
        factor, offset = float(info.get("scale", 1.0)) / std, -mean / std
        self.factor = torch.as_tensor(factor.reshape(channels), dtype=dtype, device=device)
        self.offset = torch.as_tensor(offset.reshape(channels), dtype=dtype, device=device)
        self.plain = x.dtype.kind == "f" and "scale" not in info and "mean" not in info
        self.dtype = dtype
        self.row_size = math.prod(x.shape[1:])
        self.x = torch.as_tensor(x).to(device)
        if self.x.numel() <= SMALL or self.plain:
            self.x, self.plain = self._floats(self.x), True

    def __len__(self) -> int:
        return len(self.x)

    def _floats(self, x: Tensor) -> Tensor:
        x = x.to(self.dtype)
        return x if self.plain else x * self.factor + self.offset

    def take(self, index: Tensor | slice) -> Tensor:
        """Rows by their numbers, of any shape, or neighbouring ones."""
        return self._floats(self.x[index])


class SparseRows:
    """Rows of one split with few entries each, made dense where they are used.

    All rows are stored with as many entries as the longest one; the fillers point at one extra column, which is cut
    off. So a batch has a fixed shape, whatever rows are in it.
    """

    def __init__(
        self,
        values: np.ndarray,
        columns: np.ndarray,
        rows: np.ndarray,
        features: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        counts = np.diff(rows)
        shape = (len(counts), int(counts.max()))
        filled = np.arange(shape[1]) < counts[:, None]
        wide_values, wide_columns = np.zeros(shape, np.float64), np.full(shape, features, np.int64)
        wide_values[filled], wide_columns[filled] = values, columns
        self.values = torch.as_tensor(wide_values).to(device, dtype)
        self.columns = torch.as_tensor(wide_columns).to(device)
        self.row_size = features

    def __len__(self) -> int:
        return len(self.values)

    def take(self, index: Tensor | slice) -> Tensor:
        """Rows by their numbers, of any shape, or neighbouring ones."""
        values, columns = self.values[index], self.columns[index]
        dense = torch.zeros((*values.shape[:-1], self.row_size + 1), dtype=values.dtype, device=values.device)
        return dense.scatter_(-1, columns, values)[..., :-1]


# By name: what makes it of the numbers of features and classes, and the task's options that it takes after them.
MODELS: Mapping[str, tuple[Callable[..., nn.Module], tuple[str, ...]]] = {
    "logreg": (LogisticRegression, ()),
    "mlp": (lambda features, classes, hidden: MLP(features, hidden, classes), ("hidden",)),
    "lenet": (lambda features, *rest: LeNet(*rest), ("dropout",)),
    "deep": (lambda features, *rest: DeepConvNet(*rest), ("width", "dropout2d", "dropout", "bf16")),
    "resnet": (lambda features, *rest: ResNet(*rest), ("width", "blocks", "bf16")),
}


class ClassificationProblem(SummingProblem):
    """Rows with labels. A task whose metric is the training loss (the convex ones) is judged on the training split.

    With the option ``l2`` the loss is the regularised one, ``cross entropy + l2 / 2 * |theta|^2``, in training and in
    evaluation: what is minimised is what is reported.
    """

    def __init__(self, task: Task, data: Dataset, device: torch.device) -> None:
        super().__init__(task, data, device)
        self.dtype = dtype_of(task)
        self.classes = int(data.info["classes"])
        self.l2 = float(task.options.get("l2", 0.0))
        if task.metric == TRAIN_LOSS:
            self.select_on = self.report_on = "train"
        known = [name for name, (_, takes) in MODELS.items() if task.options.keys() >= {*takes}]
        if task.options["model"] not in known:
            raise LabError(f"Invalid model of {task.name}: {task.options['model']!r}, expected {' or '.join(known)}")
        if task.options["model"] == "lenet" and task.options["dropout"]:
            self.noise_width = sum(LeNet.WIDTHS)
        self.splits = {}
        for split in dict.fromkeys(("train", self.select_on, self.report_on)):
            labels = torch.as_tensor(data.arrays[f"{split}_y"]).to(device, torch.int64)
            self.splits[split] = (self._rows(split), labels)

    def _rows(self, split: str) -> DenseRows | SparseRows:
        arrays, info = self.data.arrays, self.data.info
        if f"{split}_x" in arrays:
            return DenseRows(arrays[f"{split}_x"], info, self.dtype, self.device)
        values, columns, rows = (arrays[f"{split}_x_{part}"] for part in ("values", "columns", "rows"))
        return SparseRows(values, columns, rows, int(info["features"]), self.dtype, self.device)

    @property
    def worst(self) -> float:
        return math.log(self.classes) if self.task.metric == TRAIN_LOSS else 0.0

    def build(self) -> nn.Module:
        features = self.splits["train"][0].row_size
        make, takes = MODELS[self.task.options["model"]]
        options = (self.task.options[name] for name in takes)
        return make(features, self.classes, *options).to(self.device, self.dtype)

    def batch(self, index: Tensor) -> Batch:
        rows, labels = self.splits["train"]
        return rows.take(index), labels[index]

    def batches(self, plan: Tensor) -> Iterable[Batch]:
        if plan.numel() * self.splits["train"][0].row_size > SMALL:
            return super().batches(plan)
        return zip(*(part.unbind(0) for part in self.batch(plan)))

    def loss(self, model: Model, batch: Batch, noise: Tensor | None, carry: Any) -> tuple[Tensor, Any]:
        x, y = batch
        if self.l2:
            logits, squares = model(x, True)
            return F.cross_entropy(logits, y) + self.l2 / 2 * squares, None
        return F.cross_entropy(model(x) if noise is None else model(x, noise), y), None

    def parts(self, split: str) -> Iterator[Batch]:
        rows, labels = self.splits[split]
        size = max(32, PIECE // rows.row_size)
        for begin in range(0, len(labels), size):
            piece = slice(begin, begin + size)
            yield rows.take(piece), labels[piece]

    def score(self, model: Model, batch: Batch) -> Tensor:
        x, y = batch
        if not self.l2:
            return accuracy_sums(model(x), y)
        logits, squares = model(x, True)
        loss, right, n = accuracy_sums(logits, y)
        return torch.stack([loss + y.numel() * self.l2 / 2 * squares, right, n])

    def finish(self, totals: Tensor) -> Scores:
        found = super().finish(totals)
        return Scores(found.loss, min(found.loss, self.worst)) if self.task.metric == TRAIN_LOSS else found


def shifted(x: Tensor, moves: Tensor) -> Tensor:
    """Images ``(N, C, H, W)`` moved and mirrored.

    ``moves`` is ``(N, 3)``: rows and columns from 0 to ``2 * SHIFT``, mirrored or not.
    """
    down, right, mirrored = moves.to(torch.int64).unbind(-1)
    height, width = x.shape[-2:]
    places = torch.arange(width, device=x.device)
    columns = torch.where(mirrored.bool()[:, None], width - 1 - places, places) + right[:, None]
    rows = torch.arange(height, device=x.device) + down[:, None]
    wide = F.pad(x, (SHIFT,) * 4)
    images = torch.arange(len(x), device=x.device)[:, None, None, None]
    channels = torch.arange(x.shape[1], device=x.device)[:, None, None]
    return wide[images, channels, rows[:, None, :, None], columns[:, None, None, :]]


class AugmentedProblem(ClassificationProblem):
    """Images that are shifted and mirrored at random in training. Each of a step gets its own move, from the seed's stream: the
    same on every device and for every optimizer.
    """

    noise_width = 3

    def noise(self, seed: int, epoch: int) -> Tensor | None:
        """Moves of all images of an epoch, ``(steps, batch_size, 3)``."""
        generator = stream(seed, "moves", epoch)
        shape = (self.steps, self.batch_size)
        moves = torch.randint(2 * SHIFT + 1, (*shape, 2), generator=generator, dtype=torch.uint8)
        mirrored = torch.randint(2, (*shape, 1), generator=generator, dtype=torch.uint8)
        return torch.cat((moves, mirrored), -1).to(self.device)

    def loss(self, model: Model, batch: Batch, noise: Tensor | None, carry: Any) -> tuple[Tensor, Any]:
        x, y = batch
        return F.cross_entropy(model(x if noise is None else shifted(x, noise)), y), None
