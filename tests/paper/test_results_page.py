"""The page of results: what the ledgers say and nothing else, and verdicts that follow their rules."""

from __future__ import annotations

from collections import Counter
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from scipy.stats import spearmanr
from search_runs import SearchRuns

from critgrad.lab.ledger.merge import merge
from critgrad.lab.stats import Interval, Pair, Speedup, judge, paired_difference, speedup
from critgrad.paper.protocol import Outcome, find, registered
from critgrad.paper.results_page import pages_of, render_results, rules, write_results
from critgrad.paper.results_page.__main__ import main
from critgrad.paper.results_page.claims import CLAIMS, verdicts
from critgrad.paper.results_page.damped import damped, damped_page, rank_correlation
from critgrad.paper.results_page.figures import best_by_rate, tuning_runs
from critgrad.paper.results_page.findings import Books, Findings, Study, gather
from critgrad.paper.results_page.judged import WORDS, all_judged, families, replaced
from critgrad.paper.results_page.nine_tasks import three_gains
from critgrad.paper.results_page.rules import HOLDS, NOT_SEEN, NOT_TESTED, UNTUNED
from critgrad.paper.results_page.searches import _on_fresh_seeds, found_searches
from critgrad.paper.results_page.studies import _far_from_trained, _outcome
from critgrad.paper.results_page.summary import _minus
from critgrad.paper.results_page.tasks import points_text
from critgrad.paper.results_page.text import interval, table
from critgrad.paper.results_page.twice import rms, twice, without_the_largest
from critgrad.paper.search import Confirmed
from critgrad.paper.search import find as find_search

ROOT = Path(__file__).parents[2]
LEDGERS = sorted((ROOT / "results").glob("*.db.xz"))


@pytest.fixture(scope="module")
def published() -> Findings:
    return gather(LEDGERS)


def test_pages_and_figures_are_exactly_what_the_command_writes(tmp_path: Path) -> None:
    written = write_results(LEDGERS[::-1], tmp_path)  # in whichever order
    there = [ROOT / "docs" / "results.md", *(path for path in (ROOT / "docs" / "results").rglob("*") if path.is_file())]
    assert {path.relative_to(tmp_path) for path in written} == {path.relative_to(ROOT / "docs") for path in there}
    for path in written:
        right = path.read_bytes() == (ROOT / "docs" / path.relative_to(tmp_path)).read_bytes()
        assert right, f"docs/{path.relative_to(tmp_path)} is not current: make results"


def test_what_an_earlier_version_left_goes(tmp_path: Path) -> None:
    (once,) = [path for path in LEDGERS if path.name == "every-task.db.xz"]
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "gone.md").write_text("old")
    written = write_results([once], tmp_path)
    assert {path for path in tmp_path.rglob("*.*") if path.is_file()} == set(written)


def test_a_comparison_is_in_one_family_of_tests(published: Findings) -> None:
    tests = families(published)
    inside = [(found.outcome.name, found.row.family) for of in tests.values() for found in of.rows]
    assert len(inside) == len(set(inside))
    assert len(inside) + len(replaced(published)) == len(all_judged(published)) == 161
    assert all(set(of.counts) <= set(WORDS) for of in tests.values())
    for of in tests.values():  # one correction: the largest of Holm's p is never below any p of its table
        known = [found.row for found in of.rows if found.row.p_holm is not None]
        assert all(row.p_holm >= row.p for row in known)


def test_words_of_the_suite_are_what_they_were_before_there_was_a_margin(published: Findings) -> None:
    tests = families(published)
    assert (tests["C"].counts["better"], tests["C"].counts["worse"]) == (0, 22)
    assert (tests["F"].counts["better"], tests["F"].counts["worse"]) == (2, 8)
    assert (tests["C-rare"].counts["better"], tests["C-rare"].counts["worse"]) == (1, 6)
    assert (tests["F-rare"].counts["better"], tests["F-rare"].counts["worse"]) == (4, 1)


def test_the_luck_of_the_search_is_that_of_what_was_searched_twice(published: Findings) -> None:
    rows = twice(published)
    largest, rest = without_the_largest(rows)
    assert (len(rows), round(rms(rows), 1), round(rest, 1)) == (27, 1.8, 1.4)
    assert (largest.name, largest.arm) == ("ptb-lstm@b420+finer", "NAdam")


