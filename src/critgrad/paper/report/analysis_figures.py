"""Which function draws which analysis. Each draws from what ``collect`` gives and from nothing else."""

from __future__ import annotations

from collections.abc import Callable

from critgrad.lab.report.drawn import Data, Drawn

from .cost_figures import bytes_per_parameter, runtime
from .inside_figures import damping, norms, staleness
from .study_figures import ablation, convex, noise, sensitivity

DRAW: dict[str, Callable[[Data, str], Drawn]] = {
    "sensitivity": sensitivity,
    "staleness": staleness,
    "gt-vs-gc": norms,
    "ablation": ablation,
    "damping": damping,
    "noise": noise,
    "convex": convex,
    "runtime": runtime,
    "spectrum": bytes_per_parameter,
}
