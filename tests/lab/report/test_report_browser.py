"""The page in a real browser: offline, without a word of complaint, every figure drawn, tables sorted by a click."""

import re

import pytest
from report_helpers import data_of

pytestmark = pytest.mark.slow  # each opens a page of five megabytes

CLIPPED = (
    "[...document.querySelectorAll('.table-box')].filter((e) => e.scrollWidth > e.clientWidth + 1)"
    ".map((e) => e.querySelector('table').id)"
)
DRAWN = "critgradReport.drawAll().then(() => document.querySelectorAll('.plot[data-drawn] .main-svg').length)"


@pytest.mark.parametrize("kind", ["one", "compare", "paper"])
def test_every_figure_is_drawn_without_errors_or_requests(chromium, made, kind):
    page = chromium.open_page(made(kind)[1])
    assert page.evaluate(DRAWN) > 0
    count = page.evaluate("critgradReport.count")
    assert count == page.evaluate(
        "[...document.querySelectorAll('.plot')].filter((e) => e.querySelector('svg path')).length"
    )
    assert page.console_errors == []
    assert page.requests == []


@pytest.mark.parametrize("kind", ["fair", "analyses"])
def test_every_figure_of_a_whole_study_is_drawn(chromium, made, kind):
    page = chromium.open_page(made(kind)[1])
    assert page.evaluate(DRAWN) >= page.evaluate("critgradReport.count") > 10
    assert page.console_errors == []
    assert page.requests == []


def test_figures_are_drawn_when_they_come_into_view(chromium, made):
    page = chromium.open_page(made("compare")[1], height=600)
    last = "[...document.querySelectorAll('.plot')].at(-1)"
    assert page.evaluate(f"{last}.dataset.drawn") is None
    page.evaluate(f"{last}.scrollIntoView({{behavior: 'instant'}})")
    page.wait_for(f"{last}.dataset.drawn === 'yes'")


def test_a_click_on_a_heading_sorts_the_table_and_a_second_turns_it_round(chromium, made):
    page = chromium.open_page(made("compare")[1])
    table = "table-compare-digits-mlp-6"
    column = f"[...document.querySelectorAll('#{table} tbody tr')].map((r) => Number(r.cells[1].dataset.sort))"
    means = [row["test"]["mean"] for row in data_of(made("compare")[1])["tables"][table]]
    assert page.evaluate(column) == pytest.approx(means)
    page.click(f"#{table} th:nth-child(2)")
    assert page.evaluate(column) == pytest.approx(sorted(means))
    page.click(f"#{table} th:nth-child(2)")
    assert page.evaluate(column) == pytest.approx(sorted(means, reverse=True))
    assert (
        page.evaluate(f"document.querySelector('#{table} th:nth-child(2)').getAttribute('aria-sort')") == "descending"
    )


def test_empty_cells_stay_last_in_either_order(chromium, made):
    page = chromium.open_page(made("compare")[1])
    table = "table-compare-digits-mlp-6"
    last = f"[...document.querySelectorAll('#{table} tbody tr')].slice(-2).map((r) => r.cells[2].textContent)"
    for _ in range(2):
        page.click(f"#{table} th:nth-child(3)")
        assert page.evaluate(last) == ["", ""]  # the two bases


def test_a_dark_page_has_a_dark_ground_and_light_ink(chromium, made):
    seen = {}
    for dark in (False, True):
        page = chromium.open_page(made("compare")[1], dark=dark)
        page.evaluate(DRAWN)
        ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
        ticks = page.evaluate("getComputedStyle(document.querySelector('.plot .xtick text')).fill")
        lines = page.evaluate(
            "[...document.querySelectorAll('.plot .scatterlayer .js-line')].map((e) => e.style.stroke)"
        )
        seen[dark] = tuple(_brightness(colour) for colour in (ground, ticks)), lines
        assert page.console_errors == []
    assert seen[False][0][0] > 200 > 60 > seen[False][0][1]
    assert seen[True][0][0] < 60 < 200 < seen[True][0][1]
    assert seen[False][1] != seen[True][1]


def _brightness(colour):
    return sum(map(int, re.findall(r"\d+", colour)[:3])) / 3


def test_the_button_turns_the_page_dark_and_back(chromium, made):
    page = chromium.open_page(made("one")[1])
    ground = "getComputedStyle(document.body).backgroundColor"
    light = page.evaluate(ground)
    page.click("#theme")
    assert _brightness(page.evaluate(ground)) < 60 < _brightness(light)
    page.click("#theme")
    assert page.evaluate(ground) == light


def test_the_legend_takes_a_line_and_its_band_away_together(chromium, made):
    page = chromium.open_page(made("compare")[1])
    page.evaluate(DRAWN)
    paths = "document.querySelector('#curves .plot').querySelectorAll('.js-fill, .js-line').length"
    before = page.evaluate(paths)
    page.click("#curves .legend button")
    page.wait_for(f"{paths} < {before}")
    assert page.evaluate(paths) <= before - 2
    assert page.evaluate("document.querySelector('#curves .legend button').getAttribute('aria-pressed')") == "false"


@pytest.mark.parametrize("kind", ["compare", "fair"])
def test_a_phone_shows_one_column_and_never_scrolls_sideways(chromium, made, kind):
    page = chromium.open_page(made(kind)[1], width=390, height=800)
    page.evaluate(DRAWN)
    assert page.evaluate("document.documentElement.scrollWidth") == 390
    wide = "[...document.querySelectorAll('.plot svg.main-svg')].filter((e) => e.getBoundingClientRect().right > 390).length"
    assert page.evaluate(wide) == 0
    lefts = "new Set([...document.querySelectorAll('figure')].map((e) => e.getBoundingClientRect().left)).size"
    assert page.evaluate(lefts) == 1
    assert page.evaluate(CLIPPED) == []


@pytest.mark.parametrize("width", [1400, 1100, 700])
@pytest.mark.parametrize("kind", ["compare", "fair", "paper", "analyses"])
def test_no_table_is_clipped(chromium, made, kind, width):
    page = chromium.open_page(made(kind)[1], width=width)
    page.evaluate("document.querySelectorAll('details').forEach((e) => (e.open = true)); 1")
    assert page.evaluate(CLIPPED) == []
    assert page.evaluate("document.documentElement.scrollWidth") == width


def test_a_narrow_table_says_of_each_value_what_it_is(chromium, made):
    page = chromium.open_page(made("compare")[1], width=700)
    seen = "getComputedStyle(document.querySelector('.table-box td:nth-child(2)'), '::before').content"
    assert "test accuracy" in page.evaluate(seen)


def test_the_page_opens_with_words_and_one_figure_before_any_table(chromium, made):
    page = chromium.open_page(made("compare")[1])
    first = "document.querySelector('main section')"
    assert page.evaluate(f"{first}.id") == "answer"
    assert page.evaluate(f"{first}.querySelectorAll('.answer').length") >= 1
    assert page.evaluate(f"{first}.querySelectorAll('figure').length") == 1
    assert page.evaluate(f"{first}.querySelectorAll('table').length") == 0
