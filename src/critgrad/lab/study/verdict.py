"""From replicates to words: ``better``, ``worse``, ``same`` or ``open``, by one rule written down before the runs.

``better`` and ``worse``: the exact 95 % interval of the signed-rank test leaves 0 outside and Holm's p over the study's claims
is below .05. Else ``same``: the interval lies inside plus or minus the margin. Else ``open``, and the remark says what would
decide it. A positive difference always speaks for the arm.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from ..stats.signed_rank import (
    MOST,
    SignedRank,
    detectable,
    needed_for_better,
    needed_for_same,
    signed_rank,
    spread,
)
from ..stats.signflip import holm
from ..stats.verdicts import ALPHA, seeds_needed
from ..words import skew_interval_text
from .answer import Answer, Arm, Claim, Replicate

Asked = Sequence[tuple[str, tuple[str, ...]]]
MARGIN_SHARE = 0.01  # of what the first arm learns
OFTEN = 1 / 3  # of the replicates: more choices than that in an outer tenth are said
FEWEST_FOR_SPREAD = 3


def default_margin(first_arm: Arm, initial: float) -> float:
    """1 % of what the study's first arm learns, from its value before training to its best; 0 where it learns nothing."""
    learnt = [abs(initial - replicate.value) for replicate in first_arm.replicates]
    return MARGIN_SHARE * max((x for x in learnt if math.isfinite(x)), default=0.0)


def claims_of(arms: Mapping[str, Arm], asked: Asked, direction: str, margin: float, planned: int) -> tuple[Claim, ...]:
    """The answers to all questions of a study, corrected for one another. ``planned``: replicates that the file asks for."""
    measured = [_measure(arms, arm, against, direction) for arm, against in asked]
    # A claim without a replicate counts as a test: the correction must not grow with what is still to come.
    corrected = holm([row.found.p if row.found else 1.0 for row in measured])
    return tuple(
        _claim(row, p if p is not None else 1.0, arms, margin, planned, len(asked))
        for row, p in zip(measured, corrected)
    )


@dataclass(frozen=True)
class _Measured:
    arm: str
    against: tuple[str, ...]
    differences: tuple[float, ...]
    rivals: tuple[str, ...]
    numbers: frozenset[int]
    found: SignedRank | None


def _measure(arms: Mapping[str, Arm], arm: str, against: tuple[str, ...], direction: str) -> _Measured:
    # A replicate counts once all arms of the claim have it: they share its seeds.
    sides = {name: {r.number: r for r in arms[name].replicates} for name in (arm, *against)}
    numbers = sorted(set.intersection(*(set(side) for side in sides.values())))
    sign = {"max": 1.0, "min": -1.0}[direction]
    rivals = tuple(max(against, key=lambda name: _merit(sides[name][number], sign)) for number in numbers)
    values = [(sides[arm][number].value, sides[rival][number].value) for number, rival in zip(numbers, rivals)]
    differences = tuple(sign * (ours - theirs) + 0.0 for ours, theirs in values)
    found = signed_rank(differences) if differences else None
    return _Measured(arm, against, differences, rivals, frozenset(numbers), found)


def _merit(replicate: Replicate, sign: float) -> float:
    return sign * replicate.valid if math.isfinite(replicate.valid) else -math.inf


def _claim(row: _Measured, p_holm: float, arms: Mapping[str, Arm], margin: float, planned: int, claims: int) -> Claim:
    found = row.found
    if found is None:
        nan = math.nan
        return Claim(
            row.arm, row.against, "open", "no replicate is whole yet", nan, nan, -math.inf, math.inf, nan, nan, 0
        )
    word = word_of(found.low, found.high, p_holm, margin)
    remark = "; ".join(_remarks(row, found, word, arms, margin, planned, claims))
    mean = math.fsum(row.differences) / found.n
    return Claim(
        row.arm,
        row.against,
        word,
        remark,
        found.estimate,
        mean,
        found.low,
        found.high,
        found.p,
        p_holm,
        found.n,
        row.differences,
        row.rivals,
    )


def word_of(low: float, high: float, p_holm: float, margin: float) -> str:
    """The rule itself: the first row that applies.

    >>> word_of(0.1, 0.5, 0.02, 1.0), word_of(-0.5, -0.1, 0.02, 0.0), word_of(0.1, 0.5, 0.06, 1.0), word_of(-0.1, 0.5, 0.2, 0.3)
    ('better', 'worse', 'same', 'open')
    """
    if p_holm < ALPHA and (low > 0 or high < 0):
        return "better" if low > 0 else "worse"
    return "same" if -margin <= low and high <= margin else "open"


def _remarks(
    row: _Measured, found: SignedRank, word: str, arms: Mapping[str, Arm], margin: float, planned: int, claims: int
) -> Iterator[str]:
    if found.n < planned:
        yield f"not final: {found.n} of {planned} replicates"
    if word in ("same", "open") and (found.low > 0 or found.high < 0):
        yield f"{'better' if found.low > 0 else 'worse'} before correction for {claims} claims"
    if word in ("better", "worse") and -margin <= found.low and found.high <= margin:
        yield f"a difference smaller than the margin of {margin:.3g}"
    for name in (row.arm, *row.against):
        yield from _of_arm(arms[name], row.numbers)
    if word == "open":
        yield from _undecided(row.differences, found, margin, planned, claims)


