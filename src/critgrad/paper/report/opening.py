"""What a page opens with: the verdict in words, and one figure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from critgrad.lab.report.figure import Figure, FigureAxis, Points, clean, whisker_words, without_far
from critgrad.lab.report.outcome_figures import curve_figures
from critgrad.lab.report.palette import LOSS, PLAIN, WIN, Style
from critgrad.lab.report.panels import Panel
from critgrad.lab.report.parts import PageBlock
from critgrad.lab.stats import Comparison
from critgrad.lab.stats.verdicts import FEWEST_SEEDS
from critgrad.lab.words import FEWEST_FOR_INTERVAL, counted, interval_text

from ..protocol import ARMS, Outcome
from .panels import Compared
from .verdict_tables import suite_primaries, tally
from .worded import worded

LARGEST = 40  # rows of the figure
NAMED = 4  # comparisons that a sentence names
_INKS = {"better": WIN, "worse": LOSS}


def opening(outcomes: Sequence[Outcome], found: Sequence[Compared], panels: Sequence[Panel], runs: int) -> PageBlock:
    """The block that comes first, from all panels that there are: their metrics have units, and the first is drawn for want of
    a comparison. ``runs`` is their number.
    """
    units = {panel.task: panel.measured for panel in panels}
    together = suite_primaries(outcomes)
    rows = together or [row for outcome in outcomes for row in outcome.primary]
    words: list[str] = []
    if rows:
        words.append(_counted(rows, "corrected over all of them" if together else "corrected within each experiment"))
        words += _named(rows, units)
    elif outcomes:
        words.append("No primary comparison is finished yet: the tables below say what is missing.")
    for one in found:
        mine = [line.comparison for line in one.lines if line.comparison is not None]
        words.append(_compared(one, units))
        rows = rows or mine
    if not words:
        words.append(f"{counted(runs, 'run')}, none of them made to be compared: there is no verdict.")
    figure = _forest(rows, units) if rows else next((f for panel in panels for f in curve_figures(panel)), None)
    figures = () if figure is None else (replace(figure, id="opening"),)
    return PageBlock("", "", figures=figures, words=tuple(words))


def _counted(rows: Sequence[Comparison], correction: str) -> str:
    tasks = list(dict.fromkeys(row.task for row in rows))
    where = f"On {tasks[0]}" if len(tasks) == 1 else f"On {len(tasks)} tasks"
    what = f"{counted(len(rows), 'comparison')} with the best tuned rival"
    return f"{where}, {what}, {correction}: {tally(rows)}."


def _named(rows: Sequence[Comparison], units: dict[str, str]) -> list[str]:
    """What is better and what is worse, each in a sentence."""
    out = []
    for word in ("better", "worse"):
        mine = [row for row in rows if row.shown == word]
        several = len({row.task for row in rows}) > 1
        told = [
            f"{row.arm} is {word} than {row.rival}{f' on {row.task}' if several else ''} "
            f"({_difference(row)} {units.get(row.task, '')}, {row.n} seeds)"
            for row in mine[:NAMED]
        ]
        more = [f"so {'is' if len(mine) - NAMED == 1 else 'are'} {len(mine) - NAMED} more"] if len(mine) > NAMED else []
        if told:
            out.append("; ".join([*told, *more]) + ".")
    return out


def _compared(found: Compared, units: dict[str, str]) -> str:
    task = found.defaults.task
    seeds = max(found.seeds.values())
    unit = units.get(task, "")
    memories = [line.comparison for line in found.lines if line.arm in ("C", "F") and line.comparison is not None]
    words = {word: f" ({word})" for word in ("better", "worse", "same", "open")}  # the others are no verdicts
    told = ", ".join(f"{row.arm} {_difference(row)}{words.get(row.shown, '')}" for row in memories)
    pairs = f", {seeds} seeds each, test {unit} against the base: {told}" if told else ": no pairs yet"
    text = f"On {task}{pairs}."
    if seeds < FEWEST_SEEDS:
        return f"{text} With {counted(seeds, 'seed')} nothing can be tested: {FEWEST_SEEDS} are the fewest."
    return f"{text} Hyper-parameters were fixed beforehand; the differences are not corrected for their number."


def _difference(row: Comparison) -> str:
    return interval_text(row.interval, "+")


def _forest(rows: Sequence[Comparison], units: dict[str, str]) -> Figure:
    """All of them at once: in the metric's unit on one task, on several in half widths of their intervals."""
    tasks = dict.fromkeys(row.task for row in rows)
    shown = list(rows[:LARGEST])
    scaled = len(tasks) > 1
    scale = [(row.high - row.low) / 2 if scaled and row.high > row.low else 1.0 for row in shown]
    labels = _labels(shown, scaled)
    drawn = [row.n >= FEWEST_FOR_INTERVAL for row in shown]
    points = Points(
        "paired difference",
        labels,
        clean(row.difference / s for row, s in zip(shown, scale)),
        clean(row.low / s if d else None for row, s, d in zip(shown, scale, drawn)),
        clean(row.high / s if d else None for row, s, d in zip(shown, scale, drawn)),
        [Style(_INKS.get(row.shown, PLAIN)) for row in shown],
        [f"{_difference(row)} {row.shown}" for row in shown],
    )
    points, axis = without_far(points, "")
    seeds = sorted({row.n for row in shown})
    words = {
        "title": "Every comparison at once" if scaled else f"{shown[0].task}: every comparison at once",
        "unit": "half widths" if scaled else f"test {units.get(shown[0].task, 'metric')}",
        "count": f"{seeds[0]}" if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]}",
        "band": whisker_words(shown) + (" (its half width is 1); the table below names the rivals" if scaled else ""),
        "more": f"; the first {LARGEST} of {len(rows)}" if len(rows) > LARGEST else "",
    }
    named = FigureAxis("", labels=tuple(labels))
    return worded("opening", ["opening"], words, [points], axis, named, reference=0.0, rows=len(labels))


def _labels(rows: Sequence[Comparison], scaled: bool) -> list[str]:
    """A name of its own for each row: by the task where there are several, else by the rival.

    With the base where two share a name, with a number where the same was asked twice.
    """
    names = [f"{row.task}: {row.arm}" if scaled else f"{row.arm} − {row.rival}" for row in rows]
    shared = Counter(names)
    names = [f"{name} [{row.family.partition('_')[0]}]" if shared[name] > 1 else name for name, row in zip(names, rows)]
    before = [names[:place].count(name) for place, name in enumerate(names)]
    return [f"{name} ({1 + count})" if count else name for name, count in zip(names, before)]


def terms_of(labels: Sequence[tuple[str, str]]) -> tuple[tuple[str, str], ...]:
    """What arms are: ``labels`` are pairs of an arm's name and what a table calls it."""
    by_arm: dict[str, list[str]] = {}
    for arm, label in labels:
        if arm in ARMS and label not in by_arm.setdefault(arm, []):
            by_arm[arm].append(label)
    return tuple((", ".join(names), ARMS[arm].summary) for arm, names in by_arm.items())
