"""The loss surfaces of the playground: functions of two numbers that are hard in five different ways.

Every loss is zero at its best point and positive elsewhere, so that it can be drawn on a log axis.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

Point = tuple[float, float]


@dataclass(frozen=True)
class Surface:
    """A loss over the plane, the part of it that is drawn, and learning rates that make sense on it.

    ``noise`` is the standard deviation of what is added to both coordinates of the gradient in every step. The draws
    depend on the step alone, so two optimizers on one surface meet the same noise.
    """

    key: str
    title: str
    story: str  # what is hard about it, and what to look for
    loss: Callable[[Tensor, Tensor], Tensor]
    center: Point
    half_width: float  # of the square that is drawn
    start: Point
    minima: tuple[Point, ...]
    lrs: dict[str, tuple[float, float, float, float]]  # by the optimizer's family, smallest first
    noise: float = 0.0

    def noises(self, steps: int) -> Tensor:
        """What is added to the gradients of a run: a row for each step, the same however many steps follow.

        From numpy's legacy generator, whose stream is promised never to change.
        """
        return self.noise * torch.from_numpy(np.random.RandomState(0).standard_normal((steps, 2)))

    def grid(self, size: int) -> Tensor:
        """The loss on ``size`` x ``size`` points of the square that is drawn, rows from the bottom up."""
        offsets = torch.linspace(-self.half_width, self.half_width, size, dtype=torch.float64)
        return self.loss(self.center[0] + offsets[None, :], self.center[1] + offsets[:, None])


def rosenbrock(x: Tensor, y: Tensor) -> Tensor:
    """Rosenbrock's valley: ``(1 - x)^2 + 100 (y - x^2)^2``."""
    return (1 - x) ** 2 + 100 * (y - x * x) ** 2


def rastrigin(x: Tensor, y: Tensor) -> Tensor:
    """Rastrigin's egg box: ``20 + x^2 - 10 cos(2 pi x) + y^2 - 10 cos(2 pi y)``."""
    turn = 2 * math.pi
    return 20 + x * x - 10 * torch.cos(turn * x) + y * y - 10 * torch.cos(turn * y)


def beale(x: Tensor, y: Tensor) -> Tensor:
    """Beale's function: a plateau with steep walls, its minimum at (3, 0.5)."""
    return (1.5 - x + x * y) ** 2 + (2.25 - x + x * y**2) ** 2 + (2.625 - x + x * y**3) ** 2


def saddle(x: Tensor, y: Tensor) -> Tensor:
    """A saddle between two valleys: ``x^2 / 2 + (y^2 - 1)^2 / 4``; bounded below, unlike ``x^2 - y^2``."""
    return x * x / 2 + (y * y - 1) ** 2 / 4


def quadratic(x: Tensor, y: Tensor) -> Tensor:
    """An ill-conditioned bowl: ``(x^2 + 20 y^2) / 2``."""
    return (x * x + 20 * y * y) / 2


SURFACES: tuple[Surface, ...] = (
    Surface(
        "rosenbrock",
        "Rosenbrock",
        "A curved, nearly flat valley between steep walls. Falling into it is easy; walking along it is the work.",
        rosenbrock,
        center=(0.0, 1.0),
        half_width=2.0,
        start=(-1.4, 0.4),
        minima=((1.0, 1.0),),
        lrs={
            "SGD": (1e-4, 3e-4, 1e-3, 3e-3),
            "SGDM": (1e-5, 3e-5, 1e-4, 3e-4),
            "Adam": (0.01, 0.03, 0.1, 0.3),
        },
    ),
    Surface(
        "rastrigin",
        "Rastrigin",
        "An egg box of local minima in a wide bowl. Small steps stay in the nearest hole; the best one is in the middle.",
        rastrigin,
        center=(0.0, 0.0),
        half_width=3.2,
        start=(-2.4, 1.7),
        minima=((0.0, 0.0),),
        lrs={
            "SGD": (3e-4, 1e-3, 3e-3, 0.01),
            "SGDM": (1e-4, 3e-4, 1e-3, 3e-3),
            "Adam": (0.01, 0.03, 0.1, 0.3),
        },
    ),
    Surface(
        "beale",
        "Beale",
        "A wide plateau that ends in cliffs. The gradients met on a cliff are large, and a memory keeps them.",
        beale,
        center=(2.0, 0.5),
        half_width=2.5,
        start=(0.7, 1.4),
        minima=((3.0, 0.5),),
        lrs={
            "SGD": (1e-3, 3e-3, 0.01, 0.03),
            "SGDM": (3e-4, 1e-3, 3e-3, 0.01),
            "Adam": (0.01, 0.03, 0.1, 0.3),
        },
    ),
    Surface(
        "saddle",
        "Saddle",
        "The start is almost on the ridge between two valleys: the slope leads to the saddle, where it nearly vanishes.",
        saddle,
        center=(0.0, 0.0),
        half_width=2.0,
        start=(-1.8, 0.001),
        minima=((0.0, 1.0), (0.0, -1.0)),
        lrs={
            "SGD": (0.03, 0.1, 0.3, 1.0),
            "SGDM": (0.003, 0.01, 0.03, 0.1),
            "Adam": (0.01, 0.03, 0.1, 0.3),
        },
    ),
    Surface(
        "noisy-quadratic",
        "Noisy quadratic",
        "A bowl twenty times steeper one way than the other, with noise in every gradient, the same for both optimizers.",
        quadratic,
        center=(0.0, 0.0),
        half_width=3.0,
        start=(-2.5, 1.5),
        minima=((0.0, 0.0),),
        lrs={
            "SGD": (0.003, 0.01, 0.03, 0.1),
            "SGDM": (3e-4, 0.001, 0.003, 0.01),
            "Adam": (0.01, 0.03, 0.1, 0.3),
        },
        noise=3.0,
    ),
)
