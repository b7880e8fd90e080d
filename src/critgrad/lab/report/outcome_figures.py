"""Figures of arms side by side: learning curves, acceleration, test improvements, best after k trials."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ..ledger import Row
from ..stats import Comparison, Interval
from ..stats.intervals import interval_rows
from ..words import FEWEST_FOR_INTERVAL, interval_text
from .figure import (
    Bars,
    Figure,
    FigureAxis,
    Line,
    Points,
    arrows_text,
    clean,
    over_epochs,
    slug,
    value_axis,
    whisker_words,
    whiskers,
    without_far,
)
from .palette import GREY, Style, style_of
from .panels import Panel, PanelArm

LARGEST_CURVES = 8  # arms in one figure of curves; more are drawn family by family
LARGEST_BARS = 24
CURVES = (("valid", "validation"), ("train_loss", "training loss"))


# -- learning curves ---------------------------------------------------------------------------------------------------


def curve_figures(panel: Panel) -> list[Figure]:
    """Validation metric and training loss over the epochs."""
    out = []
    for family, arms in panel.split(LARGEST_CURVES):
        for name, words in CURVES:
            if name == "train_loss" and panel.metric == "training loss":
                continue  # it is the metric itself
            title = panel.measured if name == "valid" else words
            title = f"{words} {title}" if name == "valid" and panel.metric != words else title
            figure = _curves(panel, family, arms, name, title)
            if figure is not None:
                out.append(figure)
    return out


def _curves(panel: Panel, family: str, arms: Sequence[PanelArm], name: str, title: str) -> Figure | None:
    lines: list[Line] = []
    kinds: set[str] = set()
    for arm in arms:
        found = _band(arm.rows, name)
        if found is None:
            continue
        mean, low, high, kind = found
        kinds.add(kind)
        label = arm.label + (f" ({arm.diverged} diverged)" if arm.diverged else "")
        lines.append(over_epochs(label, mean, _panel_style(panel, arm), low, high, few=25, shown=arm.shown))
    if not lines:
        return None
    shown = [line for line in lines if line.shown]
    axis = value_axis(title, [v for line in shown for v in line.y])
    window = None if axis.log else _window(shown)
    words = {"t": "mean and 95 % t-interval over seeds", "range": "mean and range over seeds", "one": "one run"}
    caption = "; ".join(words[kind] for kind in ("t", "range", "one") if kind in kinds)
    if window:
        caption += "; the first epochs lie outside"
    if len(shown) < len(lines):
        caption += "; click the faded names to add controls"
    where = f"{panel.title}: {family}" if family else panel.title
    return Figure(
        slug("curves", panel.track, panel.title, family, name),
        f"{where}, {title.split(' (')[0]}",
        FigureAxis("epoch", whole=True),
        axis if axis.log else FigureAxis(title, range=window),
        tuple(lines),
        caption,
    )


def _panel_style(panel: Panel, arm: PanelArm) -> Style:
    """An optimizer's own look; where a panel has it several times (settings by hand), lines and markers tell them apart."""
    style = style_of(arm.optimizer, arm.arm)
    same = [
        other
        for other in panel.arms
        if (other.optimizer, other.arm, other.family) == (arm.optimizer, arm.arm, arm.family)
    ]
    if len(same) < 2:
        return style
    turn = same.index(arm)
    dashes, markers = (
        ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot"),
        ("circle", "square", "diamond", "x", "cross", "star"),
    )
    return Style(style.ink, dashes[turn % 6], style.width, markers[turn % 6])


Band = tuple[list[float], "list[float] | None", "list[float] | None", str]