def test_readme_says_what_the_ledgers_say(published: Findings) -> None:
    """Every number of "Should you use it?", computed here."""
    text = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    tests = families(published)
    outcomes = {outcome.name: outcome for outcome in published.outcomes}
    adding, damping = tests["C"], tests["F"]
    assert f"{adding.counts['better']} of {len(adding.rows)} comparisons, worse in {adding.counts['worse']}" in text
    luck = rms(twice(published))
    (gain,) = {f"{one.row.difference:.5f}" for one in damping.rows if one.row.verdict == "better"}
    counted = f"damping better in {damping.counts['better']} of {len(damping.rows)} (by {gain} of a loss)"
    assert f"{counted}, worse in {damping.counts['worse']}" in text
    assert all(one.survives(luck) for one in damping.rows if one.row.verdict in ("better", "worse"))

    def lost(name: str) -> list[float]:
        return sorted(-found.row.difference for found in adding.rows if found.outcome.name == name)

    penn, cifar = lost("ptb-lstm@b420"), lost("cifar10-convnet")
    assert f"Penn Treebank: adding lost {penn[0]:.0f} to {penn[-1]:.0f} perplexities" in text
    assert f"at batch 420, at most {max(-row.row.difference for row in tests['C-ptb-lstm+paper'].rows):.0f} at" in text
    assert all(found.row.verdict == "worse" for found in adding.rows if found.outcome.name == "cifar10-convnet")
    damped = [one.row for one in damping.rows if one.outcome.name == "cifar10-convnet"]
    low, high = min(row.difference for row in damped), max(row.difference for row in damped)
    assert {row.verdict for row in damped} == {"open"}
    assert f"lost {cifar[0]:.1f} to {cifar[-1]:.1f} points, damping is open, {low:.1f} to {high:+.1f};" in text
    lstms = Counter(found.row.verdict for found in damping.rows if "lstm" in found.outcome.name)
    assert set(lstms) == {"same", "open"}
    assert sum(lstms.values()) == 8
    assert len({found.outcome.name for found in damping.rows if "lstm" in found.outcome.name}) == 4
    assert f"Damping, eight comparisons on four tasks: {lstms['same']} same, {lstms['open']} open" in text
    asked = outcomes["cifar10-convnet+rival"]
    (found,) = [one for one in tests["F-rival"].rows if one.outcome is asked and one.row.family == "Adam_F-rival"]
    assert f"gained {found.row.difference:.1f} ± {found.row.interval.half_width:.1f} on the rival" in text
    assert found.survives(luck)
    assert _rounded(asked, "Adam", "F-rival", "rival") == (0.5, 0.5)
    assert "0.5 ± 0.5 on NAdam" in text
    phases = outcomes["digits-mlp@continual"]
    assert f"{_minus(phases, 'RMSprop', 'F', 'base')}, {_minus(phases, 'Adam', 'F-rival', 'rival')} points" in text
    headlined = [one for name in ("F-rare", "F-rival-rare") for one in tests[name].rows if one.outcome is phases]
    headlined = [one for one in headlined if one.row.family in ("RMSprop_F", "Adam_F-rival")]
    assert len(headlined) == 2
    assert all(one.row.verdict == "better" and one.survives(luck) for one in headlined)
    rare = {
        one.row.family: one
        for name in ("F-rare", "F-rival-rare")
        for one in tests[name].rows
        if one.outcome.name == "mnist-mlp@continual"
    }
    mnist = [rare[name].row.interval for name in ("RMSprop_F", "Adam_F-rival")]
    assert "MNIST in five phases: " + ", ".join(f"{of.mean:+.1f} ± {of.half_width:.1f}" for of in mnist) in text
    gains = np.array([shares for _, shares in three_gains(published)])
    there, tuned = (int((gains[:, column] > 0).sum()) for column in (1, 2))
    assert f"above its base in {there} of {len(gains)} pairs; tuned alike, in {tuned}" in text
    assert f"moved {luck:.1f} times" in text


