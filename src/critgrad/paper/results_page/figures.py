"""The three figures: what a learning rate gives, all announced differences, and the paper's gains beside ours."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping

import numpy as np

from critgrad.lab.study.svg import Scale

from ..protocol.arms import FAMILIES
from ..protocol.records import Outcome
from .drawing import Drawing
from .findings import Findings
from .judged import KINDS, Judged, all_judged
from .nine_tasks import COLUMNS, three_gains
from .text import labels

ARMS = {"base": "base", "C": "adding", "F": "damping"}
NAMES = {"SGD": "SGD", "SGDM": "SGD, momentum .9", "RMSprop": "RMSprop", "Adam": "Adam"}
LEFT, RIGHT, BIN = -2.0, 1.5, 1 / 3  # decades of learning rate around the base's best
FEWEST = 4  # experiments behind a point of a line


# -- what a learning rate gives ----------------------------------------------------------------------------------------


def learnt(outcome: Outcome, family: str) -> Callable[[float], float] | None:
    """What a validation value is worth: 0 before training, 1 for the base's best; a perplexity by its logarithm."""
    base = outcome.arm(family, "base")
    if base is None or base.valid is None or outcome.initial is None or base.valid == outcome.initial:
        return None
    scale = math.log if outcome.registration.metric == "perplexity" else float
    start, best = scale(outcome.initial), scale(base.valid)
    return lambda value: (scale(value) - start) / (best - start)


Runs = dict[str, list[tuple[str, float, float]]]  # by arm: experiment, decades from the base's best lr, what is learnt


def tuning_runs(findings: Findings) -> dict[str, Runs]:
    """By family, the tuning runs of full length of all experiments that stand."""
    out: dict[str, Runs] = {family: {arm: [] for arm in ARMS} for family in FAMILIES}
    for outcome in findings.outcomes:
        plan = outcome.registration
        worth = {family: learnt(outcome, family) for family in plan.families}
        for row in findings.books.rows(registration=plan.hash):
            if row.trial.settings.get("epochs") != plan.epochs:
                continue
            for role in row.roles:
                of_value, base = worth.get(role.family), outcome.arm(role.family, "base")
                if role.purpose == "tune" and role.arm in ARMS and of_value is not None and base is not None:
                    failed = row.summary["diverged"] or not math.isfinite(row.summary["valid"])
                    value = 0.0 if failed else max(0.0, of_value(row.summary["valid"]))
                    decades = math.log10(row.trial.hyper["lr"] / base.hyper["lr"])
                    out[role.family][role.arm].append((outcome.name, decades, value))
    return out


def best_by_rate(runs: list[tuple[str, float, float]]) -> list[tuple[float, float]]:
    """In each third of a decade the median over experiments of the best run; where there are a few experiments."""
    best: dict[int, dict[str, float]] = defaultdict(dict)
    for name, decades, value in runs:
        of_bin = best[math.floor(decades / BIN + 0.5)]
        of_bin[name] = max(value, of_bin.get(name, 0.0))
    return [(BIN * at, float(np.median(list(of.values())))) for at, of in sorted(best.items()) if len(of) >= FEWEST]


