"""The rules that turn evidence into a verdict: small functions of numbers, none of which knows a ledger.

A claim holds, holds only without tuning the learning rate (at the paper's settings, and not where base and memory were tuned
alike), is not confirmed, or is open: not run, or not far enough.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from critgrad.lab.stats import Comparison, Interval, Speedup, mean_interval

from .text import interval

HOLDS = "holds"
UNTUNED = "holds only without tuning the learning rate"
NOT_SEEN = "not confirmed"
NOT_TESTED = "open"


class Ruling(NamedTuple):
    """A verdict, the effect that it rests on in a few words, and what else is to be known."""

    verdict: str
    effect: str
    more: str = ""


def memory_wins(rows: Sequence[Comparison]) -> str:
    """Holds: at least half of the comparisons are better and none is worse."""
    count = Counter(row.verdict for row in rows)
    holds = rows and 2 * count["better"] >= len(rows) and not count["worse"]
    return HOLDS if holds else NOT_SEEN if rows else NOT_TESTED


def best_of_eight(fair: Mapping[str, bool], paper: Mapping[str, bool], tasks: int = 9, needed: int = 6) -> Ruling:
    """Holds: a ``_C`` optimizer has the best mean on ``needed`` of the paper's tasks; not confirmed: that is out of reach."""

    def of(found: Mapping[str, bool]) -> str:
        won = sum(found.values())
        lost = len(found) - won
        return HOLDS if won >= needed else NOT_SEEN if lost > tasks - needed else NOT_TESTED

    parts = [
        f"{name} a memory is best on {sum(found.values())} of {len(found)} tasks"
        for name, found in (("tuned alike", fair), ("at the paper's settings", paper))
        if found
    ]
    verdict = of(fair)
    if verdict == NOT_SEEN and of(paper) == HOLDS:
        verdict = UNTUNED
    return Ruling(verdict, "; ".join(parts))


def six_wins(won: Mapping[str, Sequence[bool | None]], needed: int = 6) -> Ruling:
    """Holds: every family has ``needed`` wins; not confirmed: one cannot have them any more. ``None`` is an undecided task.

    >>> six_wins({"Adam": [True] * 6 + [False] * 3, "SGDM": [False] * 4 + [None] * 5})
    Ruling(verdict='not confirmed', effect='Adam: 6 better, 3 not, 0 undecided; SGDM: 0 better, 4 not, 5 undecided', more='')
    """
    parts, states = [], []
    for family, tasks in won.items():
        wins, losses = tasks.count(True), tasks.count(False)
        parts.append(f"{family}: {wins} better, {losses} not, {len(tasks) - wins - losses} undecided")
        states.append(HOLDS if wins >= needed else NOT_SEEN if len(tasks) - losses < needed else NOT_TESTED)
    verdict = NOT_SEEN if NOT_SEEN in states else NOT_TESTED if NOT_TESTED in states else HOLDS
    return Ruling(verdict, "; ".join(parts))


def up_to(
    fair: Mapping[str, float],
    paper: Mapping[str, float],
    *,
    run: Collection[tuple[str, str]],
    needed: Collection[tuple[str, str]],
    share: float = 0.23,
) -> Ruling:
    """Holds: some pair's gain over its base reaches ``share``; not confirmed: none does, and the pairs (task, family) for which
    the paper's own table has such a gain, ``needed``, were ``run`` tuned alike.
    """
    parts = [
        f"largest gain {name} {max(found.values()):.1%}, {max(found, key=lambda pair: found[pair])}"
        for name, found in (("tuned alike", fair), ("at the paper's settings", paper))
        if found
    ]
    verdict = NOT_TESTED
    if fair and max(fair.values()) >= share:
        verdict = HOLDS
    elif fair and set(needed) <= set(run):
        verdict = UNTUNED if paper and max(paper.values()) >= share else NOT_SEEN
    return Ruling(verdict, "; ".join(parts))


def sooner(fair: Sequence[Speedup], paper: Sequence[Speedup]) -> Ruling:
    """Holds: every pair's median ratio of epochs to target lies above 1. One pair that does not refutes "every"."""

    def all_sooner(found: Sequence[Speedup]) -> bool:
        return bool(found) and all(row.ratio_low > 1 for row in found)

    def words(found: Sequence[Speedup]) -> str:
        early = sum(row.ratio_low > 1 and row.p < 0.05 for row in found)
        late = sum(row.ratio_high < 1 and row.p < 0.05 for row in found)
        return f"{early} of {len(found)} pairs sooner, {late} later, {len(found) - early - late} neither"

    parts = [f"tuned alike {words(fair)} (sign test, p < .05)"] if fair else []
    parts += [f"at the paper's settings {words(paper)}"] if paper else []
    if not fair:
        return Ruling(NOT_TESTED, "; ".join(parts))
    verdict = HOLDS if all_sooner(fair) else UNTUNED if all_sooner(paper) else NOT_SEEN
    return Ruling(verdict, "; ".join(parts))


