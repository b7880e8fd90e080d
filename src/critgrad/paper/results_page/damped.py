"""What damping does to the gradient, beside what it gained: does the one go with the other?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from critgrad.lab.stats import Interval, mean_interval
from critgrad.lab.stats.intervals import improvements
from critgrad.lab.train.optimizers import recipe_of

from .findings import Findings, Study
from .text import fixed, interval, page, probability, short, table

ENDS = (0, -1)  # of training: the first epoch and the last
SHUFFLES = 10_000


@dataclass(frozen=True)
class Damped:
    """One optimizer on one task. ``gain`` is over the tuned base in the task's fair experiment, seeds paired."""

    study: Study
    line: dict[str, Any]
    gain: Interval | None
    effect: float | None  # the gain in standard deviations of the paired differences

    @property
    def share(self) -> float:
        """Of the gradient, what lies in the memory's span: mean over training."""
        return float(np.mean(self.line["span_share"]))

    @property
    def taken(self) -> float:
        """Of the gradient's length, what damping takes away: mean over training."""
        return 1 - float(np.mean(self.line["damped_ratio"]))

    @property
    def cells(self) -> list[str]:
        """The table's row."""
        spectrum = self.line["spectrum"]
        return [
            self.study.title(),
            self.line["optimizer"],
            f"{len(spectrum[0])}, {'default' if self.line['rho'] is None else short(self.line['rho'])}",
            str(self.line["runs"]),
            *[f"{100 * self.line['span_share'][at]:.0f}" for at in ENDS],
            *[fixed(self.line["damped_ratio"][at], 2) for at in ENDS],
            *[fixed(effective_rank(spectrum[at]), 1) for at in ENDS],
            "-" if self.gain is None else interval(self.gain, "+"),
        ]


def damped(findings: Findings) -> list[Damped]:
    """Every task and optimizer that the analysis ``damping`` was run with."""
    outcomes = {outcome.name: outcome for outcome in (*findings.claimable, *findings.apart)}
    found = []
    for study in findings.studies("damping"):
        for line in study.data["lines"]:
            outcome, family = outcomes.get(study.task), recipe_of(line["optimizer"]).family
            ours, base = (outcome.arm(family, arm) if outcome else None for arm in ("F", "base"))
            gain, effect = None, None
            if outcome and ours and base:
                better = improvements(ours.values, base.values, outcome.registration.higher_is_better)
                gain, spread = mean_interval(better), float(np.std(better, ddof=1))
                effect = gain.mean / spread if spread else 0.0
            found.append(Damped(study, line, gain, effect))
    return found


def damped_page(findings: Findings) -> str:
    """The table, and how far gains go with what it shows; nothing without runs of the analysis."""
    rows = damped(findings)
    if not rows:
        return ""
    numbers = [f"{name}, {end}" for name in ("in span", "length left", "rank") for end in ("first", "last")]
    head = ("task", "optimizer", "topC, rho", "seeds", *numbers, "minus base")
    return page("inside-damping", table=table(head, [row.cells for row in rows], head[3:]), **_together(rows))


def _together(rows: Sequence[Damped]) -> dict[str, str]:
    """How far gains go with what damping takes; nothing for a few."""
    known = [(row, row.effect) for row in rows if row.effect is not None]
    if len(known) < 10:
        return {}
    out = {"pairs": str(len(known)), "shuffles": f"{SHUFFLES:,}"}
    for name in ("share", "taken"):
        r, p = rank_correlation([getattr(row, name) for row, _ in known], [effect for _, effect in known])
        out |= {name: fixed(r, 2, "+"), f"{name}.p": probability(p)}
    return out


def rank_correlation(a: Sequence[float], b: Sequence[float]) -> tuple[float, float]:
    """Spearman's, with the two-sided p of random permutations.

    >>> rank_correlation([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0], [1.0, 4.0, 9.0, 16.0, 25.0, 36.0, 49.0])[0]
    1.0
    >>> rank_correlation([1.0, 2.0, 2.0, 3.0], [5.0, 4.0, 4.0, 3.0])[0]
    -1.0
    """
    x, y = (_centred_ranks(values) for values in (a, b))
    scale = float(np.linalg.norm(x) * np.linalg.norm(y))
    if not scale:
        return 0.0, 1.0
    rng = np.random.default_rng(0)
    chance = np.array([x @ rng.permutation(y) for _ in range(SHUFFLES)]) / scale
    found = float(x @ y) / scale
    as_far = int((np.abs(chance) >= abs(found) - 1e-12).sum())
    return round(found, 12), (as_far + 1) / (SHUFFLES + 1)


def _centred_ranks(values: Sequence[float]) -> np.ndarray:
    """Ranks, equal values sharing their mean, minus the mean of all."""
    array = np.asarray(values, float)
    below = (array[None, :] < array[:, None]).sum(1)
    alike = (array[None, :] == array[:, None]).sum(1)
    ranks = below + (alike - 1) / 2
    return np.asarray(ranks - ranks.mean())


def effective_rank(eigenvalues: Sequence[float]) -> float:
    """How many directions share the variance: all of them alike give their number, one alone gives 1.

    >>> effective_rank([2.0, 2.0, 2.0, 0.0]), effective_rank([5.0, 0.0])
    (3.0, 1.0)
    """
    total = sum(eigenvalues)
    return total**2 / sum(value**2 for value in eigenvalues) if total else 0.0
