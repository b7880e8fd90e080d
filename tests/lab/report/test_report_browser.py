"""The page in a real browser: offline, without a word of complaint, every figure there, tables sorted by a click."""

import re

import pytest
from report_helpers import data_of

pytestmark = pytest.mark.slow  # each opens a browser

CLIPPED = (
    "[...document.querySelectorAll('.table-box')].filter((e) => e.scrollWidth > e.clientWidth + 1)"
    ".map((e) => e.querySelector('table').id)"
)
# Figures by what the browser made of them: their paths have a size once they are laid out.
DRAWN = "[...document.querySelectorAll('.plot svg')].filter((e) => e.getBBox().width > 100 && e.querySelector('path')).length"


@pytest.mark.parametrize("kind", ["one", "compare", "paper", "fair", "analyses"])
def test_every_figure_is_there_without_errors_or_requests(chromium, made, kind):
    page = chromium.open_page(made(kind)[1])
    page.evaluate("document.querySelectorAll('details').forEach((e) => (e.open = true)); 1")
    assert page.evaluate(DRAWN) == page.evaluate("document.querySelectorAll('figure').length") > 0
    assert page.console_errors == []
    assert page.requests == []


def pointer(kind, place):
    """A script that sends an event of the pointer to the first curve's figure; ``place``: x and y, from its left and top."""
    return (
        "(() => { const svg = document.querySelector('#curves .plot svg'); const box = svg.getBoundingClientRect();"
        f"const at = {{clientX: box.left + {place[0]} * box.width, clientY: box.top + {place[1]} * box.height}};"
        f"svg.dispatchEvent(new PointerEvent('{kind}', {{...at, button: 0, pointerType: 'mouse', bubbles: true}}));"
        "return 1; })()"
    )


def test_a_figure_tells_the_value_under_the_pointer(chromium, made):
    page = chromium.open_page(made("one")[1])
    page.evaluate("document.querySelector('#curves .plot').scrollIntoView({behavior: 'instant'}); 1")
    points = "JSON.parse(document.querySelector('#curves .plot script').textContent)"
    box = [
        float(n) for n in page.evaluate("document.querySelector('#curves .plot svg').getAttribute('viewBox')").split()
    ]
    _, x, y, text = page.evaluate(f"{points}.at(-1)")
    page.evaluate(pointer("pointermove", (x / box[2], y / box[3])))
    assert page.evaluate("document.querySelector('.tip').textContent") == text
    assert re.fullmatch(r"Adam_C.*: [\d.]+", text)
    assert page.evaluate("document.querySelectorAll('.dot').length") == 1
    page.evaluate(pointer("pointerleave", (0, 0)))
    assert page.evaluate("document.querySelector('.tip').hidden")


def test_a_rectangle_enlarges_a_figure_and_a_double_click_goes_back(chromium, made):
    page = chromium.open_page(made("one")[1])
    view = "document.querySelector('#curves .plot svg').getAttribute('viewBox')"
    whole = page.evaluate(view)
    for kind, place in (("pointerdown", (0.3, 0.3)), ("pointermove", (0.5, 0.5)), ("pointerup", (0.6, 0.6))):
        page.evaluate(pointer(kind, place))
    assert [float(n) for n in page.evaluate(view).split()][2] == pytest.approx(0.3 * float(whole.split()[2]), rel=0.02)
    page.evaluate(pointer("dblclick", (0.5, 0.5)))
    assert page.evaluate(view) == whole


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
        ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
        ticks = page.evaluate("getComputedStyle(document.querySelector('.plot text')).fill")
        lines = page.evaluate("[...document.querySelectorAll('.plot path')].map((e) => getComputedStyle(e).stroke)")
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
    shown = (
        "[...document.querySelector('#curves .plot').querySelectorAll('[data-entry]')]"
        ".filter((e) => e.getBoundingClientRect().width > 0).length"
    )
    before = page.evaluate(shown)
    page.click("#curves .legend button")
    assert page.evaluate(shown) == before - 2
    assert page.evaluate("document.querySelector('#curves .legend button').getAttribute('aria-pressed')") == "false"


@pytest.mark.parametrize("kind", ["compare", "fair"])
def test_a_phone_shows_one_column_and_never_scrolls_sideways(chromium, made, kind):
    page = chromium.open_page(made(kind)[1], width=390, height=800)
    assert page.evaluate("document.documentElement.scrollWidth") == 390
    wide = "[...document.querySelectorAll('.plot svg')].filter((e) => e.getBoundingClientRect().right > 390).length"
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
