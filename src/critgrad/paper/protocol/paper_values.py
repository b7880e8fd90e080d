"""The paper's numbers as data: its grid, best hyper-parameters, test results and run times (McRae et al., 2022, appendix).

Printed slips that are put right here: the PTB and WikiText rows "SGDM_C" without momentum are SGD_C; the run-time table's
second "C20" column is C50.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from critgrad.lab.errors import LabError

from .arms import AGGREGATION
from .families import PAPER as OPTIMIZERS

__all__ = [
    "BEST",
    "GRID",
    "OPTIMIZERS",
    "RUN_TIMES",
    "Best",
    "Performance",
    "at_grid_edge",
    "best_of",
    "grid",
    "name_of",
    "performance",
]

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

# task, optimizer, lr, topC, decay, momentum, beta1, beta2, alpha, test result, its +-
_TABLE = """
cifar10-convnet  Adam      0.001   -      -      -      0.9    0.99   -      64.26   0.47
cifar10-convnet  Adam_C    0.0001  5      0.7    -      0.99   0.99   -      63.72   0.37
cifar10-convnet  RMSprop   0.0001  -      -      -      -      -      0.9    63.9    0.33
cifar10-convnet  RMSprop_C 0.0001  5      0.7    -      -      -      0.9    64.02   0.78
cifar10-convnet  SGDM      0.001   -      -      0.9    -      -      -      64.7    0.69
cifar10-convnet  SGDM_C    0.001   5      0.7    0.9    -      -      -      63.68   0.77
cifar10-convnet  SGD       0.01    -      -      -      -      -      -      63.9    0.63
cifar10-convnet  SGD_C     0.01    5      0.99   -      -      -      -      64.89   0.66
cifar100-convnet Adam      0.0001  -      -      -      0.9    0.9999 -      54.71   0.55
cifar100-convnet Adam_C    0.00001 20     0.7    -      0.9    0.9999 -      53.55   0.42
cifar100-convnet RMSprop   0.0001  -      -      -      -      -      0.99   54.35   0.5
cifar100-convnet RMSprop_C 0.00001 20     0.7    -      -      -      0.99   52.93   0.57
cifar100-convnet SGDM      0.01    -      -      0.9    -      -      -      56.03   0.49
cifar100-convnet SGDM_C    0.001   20     0.7    0.9    -      -      -      59.07   0.2
cifar100-convnet SGD       0.1     -      -      -      -      -      -      55.37   0.39
cifar100-convnet SGD_C     0.01    5      0.9    -      -      -      -      58.0    0.37
ptb-lstm         Adam      0.0001  -      -      -      0.9    0.999  -      153.54  1.65
ptb-lstm         Adam_C    0.0001  5      0.9    -      0.9    0.999  -      133.28  0.61
ptb-lstm         RMSprop   0.0001  -      -      -      -      -      0.9    141.83  0.57
ptb-lstm         RMSprop_C 0.0001  20     0.9    -      -      -      0.9    130.63  0.64
ptb-lstm         SGDM      0.1     -      -      0.9    -      -      -      139.93  0.64
ptb-lstm         SGDM_C    0.1     10     0.9    0.9    -      -      -      132.22  1.1
ptb-lstm         SGD       0.1     -      -      -      -      -      -      386.57  18.61
ptb-lstm         SGD_C     0.1     2      0.95   -      -      -      -      295.33  2.96
wikitext2-lstm   Adam      0.0001  -      -      -      0.9    0.9999 -      170.3   1.23
wikitext2-lstm   Adam_C    0.0001  20     0.9    -      0.9    0.9999 -      169.23  1.06
wikitext2-lstm   RMSprop   0.0001  -      -      -      -      -      0.9    180.42  1.64
wikitext2-lstm   RMSprop_C 0.0001  20     0.9    -      -      -      0.9    172.15  1.63
wikitext2-lstm   SGDM      0.1     -      -      0.9    -      -      -      166.82  2.24
wikitext2-lstm   SGDM_C    0.1     10     0.9    0.9    -      -      -      156.75  1.32
wikitext2-lstm   SGD       0.1     -      -      -      -      -      -      461.84  12.68
wikitext2-lstm   SGD_C     0.1     2      0.95   -      -      -      -      356.88  8.34
multiwoz-roberta Adam      0.00001 -      -      -      0.99   0.999  -      2.57    0.0
multiwoz-roberta Adam_C    0.00001 5      0.7    -      0.99   0.999  -      2.41    0.0
multiwoz-roberta RMSprop   0.00001 -      -      -      -      -      0.99   2.56    0.01
multiwoz-roberta RMSprop_C 0.0001  5      0.7    -      -      -      0.99   2.42    0.0
multiwoz-roberta SGDM      0.01    -      -      0.9    -      -      -      2.46    0.0
multiwoz-roberta SGDM_C    0.01    5      0.7    0.9    -      -      -      2.4     0.01
multiwoz-roberta SGD       0.1     -      -      -      -      -      -      2.62    0.01
multiwoz-roberta SGD_C     0.1     5      0.7    -      -      -      -      2.41    0.0
multiwoz-bilstm  Adam      0.001   -      -      -      0.99   0.999  -      20.64   0.19
multiwoz-bilstm  Adam_C    0.001   5      0.7    -      0.99   0.999  -      20.94   0.26
multiwoz-bilstm  RMSprop   0.001   -      -      -      -      -      0.99   21.3    0.41
multiwoz-bilstm  RMSprop_C 0.001   5      0.7    -      -      -      0.99   21.21   0.22
multiwoz-bilstm  SGDM      0.1     -      -      0.9    -      -      -      19.31   0.27
multiwoz-bilstm  SGDM_C    0.1     5      0.7    0.9    -      -      -      19.58   0.47
multiwoz-bilstm  SGD       0.1     -      -      -      -      -      -      14.26   0.61
multiwoz-bilstm  SGD_C     0.1     5      0.7    -      -      -      -      16.35   0.24
snli-infersent   Adam      0.001   -      -      -      0.99   0.999  -      78.42   0.26
snli-infersent   Adam_C    0.0001  5      0.7    -      0.99   0.999  -      79.03   0.18
snli-infersent   RMSprop   0.001   -      -      -      -      -      0.99   77.91   0.35
snli-infersent   RMSprop_C 0.0001  5      0.7    -      -      -      0.99   79.07   0.28
snli-infersent   SGDM      0.1     -      -      0.9    -      -      -      79.15   0.3
snli-infersent   SGDM_C    0.01    5      0.7    0.9    -      -      -      78.52   0.26
snli-infersent   SGD       0.1     -      -      -      -      -      -      78.3    0.16
snli-infersent   SGD_C     0.1     5      0.7    -      -      -      -      78.9    0.57
snli-conv        Adam      0.001   -      -      -      0.99   0.999  -      75.52   0.0
snli-conv        Adam_C    0.0001  5      0.7    -      0.99   0.999  -      77.77   0.28
snli-conv        RMSprop   0.001   -      -      -      -      -      0.99   74.69   0.36
snli-conv        RMSprop_C 0.0001  5      0.7    -      -      -      0.99   77.49   0.24
snli-conv        SGDM      0.1     -      -      0.9    -      -      -      76.79   0.68
snli-conv        SGDM_C    0.01    5      0.7    0.9    -      -      -      78.06   0.45
snli-conv        SGD       0.1     -      -      -      -      -      -      78.5    0.1
snli-conv        SGD_C     0.1     5      0.7    -      -      -      -      78.59   0.24
snli-lstm        Adam      0.001   -      -      -      0.99   0.999  -      76.79   0.38
snli-lstm        Adam_C    0.0001  5      0.7    -      0.99   0.999  -      77.3    0.09
snli-lstm        RMSprop   0.001   -      -      -      -      -      0.99   76.37   0.36
snli-lstm        RMSprop_C 0.0001  5      0.7    -      -      -      0.99   77.48   0.11
snli-lstm        SGDM      0.1     -      -      0.9    -      -      -      77.6    0.22
snli-lstm        SGDM_C    0.01    5      0.7    0.9    -      -      -      76.69   1.04
snli-lstm        SGD       0.1     -      -      -      -      -      -      74.92   1.32
snli-lstm        SGD_C     0.1     5      0.7    -      -      -      -      76.81   0.59
"""
_COLUMNS = ("lr", "topC", "decay", "momentum", "beta1", "beta2", "alpha")


@dataclass(frozen=True)
class Performance:
    """A test result as printed; the paper does not say what its ± is."""

    value: float
    spread: float


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
    hyper = {name: _number(name, text) for name, text in values.items() if text != "-"}
    return Best(task, optimizer, _with_aggregation(optimizer, hyper), Performance(float(cells[-2]), float(cells[-1])))


def _number(name: str, text: str) -> int | float:
    return int(text) if name == "topC" else float(text)


def _with_aggregation(optimizer: str, hyper: Mapping[str, Any]) -> dict[str, Any]:
    """The paper's aggregation, said aloud: a registry's default may change."""
    family = optimizer.removesuffix("_C")
    return dict(hyper) if family == optimizer else {**hyper, "aggr": AGGREGATION[family]}


BEST: tuple[Best, ...] = tuple(map(_parse, _TABLE.strip().splitlines()))

# Minutes per epoch of Adam (topC 0) and Adam_C; None: "NA". MNIST logistic regression's last value is printed so.
RUN_TIME_TOPC = (0, 5, 10, 20, 50, 100)
RUN_TIMES: dict[str, tuple[float | None, ...]] = {
    "mnist-logreg": (0.3, 0.4, 0.5, 0.6, 0.9, 0.5),
    "mnist-mlp": (0.3, 0.5, 0.6, 0.8, 1.4, 2.3),
    "ptb-lstm": (0.08, 0.4, 0.6, 0.9, 2, 6),
    "wikitext2-lstm": (0.6, 1, 1.4, 2.6, 5, 10),
    "cifar10-convnet": (0.5, 0.9, 1, 1.5, 3, 5),
    "cifar100-convnet": (0.75, 1.5, 2, 4, 6, 12),
    "snli-lstm": (1, 3, 6, 10, 25, 45),
    "snli-infersent": (2, 4, 9, 20, 35, 50),
    "snli-conv": (1, 4, 8, 20, 40, 65),
    "multiwoz-roberta": (15, 25, 35, 50, None, None),
    "multiwoz-bilstm": (3, 4, 5, 5, 7, 10),
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