def _rounded(outcome: Any, family: str, arm: str, other: str) -> tuple[float, float]:
    mine, theirs = outcome.arm(family, arm), outcome.arm(family, other)
    found = paired_difference(mine.values, theirs.values, higher_is_better=outcome.registration.higher_is_better)
    return round(found.mean, 1), round(found.half_width, 1)


def test_the_line_of_the_figure_is_the_best_of_a_third_of_a_decade() -> None:
    runs = [
        (f"e{i}", decades, value + i / 100) for i in range(4) for decades, value in ((0.0, 0.2), (0.1, 0.9), (1.0, 0.5))
    ]
    assert best_by_rate(runs) == [(0.0, pytest.approx(0.915)), (1.0, pytest.approx(0.515))]
    assert best_by_rate(runs[:6]) == []  # two experiments are too few


def test_all_tuning_runs_of_full_length_are_in_the_figure(published: Findings) -> None:
    """The base's own choice learns 1 by definition: the mean of its tuning runs lies at 100 %, at 0 decades."""
    arms = tuning_runs(published)["Adam"]
    at_choice = [value for name, decades, value in arms["base"] if decades == 0 and name == "digits-mlp"]
    assert np.mean(at_choice) == pytest.approx(1.0)
    assert all(len(runs) > 300 for runs in arms.values())


def test_the_published_ledgers_fit() -> None:
    assert LEDGERS
    assert sum(path.stat().st_size for path in LEDGERS) < 10 * 2**20
    assert not list((ROOT / "results").glob("*.db-wal"))


def test_a_page_of_single_runs_has_no_verdict_that_needs_more() -> None:
    (once,) = [path for path in LEDGERS if path.name == "every-task.db.xz"]
    pages = render_results([once])
    assert "## Every task once" in pages["results/runs.md"]
    assert "results/adding.md" not in pages
    found = {row.number: row.verdict for row in verdicts(gather([once]))}
    assert list(found) == [claim.number for claim in CLAIMS] == [str(number) for number in range(1, 21)]
    without_runs = {"12": NOT_SEEN, "15": HOLDS}  # theory, and an identity that is checked on the spot
    assert found == {number: without_runs.get(number, NOT_TESTED) for number in found}


def test_a_run_in_two_ledgers_counts_once(tmp_path: Path) -> None:
    (once,) = [path for path in LEDGERS if path.name == "every-task.db.xz"]
    merge(tmp_path / "part.db", [once], tasks=["ptb-lstm", "mnist-mlp"])
    books = Books([tmp_path / "part.db", once])
    assert len(books.done) == len({row.key for row in books.done}) == len(Books([once]).done)
    assert [row.trial.task for row in Findings(Books([tmp_path / "part.db"])).once] == ["mnist-mlp", "ptb-lstm"]


def test_a_missing_ledger_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path / "none.db"), "--out", str(tmp_path / "docs")]) == 1
    assert "no ledger at" in capsys.readouterr().err
    assert not (tmp_path / "docs").exists()


def test_cells_say_how_many_runs_have_the_worst_value_and_how_they_came_to_it() -> None:
    cell = {"test": 1e4, "low": 1e4, "high": 1e4, "runs": 3, "diverged": 1, "at_worst": 2}
    assert _outcome(cell) == "10000 ± 0 (1/3 diverged, 2/3 at the worst value)"
    assert _outcome({**cell, "diverged": 0, "at_worst": 0}) == "10000 ± 0"


def test_numbers_have_the_digits_that_their_interval_supports() -> None:
    assert interval(Interval(97.12345, 97.0, 97.24, 20)) == "97.12 ± 0.12"
    assert interval(Interval(-0.00001, -0.05, 0.05, 20), "+") == "0.000 ± 0.050"
    assert interval(Interval(0.0, 0.0, 0.0, 20), "+") == "0 (the same runs)"
    assert table(("a", "b"), [["x|y", "1"]], ("b",)) == "| a | b |\n| --- | --: |\n| x\\|y | 1 |\n"


# -- rules, on made-up outcomes ----------------------------------------------------------------------------------------


