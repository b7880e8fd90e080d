"""The bundled digits: 1,797 images of 8 x 8 pixels, and an MLP 64-32-10 to train on them.

Initialisation and data order each draw from a stream of their own, keyed by the seed and not by the
optimizer, so that two optimizers with the same seed start from the same weights and see the same batches.
"""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from statistics import median

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

__all__ = ["Digits", "Run", "load", "mlp", "stream", "train"]

OptimizerFactory = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]

FILE = Path(__file__).parent / "data" / "digits.npz"
N_VALID = 300
N_TEST = 300


@dataclass(frozen=True)
class Digits:
    """Images in [0, 1] and labels of the three parts, and the rows of the file that each part took."""

    train: tuple[Tensor, Tensor]
    valid: tuple[Tensor, Tensor]
    test: tuple[Tensor, Tensor]
    rows: tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]


@dataclass
class Run:
    """What one training run gave: curves with one value per epoch, and its time.

    A run whose loss is no longer finite stops there; it counts as an accuracy of 0 and an infinite loss.
    """

    seed: int
    train_loss: list[float] = field(default_factory=list)
    valid_loss: list[float] = field(default_factory=list)
    valid_accuracy: list[float] = field(default_factory=list)
    test_accuracy: list[float] = field(default_factory=list)
    step_seconds: float = math.nan
    diverged: bool = False

    @property
    def best_epoch(self) -> int:
        """The epoch of the highest validation accuracy; of several, the one of the lowest validation loss."""
        return max(range(len(self.valid_accuracy)), key=lambda e: (self.valid_accuracy[e], -self.valid_loss[e]))

    def at_best(self) -> tuple[float, float, float]:
        """Validation accuracy, validation loss and test accuracy at the best epoch."""
        if self.diverged:
            return 0.0, math.inf, 0.0
        e = self.best_epoch
        return self.valid_accuracy[e], self.valid_loss[e], self.test_accuracy[e]


@lru_cache(maxsize=1)
def load() -> Digits:
    """Load the digits, split 1,197 / 300 / 300 by a fixed permutation.

    >>> digits = load()
    >>> digits.train[0].shape, digits.valid[0].shape, digits.test[0].shape
    (torch.Size([1197, 64]), torch.Size([300, 64]), torch.Size([300, 64]))
    """
    with np.load(FILE) as file:
        images = torch.from_numpy(file["images"]).float() / 16
        labels = torch.from_numpy(file["labels"]).long()
    # RandomState, not default_rng: numpy promises that its stream never changes.
    order = np.random.RandomState(0).permutation(len(labels))
    cut = len(labels) - N_VALID - N_TEST
    parts = order[:cut], order[cut : cut + N_VALID], order[cut + N_VALID :]
    take = [(images[torch.from_numpy(rows)], labels[torch.from_numpy(rows)]) for rows in parts]
    rows_of = [tuple(int(row) for row in rows) for rows in parts]
    return Digits(take[0], take[1], take[2], (rows_of[0], rows_of[1], rows_of[2]))


def stream(seed: int, name: str) -> torch.Generator:
    """Return a generator of its own for each purpose: neighbouring seeds share nothing."""
    digest = hashlib.sha256(f"{name}:{seed}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:7], "big"))


def mlp(seed: int) -> nn.Sequential:
    """Build the MLP 64-32-10 with torch's default initialisation, drawn from the seed's stream alone."""
    # skip_init: nn.Linear by itself would draw from, and so move, the global generator.
    layers = [nn.utils.skip_init(nn.Linear, n_in, n_out) for n_in, n_out in ((64, 32), (32, 10))]
    generator = stream(seed, "init")
    with torch.no_grad():
        for layer in layers:
            bound = 1 / math.sqrt(layer.in_features)
            layer.weight.uniform_(-bound, bound, generator=generator)
            layer.bias.uniform_(-bound, bound, generator=generator)
    return nn.Sequential(layers[0], nn.ReLU(), layers[1])


@torch.no_grad()
def evaluate(model: nn.Module, part: tuple[Tensor, Tensor]) -> tuple[float, float]:
    """Return mean loss and accuracy on one part."""
    images, labels = part
    logits = model(images)
    accuracy = (logits.argmax(1) == labels).float().mean()
    return F.cross_entropy(logits, labels).item(), accuracy.item()


def train(optimizer_factory: OptimizerFactory, seed: int, epochs: int = 30, batch: int = 32) -> Run:
    """Train the MLP and return its curves.

    ``optimizer_factory`` takes the parameters and returns the optimizer. ``step_seconds`` of the result is
    the median time of ``optimizer.step()`` alone.

    >>> run = train(lambda params: torch.optim.SGD(params, lr=0.1), seed=0, epochs=2)
    >>> len(run.train_loss), run.train_loss[1] < run.train_loss[0]
    (2, True)
    """
    digits = load()
    images, labels = digits.train
    model = mlp(seed)
    optimizer = optimizer_factory(model.parameters())
    order = stream(seed, "order")
    run = Run(seed)
    times: list[float] = []

    for _ in range(epochs):
        total = 0.0
        for rows in torch.randperm(len(labels), generator=order).split(batch):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(images[rows]), labels[rows])
            loss.backward()
            begin = time.perf_counter()
            optimizer.step()
            times.append(time.perf_counter() - begin)
            total += loss.item() * len(rows)
        valid_loss, valid_accuracy = evaluate(model, digits.valid)
        if not (math.isfinite(total) and math.isfinite(valid_loss)):
            run.diverged = True
            break
        run.train_loss.append(total / len(labels))
        run.valid_loss.append(valid_loss)
        run.valid_accuracy.append(valid_accuracy)
        run.test_accuracy.append(evaluate(model, digits.test)[1])

    run.step_seconds = median(times)
    return run
