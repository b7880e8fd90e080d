"""The figures of a study's page, as static SVG."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np

from ..spaces import Axis
from ..words import listed
from .answer import Answer, Arm, Claim, Run
from .axes import OUTER, axis_of
from .svg import Frame, Point, Scale
from .verdict import named

WIDE, PANEL = 760.0, 340.0  # units of a figure over the whole column, and of one of several side by side
_WIDE_LEFT, _LEFT, _RIGHT = 16.0, 52.0, 14.0
_ROW = 74.0
_SEPARATE = 8.0  # times: claims whose differences are so unlike in size have an axis each
_FAR = 5.0  # times the third quartile of the sizes: a difference beyond stands at the edge, as an arrow
_TIMES_MEDIAN = 4.0  # trials so many times further from the best than the median one are crosses at the edge
_DECADES = 1.3  # a positive value that spans more is drawn on a logarithmic scale

LOOKS = 7  # colours of arms, "a0" to "a6" in the style sheet; lines have a dash of their own, too


def look(index: int) -> str:
    """The class of the ``index``-th arm: its colour, and the dash of its line."""
    return f"a{index % LOOKS} d{index // LOOKS % 3}"


# -- differences -----------------------------------------------------------------------------------------------------


def differences(answer: Answer) -> str:
    """One row per claim: its replicate differences as dots, the estimate with its interval, the margin around 0."""
    claims = [claim for claim in answer.claims if claim.differences]
    reaches = [_reach(claim) for claim in claims]
    positive = [reach for reach in reaches if reach > 0]
    apart = bool(positive) and max(positive) > _SEPARATE * min(positive)
    each = _ROW + (34.0 if apart else 0.0)
    height = each * len(claims) + (14.0 if apart else 48.0)
    frame = Frame(WIDE, height, "Differences of the replicates for every claim, with intervals")
    common = _difference_scale(claims, max(reaches, default=1.0), answer.margin)
    top = 6.0
    for claim, reach in zip(claims, reaches):
        scale = _difference_scale([claim], reach, answer.margin) if apart else common
        _difference_row(frame, claim, scale, top, answer.margin, last=apart or claim is claims[-1])
        top += each
    return frame.html()


def _reach(claim: Claim) -> float:
    """How far from 0 a row has to be drawn: one far value must not squeeze the others to a line."""
    sizes = np.abs(claim.differences)
    ends = [abs(end) for end in (claim.low, claim.high, claim.difference) if math.isfinite(end)]
    return float(max(*ends, min(sizes.max(), _FAR * float(np.quantile(sizes, 0.75)))))


def _difference_scale(claims: Sequence[Claim], reach: float, margin: float) -> Scale:
    values = [
        value for claim in claims for value in (*claim.differences, claim.low, claim.high) if math.isfinite(value)
    ]
    if margin <= 2 * reach:
        values += [-1.1 * margin, 1.1 * margin]
    low, high = (min(max(end, -reach), reach) for end in (min([0.0, *values]), max([0.0, *values])))
    if margin <= 2 * reach:
        low, high = min(low, -1.1 * margin), max(high, 1.1 * margin)
    pad = 0.05 * (high - low) or 1.0
    return Scale(low - pad, high + pad, _WIDE_LEFT, WIDE - _RIGHT)


def _difference_row(frame: Frame, claim: Claim, scale: Scale, top: float, margin: float, last: bool) -> None:
    middle, bottom = top + 44.0, top + _ROW - 6.0
    if margin > 0:
        frame.box(scale(-margin), top + 22, scale(margin), bottom, "margin", f"within the margin of {margin:.3g}")
    for value, _ in scale.ticks(7):
        frame.line([(scale(value), top + 22), (scale(value), bottom)], "grid")
    frame.line([(scale(0.0), top + 22), (scale(0.0), bottom)], "zero")
    frame.text(_WIDE_LEFT, top + 13, f"{claim.arm} against {named(claim.against)}", "row")
    with frame.group(f"w-{claim.word}"):
        if math.isfinite(claim.low) and math.isfinite(claim.high):
            left, right = scale(claim.low), scale(claim.high)
            frame.box(left, middle - 3.5, max(right, left + 1), middle + 3.5, "interval", _range_words(claim))
        # Replicates one below the other in their order, so that equal ones do not hide each other.
        shifts = np.linspace(-15.0, 15.0, len(claim.differences)) if len(claim.differences) > 1 else [0.0]
        for number, (value, shift) in enumerate(zip(claim.differences, shifts), start=1):
            hint = (
                f"replicate {number}: {value:+.4g} against {claim.rivals[number - 1] if claim.rivals else ''}".strip()
            )
            x, y = scale(value), middle + float(shift)
            if scale.low <= value <= scale.high:
                frame.dot(x, y, 3.4, "replicate", hint)
            else:
                to = 7.0 if value > scale.high else -7.0
                frame.shape([(x, y), (x - to, y - 4.5), (x - to, y + 4.5)], "replicate", f"{hint}, beyond the axis")
        x = scale(claim.difference)
        outline = [(x, middle - 8), (x + 6, middle), (x, middle + 8), (x - 6, middle)]
        frame.shape(outline, "estimate", f"estimate {claim.difference:+.4g}")
    if last:
        for value, said in scale.ticks(7):
            frame.text(scale(value), bottom + 15, said, "tick", "middle")
        frame.text(_WIDE_LEFT, bottom + 31, "← the other is better", "label")
        frame.text(WIDE - _RIGHT, bottom + 31, "the arm is better →", "label", "end")


def _range_words(claim: Claim) -> str:
    return f"95 % interval {claim.low:+.4g} to {claim.high:+.4g}"


# -- values: trials and curves ----------------------------------------------------------------------------------------


def value_scale(
    values: Iterable[float], start: float, end: float, worst: float = math.nan, direction: str = "min"
) -> Scale:
    """A scale for values of the task. Where ``worst`` is a number, what lies beyond it is not reached for."""
    finite = [value for value in values if math.isfinite(value)]
    if not finite:
        return Scale(0.0, 1.0, start, end)
    low, high = min(finite), max(finite)
    if low < worst < high:
        low, high = (low, worst) if direction == "min" else (worst, high)
    if low > 0 and math.log10(high / low) > _DECADES:
        pad = (high / low) ** 0.05
        return Scale(low / pad, high * pad, start, end, log=True)
    pad = 0.05 * (high - low) or 0.05 * abs(high) or 1.0
    return Scale(low - pad, high + pad, start, end)


def _worst_shown(answer: Answer, values: Sequence[float]) -> float:
    """So far the trials' scale reaches. Not the value before training: that is one of the test data."""
    finite = [value for value in values if math.isfinite(value)]
    best = (min if answer.direction == "min" else max)(finite, default=math.nan)
    return best + _TIMES_MEDIAN * (float(np.median(finite)) - best) if finite else math.nan