def _band(rows: Sequence[Row], name: str) -> Band | None:
    """Mean, low, high over the runs that did not diverge, and what the band is."""
    curves = [
        np.asarray(row.curves[name], float) for row in rows if not row.summary.get("diverged") and name in row.curves
    ]
    curves = [curve for curve in curves if curve.ndim == 1 and len(curve)]
    if not curves:
        return None
    length = min(map(len, curves))
    values = np.stack([curve[:length] for curve in curves], -1)
    if len(curves) == 1:
        return values[:, 0].tolist(), None, None, "one"
    if len(curves) < FEWEST_FOR_INTERVAL:
        return values.mean(-1).tolist(), values.min(-1).tolist(), values.max(-1).tolist(), "range"
    mean, low, high = interval_rows(values)
    return mean.tolist(), low.tolist(), high.tolist(), "t"


def _window(lines: Sequence[Line]) -> tuple[float, float] | None:
    """The y range without the first tenth of the epochs, where those would squeeze all the rest into a strip."""
    if len(lines) < 2:
        return None
    every, later = [], []
    for line in lines:
        skip = max(1, len(line.y) // 10) if len(line.y) >= 5 else 0
        for values in (line.y, line.low or (), line.high or ()):
            every += [v for v in values if v is not None]
            later += [v for v in values[skip:] if v is not None]
    if not later or max(every) - min(every) < 1.8 * (max(later) - min(later)):
        return None
    pad = 0.05 * (max(later) - min(later))
    return (min(later) - pad, max(later) + pad) if pad > 0 else None


# -- acceleration ------------------------------------------------------------------------------------------------------

_MARKS = {"at least": ">", "at most": "<", "unknown": "?", "between": "", "exact": ""}


def acceleration_figures(panel: Panel) -> list[Figure]:
    """How many times sooner than its base each arm reaches the target, in epochs."""
    out = []
    for family, arms in panel.split(LARGEST_BARS):
        rows = [(arm, arm.speedup) for arm in arms if arm.speedup is not None]
        if not rows:
            continue
        found = [speedup for _, speedup in rows]
        values = [_ratio(one.ratio_low, one.ratio_high) for one in found]
        low, high = whiskers(found)
        low = [end if end and end > 0 else None for end in low]  # the axis is logarithmic
        bars = Bars(
            "times sooner",
            _labels([arm for arm, _ in rows]),
            clean(values),
            [_panel_style(panel, arm).ink for arm, _ in rows],
            [1.0] * len(rows),
            low,
            high,
            [_MARKS[one.bound] for one in found],
            [one.text.replace("at least ", "≥ ").replace("at most ", "≤ ").replace("x", "×") for one in found],
        )
        axis = value_axis("times sooner than the base (epochs, median)", [1.0, *values, *low, *high], log=True)
        caption = f"bar: median ratio of epochs to target; {whisker_words(found, 'whisker: 95 % bootstrap interval')}; "
        caption += "▶ at least, ◀ at most: some runs never reached the target"
        out.append(_by_arm(panel, family, "acceleration", "acceleration", axis, bars, caption, 1.0))
    return out


def _by_arm(
    panel: Panel, family: str, kind: str, what: str, axis: FigureAxis, drawn: Bars | Points, caption: str, none: float
) -> Figure:
    """A figure with a row for each arm, and a line at ``none``: no difference."""
    return Figure(
        slug(kind, panel.track, panel.title, family),
        f"{panel.title}{f': {family}' if family else ''}, {what}",
        axis,
        FigureAxis("", labels=tuple(drawn.labels)),
        (drawn,),
        caption,
        reference=none,
        rows=len(drawn.labels),
    )


def _ratio(low: float, high: float) -> float | None:
    """Where a bar ends: at the bound that is known, in the middle of two."""
    if low > 0 and math.isfinite(high):
        return math.sqrt(low * high)
    return low if low > 0 else (high if math.isfinite(high) else None)


def _labels(arms: Sequence[PanelArm]) -> list[str]:
    """The arms' names, made different by their family where two families share one (Nesterov)."""
    names = [arm.label for arm in arms]
    return [f"{name} [{arm.family}]" if names.count(name) > 1 else name for name, arm in zip(names, arms)]


# -- test improvements -------------------------------------------------------------------------------------------------


def improvement_figures(panel: Panel) -> list[Figure]:
    """Mean paired difference of the test metric to the family's base, with its interval."""
    out = []
    for family, arms in panel.split(LARGEST_BARS):
        rows = [(arm, arm.comparison) for arm in arms if arm.comparison is not None]
        if not rows:
            continue
        found = [c for _, c in rows]
        points = Points(
            "paired difference",
            _labels([arm for arm, _ in rows]),
            clean(c.difference for c in found),
            *whiskers(found),
            [_panel_style(panel, arm) for arm, _ in rows],
            [_words(c) for c in found],
        )
        unit = f" ({panel.unit})" if panel.unit else ""
        points, axis = without_far(points, f"improvement over the base{unit}; right is better")
        caption = f"mean paired difference on {found[0].n} seeds, {whisker_words(found)}; descriptive, not corrected"
        caption += arrows_text(axis)
        what = f"test {panel.metric} against the base"
        out.append(_by_arm(panel, family, "improvement", what, axis, points, caption, 0.0))
    return out


def _words(c: Comparison) -> str:
    found = interval_text(Interval(c.difference, c.low, c.high, c.n), "+")
    return f"{found} {c.shown}"


# -- best after k trials -----------------------------------------------------------------------------------------------


def best_after_figures(panel: Panel) -> list[Figure]:
    """The expected best validation value against the number of trials spent on tuning."""
    out = []
    note = "the mean over all ways to have run only k of the trials; every tuned arm got the same number"
    note += "; one that was stopped early counts by its longest runs" if panel.rungs else ""
    for family in panel.families:
        arms = [arm for arm in panel.arms if arm.family == family and arm.best_after is not None]
        lines: list[Line] = []
        for arm in arms:
            found = arm.best_after
            assert found is not None
            lines.append(over_epochs(arm.label, found.validation, _panel_style(panel, arm), few=20, shown=arm.shown))
        if any(len(line.x) > 1 for line in lines):
            values = [v for line in lines for v in line.y]
            out.append(
                Figure(
                    slug("trials", panel.title, family),
                    f"{panel.title}: {family}, best after k trials",
                    FigureAxis("trials spent on tuning", whole=True),
                    value_axis(f"expected best validation {panel.measured}", values),
                    tuple(lines),
                    note,
                )
            )
    return out


# -- one run -----------------------------------------------------------------------------------------------------------


def memory_figures(panel: Panel) -> list[Figure]:
    """What a single run's memory held: norms of the stored and the current gradient, and ages."""
    out = []
    for arm in panel.arms[:4]:
        row = arm.rows[0]
        if row.summary.get("diverged") or "gc_norm" not in row.curves:
            continue
        strong, weak = _panel_style(panel, arm), Style(GREY[1], "dot", 2.0, "x")
        stored, current = (np.asarray(row.curves[name], float).tolist() for name in ("gc_norm", "g_norm"))
        drawn = [
            ("norms", "gradient norms", "gradient norm at the end of the epoch", "one run")
            + (over_epochs("stored (mean)", stored, strong), over_epochs("current", current, weak))
        ]
        ages = np.asarray(row.curves["ages"], float)
        ages = np.where(ages > 0, ages, np.nan)
        ages = ages[np.isfinite(ages).any(1)]
        if len(ages):
            oldest, mean = np.nanmax(ages, 1).tolist(), np.nanmean(ages, 1).tolist()
            drawn.append(
                ("ages", "age of the stored gradients", "age (steps)", "one run, at the end of each epoch")
                + (over_epochs("mean age", mean, strong), over_epochs("oldest", oldest, weak))
            )
        out += [
            Figure(
                slug("memory", panel.title, arm.label, name),
                f"{panel.title}: {arm.label}, seed {row.trial.seed}, {title}",
                FigureAxis("epoch", whole=True),
                value_axis(axis, [*one.y, *other.y]),
                (one, other),
                caption,
            )
            for name, title, axis, caption, one, other in drawn
        ]
    return out
