"""The numbers behind every claim: paired differences, exact tests, survival, selection, verdicts.

Numpy and the standard library alone. Values go in as plain sequences; a diverged run is first given its worst value
(``worst_filled``), because a run that is dropped is a result that is hidden. In every answer a positive difference
and a ratio above 1 speak for the arm. ``python -m critgrad.lab.stats.simulate`` shows what the numbers are worth.

>>> from critgrad.lab import stats
>>> arm, rival = [64.2, 64.9, 63.8, 64.4, 64.6, 64.1], [63.1, 63.9, 63.0, 63.6, 63.2, 63.3]
>>> (row,) = stats.judge([stats.Pair("cifar10", "Adam_F", "Adam_F", "NAdam", arm, rival, primary=True)])
>>> row.verdict, round(row.difference, 2), round(row.low, 2), round(row.high, 2), row.p
('better', 0.98, 0.73, 1.24, 0.03125)
"""

from .improvement import Improvement, probability_of_improvement
from .intervals import Interval, direction, mean_interval, paired_difference, worst_filled, worst_value
from .selection import BestSoFar, Choice, EdgeAxis, at_edge, choose, expected_best
from .signflip import SignFlip, holm, sign_flip
from .student import t_quantile
from .suite import SuiteScore, interquartile_mean, normalised, suite_difference, suite_score
from .survival import Speedup, Survival, kaplan_meier, speedup, target_value, time_to_target
from .verdicts import Comparison, Pair, judge, margin_of, seeds_needed, unreachable

__all__ = [
    "BestSoFar",
    "Choice",
    "Comparison",
    "EdgeAxis",
    "Improvement",
    "Interval",
    "Pair",
    "SignFlip",
    "Speedup",
    "SuiteScore",
    "Survival",
    "at_edge",
    "choose",
    "direction",
    "expected_best",
    "holm",
    "interquartile_mean",
    "judge",
    "kaplan_meier",
    "margin_of",
    "mean_interval",
    "normalised",
    "paired_difference",
    "probability_of_improvement",
    "seeds_needed",
    "sign_flip",
    "speedup",
    "suite_difference",
    "suite_score",
    "t_quantile",
    "target_value",
    "time_to_target",
    "unreachable",
    "worst_filled",
    "worst_value",
]
