"""A task as a record (``Task``), and a task with its data on a device (``Problem``).

A ``Problem`` knows data, model and loss. It knows no optimizer, and a seed only where it is handed one, so that one
problem serves every trial of a process.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..errors import LabError, require_known
from ..train.schedule import factor
from ..train.streams import stream
from .data import Dataset

Batch = tuple[Tensor, ...]
Model = Callable[..., Any]


@dataclass(frozen=True)
class Metric:
    """What a task is judged by."""

    name: str
    higher_is_better: bool
    unit: str = ""

    def better(self, a: float, b: float) -> bool:
        """Whether ``a`` is better than ``b``."""
        return a > b if self.higher_is_better else a < b


ACCURACY = Metric("accuracy", True, "%")
TRAIN_LOSS = Metric("training loss", False)
PERPLEXITY = Metric("perplexity", False)
BLEU = Metric("BLEU", True)
NATS = Metric("nats a piece", False)


@dataclass(frozen=True)
class Task:
    """A row of ``critgrad tasks``. Every value is a default that a trial's ``settings`` may override by name."""

    name: str
    summary: str
    dataset: str
    problem: Callable[[Task, Dataset, torch.device], Problem]
    metric: Metric
    batch_size: int
    epochs: int
    clip: float | None = None
    weight_decay: float = 0.0
    decay_matrices_only: bool = False  # vectors (norms, biases) are not decayed
    schedule: str = "constant"  # of the learning rate, a kind of train/schedule.py
    warmup: float = 0.0  # a share of all steps
    tf32: bool | None = None  # float32 products on a GPU; None: as torch does by default
    epoch_steps: int | None = None  # an epoch has so many steps at most; None: all of the data
    options: Mapping[str, Any] = field(default_factory=dict)  # of the model and the loss
    variants: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # "b420" -> {"batch_size": 420}
    tiny: Mapping[str, Any] = field(default_factory=dict)  # settings that fit the synthetic twin
    paper: str | None = None  # the row of the paper's tables, e.g. "CIFAR-10"
    differs: str = ""  # where a setting is not the paper's, or the paper is silent
    bankable: bool = False  # the bank engine can run it
    dataset_of: Callable[[Mapping[str, Any]], str] | None = None  # the data set's name where an option decides it

    def with_settings(self, settings: Mapping[str, Any]) -> Task:
        """The task with some values replaced; unknown names are an error that lists the known ones."""
        own = {name: value for name, value in settings.items() if name in SETTINGS}
        for name in settings:
            require_known(name, (*SETTINGS, *self.options), f"setting of {self.name}")
        for name, value in settings.items():
            wanted = _misfit(name, OWN_KINDS[name] if name in OWN_KINDS else type(self.options[name]), value)
            if wanted:
                raise LabError(f"Invalid {name} of {self.name}: {value!r}, expected {wanted}")
        factor(own.get("schedule", self.schedule), own.get("warmup", self.warmup), 0, 1)  # says what is wrong with them
        options = {**self.options, **{name: value for name, value in settings.items() if name in self.options}}
        return replace(self, **own, options=options)

    def variant(self, name: str) -> Task:
        """The variant ``name`` of this task; a variant may change any field."""
        if name not in self.variants:
            known = ", ".join(["tiny", *self.variants])
            raise LabError(f"Invalid variant of {self.name}: {name!r}, expected one of {known}")
        fields = {key: value for key, value in self.variants[name].items() if key not in self.options}
        return replace(self, **fields).with_settings(
            {key: value for key, value in self.variants[name].items() if key in self.options}
        )


OWN_KINDS = {
    **{"batch_size": int, "epochs": int, "clip": float, "weight_decay": float},
    **{"tf32": bool, "epoch_steps": int, "schedule": str, "warmup": float},
}
SETTINGS = tuple(OWN_KINDS)
MAY_BE_ZERO = ("decoded",)


def _misfit(name: str, kind: type, value: Any) -> str:
    """What a setting of this kind wants, where ``value`` is not that; empty where it is."""
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if kind is int:
        least = 0 if name in MAY_BE_ZERO else 1
        return "" if number and isinstance(value, int) and value >= least else f"an int >= {least}"
    if kind is float and name.startswith("dropout"):
        return "" if number and 0 <= value < 1 else "a number from 0 to less than 1"
    if kind is float:
        return "" if (number and value >= 0) or (name == "clip" and value is None) else "a number >= 0"
    names = {bool: "True or False", str: "a text"}  # others, whose default is None, are looked at where they are used
    return names[kind] if kind in names and not isinstance(value, kind) else ""


class Scores(NamedTuple):
    """The outcome of an evaluation: mean loss, and the task's metric."""

    loss: float
    metric: float


