"""What is known of memory-augmented SGD: rates, step-size limits, staleness bounds, noise floors.

The paper's Theorem 1 cannot be applied for memories of any size (``theorem1_rate`` shows it); these certificates take
its place. ``summary`` prints what a user wants to know, ``python -m critgrad.theory --topC 5 --decay 0.7 --aggr sum``
too.

>>> from critgrad import theory
>>> tau = theory.staleness_bound(topC=5, decay=0.7, norm_ratio=10)
>>> tau, round(theory.max_stable_lr(mu=0.1, L=1.0, aggr="sum", topC=5, tau=tau), 3)
(11, 0.099)
"""

from .certificate import Certificate
from .closed import damping_bounds
from .noise import noise_floor
from .rates import max_stable_lr, rate
from .report import summary
from .staleness import staleness_bound
from .theorem1 import theorem1_rate
from .weights import Gains, effective_lr, gains, matched_momentum, tail_weights, window_weights

__all__ = [
    "Certificate",
    "Gains",
    "damping_bounds",
    "effective_lr",
    "gains",
    "matched_momentum",
    "max_stable_lr",
    "noise_floor",
    "rate",
    "staleness_bound",
    "summary",
    "tail_weights",
    "theorem1_rate",
    "window_weights",
]
