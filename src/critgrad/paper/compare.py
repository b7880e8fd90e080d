"""``critgrad compare``: every base, its two memory twins and their controls, side by side on the same seeds.

Nothing is tuned here. The hyper-parameters are those that a fair sweep of the task has chosen and that stand in a
committed file (``lab/defaults``); the seeds are other ones than the sweep's tuning seeds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from critgrad.lab.ledger import Planned, Role, Row
from critgrad.lab.ledger.reach import Reach, reach, speedups
from critgrad.lab.report.costs import cost_of
from critgrad.lab.report.panels import PanelArm
from critgrad.lab.run.spec import Trial
from critgrad.lab.stats import Pair, judge, margin_of, mean_interval, target_value
from critgrad.lab.tasks import task_of

from .protocol.defaults import Default, Defaults

TRACK = "compare"
# Beside the three: what tells a memory's gain from a larger step, from momentum, and from another tuned optimizer.
ARMS = ("base", "C", "F", "rival", "C-step", "F-step")
FIRST_SEED = 500  # far from the seeds that tuned (and reported) in the sweep


def planned(defaults: Defaults, families: Sequence[str], seeds: int, arms: Sequence[str] = ARMS) -> list[Planned]:
    """The trials: seeds outermost, so that a slow minute of the machine hits all arms alike."""
    chosen = [arm for arm in defaults.arms if arm.family in families and arm.arm in arms]
    return [
        Planned(_trial(defaults, arm, seed), (Role(TRACK, arm.family, arm.arm, "report"),))
        for seed in range(FIRST_SEED, FIRST_SEED + seeds)
        for arm in chosen
    ]


def distinct(items: Sequence[Planned]) -> int:
    """How many runs that is: what serves two families is run once."""
    return len({item.trial.key for item in items})


def _trial(defaults: Defaults, arm: Default, seed: int) -> Trial:
    return Trial(defaults.task, arm.optimizer, arm.hyper, seed, defaults.settings, "single")


def lines(defaults: Defaults, families: Sequence[str], seeds: int, rows: Sequence[Row]) -> list[PanelArm]:
    """The verdict table: each arm against its family's base, on the seeds that both have."""
    by_key = {row.key: row for row in rows}
    wanted = range(FIRST_SEED, FIRST_SEED + seeds)
    task = task_of(defaults.task)
    epochs = int(defaults.settings.get("epochs", task.epochs))
    out: list[PanelArm] = []
    for family in families:
        arms = [arm for name in ARMS if (arm := defaults.arm(family, name)) is not None]
        keys = {arm.arm: [_trial(defaults, arm, seed).key for seed in wanted] for arm in arms}
        there = {arm.arm: (arm, [by_key[key] for key in keys[arm.arm] if key in by_key]) for arm in arms}
        found = {name: (arm, known) for name, (arm, known) in there.items() if known}
        if "base" in found:
            out += against_base(defaults.task, found, epochs, task.metric.higher_is_better)
    return out


def plain_values(rows: Sequence[Row], name: str) -> list[float]:
    """Of the runs' summaries, as they are."""
    return [float(row.summary[name]) for row in rows]


def against_base(
    task: str,
    found: Mapping[str, tuple[Default, Sequence[Row]]],
    epochs: int,
    higher: bool,
    values: Callable[[Sequence[Row], str], list[float]] = plain_values,
) -> list[PanelArm]:
    """The arms of a family with their runs, each against its base on the seeds that both have; without a base by themselves."""
    base = found["base"][1] if "base" in found else ()
    target, margin = _target_and_margin(base, higher, values)
    both = {name: _paired(rows, base) for name, (_, rows) in found.items()}
    pairs = []
    for name, (arm, _) in found.items():
        mine, theirs = (values(side, "test") for side in both[name])
        if name != "base" and mine:
            pairs.append(Pair(task, arm.family, arm.label, arm.family, mine, theirs, higher, margin=margin))
    judged = {row.arm: row for row in judge(pairs)}

    def times(rows: Sequence[Row]) -> dict[str, Reach]:
        return reach(rows, target, higher, epochs) if target is not None and rows else {}

    return [
        PanelArm(
            *(arm.family, name, arm.label, arm.optimizer, arm.hyper, tuple(rows), mean_interval(values(rows, "test"))),
            diverged=sum(bool(row.summary.get("diverged")) for row in rows),
            comparison=judged.get(arm.label),
            speedup=speedups(*map(times, both[name])).get("epochs") if name != "base" else None,
            reach=times(rows).get("epochs"),
            cost=cost_of(rows, base),
        )
        for name, (arm, rows) in found.items()
    ]


def _paired(rows: Sequence[Row], others: Sequence[Row]) -> tuple[list[Row], list[Row]]:
    """Those of both whose seed the other has, too, seed by seed."""
    mine, theirs = ({row.trial.seed: row for row in side} for side in (rows, others))
    seeds = sorted(mine.keys() & theirs.keys())
    return [mine[seed] for seed in seeds], [theirs[seed] for seed in seeds]


def _target_and_margin(
    base: Sequence[Row], higher: bool, values: Callable[[Sequence[Row], str], list[float]]
) -> tuple[float | None, float | None]:
    """The sweep's target rule, with the base's runs that are here: an arm is compared, never tuned, on them. And the
    difference below which two values are the same: a share of what the base learns.
    """
    found = [row.summary["initial_valid"] for row in base if row.summary.get("initial_valid") is not None]
    if not found:
        return None, None
    initial = float(np.median(found))
    in_logs = base[0].summary.get("metric") == "perplexity"
    margin = margin_of(initial, float(np.mean(values(base, "test"))), in_logs)
    try:
        return target_value(initial, values(base, "valid"), higher), margin
    except ValueError:  # the base has learnt nothing
        return None, margin