def primaries(*shifts: float) -> list:
    """One primary comparison for each shift, on 20 seeds whose noise is small beside a shift of 1."""
    rng = np.random.default_rng(0)
    pairs = []
    for index, shift in enumerate(shifts):
        base = rng.normal(90, 0.3, 20)
        arm = base + shift + rng.normal(0, 0.3, 20)
        pairs.append(Pair(f"task{index}", "Adam_F", "Adam_F", "Adam", arm.tolist(), base.tolist(), primary=True))
    return judge(pairs)


@pytest.mark.parametrize(
    "shifts, verdict",
    [
        ((1.0, 1.0, 1.0), HOLDS),
        ((1.0, 1.0, 0.0), HOLDS),
        ((1.0, 0.0, 0.0), NOT_SEEN),
        ((1.0, 1.0, -1.0), NOT_SEEN),
        ((-1.0, -1.0, -1.0), NOT_SEEN),
        ((0.0, 0.0, 0.0), NOT_SEEN),
        ((), NOT_TESTED),
    ],
)
def test_a_planted_improvement_is_found_and_anything_else_is_none(shifts: tuple[float, ...], verdict: str) -> None:
    assert rules.memory_wins(primaries(*shifts)) == verdict


def ratio(factor: float) -> Speedup:
    base = [20.0 + seed for seed in range(10)]
    return speedup([value / factor for value in base], base, limits=100.0)


def test_one_pair_that_is_not_sooner_refutes_every() -> None:
    fast, same, slow = ratio(2.0), ratio(1.0), ratio(0.5)
    assert rules.sooner([fast, fast], []).verdict == HOLDS
    assert rules.sooner([fast, same], []).verdict == NOT_SEEN
    assert rules.sooner([fast, slow], [fast, fast]).verdict == UNTUNED
    assert rules.sooner([fast, slow], [fast, slow]).verdict == NOT_SEEN
    assert rules.sooner([], [fast]).verdict == NOT_TESTED
    assert rules.sooner([fast, slow], []).effect.startswith("tuned alike 1 of 2 pairs sooner, 1 later")


def test_best_of_eight_waits_until_it_is_decided() -> None:
    def tasks(won: int, lost: int) -> dict[str, bool]:
        return {f"t{i}": i < won for i in range(won + lost)}

    assert rules.best_of_eight(tasks(6, 0), {}).verdict == HOLDS
    assert rules.best_of_eight(tasks(5, 3), {}).verdict == NOT_TESTED
    assert rules.best_of_eight(tasks(0, 4), {}).verdict == NOT_SEEN
    assert rules.best_of_eight(tasks(0, 4), tasks(6, 3)).verdict == UNTUNED
    assert rules.best_of_eight({}, tasks(9, 0)).verdict == NOT_TESTED


def test_the_largest_gain_is_not_seen_once_the_pairs_that_should_have_it_were_run() -> None:
    needed = [("ptb", "SGD"), ("wikitext", "SGD")]
    some, small = {("ptb", "SGD"), ("wikitext", "Adam")}, {"ptb (SGD_C)": 0.01, "wikitext (SGD_C)": 0.02}
    paper = {"ptb (SGD_C)": 0.3}
    assert rules.up_to({"ptb (Adam_C)": 0.25}, {}, run=some, needed=needed).verdict == HOLDS
    # Another pair of the task does not do.
    assert rules.up_to(small, paper, run=some, needed=needed).verdict == NOT_TESTED
    assert rules.up_to(small, {}, run=needed, needed=needed).verdict == NOT_SEEN
    assert rules.up_to(small, paper, run=needed, needed=needed).verdict == UNTUNED
    assert rules.up_to({}, paper, run=(), needed=needed).verdict == NOT_TESTED
    told = rules.up_to(small, {}, run=needed, needed=needed).effect
    assert told == "largest gain tuned alike 2.0%, wikitext (SGD_C)"


def times(*seconds: float) -> dict:
    points = [{"topC": topC, "epoch_seconds": value} for topC, value in zip((0, 5, 10, 20, 50, 100), seconds)]
    return {"points": points, "paper_minutes": (0.3, 0.5, 0.6, 0.8, 1.4, None)}