def searched_option(arm: Arm) -> str | None:
    """The option that an arm's trials are drawn against: the learning rate, else the first that it searches."""
    return "lr" if "lr" in arm.search else next(iter(arm.search), None)


def trial_panels(answer: Answer) -> list[tuple[str, str]]:
    """For every arm its name and validation value against its learning rate, all on one scale of values."""
    shown = [run.valid for arm in answer.arms.values() for run in _drawn_runs(arm)]
    bottom = 186.0
    scale = value_scale(shown, bottom, 12.0, _worst_shown(answer, shown), answer.direction)
    return [(name, _panel(arm, index, answer, scale, bottom)) for index, (name, arm) in enumerate(answer.arms.items())]


def _drawn_runs(arm: Arm) -> list[Run]:
    return [run for one in arm.replicates for run in (one.trials or one.reports)]


def _panel(arm: Arm, index: int, answer: Answer, scale: Scale, bottom: float) -> str:
    frame = Frame(PANEL, bottom + 42, f"Trials of {arm.name}: validation value by learning rate")
    left, right = _LEFT, PANEL - _RIGHT
    option = searched_option(arm)
    axis = axis_of(arm.search[option]) if option else None
    frame.y_axis(scale, left, right)
    if axis is None:
        frame.text((left + right) / 2, bottom + 32, "not tuned: its report runs", "label", "middle")
    else:
        for place, said in axis_ticks(axis):
            x = left + place * (right - left)
            frame.line([(x, 12.0), (x, bottom)], "grid")
            frame.text(x, bottom + 15, said, "tick", "middle")
        frame.text((left + right) / 2, bottom + 32, str(option), "label", "middle")
    good, chosen, failed = [], [], []
    for replicate in arm.replicates:
        for number, run in enumerate(replicate.trials or replicate.reports):
            share = _share(axis, run.point.get(option)) if axis and option else (0.35 + 0.1 * (number % 4))
            at = (
                left + share * (right - left),
                scale(run.valid) if math.isfinite(run.valid) else _worst(scale, answer),
            )
            if run.failed or not scale.low <= run.valid <= scale.high:
                failed.append((at[0], _worst(scale, answer)))
            elif replicate.trials and dict(run.point) == dict(replicate.chosen):
                chosen.append((at, f"replicate {replicate.number}: {listed(run.point)}, valid {run.valid:.4g}"))
            else:
                good.append(at)
    with frame.group(look(index)):
        frame.dots(good, "trial")
        frame.crosses(failed)
        for (x, y), hint in chosen:
            frame.dot(x, y, 4.2, "chosen", hint)
    return frame.html()