def _of_arm(arm: Arm, numbers: frozenset[int]) -> Iterator[str]:
    n = len(numbers)
    reasons = [r.untrained for r in arm.replicates if r.number in numbers and r.untrained]
    if reasons:
        why = ", ".join(dict.fromkeys(reasons))
        yield f"{arm.name}: {len(reasons)} of {n} replicates have runs that count as untrained ({why})"
    for option, count in arm.near_end.items():
        if count > OFTEN * len(arm.replicates):
            yield f"{arm.name}: {option} chosen near an end of its range in {count} of {len(arm.replicates)} replicates"


def _undecided(
    differences: tuple[float, ...], found: SignedRank, margin: float, planned: int, claims: int
) -> Iterator[str]:
    fewest = seeds_needed(claims)
    if planned < fewest:
        yield too_few(planned, claims)
    width = spread(differences)
    if found.n < FEWEST_FOR_SPREAD or not width > 0:
        return
    effect, room = found.estimate / width, margin / width
    direction = "worse" if effect < 0 else "better"
    for_better, for_same = needed_for_better(effect, claims), needed_for_same(effect, room)
    beyond = f"more than {MOST}"
    wants = f"{for_better or beyond} replicates for `{direction}`"
    if abs(effect) < room:
        wants += f", {for_same or beyond} for `same`"
    else:
        wants += f"; no number would do for `same` (it seems larger than the margin of {margin:.3g})"
    yield f"if the difference is what it seems, a study with a fresh seed would want {wants}"


# Before and while a study runs


def too_few(replicates: int, claims: int) -> str:
    """What is said where no claim could pass: "5 replicates are too few for 1 claim, at least 6 are needed".

    >>> too_few(6, 3)
    '6 replicates are too few for 3 claims, at least 7 are needed'
    """
    many = "claim" if claims == 1 else "claims"
    return f"{replicates} replicates are too few for {claims} {many}, at least {seeds_needed(claims)} are needed"


def plan_lines(arms: Mapping[str, Arm], asked: Asked, direction: str, planned: int) -> tuple[str, ...]:
    """What ``check`` says of a plan: too few replicates for its claims or, once three are there, what it can see."""
    count = len(asked)
    if count and planned < seeds_needed(count):
        return (f"Warning: {too_few(planned, count)}: no claim can be `better` or `worse`",)
    lines = []
    for arm, against in asked:
        if not all(name in arms for name in (arm, *against)):
            continue
        row = _measure(arms, arm, against, direction)
        if len(row.differences) >= FEWEST_FOR_SPREAD:
            seen = detectable(spread(row.differences), planned, count)
            lines.append(
                f"{arm} against {named(against)}: differences from {seen:.3g} on can be expected to be seen "
                f"(4 times in 5, with {planned} replicates; spread from the first {len(row.differences)})"
            )
    return tuple(lines)


# In plain words


def said_of(claim: Claim, answer: Answer) -> str:
    """A claim of a study in a sentence, with the trials of its searches where there were any."""
    searched = any(answer.arms[name].search for name in (claim.arm, *claim.against))
    return sentence(claim, answer.trials if searched else 0)


def sentence(claim: Claim, trials: int = 0) -> str:
    """A claim as one says it. ``trials``: points of one search, 0 where nothing was searched.

    >>> claim = Claim("free", ("adamw",), "better", "", 0.0121, 0.012, 0.008, 0.0162, 0.002, 0.002, 10)
    >>> sentence(claim, 8)
    'free is better than adamw by 0.0121 ± 0.0041 (10 replicates, 8 trials each)'
    """
    rival = named(claim.against)
    if not claim.replicates:
        return f"{claim.arm} against {rival}: no replicate is whole yet"
    ends = (claim.difference, claim.low, claim.high)
    if claim.word == "worse":
        ends = (-claim.difference, -claim.high, -claim.low)
    plain, signed = skew_interval_text(*ends), skew_interval_text(*ends, "+")
    said = {
        "better": f"{claim.arm} is better than {rival} by {plain}",
        "worse": f"{claim.arm} is worse than {rival} by {plain}",
        "same": f"{claim.arm} is as good as {rival}: the difference is {signed}",
        "open": f"{claim.arm} against {rival} is open: the difference is {signed}",
    }[claim.word]
    counts = "1 replicate" if claim.replicates == 1 else f"{claim.replicates} replicates"
    if trials:
        counts += f", {trials} {'trial' if trials == 1 else 'trials'} each"
    return f"{said[:-1]}; {counts})" if said.endswith(")") else f"{said} ({counts})"


def named(against: tuple[str, ...]) -> str:
    """The other side of a claim: an arm, or "the best of" several."""
    return against[0] if len(against) == 1 else f"the best of {', '.join(against[:-1])} and {against[-1]}"
