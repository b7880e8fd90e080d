"""The page in a real browser: it draws, answers the mouse and the keyboard, and shows the library's numbers."""

from __future__ import annotations

import numpy as np
import pytest
from playground_frames.run import FRAMES, SurfaceRun
from playground_frames.surfaces import SURFACES
from test_playground_frames import ALL, assert_same, pick

READY = "document.documentElement.dataset.ready === 'yes'"
DAMPED = "rosenbrock/SGD_C,1,1,1/SGD_F,3,1,2/30"
DIVERGED = "noisy-quadratic/SGDM,2,1,1/SGDM_C,3,1,1/119"


@pytest.fixture(scope="module")
def open_at(chromium, page_file):
    def open_at(choice="", **look):
        page = chromium.open_page(f"{page_file.resolve().as_uri()}#{choice}", **look)
        page.wait_for(READY)
        return page

    return open_at


@pytest.fixture(scope="module")
def page(open_at):
    return open_at(DAMPED)


def choose(page, choice):
    """Go to a choice by the page's address."""
    page.evaluate(f"play(false), location.hash = '#{choice}', recall(), refresh(), document.activeElement.blur(), 0")
    return page


@pytest.fixture
def fresh(page):
    """The one page, back at its first choice."""
    return choose(page, DAMPED)


def colours(page, selector):
    """How many pixels of each colour a canvas has, the faint ones left out."""
    return page.evaluate(
        f"""(() => {{ const c = document.querySelector('{selector}'), copy = document.createElement('canvas');
        [copy.width, copy.height] = [c.width, c.height];
        const ctx = copy.getContext('2d', {{willReadFrequently: true}});
        ctx.drawImage(c, 0, 0);
        const d = ctx.getImageData(0, 0, c.width, c.height).data, n = {{}};
        for (let i = 0; i < d.length; i += 4) if (d[i + 3] > 60) {{
          const k = '#' + [0, 1, 2].map((j) => d[i + j].toString(16).padStart(2, '0')).join('').toUpperCase();
          n[k] = (n[k] || 0) + 1; }}
        return n; }})()"""
    )


@pytest.mark.parametrize("look", [{}, {"dark": True}, {"width": 390, "dark": True}], ids=["light", "dark", "phone"])
def test_it_opens_without_an_error_a_request_or_a_scroll_bar_across(open_at, look):
    page = open_at(DAMPED, **look)
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    for canvas in ("#map", "#loss", "#card-a .slots", "#card-b .slots", "#card-b .compass"):
        assert sum(colours(page, canvas).values()) > 500, canvas
    background = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (sum(int(v) for v in background[4:-1].split(",")) < 200) == look.get("dark", False)
    assert page.console_errors == []
    assert page.requests == []


def test_both_walks_are_drawn_in_their_colours(fresh):
    seen = colours(fresh, "#map")
    assert seen["#0072B2"] > 100
    assert seen["#D55E00"] > 100


def test_the_damped_direction_is_drawn_beside_the_raw_one_on_one_scale(fresh):
    drawn = fresh.evaluate(
        """(() => { const real = arrow, seen = [];
        arrow = (ctx, at, by, color, how) => { seen.push({at, by, color, hollow: Boolean(how.hollow)}); };
        mapView.draw(runs, state.surface, {b: current.b}, 30);
        arrow = real;
        return seen; })()"""
    )
    handed, raw = sorted(drawn, key=lambda one: one["hollow"])
    assert (handed["hollow"], raw["hollow"]) == (False, True)
    assert handed["at"] == raw["at"]
    assert handed["color"] == "#D55E00"
    run = pick("rosenbrock", "SGD_F", lr=3, decay=0.99).simulate(31)
    unit = np.hypot(*raw["by"]) / np.linalg.norm(run.gradient[30])
    # Downhill is minus the gradient, and on a screen y grows downwards.
    np.testing.assert_allclose(raw["by"], run.gradient[30] * [-unit, unit], rtol=1e-2)
    np.testing.assert_allclose(handed["by"], run.direction[30] * [-unit, unit], rtol=1e-2)


@pytest.mark.parametrize("number", range(10))
def test_the_browser_reads_the_numbers_that_were_recorded(page, frames, number):
    setting = ALL[(number * 151 + 7) % len(ALL)]
    header = frames.header
    choice = {
        "optimizer": [o["name"] for o in header["optimizers"]].index(setting.optimizer.name),
        "lr": setting.surface.lrs[setting.optimizer.family].index(setting.lr),
        "topC": header["topC"].index(setting.topC) if setting.topC else 0,
        "decay": header["decay"].index(setting.decay) if setting.topC else 0,
    }
    read = page.evaluate(
        f"""(() => {{ const run = runs.find({SURFACES.index(setting.surface)}, {choice});
        const all = (f) => Array.from({{length: run.length}}, (_, t) => f(t));
        return {{position: all((t) => run.position(t)), loss: all((t) => run.loss(t)),
          gradient: all((t) => run.gradient(t)), direction: all((t) => run.direction(t)),
          priority: all((t) => run.slots(t).map((s) => s ? s.priority : 0)),
          age: all((t) => run.slots(t).map((s) => s ? s.age : 0)),
          stored: all((t) => run.slots(t).map((s) => s ? s.gradient : [0, 0]))}}; }})()"""
    )
    stored = np.array(read.pop("stored"))
    shown = SurfaceRun(**{name: np.array(value) for name, value in read.items()})
    recorded = frames[setting]
    assert len(shown.loss) == len(recorded.loss)
    assert_same(shown, recorded, setting.surface, FRAMES)
    for t, k in zip(*np.nonzero(recorded.age)):
        np.testing.assert_allclose(stored[t, k], recorded.gradient[t - recorded.age[t, k]], rtol=1e-9)