def _worst(scale: Scale, answer: Answer) -> float:
    return scale(scale.high if answer.direction == "min" else scale.low)


def _share(axis: Axis, value: object) -> float:
    """Where on its range a value lies, 0 to 1."""
    if axis.scale == "choice":
        return (axis.choices.index(value) + 0.5) / len(axis.choices) if value in axis.choices else 0.5
    return min(max(axis.place(float(value)), 0.0), 1.0) if isinstance(value, (int, float)) else 0.5


def axis_ticks(axis: Axis) -> list[tuple[float, str]]:
    """Round values of a range with their places, 0 to 1.

    >>> axis_ticks(axis_of("log 1e-3 1e-1")), [text for _, text in axis_ticks(axis_of("one-minus 0.5 0.99"))]
    ([(0.0, '10⁻³'), (0.5, '10⁻²'), (1.0, '10⁻¹')], ['0.5', '0.9', '0.99'])
    """
    if axis.scale == "choice":
        return [(_share(axis, choice), str(choice)) for choice in axis.choices]
    if axis.scale == "complement":
        nines = [0.0, 0.5, 0.9, 0.99, 0.999, 0.9999]
        inside = [value for value in nines if axis.low < value < axis.high]
        return [(round(axis.place(v), 9), f"{v:g}") for v in (axis.low, *inside, axis.high)]
    return [(round(axis.place(v), 9), t) for v, t in Scale(axis.low, axis.high, 0, 1, axis.scale == "log").ticks(4)]


def curves(answer: Answer) -> str:
    """Validation value by epoch: median and quartiles of every arm's report runs."""
    made = {name: _quartiles(arm) for name, arm in answer.arms.items()}
    medians = [float(value) for found in made.values() for value in found[1]]
    frame = Frame(WIDE, 320.0, "Learning curves: validation value by epoch")
    top, bottom, left, right = 10.0, 272.0, _LEFT, WIDE - _RIGHT
    scale = value_scale(medians, bottom, top)
    epochs = max((found.shape[1] for found in made.values()), default=1)
    across = Scale(1, max(epochs, 2), left + 8, right - 8)
    frame.y_axis(scale, left, right, 6)
    for value, said in across.ticks(8):
        if value == int(value) and 1 <= value <= epochs:
            frame.text(across(value), bottom + 16, said.partition(".")[0], "tick", "middle")
    frame.text((left + right) / 2, bottom + 36, "epoch", "label", "middle")
    for index, found in enumerate(made.values()):
        low, middle, high = (_points(row, across, scale) for row in found)
        with frame.group(look(index)):
            frame.area(high, low, "quartiles")
            frame.line(middle, "curve")
            if len(middle) == 1:
                frame.dots(middle, "trial")
    return frame.html()


def _points(row: np.ndarray, across: Scale, scale: Scale) -> list[Point]:
    return [(across(epoch), scale(float(value))) for epoch, value in enumerate(row, start=1) if math.isfinite(value)]


def _quartiles(arm: Arm) -> np.ndarray:
    """(3, epochs): quartiles of the curves that are finite in an epoch; a run that stopped early counts until then."""
    found = [run.curve for replicate in arm.replicates for run in replicate.reports if run.curve]
    if not found:
        return np.empty((3, 0))
    table = np.full((len(found), max(map(len, found))), np.nan)
    for row, curve in zip(table, found):
        row[: len(curve)] = curve
    table[~np.isfinite(table)] = np.nan
    kept = [column[~np.isnan(column)] for column in table.T]
    return np.array([np.quantile(column, (0.25, 0.5, 0.75)) for column in kept if column.size]).reshape(-1, 3).T


# -- what was searched ------------------------------------------------------------------------------------------------


def strip(arm: Arm, index: int, option: str) -> str:
    """One option's range, its outer tenths shaded, with the values that were chosen."""
    axis = axis_of(arm.search[option])
    frame = Frame(PANEL, 44.0, f"{arm.name}: chosen values of {option}")
    left, right, top, bottom = 24.0, PANEL - 24.0, 6.0, 24.0
    width = right - left
    frame.box(left, top, right, bottom, "track")
    if axis.scale != "choice":
        frame.box(left, top, left + OUTER * width, bottom, "outer")
        frame.box(right - OUTER * width, top, right, bottom, "outer")
    for place, said in axis_ticks(axis):
        frame.text(left + place * width, bottom + 15, said, "tick", "middle")
    with frame.group(look(index)):
        for number, replicate in enumerate(arm.replicates):
            if option in replicate.chosen:
                x = left + _share(axis, replicate.chosen[option]) * width
                y = (top + bottom) / 2 + 5.0 * ((number % 3) - 1)
                frame.dot(x, y, 3.4, "chosen", f"replicate {replicate.number}: {listed(replicate.chosen)}")
    return frame.html()