def learning_rates(findings: Findings) -> Drawing:
    """One panel for each family."""
    runs, words = tuning_runs(findings), labels("drawings")
    made = Drawing(880, 590, words["learning-rates"])
    made.legend(60, 24, [("base", "base"), ("adding", "adding the memory (_C)"), ("damping", "damping (_F)")])
    for index, (family, arms) in enumerate(runs.items()):
        left, top = 52 + 425 * (index % 2), 66 + 258 * (index // 2)
        _panel(made, family, arms, left, top, 385, 192)
    made.text(868, 24, words["learnt"], "quiet", 14, "end")
    made.text(440, 580, words["rate"], "quiet", anchor="middle")
    return made


def _panel(made: Drawing, family: str, arms: Runs, left: float, top: float, width: float, height: float) -> None:
    x, y = Scale(LEFT, RIGHT, left, left + width), Scale(0.0, 1.1, top + height, top)
    tasks = len({name for runs in arms.values() for name, _, _ in runs})
    made.text(left, top - 8, f"{NAMES[family]}: {tasks} experiments, {sum(map(len, arms.values())):,} runs")
    for value in (0.0, 0.5, 1.0):
        made.line([(left, y(value)), (left + width, y(value))], "grid")
        made.text(left - 6, y(value) + 4, f"{value:.0%}", "quiet", 13, "end")
    for decades in range(math.ceil(LEFT), math.floor(RIGHT) + 1):
        made.line([(x(decades), top), (x(decades), top + height)], "grid", 1.5 if decades == 0 else 1)
        made.text(x(decades), top + height + 17, f"{10.0**decades:g}", "quiet", 13, "middle")
    for arm, runs in arms.items():
        seen = [(x(decades), y(value)) for _, decades, value in runs if LEFT <= decades <= RIGHT]
        made.cloud(seen, ARMS[arm], 2.6, 0.3)
    for arm, runs in arms.items():
        line = [(x(decades), y(value)) for decades, value in best_by_rate(runs) if LEFT <= decades <= RIGHT]
        made.line(line, ARMS[arm], 5 if arm == "base" else 2.4)  # the base shows below what lies on it


# -- all announced differences -----------------------------------------------------------------------------------------

WIDEST = 15.0  # % of what the base learns


def differences(findings: Findings) -> Drawing:
    """A forest: one row for each announced comparison, in % of what its base learns."""
    by_name: dict[str, list[Judged]] = defaultdict(list)
    for one in all_judged(findings):
        by_name[one.outcome.name].append(one)
    rows = sum(map(len, by_name.values()))
    made = Drawing(880, 128 + 8 * rows + 12 * len(by_name), f"All {rows} announced differences by experiment")
    made.legend(24, 22, KINDS.items())
    made.text(24, 42, labels("drawings")["dots"], "quiet", 14)
    made.text(24, 62, labels("drawings")["colours"], "quiet", 14)
    made.text(868, made.height - 8, labels("drawings")["difference"], "quiet", 14, "end")
    x = Scale(-WIDEST, WIDEST, 230, 850)
    top, bottom = 84, made.height - 42
    made.box(x(-1), top, x(1) - x(-1), bottom - top, "band")
    for share in (-15, -10, -5, 0, 5, 10, 15):
        made.line([(x(share), top), (x(share), bottom)], "grid", 1.5 if share == 0 else 1)
        made.text(x(share), bottom + 14, f"{share:+d} %" if share else "0", "quiet", 13, "middle")
    y = top + 6.0
    for name, found in by_name.items():
        made.text(206, y + 4 * len(found) + 2, name, size=14, anchor="end")
        for one in found:
            low, mean, high = (one.share(value) for value in (one.row.low, one.row.difference, one.row.high))
            made.line([(x(low), y), (x(high), y)], one.kind, 1.4)
            made.dot(x(mean), y, one.kind, 2.8, hollow=one.row.verdict in ("same", "open"))
            y += 8
        y += 12
    return made


# -- the paper's gains -------------------------------------------------------------------------------------------------


def gains(findings: Findings) -> Drawing:
    """A row for each pair that has all three, with a dot for each."""
    rows = three_gains(findings)
    made = Drawing(880, 78 + 26 * len(rows), "The paper's gains, at its settings here, and tuned alike")
    inks = dict(zip(COLUMNS, ("base", "adding", "damping")))
    made.legend(24, 22, [(ink, words) for words, ink in inks.items()])
    made.text(24, 42, labels("drawings")["gain"], "quiet", 14)
    x = Scale(-0.15, 0.3, 220, 850)
    bottom = made.height - 18
    for share in (-0.1, 0.0, 0.1, 0.2, 0.3):
        made.line([(x(share), 54), (x(share), bottom)], "grid", 1.5 if share == 0 else 1)
        made.text(x(share), bottom + 14, f"{share:+.0%}" if share else "0", "quiet", 13, "middle")
    for index, (label, shares) in enumerate(rows):
        y = 68 + 26 * index
        made.text(206, y + 4, label, size=14, anchor="end")
        made.line([(x(min(shares)), y), (x(max(shares)), y)], "grid", 3)
        for share, ink in reversed(list(zip(shares, inks.values()))):
            made.dot(x(share), y, ink, 5)
    return made


FIGURES: Mapping[str, Callable[[Findings], Drawing]] = {
    "learning-rates": learning_rates,
    "differences": differences,
    "gains": gains,
}
