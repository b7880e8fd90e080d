"""What a page opens with, and what it never says: a verdict that nothing can carry."""

from __future__ import annotations

import pytest
import report_helpers as helpers
from report_helpers import data_of

from critgrad.lab.stats import Interval, Pair, judge
from critgrad.paper.protocol import ARMS
from critgrad.paper.protocol.announced import AnnouncedSource
from critgrad.paper.protocol.records import Decomposition, Term
from critgrad.paper.report.analysis_figures import decomposition_figures
from critgrad.paper.report.opening import _labels
from critgrad.paper.report.sections import build
from critgrad.paper.report.study_figures import ablation
from critgrad.paper.report.verdict_tables import tally


@pytest.mark.parametrize("kind", ["compare", "fair", "paper", "one", "analyses"])
def test_every_page_opens_with_words(made, kind):
    page = build(AnnouncedSource(made(kind)[0]))
    first = page.sections[0]
    if kind != "analyses":
        assert first.id == "answer"
        (block,) = first.blocks
        assert block.words
        assert len(block.figures) == 1
        assert not block.tables


def test_arms_are_explained_where_they_stand(made):
    page = build(AnnouncedSource(made("compare")[0]))
    (block,) = next(section for section in page.sections if section.id == "verdicts").blocks
    told = dict(block.terms)
    assert ARMS["C"].summary in told.values()
    named = {name.strip() for names in told for name in names.split(", ")}
    assert {row["label"] for row in data_of(made("compare")[1])["tables"][block.tables[0].id]} >= {"SGD", "SGD_C"}
    assert {"SGD", "SGD_C"} <= named


@pytest.mark.parametrize("seeds, shown", [(1, "one seed"), (2, "not tested"), (5, "not tested"), (6, "better")])
def test_nothing_is_won_or_lost_where_nothing_can_be_tested(seeds, shown):
    values = [1.0 + 0.01 * k for k in range(seeds)]
    (row,) = judge([Pair("t", "f", "a", "b", values, [0.0] * seeds)])
    assert row.shown == shown
    assert ("better" in tally([row])) == (shown == "better")


def test_each_row_of_the_opening_figure_has_a_name_of_its_own():
    def row(task, family, rival):
        return judge([Pair(task, family, "Nesterov_F", rival, [1.0, 2.0], [0.0, 0.0], primary=True)])[0]

    one, other = row("digits-mlp", "SGD_F-rival", "Nesterov"), row("digits-mlp", "SGDM_F-rival", "Nesterov")
    assert _labels([one, row("mnist-mlp", "SGD_F-rival", "SGD")], True) == [
        "digits-mlp: Nesterov_F",
        "mnist-mlp: Nesterov_F",
    ]
    both = ["Nesterov_F − Nesterov [SGD]", "Nesterov_F − Nesterov [SGDM]"]
    assert _labels([one, other], False) == both
    assert _labels([one, other, one], False) == [*both, f"{both[0]} (2)"]


@pytest.mark.parametrize("seeds, drawn", [(2, False), (3, True)])
def test_two_seeds_have_no_interval_in_any_figure_of_the_paper(seeds, drawn):
    gap = {"mean": 1.0, "low": -76.0, "high": 78.0}
    row = {"optimizer": "Adam_C", "variant": "RR", "reference": "KotH", "difference": gap, "runs": seeds}
    row |= {"test": 1.0, "low": -76.0, "high": 78.0, "values": [1.0] * seeds, "diverged": 0, "train_loss": 1.0}
    (figure,) = ablation({"metric": "accuracy", "studies": {"replacement": [row]}}, "toy").figures
    (points,) = figure.series
    assert [low is not None for low in points.low] == [drawn]
    assert ("too few" in figure.caption) == (not drawn)
    found = Interval(1.0, -76.0, 78.0, seeds)
    part = Decomposition("SGD", "C", (Term("delay", "C", "base", found),), found)
    (figure,) = decomposition_figures("toy", "accuracy (%)", [part])
    assert [low is not None for low in figure.series[0].low] == [drawn, drawn]


@pytest.mark.parametrize("seeds, drawn", [(2, False), (3, True)])
def test_two_seeds_have_no_interval_where_arms_stand_beside_their_base(tmp_path, monkeypatch, seeds, drawn):
    monkeypatch.setattr(helpers, "SEEDS", seeds)
    helpers.comparison(tmp_path / "runs.db")
    figures = [f for f in build(AnnouncedSource(tmp_path / "runs.db")).figures if "too few" in f.caption or drawn]
    beside = [f for f in figures if f.id.startswith(("improvement", "acceleration"))]
    assert {f.id.split("-")[0] for f in beside} == {"improvement", "acceleration"}
    assert all(any(low is not None for low in f.series[0].low) == drawn for f in beside)
