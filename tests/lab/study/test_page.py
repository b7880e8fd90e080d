"""The page of a study: what stands on it, and what a browser makes of it."""

import html
import math
import re
from html.parser import HTMLParser

import pytest
from made_up import ANSWERS, answer, arm, arms, searched_arm

from critgrad.lab.study import page as study_page
from critgrad.lab.study.figures import value_scale
from critgrad.lab.study.verdict import sentence


@pytest.fixture(scope="session")
def made(tmp_path_factory):
    """``made(name)``: (answer, file of its page)."""
    known = {}

    def get(name):
        if name not in known:
            path = tmp_path_factory.mktemp(name) / "report.html"
            found = ANSWERS[name]()
            study_page.write_page(found, path)
            known[name] = found, path
        return known[name]

    return get


class Elements(HTMLParser):
    """Open elements must be closed in order; their names are kept."""

    VOID = frozenset(("meta", "link", "br"))

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.seen.append(tag)
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.seen.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


@pytest.mark.parametrize("kind", ANSWERS)
def test_a_page_is_well_formed_and_has_no_script(made, kind):
    found = Elements(made(kind)[1].read_text())
    assert not found.open
    assert "script" not in found.seen
    assert found.seen.count("svg") > 3


@pytest.mark.parametrize("kind", ANSWERS)
def test_one_sentence_per_claim_comes_first(made, kind):
    found, path = made(kind)
    text = path.read_text()
    places = [text.index(html.escape(sentence(claim, found.trials))) for claim in found.claims]
    assert places == sorted(places)
    assert all(place < text.index("<main>") for place in places)
    assert all(html.escape(name) in text for name in found.arms)


def test_a_page_without_all_replicates_says_so_before_its_claims(made):
    text = made("not_final")[1].read_text()
    assert text.index("Not final: 4 of 10 replicates are whole") < text.index('class="claims"')
    assert "after a look doubles the false alarms" in text
    assert "Not final" not in made("one_claim")[1].read_text()


def test_failures_are_counted_listed_and_crossed(made):
    text = made("failures")[1].read_text()
    assert "2 of 8 replicates have runs that count as untrained (failed)" in text
    assert "mine, replicate 2" in text
    assert "RuntimeError: singular (mine.py:31)" in text
    assert 'class="crosses"' in text


def test_every_replicate_and_every_trial_is_drawn(made):
    found, path = made("six_claims")
    text = path.read_text()
    assert len(re.findall(r'class="replicate"', text)) == sum(len(claim.differences) for claim in found.claims)
    trials = sum(len(one.trials) for arm in found.arms.values() for one in arm.replicates)
    panels = text.split('id="trials"')[1].split("</section>")[0]
    dots = sum(path.count("M") for path in re.findall(r'class="dots trial" d="([^"]*)"', panels))
    crosses = sum(path.count("M") for path in re.findall(r'class="crosses" d="([^"]*)"', panels))
    assert dots + crosses + panels.count('class="chosen"') == trials


def test_what_users_wrote_cannot_break_the_page(tmp_path):
    name = "<script>alert(1)</script>"
    made = arms(searched_arm("adamw", 0.3, 6, 4), searched_arm(name, 0.2, 6, 4))
    found = answer(
        made, [(name, ("adamw",))], 6, title=name, notes=(name,), provenance={name: "a\n" + name, "b": [name]}
    )
    study_page.write_page(found, tmp_path / "report.html")
    assert "<script" not in (tmp_path / "report.html").read_text()
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]


def test_a_name_that_is_no_text_does_not_cost_the_page(tmp_path):
    made = arms(searched_arm("adamw", 0.3, 6, 4), searched_arm("sgd", 0.2, 6, 4))
    study_page.write_page(answer(made, [("sgd", ("adamw",))], 6, title="folder \udcff"), tmp_path / "report.html")
    assert "<title>folder ?</title>" in (tmp_path / "report.html").read_text()


def test_values_without_a_spread_or_a_number_can_be_drawn():
    made = arms(arm("a", [1.0] * 6), arm("b", [1.0] * 6))
    assert "the same runs" in study_page.render(answer(made, [("a", ("b",))], 6))
    lost = arms(arm("a", [math.nan]), arm("b", [2.0]))
    assert "Values" in study_page.render(answer(lost, [], 6, initial=math.nan))


