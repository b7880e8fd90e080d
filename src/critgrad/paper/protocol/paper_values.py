"""The paper's numbers as data: its grid, best hyper-parameters, test results and run times (McRae et al., 2022, appendix).

Printed slips that are put right here: the PTB and WikiText rows "SGDM_C" without momentum are SGD_C; the run-time table's
second "C20" column is C50.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from critgrad.lab.errors import LabError

from .arms import ARMS
from .arms import PAPER as OPTIMIZERS

TWINS: Mapping[str, str] = {"sgd-bilstm": "multiwoz-bilstm"}  # the same on other, whole data
LRS = (0.1, 0.01, 0.001, 0.0001, 0.00001)
# What is searched beside the learning rate; a _C optimizer searches its base's values, and the memory's.
GRID: dict[str, dict[str, tuple[Any, ...]]] = {
    "SGD": {},
    "SGDM": {"momentum": (0.9, 0.99, 0.999)},
    "RMSprop": {"alpha": (0.9, 0.99, 0.999)},
    "Adam": {"beta1": (0.9, 0.99, 0.999), "beta2": (0.99, 0.999, 0.9999)},
}
MEMORY_GRID: dict[str, tuple[Any, ...]] = {"decay": (0.7, 0.9, 0.99), "topC": (5, 10, 20)}

# Of each task and optimizer, as printed: what was best, the test result, its +-.
_VALUES = Path(__file__).parents[1] / "values"
_COLUMNS = ("lr", "topC", "decay", "momentum", "beta1", "beta2", "alpha")


@dataclass(frozen=True)
class Performance:
    """A test result as printed; the paper does not say what its ± is."""

    value: float
    spread: float

    @property
    def text(self) -> str:
        """As in its table."""
        return f"{self.value:g} ± {self.spread:g}"


@dataclass(frozen=True)
class Best:
    """A row of the paper's tables of best hyper-parameters, with the test result that belongs to it."""

    task: str
    optimizer: str
    hyper: Mapping[str, Any]
    test: Performance


def _parse(line: str) -> Best:
    task, optimizer, *cells = line.split()
    values = dict(zip(_COLUMNS, cells))
    hyper = {name: int(text) if name == "topC" else float(text) for name, text in values.items() if text != "-"}
    return Best(task, optimizer, _with_aggregation(optimizer, hyper), Performance(float(cells[-2]), float(cells[-1])))


def _with_aggregation(optimizer: str, hyper: Mapping[str, Any]) -> dict[str, Any]:
    """The paper's aggregation, said aloud: a registry's default may change."""
    family = optimizer.removesuffix("_C")
    return dict(hyper) if family == optimizer else {**hyper, "aggr": ARMS["C"].search[family].fixed["aggr"]}


BEST: tuple[Best, ...] = tuple(map(_parse, (_VALUES / "best.txt").read_text(encoding="utf-8").splitlines()[1:]))

# Minutes per epoch of Adam (topC 0) and Adam_C; None: "NA". MNIST logistic regression's last value is printed so.
_HEAD, *_TIMES = (line.split() for line in (_VALUES / "run-times.txt").read_text(encoding="utf-8").splitlines())
RUN_TIME_TOPC = tuple(map(int, _HEAD[1:]))
RUN_TIMES: dict[str, tuple[float | None, ...]] = {
    task: tuple(None if text == "NA" else float(text) for text in minutes) for task, *minutes in _TIMES
}


def name_of(task: str) -> str:
    """The name under which the paper's tables have a task, its variants and its twin on other data.

    >>> name_of("ptb-lstm@b420"), name_of("sgd-bilstm")
    ('ptb-lstm', 'multiwoz-bilstm')
    """
    name = task.split("@")[0]
    return TWINS.get(name, name)


def best_of(task: str) -> list[Best]:
    """The rows of a task (variants such as ``@b420`` share them, and twins), in the order of ``OPTIMIZERS``."""
    name = name_of(task)
    rows = [row for row in BEST if row.task == name]
    if not rows:
        known = ", ".join(dict.fromkeys(row.task for row in BEST))
        raise LabError(f"The paper lists no best hyper-parameters for {task!r}; it does for {known}")
    return rows


def performance(task: str, optimizer: str) -> Performance | None:
    """The paper's test result; ``None`` for tasks that are not in its table, and for variants of the setting."""
    return next((row.test for row in BEST if (row.task, row.optimizer) == (task, optimizer)), None)


def grid(optimizer: str) -> list[dict[str, Any]]:
    """All settings of the paper's grid for one of its eight optimizers.

    >>> [len(grid(name)) for name in ("SGD", "SGDM", "RMSprop", "Adam", "Adam_C")]
    [5, 15, 15, 45, 405]
    """
    if optimizer not in OPTIMIZERS:
        raise LabError(f"Invalid optimizer: {optimizer!r}, the paper's are {', '.join(OPTIMIZERS)}")
    family = optimizer.removesuffix("_C")
    axes: dict[str, tuple[Any, ...]] = {"lr": LRS, **GRID[family], **(MEMORY_GRID if family != optimizer else {})}
    return [_with_aggregation(optimizer, dict(zip(axes, values))) for values in itertools.product(*axes.values())]


def at_grid_edge(hyper: Mapping[str, Any]) -> tuple[str, ...]:
    """The values of a setting that stand at an end of the paper's grid (``"lr high"``).

    >>> at_grid_edge({"lr": 0.1, "topC": 10, "decay": 0.7})
    ('lr high', 'decay low')
    """
    axes = {"lr": LRS, **MEMORY_GRID, **{name: values for of in GRID.values() for name, values in of.items()}}
    ends = {name: {max(values): "high", min(values): "low"} for name, values in axes.items()}
    return tuple(f"{name} {ends[name][value]}" for name, value in hyper.items() if value in ends.get(name, {}))
