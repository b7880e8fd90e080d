"""Figures: one look per optimizer, axes that fit, and what is drawn of their numbers."""

import math
import re
from xml.etree import ElementTree

import pytest

from critgrad.lab.report import drawing, palette
from critgrad.lab.report.drawing import inline
from critgrad.lab.report.figure import (
    LARGEST_LINE,
    Bars,
    Figure,
    FigureAxis,
    Heat,
    Line,
    Points,
    clean,
    thinned,
    value_axis,
    without_far,
)
from critgrad.lab.report.palette import Ink, step_style, style_of
from critgrad.lab.train.optimizers import OPTIMIZERS
from critgrad.paper.protocol import ARMS
from critgrad.paper.protocol.announced import AnnouncedSource
from critgrad.paper.report.sections import build

LIGHT, DARK = "#ffffff", "#181c24"


def luminance(colour):
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(a, b):
    high, low = sorted((luminance(a), luminance(b)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def test_no_two_optimizers_of_the_paper_or_their_damped_twins_look_alike():
    names = [name for name, recipe in OPTIMIZERS.items() if recipe.family == name.split("_")[0]]
    looks = [style_of(name) for name in names]
    assert len(names) == 15
    assert len({(s.ink, s.dash) for s in looks}) == 15


@pytest.mark.parametrize("family", ["SGD", "SGDM", "RMSprop", "Adam", "AdamW"])
def test_within_a_family_lightness_and_dash_tell_the_three_apart(family):
    base, added, damped = (style_of(family + end) for end in ("", "_C", "_F"))
    assert base.dash == damped.dash != added.dash
    for page in ("light", "dark"):
        shades = [luminance(getattr(style.ink, page)) for style in (base, added, damped)]
        assert shades == sorted(shades, reverse=page == "light")
        assert contrast(getattr(base.ink, page), getattr(damped.ink, page)) > 2.5


@pytest.mark.parametrize("name", sorted(OPTIMIZERS))
def test_every_look_is_visible_on_both_pages(name):
    ink = style_of(name).ink
    assert contrast(ink.light, LIGHT) > 2.0
    assert contrast(ink.dark, DARK) > 2.4


def test_the_arms_of_a_family_that_are_drawn_together_differ():
    looks = {arm: style_of("Adam", arm) for arm in ARMS if not arm.startswith(("C", "F", "base")) or "-" in arm}
    assert len({(s.ink, s.dash, s.marker) for s in looks.values()}) == len(looks)
    steps = [step_style(i, 7) for i in range(7)]
    assert len({(s.ink, s.dash) for s in steps}) == 7


def test_the_drawing_knows_every_marker_and_dash_of_a_look():
    looks = [style_of(name, arm) for name in OPTIMIZERS for arm in ("", *ARMS)] + [step_style(i, 7) for i in range(7)]
    assert {look.marker for look in looks} <= drawing._MARKERS.keys()
    assert {look.dash for look in looks} <= drawing._DASHES.keys()


def test_an_axis_is_logarithmic_where_values_span_decades_and_its_ticks_lie_inside():
    assert not value_axis("loss", [1.0, 20.0]).log
    assert not value_axis("loss", [0.0, 100.0]).log
    axis = value_axis("loss", [1e-6, None, 2.0, math.nan])
    assert axis.log
    assert axis.range[0] < 1e-6
    assert axis.range[1] > 2.0
    inside = [tick for tick in axis.ticks if axis.range[0] <= tick <= axis.range[1]]
    assert 4 <= len(inside) <= 10


def forest(values, half=1.0):
    low, high = ([None if v is None else v + sign * half for v in values] for sign in (-1, 1))
    notes = [f"{v}" for v in values]
    return Points(
        "difference",
        [f"arm {i}" for i in range(len(values))],
        values,
        low,
        high,
        [style_of("Adam")] * len(values),
        notes,
    )


def test_a_point_far_beyond_the_others_stands_at_the_edge_and_says_so():
    """One variant of an ablation ended at the worst perplexity, ten thousand; the others differ by a few."""
    points, axis = without_far(forest([2.0, -1.0, None, 3.0, -9730.0]), "improvement")
    low, high = axis.range
    assert -4 < low < -2 < 0 < 4 < high < 6  # the others' intervals and a margin
    assert points.values[:4] == [2.0, -1.0, None, 3.0]
    assert low < points.values[4] < -2  # beyond the others, on the page
    assert (points.low[-1], points.high[-1]) == (None, None)
    assert points.notes == ["2.0", "-1.0", "None", "3.0", "◂ -9730.0"]
    assert without_far(forest([2.0, -1.0, 400.0]), "x")[0].notes[-1] == "▸ 400.0"


@pytest.mark.parametrize("values", [[], [None], [0.0, 0.0], [-5.0], [1.0, -12.0, 3.0]])
def test_without_such_a_point_a_forest_is_as_it_was(values):
    points = forest(values)
    assert without_far(points, "improvement") == (points, FigureAxis("improvement"))


def test_long_lines_are_thinned_and_keep_their_ends():
    kept = thinned(50_000)
    assert len(kept) == LARGEST_LINE
    assert kept[0] == 0
    assert kept[-1] == 49_999
    assert kept == sorted(set(kept))


def test_what_is_not_finite_is_not_drawn():
    assert clean([1.0, math.inf, None, math.nan, 1 / 3]) == [1.0, None, None, None, 0.333333]


def parsed(figure):
    """Its SVG as a tree: a figure that is not well-formed raises."""
    return ElementTree.fromstring(inline(figure).svg)


def figure_of(*series, x=FigureAxis("x"), y=FigureAxis("y")):  # noqa: B008 (frozen)
    return Figure("f", "t", x, y, series)


def test_a_band_and_its_line_go_off_together_and_a_hidden_one_waits():
    low, high = [0.0, 1.0], [2.0, 3.0]
    shown, hidden = (
        Line(name, [1, 2], [1.0, 2.0], style_of(name), low, high, shown=name == "Adam") for name in ("Adam", "SGD")
    )
    figure = figure_of(shown, hidden)
    marked = [(e.get("data-entry"), e.get("display")) for e in parsed(figure).iter() if e.get("data-entry")]
    assert sorted(marked, key=str) == [("0", None), ("0", None), ("1", "none"), ("1", "none")]
    assert [(entry.name, entry.shown) for entry in inline(figure).legend] == [("Adam", True), ("SGD", False)]
    assert inline(figure_of(shown)).legend == ()


def test_a_figure_tells_its_values_where_they_are_drawn():
    line = Line("Adam", [1, 2, 3], [1.0, None, 2.0], style_of("Adam"))
    drawn = inline(figure_of(line))
    (_, left, low, first), (_, right, high, last) = drawn.points
    assert (first, last) == ("Adam: 1", "Adam: 2")
    assert left < right
    assert low > high  # an SVG counts from the top
    path = next(e for e in parsed(figure_of(line)).iter() if e.get("data-entry")).find(".//*[@d]").get("d")
    start = [float(number) for number in re.findall(r"[\d.]+", path)[:2]]
    assert start == pytest.approx([left, low], abs=0.1)


def test_the_colours_of_a_figure_follow_the_page():
    ink = style_of("Adam").ink
    svg = inline(figure_of(Line("Adam", [1, 2], [1.0, 2.0], style_of("Adam")))).svg
    assert f"light-dark({ink.light},{ink.dark})" in svg
    assert not re.search(r"(?<!light-dark\()(?<!,)#[0-9a-f]{6}", svg)
    inks = {ink for name in OPTIMIZERS for ink in [style_of(name).ink]} | {
        value for value in vars(palette).values() if isinstance(value, Ink)
    }
    assert len({ink.light for ink in inks}) == len(inks)  # a light colour has one dark twin


def test_the_lower_edge_of_a_band_never_leaves_a_logarithmic_axis():
    y = [1.0, 1e-4]
    line = Line("Adam", [1, 2], y, style_of("Adam"), [0.5, -1.0], [2.0, 1.0])
    svg = parsed(figure_of(line, y=value_axis("loss", y)))
    band = next(e for e in svg.iter() if e.get("data-entry")).find(".//*[@d]").get("d")
    heights = [float(place.split()[1]) for place in re.findall(r"-?[\d.]+ -?[\d.]+", band)]
    assert len(heights) > 4
    assert max(heights) < 0  # it is moved down by the figure's height


def test_censored_bars_carry_their_marks():
    def marks(*wanted):
        ink = style_of("Adam").ink
        bars = Bars("a", ["x", "y", "z"], [2.0, 0.5, None], [ink] * 3, [1.0] * 3, marks=wanted)
        drawn = figure_of(bars, x=FigureAxis("", log=True), y=FigureAxis("", labels=("x", "y", "z")))
        return len([e for e in parsed(drawn).iter() if e.tag.endswith("use")])

    assert marks(">", "<", "?") == marks("", "", "") + 3


@pytest.mark.parametrize("kind", ["one", "compare", "fair", "analyses", "paper"])
def test_every_figure_is_valid_titled_and_not_empty(made, kind):
    report = build(AnnouncedSource(made(kind)[0]))
    names = [figure.id for figure in report.figures]
    assert names
    assert len(set(names)) == len(names)
    for figure in report.figures:
        assert all((figure.title, figure.x.title, figure.y.title or figure.y.labels)), figure.id
        for series in figure.series:
            values = series.y if isinstance(series, Line) else series.values
            if isinstance(series, Heat):
                values = [value for row in series.values for value in row]
            assert any(value is not None for value in values), figure.id
        parsed(figure)


def test_acceleration_and_improvements_are_drawn_for_every_arm_but_the_base(made):
    figures = {figure.id: figure for figure in build(AnnouncedSource(made("compare")[0])).figures}
    forest = next(f for name, f in figures.items() if name.startswith("improvement"))
    assert len(forest.y.labels) == 10
    assert forest.reference == 0.0
    bars = next(f for name, f in figures.items() if name.startswith("acceleration"))
    assert bars.reference == 1.0
    assert bars.x.log
    assert set(bars.y.labels) <= set(forest.y.labels)
