from __future__ import annotations

import pytest
from cli_helpers import small_registration

from critgrad.paper.analyses import inside, outcomes

INLINE = ("--executor", "inline", "--seeds", 1)


@pytest.fixture(autouse=True)
def _small_grids(monkeypatch):
    monkeypatch.setattr(outcomes, "TOPCS", (2, 5))
    monkeypatch.setattr(outcomes, "DECAYS", (0.0, 0.7))
    monkeypatch.setattr(outcomes, "FLIPS", (0.0, 1.0))
    monkeypatch.setattr(inside, "STALENESS_TOPC", (5,))
    monkeypatch.setattr(inside, "STALENESS_DECAY", (0.7, 0.99))
    monkeypatch.setattr(inside, "NORMS_TOPC", (5, 10))


@pytest.mark.parametrize(
    "words, runs, said",
    [
        ("analyze staleness digits-mlp@tiny", 2, "mean age"),
        ("analyze gt-vs-gc digits-mlp@tiny", 2, "stored / current"),
        ("analyze sensitivity digits-mlp@tiny", 4, "digits-mlp@tiny: Adam_C: every cell"),
        ("analyze noise noise-logreg@tiny", 16, "accuracy by share of flipped labels"),
        ("analyze convex covtype-logreg@tiny", 8, "covtype-logreg@tiny: training loss"),
        ("analyze damping digits-mlp@tiny -o SGD_F", 1, "span, first epoch"),
        ("ablate digits-mlp@tiny -o Adam_C", 15, "minus the default"),
    ],
)
@pytest.mark.parametrize("engine", ["single", "bank"])
def test_each_analysis_runs_what_is_missing_and_prints_its_numbers(cli, words, runs, said, engine):
    words = (*words.split(), *INLINE, "--set", "epochs=2", "--engine", engine)
    text = cli(*words)
    assert said in text
    name = "ablation" if words[0] == "ablate" else words[1]
    assert f"{name}: {runs}/{runs}" in text
    again = cli(*words)
    assert "to go" not in again
    assert again in text
    assert {row.trial.engine for row in cli.rows(purpose=f"analysis:{name}")} == {engine}


def test_runs_of_other_settings_do_not_mix(cli):
    first = cli("analyze", "sensitivity", "digits-mlp@tiny", *INLINE, "--set", "epochs=1")
    cli("analyze", "sensitivity", "digits-mlp@tiny", *INLINE, "--set", "epochs=3")
    cli("analyze", "sensitivity", "digits-mlp@tiny", *INLINE, "--set", "epochs=1", "-o", "SGD_C")
    assert cli("analyze", "sensitivity", "digits-mlp@tiny", *INLINE, "--set", "epochs=1") in first


def test_runtime_stands_beside_the_papers_table(cli):
    text = cli("analyze", "runtime", "mnist-mlp@tiny", *INLINE, "--set", "batch_size=2")
    lines = {line.split()[0]: line.split() for line in text.splitlines() if line[:4].strip().isdigit()}
    assert list(lines) == ["0", "5", "10", "20", "50", "100"]
    assert lines["0"][3] == "1"
    assert [line[-2] for line in lines.values()] == ["1", "1.67", "2", "2.67", "4.67", "7.67"]


def test_spectrum_is_measured_and_kept(cli):
    text = cli("analyze", "spectrum")
    assert "SGD " in text
    from critgrad.lab.ledger import Ledger

    with Ledger.open(cli.folder / "runs.db") as book:
        (kept,) = book.analyses("spectrum")
    assert len(kept.data["rows"]) > 20


def test_decompose_reads_a_finished_sweep(cli, monkeypatch):
    plan = small_registration()
    monkeypatch.setattr("critgrad.paper.protocol.tracks.find", lambda task: plan)
    cli("sweep", "digits-mlp@tiny", "--executor", "inline")
    text = cli("analyze", "decompose", "digits-mlp@tiny")
    assert "total" in text
    for effect in ("step size", "delay", "selection"):
        assert effect in text
    assert "No decomposition of 'mnist-mlp'" in cli.error("analyze", "decompose", "mnist-mlp")


def test_a_failed_run_is_missing_and_told(cli, monkeypatch):
    def fails(*_, **__):
        raise RuntimeError("no luck")

    words = ("analyze", "damping", "digits-mlp@tiny", "-o", "SGD_F", "--set", "epochs=1", *INLINE)
    with monkeypatch.context() as patch:
        patch.setattr("critgrad.lab.train.loop.train", fails)
        assert "1 runs have failed: --retry runs them once more" in cli(*words, code=1)
    assert "1 runs have failed: --retry runs them once more" in cli(*words, code=1)
    assert "have failed" not in cli(*words, "--retry")


def test_a_stopped_analysis_speaks_of_no_failure_where_there_is_none(cli):
    words = ("analyze", "damping", "digits-mlp@tiny", "-o", "SGD_F", *INLINE, "--seconds", 0)
    text = cli(*words, code=1)
    assert "1 runs are still to be made: the same command goes on with them" in text
    assert "retry" not in text


def test_report_writes_a_page_and_figures(cli):
    cli("train", "digits-mlp@tiny", "--epochs", 1)
    text = cli("report", "--out", "page.html", "--title", "mine")
    assert text.strip() == "page.html"
    assert "<title>mine" in (cli.folder / "page.html").read_text()
    assert "Invalid format: 'gif'" in cli.error("report", "--format", "gif")


def test_theory_tells_what_a_user_wants_to_know(cli):
    text = cli("theory", "--topC", 5, "--decay", 0.7, "--aggr", "sum")
    for word in ("effective step       2 * lr", "staleness", "safe lr * L", "matched momentum"):
        assert word in text


def test_playground_writes_its_page(cli, monkeypatch):
    opened = []
    monkeypatch.setattr("webbrowser.open", lambda address: opened.append(address) or True)
    assert "play.html" in cli("playground", "--out", "play.html", "--no-open")
    assert not opened
    cli("playground", "--out", "play.html")
    assert opened == [(cli.folder / "play.html").as_uri()]