def test_time_grows_linearly_where_a_rising_line_describes_every_task() -> None:
    line, flat = times(1.0, 1.5, 2.0, 3.0, 6.0, 11.0), times(1.0, 1.5, 1.51, 1.5, 1.5, 1.51)
    bent = times(1.0, 1.0, 3.0, 6.0, 6.5, 6.6)
    assert rules.grows_linearly([line, line]).verdict == HOLDS
    assert rules.grows_linearly([line, flat]).verdict == NOT_SEEN
    assert rules.grows_linearly([bent]).verdict == NOT_SEEN
    assert rules.grows_linearly([]).verdict == rules.grows_linearly([times(1.0, 2.0)]).verdict == NOT_TESTED
    assert "describes 1 of 2 tasks" in rules.grows_linearly([line, flat]).effect
    assert "1.01 to 7.33 times as long (the paper's: 2.80 to 2.80)" in rules.grows_linearly([line, flat]).effect


def noise(shift: float) -> dict:
    rng = np.random.default_rng(1)
    base = [rng.normal(70, 5, 5) for _ in range(11)]

    def points(values: list) -> list[dict]:
        return [{"flip_y": i / 10, "values": row.tolist()} for i, row in enumerate(values)]

    mine = [row + shift + rng.normal(0, 0.2, 5) for row in base]
    return {"lines": [{"optimizer": "SGD", "points": points(base)}, {"optimizer": "SGD_C", "points": points(mine)}]}


def test_noise_does_harm_only_where_the_interval_lies_below_zero() -> None:
    assert rules.no_harm(noise(2.0)).verdict == rules.no_harm(noise(0.0)).verdict == HOLDS
    assert rules.no_harm(noise(-2.0)).verdict == NOT_SEEN
    assert rules.no_harm({"lines": []}).verdict == NOT_TESTED


def test_staleness_is_bounded_unless_ages_grow_with_training() -> None:
    steady = np.random.default_rng(2).integers(1, 20, (10, 5))
    growing = np.arange(1, 11)[:, None] * np.full((1, 5), 50)
    assert rules.ages_bounded([[steady]], [1000]).verdict == HOLDS
    assert rules.ages_bounded([[steady], [growing]], [1000, 1000]).verdict == NOT_SEEN
    assert rules.ages_bounded([], []).verdict == NOT_TESTED
    assert rules.ages_bounded([[np.zeros((4, 3), int)]], [100]).verdict == NOT_TESTED  # an empty memory


def study(name: str, optimizer: str, **variants: tuple[float, float] | None) -> dict:
    rows = [
        {"optimizer": optimizer, "variant": variant, "difference": ends and {"low": ends[0], "high": ends[1]}}
        for variant, ends in variants.items()
    ]
    return {"studies": {name: rows}}


def test_ablations() -> None:
    alike = study("selection", "Adam_C", KotH=None, random=(-0.1, 0.2))
    apart = study("selection", "Adam_C", KotH=None, random=(-0.3, -0.1))
    assert rules.variants_alike([alike], ["selection"]).verdict == HOLDS
    assert rules.variants_alike([alike, apart], ["selection"]).verdict == NOT_SEEN
    assert rules.variants_alike([alike], ["replacement"]).verdict == NOT_TESTED
    worse = study("aggregation", "SGD_C", sum=None, mean=(-0.3, -0.1))
    unclear = study("aggregation", "Adam_C", mean=None, sum=(-0.3, 0.1))
    losers = {"SGD_C": ["mean"], "Adam_C": ["sum"]}
    assert rules.variants_worse([worse], losers).verdict == HOLDS
    assert rules.variants_worse([worse, unclear], losers).verdict == NOT_SEEN
    assert rules.variants_worse([alike], losers).verdict == NOT_TESTED