class Problem(ABC):
    """A task's data on a device, and what a step of training does with it.

    One step is ``index = plan[step]``, ``batch = problem.batch(index)``, ``loss, carry = problem.loss(model, batch, noise,
    carry)``. ``model`` is any callable with the module's signature: the bank passes a functional one.
    """

    noise_width = 0  # random bits per example for dropout that the problem draws itself; 0: none
    select_on = "valid"  # the split whose metric chooses the epoch and the hyper-parameters
    report_on = "test"  # the split whose metric is the outcome; convex tasks report the training loss itself

    splits: dict[str, Any]  # where all examples lie as tensors: those of each split

    def __init__(self, task: Task, data: Dataset, device: torch.device) -> None:
        self.task = task
        self.data = data
        self.device = device

    @property
    def worst(self) -> float:
        """The metric's value that a diverged run is given, and the limit of what any other run gets.

        It is finite, so that means exist: accuracy and BLEU 0; perplexity and training loss those of an even guess.
        """
        return 0.0

    @property
    def train_size(self) -> int:
        """Examples to train on."""
        return len(self.splits["train"][-1])

    @property
    def batch_size(self) -> int:
        """Of every step; never more than there are examples."""
        return min(self.task.batch_size, self.train_size)

    @property
    def steps(self) -> int:
        """Of one epoch. The last, smaller batch is left out: the shuffling leaves out other examples each time."""
        return self.at_most(self.train_size // self.batch_size)

    def at_most(self, steps: int) -> int:
        """So many steps of an epoch, or fewer where the task has a limit."""
        return steps if self.task.epoch_steps is None else min(steps, self.task.epoch_steps)

    @abstractmethod
    def build(self) -> nn.Module:
        """A new model on the device; its weights come from torch's global generator on the CPU."""

    def groups(self, model: nn.Module) -> Iterable[Any]:
        """What an optimizer is given: the parameters, or groups where the task treats vectors apart.

        Embeddings then are a group of their own, too. They are marked as such: an optimizer for matrices leaves them alone.
        """
        tables = {id(layer.weight) for layer in model.modules() if isinstance(layer, nn.Embedding)}
        for p in model.parameters():
            p.embedding = id(p) in tables  # type: ignore[attr-defined]
        if not self.task.decay_matrices_only:
            return model.parameters()
        matrices: list[nn.Parameter] = []
        embeddings: list[nn.Parameter] = []
        vectors: list[nn.Parameter] = []
        for p in model.parameters():
            (embeddings if id(p) in tables else matrices if p.dim() >= 2 else vectors).append(p)
        made = (
            {"params": matrices},
            {"params": embeddings, "embedding": True},
            {"params": vectors, "weight_decay": 0.0},
        )
        return [group for group in made if group["params"]]

    def plan(self, seed: int, epoch: int) -> Tensor:
        """Which examples each step of an epoch (from 1) sees: ``(steps, batch_size)``, on the device."""
        order = torch.randperm(self.train_size, generator=stream(seed, "order", epoch))
        order = order[: self.steps * self.batch_size].reshape(self.steps, self.batch_size)
        return order.to(self.device)

    def noise(self, seed: int, epoch: int) -> Tensor | None:
        """Units to keep, for dropout that the model is handed: bool ``(steps, batch_size, noise_width)``, or ``None``."""
        rate = float(self.task.options.get("dropout", 0.0))
        if not self.noise_width or rate == 0.0:
            return None
        shape = (self.steps, self.batch_size, self.noise_width)
        generator = stream(seed, "dropout", epoch, device=self.device)
        return torch.rand(shape, generator=generator, device=self.device) >= rate

    def batch(self, index: Tensor) -> Batch:
        """The examples of one step. ``index`` may have a leading model axis where the task is bankable."""
        return tuple(part[index] for part in self.splits["train"])

    def batches(self, plan: Tensor) -> Iterable[Batch]:
        """The batches of an epoch, one per row of ``plan``: what ``batch`` gives, perhaps gathered at once."""
        return (self.batch(plan[step]) for step in range(len(plan)))

    @abstractmethod
    def loss(self, model: Model, batch: Batch, noise: Tensor | None, carry: Any) -> tuple[Tensor, Any]:
        """Mean loss of a batch, and what the next step of the same epoch is handed: a recurrent state as a tuple of tensors
        without a gradient, else ``None``. What it is handed it leaves as it is.
        """

    @abstractmethod
    def evaluate(self, model: nn.Module, split: str) -> Scores:
        """Loss and metric on ``"train"``, ``"valid"`` or ``"test"``; the caller has called ``model.eval()``."""

    def details(self) -> dict[str, Any]:
        """What else every result must say (``weights``: random or pretrained, word vectors, ...)."""
        return {"weights": "random"}


class SummingProblem(Problem):
    """A problem whose scores are sums over examples, which is what the bank engine can evaluate, too."""

    piece_rows = 1024  # examples in a piece of an evaluation

    def parts(self, split: str) -> Iterator[Batch]:
        """The examples of a split in pieces that fit in memory."""
        return zip(*(part.split(self.piece_rows) for part in self.splits[split]))

    @abstractmethod
    def score(self, model: Model, batch: Batch) -> Tensor:
        """``(3,)``: sum of losses, sum of the metric's numerators, number of examples. Fit for ``torch.func.vmap``."""

    def finish(self, totals: Tensor) -> Scores:
        """Scores from the sums of ``score`` over a split: mean loss, and the share that is right."""
        loss, right, n = totals.tolist()
        return Scores(loss / n, 100 * right / n)

    @torch.no_grad()
    def evaluate(self, model: nn.Module, split: str) -> Scores:
        totals = torch.zeros(3, dtype=torch.float64, device=self.device)
        for batch in self.parts(split):
            totals += self.score(model, batch).double()
        return self.finish(totals)


def accuracy_sums(logits: Tensor, labels: Tensor) -> Tensor:
    """The sums of ``SummingProblem.score`` for a classification."""
    loss = F.cross_entropy(logits, labels, reduction="sum")
    right = (logits.argmax(-1) == labels).sum()
    return torch.stack([loss, right.to(loss.dtype), torch.full_like(loss, labels.numel())])
