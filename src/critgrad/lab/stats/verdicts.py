"""From values to "better", "worse", "same" or "open", by one rule written down before the runs.

Better: the 95 % interval of the mean paired difference lies above 0, and, where the exact test can speak, its p after
Holm's correction over the primary comparisons is below 0.05. Worse: the same below 0. Same: the interval lies inside plus
or minus a margin (``margin_of``). Everything else is open.
With fewer than six seeds no sign-flip p is below 0.05: the interval decides alone and the row says "not testable".
Pairs that are not primary are descriptive: their interval alone decides, and no claim may rest on them.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from .bootstrap import Values
from .improvement import won
from .intervals import Interval, improvements, mean_interval
from .signflip import holm, sign_flip

ALPHA = 0.05
MARGIN = 0.01  # of what the base learns: a smaller difference is none
FEWEST_SEEDS = 6  # 2^(1 - 6) = 0.03125 is the first smallest p below 0.05


@dataclass(frozen=True)
class Pair:
    """What goes in: the values of arm and rival on the same reported seeds, diverged runs filled (``worst_filled``)."""

    task: str
    family: str
    arm: str
    rival: str
    arm_values: Values
    rival_values: Values
    higher_is_better: bool = True
    primary: bool = False
    margin: float | None = None  # within which two values are the same; without one nothing is called the same


@dataclass(frozen=True)
class Comparison:
    """What comes out. ``difference`` is positive where the arm is better, whatever the metric's direction."""

    task: str
    family: str
    arm: str
    rival: str
    n: int
    difference: float
    low: float
    high: float
    p: float
    p_holm: float | None  # of testable primaries alone
    testable: bool
    poi: float  # probability of improvement
    verdict: str  # "better", "worse", "same" or "open"
    primary: bool

    @property
    def interval(self) -> Interval:
        """The difference with its interval."""
        return Interval(self.difference, self.low, self.high, self.n)

    @property
    def identical(self) -> bool:
        """Not one seed differs: whatever ran, it was the rival."""
        return self.difference == self.low == self.high == 0

    @property
    def shown(self) -> str:
        """The verdict as a table has it. With fewer than six seeds there is no test, and so no word for it: the difference, and
        from three seeds on its interval, speak for themselves.

        >>> judge([Pair("t", "f", "a", "b", [2.0], [1.0])])[0].shown
        'one seed'
        >>> judge([Pair("t", "f", "a", "b", [2.0, 3.0], [1.0, 2.0])])[0].shown
        'not tested'
        """
        if self.identical:
            return "identical"
        return "one seed" if self.n == 1 else self.verdict if self.testable else "not tested"

    @property
    def note(self) -> str:
        """What a table writes beside the verdict.

        >>> pair = Pair("t", "f", "a", "b", [2.0, 3.1, 4.2, 3.0, 2.1], [1.0, 2.0, 3.0, 2.0, 1.0], primary=True)
        >>> judge([pair])[0].verdict, judge([pair])[0].note
        ('better', 'not testable')
        """
        notes = {"identical": self.identical, "not testable": not self.testable, "descriptive": not self.primary}
        return ", ".join(note for note, holds in notes.items() if holds)


def margin_of(initial: float, reached: float, logarithmic: bool = False) -> float:
    """Of what is learnt from a value before training to the one reached, the share ``MARGIN``.

    A perplexity is learnt in its logarithm, the loss: from 10,000 to 130 nearly all of the way lies above 1,000.

    >>> round(margin_of(10.0, 98.0), 6), round(margin_of(10_000.0, 130.0, logarithmic=True), 2)
    (0.88, 5.65)
    """
    return MARGIN * (reached * abs(math.log(initial / reached)) if logarithmic else abs(reached - initial))