def test_a_far_replicate_stands_at_the_edge_and_does_not_squeeze_the_others(made):
    values = [1.0, 1.1, 0.9, 1.2, 0.8, 1.05, 1.0, 500.0]
    found = answer(arms(arm("a", values), arm("b", [0.0] * 8)), [("a", ("b",))], 8, direction="max")
    text = study_page.render(found)
    assert "beyond the axis" in text
    assert "beyond the axis" not in made("one_claim")[1].read_text().split("<figcaption>")[0]


def test_the_scale_of_values_does_not_reach_for_the_worst_and_is_logarithmic_where_they_span_much():
    assert 1.0 < value_scale([0.3, 0.5, 400.0], 0.0, 1.0, worst=1.0).high < 1.2
    assert -0.1 < value_scale([-400.0, 0.3, 0.5], 0.0, 1.0, worst=0.0, direction="max").low < 0.0
    assert value_scale([0.001, 0.9], 0.0, 1.0).log
    assert not value_scale([0.3, 0.9], 0.0, 1.0).log


# -- in a browser ------------------------------------------------------------------------------------------------------

CLIPPED = """(() => {
  const out = [];
  for (const svg of document.querySelectorAll("main svg")) {
    const box = svg.getBoundingClientRect();
    for (const part of svg.querySelectorAll("text, circle, rect, path")) {
      const inner = part.getBoundingClientRect();
      if (inner.left < box.left - 1 || inner.right > box.right + 1 || inner.top < box.top - 1 || inner.bottom > box.bottom + 1)
        out.push(svg.getAttribute("aria-label") + ": " + (part.textContent || part.getAttribute("class")));
    }
  }
  for (const box of document.querySelectorAll(".table-box, pre, li, p, dd, h5, .wide"))
    if (box.scrollWidth > box.clientWidth + 1 && getComputedStyle(box).display !== "inline")
      out.push(box.className + box.textContent.slice(0, 60));
  if (document.documentElement.scrollWidth > innerWidth) out.push("the page itself");
  return out;
})()"""
OVERLAP = """(() => {
  const out = [];
  for (const svg of document.querySelectorAll("main svg")) {
    const texts = [...svg.querySelectorAll("text")].map((t) => [t.textContent, t.getBoundingClientRect()]);
    for (let i = 0; i < texts.length; i++) for (let j = i + 1; j < texts.length; j++) {
      const [a, b] = [texts[i][1], texts[j][1]];
      if (a.left < b.right - 1 && b.left < a.right - 1 && a.top < b.bottom - 3 && b.top < a.bottom - 3)
        out.push(svg.getAttribute("aria-label") + ": " + texts[i][0] + " | " + texts[j][0]);
    }
  }
  return out;
})()"""


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [700, 1400])
@pytest.mark.parametrize("kind", ANSWERS)
def test_nothing_is_clipped_fetched_or_complained_about(chromium, made, kind, width, dark):
    page = chromium.open_page(made(kind)[1], width=width, dark=dark)
    assert page.evaluate(CLIPPED) == []
    assert page.evaluate(OVERLAP) == []
    assert page.console_errors == []
    assert page.requests == []


def test_colours_follow_the_system(chromium, made):
    seen = {}
    for dark in (False, True):
        page = chromium.open_page(made("one_claim")[1], dark=dark)
        parts = {"ground": ("body", "backgroundColor"), "text": (".said", "color"), "arm": (".chosen", "fill")}
        colours = {
            what: page.evaluate(f"getComputedStyle(document.querySelector('{css}')).{part}")
            for what, (css, part) in parts.items()
        }
        seen[dark] = {what: sum(map(int, re.findall(r"\d+", colour)[:3])) / 3 for what, colour in colours.items()}
    assert seen[False]["text"] < 60 < 200 < seen[False]["ground"]
    assert seen[True]["ground"] < 60 < 200 < seen[True]["text"]
    assert seen[False]["arm"] < seen[True]["arm"]