def test_the_shown_norms_are_those_of_a_fresh_run(fresh):
    run = pick("rosenbrock", "SGD_F", lr=3, decay=0.99).simulate(31)
    shown = fresh.evaluate("['g', 'd'].map((key) => Number(cards.b.numbers[key].textContent))")
    lengths = [np.linalg.norm(run.gradient[30]), np.linalg.norm(run.direction[30])]
    np.testing.assert_allclose(shown, lengths, rtol=6e-3)  # three digits
    assert shown[1] < shown[0]
    assert "SGD_F" in fresh.evaluate("document.querySelector('#telling').textContent")


def test_the_slots_move_with_the_step(fresh):
    ages = "document.querySelector('#card-a .slots').getAttribute('aria-label')"
    before, picture = fresh.evaluate(ages), colours(fresh, "#card-a .slots")
    fresh.click("#forward")
    assert fresh.evaluate("document.querySelector('#clock').value") == "step 31 of 120"
    assert fresh.evaluate(ages) != before
    assert colours(fresh, "#card-a .slots") != picture
    fresh.click("#back")
    assert fresh.evaluate(ages) == before


def test_sliders_obey_the_keyboard(fresh):
    for knob, label in (("lr", "0.001"), ("topC", "10"), ("decay", "0.99")):
        loss = fresh.evaluate("current.a.loss(60)")
        fresh.evaluate(f"document.querySelector('#{knob}-a').focus()")
        fresh.press("ArrowRight", 39)
        fresh.wait_for(f"cards.a.knobs.{knob}.output.value === '{label}'")
        assert fresh.evaluate(f"document.querySelector('#{knob}-a').getAttribute('aria-valuetext')") == label
        assert fresh.evaluate("current.a.loss(60)") != loss
    assert "SGD_C,2,2,2" in fresh.evaluate("location.hash")


def test_play_walks_on_and_pauses(fresh):
    fresh.click("#play")
    assert fresh.evaluate("document.querySelector('#play').textContent") == "Pause"
    fresh.wait_for("state.t >= 33")
    fresh.click("#play")
    assert fresh.evaluate("document.querySelector('#play').textContent") == "Play"
    assert not fresh.evaluate("state.playing")


def test_scrubbing_and_a_new_surface_change_the_picture(fresh):
    before = colours(fresh, "#map")
    fresh.evaluate("document.querySelector('#scrub').focus()")
    fresh.press("End", 35)
    fresh.wait_for("state.t === 120")
    assert colours(fresh, "#map") != before
    fresh.evaluate(
        "(() => { const s = document.querySelector('#surface'); s.value = 3; s.dispatchEvent(new Event('change')); })()"
    )
    assert "saddle" in fresh.evaluate("document.querySelector('#story').textContent")
    assert fresh.evaluate("current.b.surface.key") == "saddle"


def test_every_surface_and_optimizer_can_be_drawn(fresh):
    drawn = fresh.evaluate(
        """(() => { let n = 0;
        for (let s = 0; s < HEADER.surfaces.length; s++) for (let o = 0; o < HEADER.optimizers.length; o++) {
          state.surface = s; state.t = (s * 37 + o * 11) % FRAMES;
          state.a = {optimizer: o, lr: 3, topC: 3, decay: 2}; state.b = {optimizer: o, lr: 0, topC: 0, decay: 0};
          refresh(); n++; }
        return n; })()"""
    )
    assert drawn == 45
    assert fresh.console_errors == []


def test_a_diverged_run_is_called_so(fresh):
    page = choose(fresh, DIVERGED)
    left = page.evaluate("current.b.left")
    assert f"left the picture at step {left}" in page.evaluate("document.querySelector('#card-b .status').textContent")
    assert page.evaluate("document.querySelector('#card-a .status').textContent") == ""
    page.evaluate(f"go({left} - 1)")
    assert "iverged" not in page.evaluate("document.querySelector('#card-b .status').textContent")


def test_knobs_of_a_memory_rest_where_there_is_none(fresh):
    page = choose(fresh, DIVERGED)
    assert page.evaluate("KNOBS.map((knob) => cards.a.knobs[knob].slider.disabled)") == [False, True, True]
    assert page.evaluate("KNOBS.map((knob) => cards.b.knobs[knob].slider.disabled)") == [False, False, False]


def test_a_nonsense_address_is_ignored(fresh):
    page = choose(fresh, "mars/SGD_Q,9,9,9/SGD_C,-1,0,0/x")
    assert page.evaluate("[state.surface, current.a.optimizer.name, current.b.optimizer.name, state.t]") == [
        0,
        "SGD_C",
        "SGD_F",
        30,
    ]
    assert page.console_errors == []


def test_it_opens_with_a_base_and_its_memory_at_the_same_learning_rate(open_at):
    page = open_at()
    names, rates = (
        page.evaluate(f"SIDES.map((side) => {what})")
        for what in ("HEADER.optimizers[state[side].optimizer].name", "values('lr', side)[state[side].lr]")
    )
    assert names == ["SGD", "SGD_C"]
    assert rates[0] == rates[1]