def no_harm(data: Mapping[str, Any]) -> Ruling:
    """Label noise. Each ``_C`` minus its base, mean over all shares of noise, seeds paired; holds: no interval below 0."""
    lines = {line["optimizer"]: line["points"] for line in data.get("lines", ())}
    found: dict[str, Interval] = {}
    for name, points in lines.items():
        base = lines.get(name.removesuffix("_C"))
        if name.endswith("_C") and base is not None and len(base) == len(points):
            pairs = [np.subtract(mine["values"], theirs["values"]) for mine, theirs in zip(points, base)]
            found[name] = mean_interval(np.mean(pairs, axis=0).tolist())
    if not found:
        return Ruling(NOT_TESTED, "")
    effect = "accuracy minus the base's: " + ", ".join(f"{name} {interval(row, '+')}" for name, row in found.items())
    return Ruling(NOT_SEEN if any(row.high < 0 for row in found.values()) else HOLDS, effect)


def ages_bounded(groups: Sequence[Sequence[np.ndarray]], steps: Sequence[int]) -> Ruling:
    """Staleness. ``groups``: ages at the ends of epochs, ``(epochs, topC)`` for each run, 0 for a free slot; ``steps`` of a
    run. Holds: in no group is the mean age of training's second half above 1.5 times that of its first half.
    """
    ratios, largest = [], 0.0
    for runs, total in zip(groups, steps):
        halves: list[list[np.ndarray]] = [[], []]
        for ages in runs:
            middle = len(ages) // 2
            for half, part in zip(halves, (ages[:middle], ages[middle:])):
                half.append(part[part > 0])
            largest = max(largest, float(ages.max(initial=0)) / total)
        first, second = (np.concatenate(half) for half in halves)
        if first.size and second.size:
            ratios.append(float(second.mean() / first.mean()))
    if not ratios:
        return Ruling(NOT_TESTED, "")
    effect = (
        f"mean age changes by a factor of {min(ratios):.2f} to {max(ratios):.2f} from the first to the second half of training "
        f"({len(ratios)} settings); the oldest entry was {largest:.1%} of a run's steps old"
    )
    return Ruling(HOLDS if max(ratios) <= 1.5 else NOT_SEEN, effect)


def variants_alike(studies: Sequence[Mapping[str, Any]], names: Sequence[str]) -> Ruling:
    """Ablations of rules. Holds: no variant's paired difference to the default leaves 0 outside."""
    rows = [row for study in studies for name in names for row in study["studies"].get(name, ()) if row["difference"]]
    if not rows:
        return Ruling(NOT_TESTED, "")
    apart = [row for row in rows if row["difference"]["low"] > 0 or row["difference"]["high"] < 0]
    effect = f"{len(apart)} of {len(rows)} variants differ from the default"
    return Ruling(NOT_SEEN if apart else HOLDS, effect)


def variants_worse(studies: Sequence[Mapping[str, Any]], variants: Mapping[str, Sequence[str]]) -> Ruling:
    """Ablations of the aggregation. ``variants``: those that should lose, by optimizer; holds: all intervals are below 0."""
    rows = [
        row
        for study in studies
        for row in study["studies"].get("aggregation", ())
        if row["difference"] and row["variant"] in variants.get(row["optimizer"], ())
    ]
    if not rows:
        return Ruling(NOT_TESTED, "")
    worse = sum(row["difference"]["high"] < 0 for row in rows)
    better = sum(row["difference"]["low"] > 0 for row in rows)
    effect = f"with its learning rate kept, {worse} of {len(rows)} are worse than the paper's choice, {better} better"
    return Ruling(HOLDS if worse == len(rows) else NOT_SEEN, effect)