@pytest.mark.parametrize("higher", [True, False])
def test_a_high_value_helps_only_where_it_beats_the_reference(higher: bool) -> None:
    sign = 1 if higher else -1

    def cells(gain: float) -> list[dict]:
        return [
            {"topC": 5, "decay": 0.7, "values": [1.0, 2.0, 3.0]},
            {"topC": 5, "decay": 0.99, "values": [1.0 + sign * gain, 2.0 + sign * gain * 1.1, 3.0 + sign * gain]},
        ]

    def of(gain: float) -> str:
        data = {"higher_is_better": higher, "cells": cells(gain), "chosen": {"topC": 5, "decay": 0.7}}
        return rules.no_help([data], "decay", (0.99, 1.0), {"topC": 5, "decay": 0.7}).verdict

    assert [of(1.0), of(-1.0), of(0.0)] == [NOT_SEEN, HOLDS, HOLDS]
    assert rules.no_help([], "decay", (0.99,), {"topC": 5, "decay": 0.7}).verdict == NOT_TESTED


def test_a_high_value_is_held_against_what_its_own_line_has_where_the_reference_lies_on_another() -> None:
    """Two lines that meet at decay .9: the cell of decay .7 is there, and nothing else with it."""
    cells = [
        {"topC": 5, "decay": 0.7, "values": [9.0, 9.0, 9.0]},
        {"topC": 5, "decay": 0.9, "values": [1.0, 2.0, 3.0]},
        {"topC": 50, "decay": 0.9, "values": [2.0, 3.1, 4.0]},
        {"topC": 100, "decay": 0.9, "values": [2.0]},  # one seed of three: no pair
    ]
    data = {"higher_is_better": True, "cells": cells, "chosen": {"topC": 5, "decay": 0.9}}
    ruling = rules.no_help([data], "topC", (50, 100), {"topC": 5, "decay": 0.7})
    assert ruling.verdict == NOT_SEEN
    assert ruling.effect.startswith("1 of 1 are better")


@pytest.mark.parametrize("at_20, verdict", [([2.0, 3.0, 4.1], HOLDS), ([1.0, 2.0, 3.0], NOT_SEEN), (None, NOT_TESTED)])
def test_above_a_limit_means_better_than_at_it(at_20: list[float] | None, verdict: str) -> None:
    """topC 50 beats topC 5 here in any case: whether more than 20 helps is another question."""
    cells = [
        {"topC": 5, "decay": 0.7, "values": [1.0, 2.0, 3.0]},
        {"topC": 50, "decay": 0.7, "values": [2.0, 3.1, 4.0]},
        *([{"topC": 20, "decay": 0.7, "values": at_20}] if at_20 else []),
    ]
    data = {"higher_is_better": True, "cells": cells, "chosen": {"topC": 5, "decay": 0.7}}
    ruling = rules.no_help([data], "topC", (50, 100), {"topC": 5, "decay": 0.7}, 20)
    assert ruling.verdict == verdict
    if at_20:
        assert "; 1 of 1 are better than topC 5 (or what was chosen), 0 worse" in ruling.effect


def findings_of(**known: Any) -> Findings:
    """Findings that read no ledger: what is asked of them is given."""
    made = Findings(Books.__new__(Books))
    made.__dict__.update(known)
    return made


@pytest.mark.parametrize("higher, found, far", [(False, 140.0, False), (False, 300.0, True), (True, 60.0, True)])
def test_a_study_whose_runs_end_far_from_a_tuned_base_says_so(higher: bool, found: float, far: bool) -> None:
    outcome = SimpleNamespace(task="one", arms=[SimpleNamespace(arm="base", test=SimpleNamespace(mean=130.0))])
    first = findings_of(claimable=[outcome], followed=[])
    later = findings_of(claimable=[], followed=[outcome])  # what was asked of a task later tells as much
    for task, expected in (("one", far), ("another", False)):
        study: Any = SimpleNamespace(task=task, data={"higher_is_better": higher})
        worse = found / 2 if higher else 2 * found
        for findings in (first, later):
            assert bool(_far_from_trained(findings, study, [worse, found])) == expected


def test_convergence_asks_for_a_loss_that_falls_in_every_run() -> None:
    def line(optimizer: str, end: float, diverged: int = 0) -> dict:
        return {"optimizer": optimizer, "diverged": diverged, "mean": [1.0, end]}

    assert rules.converges([{"lines": [line("SGD_C", 0.5), line("SGD", 2.0)]}]).verdict == HOLDS
    assert rules.converges([{"lines": [line("SGD_C", 0.5), line("Adam_C", 1.5)]}]).verdict == NOT_SEEN
    assert rules.converges([{"lines": [line("SGD_C", 0.5, diverged=1)]}]).verdict == NOT_SEEN
    assert rules.converges([{"lines": [], "lost": [{"optimizer": "SGD_C", "runs": 5}]}]).verdict == NOT_SEEN
    assert rules.converges([{"lines": [line("SGD", 0.5)]}]).verdict == NOT_TESTED