def decide(low: float, high: float, p_holm: float | None, margin: float | None = None) -> str:
    """The rule itself; ``p_holm`` is ``None`` where there is no test to ask.

    >>> decide(0.1, 0.5, 0.02), decide(0.1, 0.5, 0.05), decide(-0.5, -0.1, None), decide(-0.1, 0.5, 0.01)
    ('better', 'open', 'worse', 'open')
    >>> decide(-0.1, 0.5, 0.3, margin=0.6), decide(-0.7, 0.5, 0.3, margin=0.6), decide(0.1, 0.5, 0.02, margin=0.6)
    ('same', 'open', 'better')
    """
    if (p_holm is None or p_holm < ALPHA) and (low > 0 or high < 0):
        return "better" if low > 0 else "worse"
    return "same" if margin is not None and -margin < low and high < margin else "open"


def judge(pairs: Sequence[Pair]) -> list[Comparison]:
    """Measure all pairs, correct the primaries among them by Holm, and give each its verdict.

    Holm's correction runs over the primaries handed over together: hand over all of them at once.

    >>> better = [1.0, 1.2, 0.9, 1.1, 1.3, 0.8]
    >>> one = Pair("ptb", "Adam_F", "Adam_F", "NAdam", [140 - b for b in better], [140.0] * 6, False, primary=True)
    >>> judge([one])[0].verdict
    'better'
    >>> two = Pair("mnist", "Adam_F", "Adam_F", "NAdam", [97 + b for b in better], [97.0] * 6, primary=True)
    >>> [(row.verdict, row.p_holm) for row in judge([one, two])]  # with two to correct for, six seeds are too few
    [('open', 0.0625), ('open', 0.0625)]
    """
    twice = [key for key, count in Counter((p.task, p.family) for p in pairs if p.primary).items() if count > 1]
    if twice:
        raise ValueError(f"More than one primary comparison for (task, family) {twice[0]}: choose one before the runs")
    differences = [improvements(p.arm_values, p.rival_values, p.higher_is_better) for p in pairs]
    ps = [sign_flip(difference).p for difference in differences]
    testable = [len(difference) >= FEWEST_SEEDS for difference in differences]
    adjusted = holm([p if pair.primary and able else None for pair, p, able in zip(pairs, ps, testable)])
    rows = []
    for pair, difference, p, p_holm, able in zip(pairs, differences, ps, adjusted, testable):
        found = mean_interval(difference)
        rows.append(
            Comparison(
                pair.task,
                pair.family,
                pair.arm,
                pair.rival,
                n=found.n,
                difference=found.mean,
                low=found.low,
                high=found.high,
                p=p,
                p_holm=p_holm,
                testable=able,
                poi=float(won(difference).mean()),
                verdict=decide(found.low, found.high, p_holm, pair.margin),
                primary=pair.primary,
            )
        )
    return rows


def seeds_needed(primaries: int, alpha: float = ALPHA) -> int:
    """The fewest seeds with which one of so many primaries could pass Holm: ``primaries * 2^(1 - n) < alpha``.

    >>> seeds_needed(1), seeds_needed(9)
    (6, 9)
    """
    if primaries < 1 or not 0 < alpha < 1:
        raise ValueError(f"Invalid primaries: {primaries} at alpha {alpha}, expected >= 1 and 0 < alpha < 1")
    n = 1
    while primaries * 2.0 ** (1 - n) >= alpha:
        n += 1
    return n


def unreachable(comparisons: Sequence[Comparison]) -> list[Comparison]:
    """Testable primaries that could not have passed Holm had every seed been better: too few seeds for so many tests.

    Their "open" says nothing about the arm; a report should say so beside them.
    """
    primaries = [row for row in comparisons if row.primary and row.testable]
    # The best case: every primary at its smallest p, which Holm then takes in this order and stops at the first miss.
    ordered = sorted(primaries, key=lambda row: -row.n)
    hopeless: list[Comparison] = []
    for rank, row in enumerate(ordered):
        if (len(ordered) - rank) * 2.0 ** (1 - row.n) >= ALPHA:
            hopeless = ordered[rank:]
            break
    return [row for row in comparisons if any(row is other for other in hopeless)]