def no_help(
    studies: Sequence[Mapping[str, Any]],
    axis: str,
    high: Sequence[float],
    reference: Mapping[str, float],
    limit: float | None = None,
) -> Ruling:
    """Sensitivity. Holds: no value in ``high`` beats the ``limit`` above which a claim says that nothing helps, seeds paired; a
    claim without one: the ``reference`` cell. Where no line through that was run, the cell at which the study's own two lines
    meet is in its place.
    """

    def minus(at_least: float | None) -> list[Interval]:
        """Each value in ``high`` minus the reference, or the limit on its line, on each task; positive where it is better."""
        found: list[Interval] = []
        for study in studies:
            sign = 1 if study["higher_is_better"] else -1
            cells = {(cell["topC"], cell["decay"]): cell["values"] for cell in study["cells"]}
            for at in (reference, study["chosen"]):
                line = [{**at, axis: value} for value in (at[axis] if at_least is None else at_least, *high)]
                base, *others = (cells.get((point["topC"], point["decay"]), ()) for point in line)
                pairs = [np.subtract(other, base) for other in others if len(base) == len(other) > 0]
                if pairs:
                    found += [mean_interval((sign * pair).tolist()) for pair in pairs]
                    break
        return found

    beside = {f"{axis} {reference[axis]:g} (or what was chosen)": minus(None)}
    if limit is not None:
        beside = {f"{axis} {limit:g}": minus(limit), **beside}
    deciding = next(iter(beside.values()))
    if not deciding:
        return Ruling(NOT_TESTED, "")
    effect = "; ".join(
        f"{sum(row.low > 0 for row in found)} of {len(found)} are better than {name}, "
        f"{sum(row.high < 0 for row in found)} worse"
        for name, found in beside.items()
    )
    return Ruling(NOT_SEEN if any(row.low > 0 for row in deciding) else HOLDS, effect)


def converges(studies: Sequence[Mapping[str, Any]]) -> Ruling:
    """Convex tasks. Holds: of every ``_C`` optimizer no run diverged, and the loss ends below where it began."""
    lines = [line for study in studies for line in study["lines"] if line["optimizer"].endswith("_C")]
    lost = sum(row["optimizer"].endswith("_C") for study in studies for row in study.get("lost", ()))
    if not lines and not lost:
        return Ruling(NOT_TESTED, "")
    fell = sum(not line["diverged"] and line["mean"][-1] < line["mean"][0] for line in lines)
    pairs = len(lines) + lost
    effect = f"the training loss fell without a divergence in {fell} of {pairs} pairs of task and _C optimizer"
    return Ruling(HOLDS if fell == pairs else NOT_SEEN, effect)


def grows_linearly(studies: Sequence[Mapping[str, Any]], straight: float = 0.9, growth: float = 1.1) -> Ruling:
    """Run times. Holds: on every task a straight line in topC explains the share ``straight`` of the variance of an epoch's
    time over topC 5 to 100, and the last takes at least ``growth`` times the first.
    """
    linear, factors, theirs = 0, [], []
    for study in studies:
        points = [(point["topC"], point["epoch_seconds"]) for point in study["points"] if point["topC"]]
        if len(points) < 3:
            continue
        sizes, times = np.array(sorted(points), np.float64).T
        spread = float(np.var(times))
        left = float(np.var(times - np.polyval(np.polyfit(sizes, times, 1), sizes)))
        factors.append(float(times[-1] / times[0]))
        linear += spread > 0 and 1 - left / spread >= straight and factors[-1] >= growth
        known = [value for value in (study.get("paper_minutes") or ())[1:] if value]
        theirs += [known[-1] / known[0]] if known else []
    if not factors:
        return Ruling(NOT_TESTED, "")
    effect = (
        f"a rising straight line describes {linear} of {len(factors)} tasks; from the smallest to the largest topC an epoch "
        f"takes {min(factors):.2f} to {max(factors):.2f} times as long"
    )
    effect += f" (the paper's: {min(theirs):.2f} to {max(theirs):.2f})" if theirs else ""
    return Ruling(HOLDS if linear == len(factors) else NOT_SEEN, effect)


def selection_explains(won: Sequence[Interval | None]) -> Ruling:
    """``won``: the effect of selecting by norm, for each pair in which ``_C`` beats its base; ``None`` where the control (a
    yoked twin, which does not select) was not run. Holds: most of the others are above 0.
    """
    if not won:
        return Ruling(NOT_TESTED, "no pair in which _C beats its tuned base, so there is no gain to explain")
    known = [row for row in won if row is not None]
    effect = f"in {len(won)} pairs _C beats its tuned base, of which {len(known)} has a twin that does not select"
    if not known:
        return Ruling(NOT_TESTED, effect)
    above = sum(row.low > 0 for row in known)
    effect += f"; selection by norm helps in {above} of these"
    return Ruling(HOLDS if 2 * above > len(known) else NOT_SEEN, effect)