def test_selection_explains_gains_where_most_of_them_come_from_it() -> None:
    above, around = Interval(1.0, 0.5, 1.5, 20), Interval(0.1, -0.5, 0.7, 20)
    assert rules.selection_explains([above, above, around]).verdict == HOLDS
    assert rules.selection_explains([above, around]).verdict == NOT_SEEN
    assert rules.selection_explains([]).verdict == NOT_TESTED
    assert rules.selection_explains([above, None, None]).verdict == HOLDS  # what has no control says nothing
    assert rules.selection_explains([None]).verdict == NOT_TESTED


def test_a_search_lists_every_variant_and_says_how_many_were_tried() -> None:
    (ledger,) = [path for path in LEDGERS if path.name == "search.db.xz"]
    pages = pages_of(gather([ledger]))
    section = pages["results/search-damping-variants-digits-mlp.md"]
    search = find_search("damping-variants", "digits-mlp")
    for arm in search.arms:
        for family in arm.optimizer:
            assert (
                f"| {arm.name if search.is_variant(arm) else f'**{arm.name}**'} | {arm.optimizer[family]} |" in section
            )
    assert "best of 16 variants of 32 points each" in section
    assert "registered in commit" in section
    assert "results/adding.md" not in pages


def test_every_confirming_run_of_the_published_searches_is_counted_in_a_table() -> None:
    (ledger,) = [path for path in LEDGERS if path.name == "search.db.xz"]
    findings = gather([ledger])
    runs = Counter(
        (row.trial.registration, role.family, role.arm)
        for row in findings.books.done
        for role in row.roles
        if role.purpose == "report"
    )
    assert runs
    counted, open_runs = {}, []
    for track, made, _ in found_searches(findings):
        counted |= {(track.search.hash, row.family, row.arm): row.done for row in made.confirmed}
        if made.confirmed:  # else it was stopped before
            open_runs += SearchRuns(track.search, confirm=True).plan(findings.books)
    assert counted == runs
    assert not open_runs


def test_an_arm_without_its_confirming_runs_is_not_left_out() -> None:
    test = Interval(97.0, 96.5, 97.5, 10)
    minus = {"base": Interval(0.5, 0.1, 0.9, 10)}
    rows = [Confirmed("Adam", "base", False, 0, 10, None, {}), Confirmed("Adam", "root", True, 10, 10, test, minus)]
    text = _on_fresh_seeds(rows, ["base", "rival"])
    assert "| Adam | base | 0 of 10 | - |  |" in text
    assert "| Adam | root | 10 | 97.00 ± 0.50 | +0.50 ± 0.40 |" in text
    assert _on_fresh_seeds([], ["base"]) == ""


def test_both_memories_are_held_against_the_best_rival_and_the_claims_say_so() -> None:
    texts = {claim.number: claim.text for claim in CLAIMS}
    primaries = {primary for name in registered() for primary in find(name).primary if primary.arm in ("C", "F")}
    assert {primary.against for primary in primaries} == {("base", "rival", "momentum")}
    assert all(texts[number].endswith("beats the best equally tuned rival") for number in ("16", "17"))


