"""What the memory holds: staleness, norms, damping."""

from __future__ import annotations

import numpy as np
import pytest
from analysis_helpers import collected, real

from critgrad.paper.analyses import ANALYSES, Options, inside

SHORT = {"epochs": 2}


def test_staleness_has_the_papers_grid():
    trials = [item.trial for item in ANALYSES["staleness"].trials("mnist-mlp", Options(5))]
    grid = {(trial.hyper["topC"], trial.hyper["decay"]) for trial in trials}
    assert grid == {(topC, decay) for topC in (5, 10, 20) for decay in (0.7, 0.9, 0.95, 0.99)}
    assert {trial.seed for trial in trials} == set(range(5))
    assert len(trials) == 60
    assert {trial.probe for trial in trials} == {("memory",)}


def test_ages_are_counted_in_bins_that_double():
    data = collected("staleness", "mnist-mlp", lambda trial: {"curves": {"ages": [[1, 2, 3, 0, 0], [4, 7, 8, 16, 1]]}})
    assert len(data["cells"]) == 12
    for cell in data["cells"]:
        assert cell["edges"] == [1, 2, 4, 8, 16, 32]
        # Twice (two seeds) the ages 1 1 | 2 3 | 4 7 | 8 | 16: a free slot has no age.
        assert cell["share"] == pytest.approx([2 / 8, 2 / 8, 2 / 8, 1 / 8, 1 / 8])
        assert cell["runs"] == 2
        assert (cell["mean"], cell["max"]) == (pytest.approx(42 / 8), 16)
    assert data["cells"] == sorted(data["cells"], key=lambda cell: (cell["topC"], cell["decay"]))


def test_a_memory_of_newborns_has_one_bin():
    data = collected("staleness", "mnist-mlp", lambda trial: {"curves": {"ages": [[1, 1]]}})
    assert data["cells"][0]["edges"] == [1, 2]
    assert data["cells"][0]["share"] == [1]


def test_a_run_that_diverged_at_once_has_no_ages():
    data = collected("staleness", "mnist-mlp", lambda trial: {"diverged": True, "curves": {}})
    assert data["cells"] == []


def test_real_ages_add_up_and_respect_the_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(inside, "STALENESS_TOPC", (3,))
    monkeypatch.setattr(inside, "STALENESS_DECAY", (0.0, 0.99))
    data = real("staleness", "digits-mlp@tiny", Options(2, SHORT), tmp_path)
    window, sticky = data["cells"]
    for cell in (window, sticky):
        assert sum(cell["share"]) == pytest.approx(1)
        assert cell["edges"][0] == 1
        assert cell["edges"][-1] > cell["max"]
    # decay 0 is a moving window: ages 1, 2, 3 and nothing else.
    assert (window["mean"], window["max"]) == (2, 3)
    assert sticky["mean"] > window["mean"]


def test_norms_are_means_over_seeds_and_their_ratio_is_a_median():
    def give(trial):
        factor = 1 + trial.seed  # seeds 0 and 1
        return {"curves": {"g_norm": [1.0 * factor, 2.0 * factor, 0.0], "gc_norm": [3.0 * factor, 4.0 * factor, 5.0]}}

    line = collected("gt-vs-gc", "ptb-lstm", give)["lines"][0]
    assert line["gt"] == [1.5, 3, 0]
    assert line["gc"] == [4.5, 6, 5]
    assert line["ratio"] == pytest.approx(2.5)  # of 3, 2, 3, 2: an epoch without a gradient has no ratio


def test_diverged_runs_have_no_line_of_norms():
    data = collected("gt-vs-gc", "ptb-lstm", lambda trial: {"diverged": True})
    assert data["lines"] == []


def test_real_norms_of_a_memory_of_the_largest_exceed_the_current(tmp_path, monkeypatch):
    monkeypatch.setattr(inside, "NORMS_TOPC", (3,))
    (line,) = real("gt-vs-gc", "digits-mlp@tiny", Options(2, {"epochs": 3}), tmp_path)["lines"]
    assert len(line["gc"]) == len(line["gt"]) == 3
    assert line["runs"] == 2
    assert np.isfinite(line["ratio"])
    assert line["ratio"] > 0


def test_real_damping_lies_between_nothing_and_all(tmp_path):
    data = real("damping", "digits-mlp@tiny", Options(1, SHORT), tmp_path)
    assert [line["optimizer"] for line in data["lines"]] == ["SGD_F", "SGDM_F", "RMSprop_F", "Adam_F"]
    for line in data["lines"]:
        assert len(line["span_share"]) == 2
        assert all(0 <= share <= 1 for share in line["span_share"])
        assert all(0 < ratio <= 1 + 1e-6 for ratio in line["damped_ratio"])
        for spectrum in line["spectrum"]:
            assert spectrum[0] == 1
            assert spectrum == sorted(spectrum, reverse=True)
