"""``critgrad compare``: every base, its two memory twins and their controls, side by side on the same seeds.

Nothing is tuned here. The hyper-parameters are those that a fair sweep of the task has chosen and that stand in a
committed file (``lab/defaults``); the seeds are other ones than the sweep's tuning seeds.
"""

from __future__ import annotations

from collections.abc import Sequence

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
    higher = task_of(defaults.task).metric.higher_is_better
    wanted = range(FIRST_SEED, FIRST_SEED + seeds)
    out: list[PanelArm] = []
    for family in families:
        found: dict[str, tuple[Default, list[Row]]] = {}
        for arm in defaults.arms:
            if arm.family == family and arm.arm in ARMS:
                keys = [_trial(defaults, arm, seed).key for seed in wanted]
                known = [by_key[key] for key in keys if key in by_key]
                if known:
                    found[arm.arm] = arm, known
        if "base" in found:
            out += _family_lines(defaults, family, found, higher)
    return out


def _paired(rows: Sequence[Row], others: Sequence[Row]) -> tuple[list[Row], list[Row]]:
    """Those of both whose seed the other has, too, seed by seed."""
    mine, theirs = ({row.trial.seed: row for row in side} for side in (rows, others))
    seeds = sorted(mine.keys() & theirs.keys())
    return [mine[seed] for seed in seeds], [theirs[seed] for seed in seeds]


def _family_lines(
    defaults: Defaults, family: str, found: dict[str, tuple[Default, list[Row]]], higher: bool
) -> list[PanelArm]:
    base = found["base"][1]
    target, margin = _target(base, higher), _margin(base)
    epochs = int(defaults.settings.get("epochs", task_of(defaults.task).epochs))
    both = {name: _paired(rows, base) for name, (_, rows) in found.items()}
    pairs = [
        Pair(defaults.task, family, found[name][0].label, family, _tests(mine), _tests(theirs), higher, margin=margin)
        for name, (mine, theirs) in both.items()
        if name != "base" and mine
    ]
    judged = {row.arm: row for row in judge(pairs)}

    def times(rows: Sequence[Row]) -> dict[str, Reach]:
        return reach(rows, target, higher, epochs) if target is not None and rows else {}

    return [
        PanelArm(
            family,
            name,
            found[name][0].label,
            found[name][0].optimizer,
            found[name][0].hyper,
            tuple(rows),
            mean_interval(_tests(rows)),
            sum(bool(row.summary["diverged"]) for row in rows),
            judged.get(found[name][0].label),
            speedups(*map(times, both[name])).get("epochs") if name != "base" else None,
            times(rows).get("epochs"),
            cost_of(rows, base),
        )
        for name in ARMS
        if name in found
        for rows in [found[name][1]]
    ]


def _target(base: Sequence[Row], higher: bool) -> float | None:
    """The sweep's target rule, with the base's runs that are here: an arm is compared, never tuned, on them."""
    initial = _initial(base)
    try:
        return None if initial is None else target_value(initial, [row.summary["valid"] for row in base], higher)
    except ValueError:  # the base has learnt nothing
        return None


def _initial(base: Sequence[Row]) -> float | None:
    """The median value before training."""
    found = [row.summary["initial_valid"] for row in base if row.summary["initial_valid"] is not None]
    return float(np.median(found)) if found else None


def _margin(base: Sequence[Row]) -> float | None:
    """The difference below which two values are the same: a share of what the base learns."""
    initial, in_logs = _initial(base), base[0].summary.get("metric") == "perplexity"
    return None if initial is None else margin_of(initial, float(np.mean(_tests(base))), in_logs)


def _tests(rows: Sequence[Row]) -> list[float]:
    return [float(row.summary["test"]) for row in rows]