def test_a_pair_without_a_yoked_twin_is_counted_and_its_task_is_not_among_those_with_one() -> None:
    def experiment(task: str, **arms: list[float]) -> Any:
        known = {name.replace("_", "-"): SimpleNamespace(family="SGD", values=of_arm) for name, of_arm in arms.items()}
        registration = SimpleNamespace(families=("SGD",), higher_is_better=True, arms=tuple(known))
        made = SimpleNamespace(task=task, registration=registration, arm=lambda family, name: known.get(name))
        made.difference = partial(Outcome.difference, made)
        made.minus = partial(Outcome.minus, made)
        return made

    base, better, best = [1.0, 2.0, 3.0], [2.0, 3.1, 4.0], [3.0, 4.1, 5.0]
    claimable = [
        experiment("one", base=base, C=better, C_yoked=better),
        experiment("two", base=base, C=best, C_yoked=base),
        experiment("three", base=base, C=base, C_yoked=base),
        experiment("four", base=base, C=better),
    ]
    found = findings_of(claimable=claimable, followed=[], analysis=lambda name: [])
    judges = {claim.number: claim.judge for claim in CLAIMS}
    (ran, explained), (also, alike) = judges["14"](found), judges["8"](found)
    assert ran == also == "tuned alike, with a twin that does not select: one, two, three"
    assert explained.effect == (
        "in 3 pairs _C beats its tuned base, of which 2 has a twin that does not select; "
        "selection by norm helps in 1 of these"
    )
    assert explained.verdict == NOT_SEEN
    assert alike.effect.endswith("makes a difference in 1 of 3 pairs")
    assert alike.more == "1 more pairs have no twin that does not select."


@pytest.mark.parametrize(
    "trials, widened, text",
    [
        ({"SGD": 32, "Adam": 32}, {"SGD": (), "Adam": ()}, "32 points for each tuned arm"),
        ({"Adam": 40}, {"Adam": ("low",)}, "40 points for each tuned arm (widened: low)"),
        (
            {"SGD": 40, "SGDM": 40, "Adam": 32},
            {"SGD": ("low",), "SGDM": ("low",), "Adam": ()},
            "points for each tuned arm: 40 with SGD, SGDM (widened: low) and 32 with Adam",
        ),
    ],
)
def test_the_points_of_a_widened_range_are_counted(trials: dict, widened: dict, text: str) -> None:
    outcome: Any = SimpleNamespace(trials=trials, widened=widened)
    assert points_text(outcome) == text


def test_what_damping_does_is_told_for_the_first_and_the_last_epoch() -> None:
    line = {
        "optimizer": "Adam_F",
        "runs": 5,
        "rho": None,
        "span_share": [0.5, 0.3, 0.25],
        "damped_ratio": [0.7, 0.8, 0.912],
    }
    line["spectrum"] = [[1.0, 1.0, 0.0], [1.0, 0.5, 0.5], [1.0, 0.0, 0.0]]
    study = Study("digits-mlp", {"epochs": 3}, {"lines": [line]})
    arms = {"F": SimpleNamespace(values=[3.0, 5.0, 4.0]), "base": SimpleNamespace(values=[2.0, 3.0, 1.0])}
    outcome = SimpleNamespace(
        name="digits-mlp",
        arm=lambda family, arm: arms[arm] if family == "Adam" else None,
        registration=SimpleNamespace(higher_is_better=True),
    )

    def found(*claimable: Any) -> Any:
        kinds = {"damping": [study]}
        return SimpleNamespace(studies=lambda name: kinds.get(name, []), claimable=claimable, apart=())

    row = "| digits-mlp, epochs 3 | Adam_F | 3, default | 5 | 50 | 25 | 0.70 | 0.91 | 2.0 | 1.0 |"
    text = damped_page(found())
    assert f"{row} - |" in text
    assert text.count("# ") == 1
    assert "rank correlation" not in text  # of one there is none
    assert f"{row} +2.0 ± 2.5 |" in damped_page(found(outcome))
    (only,) = damped(found(outcome))
    assert (only.share, only.taken, only.effect) == pytest.approx((0.35, 1 - 2.412 / 3, 2.0))


def test_rank_correlations_have_their_known_values_and_an_honest_p() -> None:
    rng = np.random.default_rng(1)
    a, b = rng.normal(size=30), rng.normal(size=30)
    r, p = rank_correlation(a.tolist(), b.tolist())
    right = spearmanr(a, b)
    assert r == pytest.approx(right.statistic)
    assert p == pytest.approx(right.pvalue, abs=0.02)
    close = rank_correlation(a.tolist(), (a + 0.1 * b).tolist())
    assert close[0] > 0.9
    assert close[1] == pytest.approx(1 / 10_001)
