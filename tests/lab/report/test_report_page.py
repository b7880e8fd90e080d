"""What stands on the page, and that it equals what the lab computes."""

import json
import re
import sys
from dataclasses import replace

import pytest
import report_helpers as helpers

from critgrad.lab.ledger import Ledger, LedgerError, Role
from critgrad.lab.ledger import records as ledger_records
from critgrad.lab.report import parts
from critgrad.lab.report.figure import Figure, FigureAxis
from critgrad.lab.report.table import comparison_record, notes_of
from critgrad.lab.run.results import plain
from critgrad.lab.run.spec import Trial
from critgrad.lab.stats import Pair, judge
from critgrad.paper import compare
from critgrad.paper.analyses import ANALYSES
from critgrad.paper.protocol import paper_best, paper_grid, tables
from critgrad.paper.protocol.announced import AnnouncedSource
from critgrad.paper.report import write_report
from critgrad.paper.report.panels import compared
from critgrad.paper.report.sections import build
from critgrad.paper.report.verdict_tables import suite_table, tally

KINDS = ("one", "compare", "fair", "analyses", "paper")


def sections_of(page):
    return re.findall(r'<section id="([^"]+)"', page.read_text(encoding="utf-8"))


@pytest.mark.parametrize("kind", KINDS)
def test_a_page_is_small_and_loads_nothing_from_elsewhere(made, kind):
    text = made(kind)[1].read_text(encoding="utf-8")
    assert len(text) < 1_000_000
    assert text.count("<svg ") >= text.count("<figure ") > 0
    assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", text)
    assert re.findall(r'<link [^>]*href="([^"]*)"', text) == ["data:,"]
    assert not re.search(r"\bsrc=|@import|url\((?!#)", text)
    names = re.findall(r'\bid="([^"]+)"', text)
    assert len(set(names)) == len(names)  # figures' own names among them


def test_one_run_gives_its_curves_and_its_summary_and_no_verdict(made):
    page = made("one")[1]
    assert sections_of(page) == ["answer", "runs", "curves", "memory", "cost", "provenance"]
    (row,) = helpers.data_of(page)["tables"]["table-runs-digits-mlp--epochs-8"]
    assert row["optimizer"] == "Adam_C"
    assert row["test"]["n"] == 1
    assert row["test"]["low"] is None


def test_the_embedded_comparison_is_what_compare_computes(made):
    ledger, page = made("compare")
    (found,) = compared(AnnouncedSource(ledger))
    with Ledger.open(ledger) as book:
        rows = book.rows(task="digits-mlp", track="compare")
    lines = compare.lines(found.defaults, ["SGD", "Adam"], helpers.SEEDS, rows)
    embedded = helpers.data_of(page)["tables"]["table-compare-digits-mlp-6"]
    assert [row["label"] for row in embedded] == [line.label for line in lines]
    assert len(lines) == 12
    for row, line in zip(embedded, lines):
        assert row["test"]["mean"] == line.test.mean
        assert row["runs"] == [r.key for r in line.rows]
        expected = comparison_record(line.comparison, line.comparison.note) if line.comparison else None
        assert row["comparison"] == expected


def test_the_embedded_primaries_are_the_protocols_own(made):
    ledger, page = made("fair")
    plan = helpers.plan_of_sweep()
    outcome = tables(AnnouncedSource(ledger), plan)
    assert outcome.complete
    assert len(outcome.primary) == 4
    assert outcome.decompositions
    data = helpers.data_of(page)["tables"]
    name = f"digits-mlp-{plan.hash[:8]}"
    for key, rows in (("primary", outcome.primary), ("descriptive", outcome.descriptive)):
        expected = [comparison_record(row, note) for row, note in zip(rows, notes_of(rows))]
        assert data[f"table-{key}-{name}"] == plain(expected)
    arms = data[f"table-arms-{name}"]
    assert [(a["family"], a["arm"], a["values"]) for a in arms] == [
        (a.family, a.arm, list(a.values)) for a in outcome.arms
    ]
    assert {"decompose", "trials", "acceleration", "improvement"} < set(sections_of(page))


def test_a_plan_that_was_not_committed_is_said_to_be_so_and_a_committed_one_names_its_commit(made, tmp_path):
    assert "not registered: values were changed" in made("fair")[1].read_text(encoding="utf-8")
    helpers.fair_sweep(tmp_path / "runs.db", commit="c0ffee" * 6)
    text = write_report(tmp_path / "runs.db", tmp_path / "page.html")[0].read_text(encoding="utf-8")
    assert "not registered" not in text.split('<script type="application/json"')[0]
    assert "Registered in commit c0ffeec0ffee" in text


def test_the_embedded_analyses_are_what_collect_gives(made):
    ledger, page = made("analyses")
    kept = helpers.data_of(page)["analyses"]
    assert set(kept) == set(ANALYSES)
    with Ledger.open(ledger) as book:
        for name, analysis in ANALYSES.items():
            (entry,) = kept[name]
            if analysis.measure is None:
                found = analysis.collect(entry["task"], analysis.rows(book, entry["task"]))
                assert entry["data"] == json.loads(json.dumps(plain(found))), name
    assert "SYNTHETIC data: digits-mlp@tiny" in page.read_text(encoding="utf-8")


def test_paper_tracks_stand_beside_the_papers_numbers(made):
    data = helpers.data_of(made("paper")[1])["tables"]
    rows = {row["optimizer"]: row for row in data["table-paper-best-ptb-lstm"]}
    assert rows["Adam_C"]["paper"] == {"value": 133.28, "spread": 0.61}
    assert rows["Adam_C"]["seeds"] == 5
    assert rows["Adam_C"]["comparison"]["rival"] == "Adam"
    assert rows["Adam"]["comparison"] is None
    assert len(data["table-paper-best-cifar10-convnet"]) == 8


def test_one_seed_has_no_verdict(tmp_path):
    """A pair of single runs has no interval: to call it a tie would say that nothing is there."""
    path = tmp_path / "one.db"
    with Ledger.open(path, write=True, create=True) as book:
        helpers.add(book, paper_best("ptb-lstm", seeds=1).plan(book))
    text = write_report(path, tmp_path / "one.html")[0].read_text(encoding="utf-8")
    assert text.count(">one seed<") == 4
    assert "= tie" not in text
    pair = judge([Pair("t", "Adam_C", "Adam_C", "Adam", [2.0], [1.0])])
    six = [1.0, 2.1, 3.0, 1.5, 2.5, 3.5]
    several = judge([Pair("t", "Adam_C", "Adam_C", "Adam", [value + 1 + 0.01 * value for value in six], six)])
    assert tally(pair) == "too few seeds for a test"
    assert tally(several) == "1 better, 0 worse, 0 same, 0 open"
    assert tally([*pair, *several]) == "1 better, 0 worse, 0 same, 0 open, 1 with too few seeds for a test"


def test_failed_runs_are_shown_with_their_error_escaped(made):
    text = made("compare")[1].read_text(encoding="utf-8")
    assert "RuntimeError: out of &lt;memory&gt; &amp; luck" in text
    assert "1 run failed" in text


def test_an_analysis_keeps_runs_with_other_settings_apart(tmp_path):
    path = tmp_path / "runs.db"
    analysis = ANALYSES["gt-vs-gc"]
    with Ledger.open(path, write=True, create=True) as book:
        for epochs in (3, 5):
            options = helpers.Options(2, {"epochs": epochs})
            helpers.add(book, analysis.trials("digits-mlp", options))
    kept = build(AnnouncedSource(path)).analyses["gt-vs-gc"]
    assert sorted(len(entry["data"]["lines"][0]["gc"]) for entry in kept) == [3, 5]


def test_an_empty_ledger_gives_a_page_that_says_so(tmp_path):
    with Ledger.open(tmp_path / "runs.db", write=True, create=True):
        pass
    text = write_report(tmp_path / "runs.db", tmp_path / "page.html")[0].read_text(encoding="utf-8")
    assert "no finished runs" in text
    assert "<section" not in text


def test_a_title_is_text_and_never_markup(tmp_path, made):
    page = write_report(made("one")[0], tmp_path / "page.html", title="<b>{{STYLE}}</b>")[0]
    assert "<title>&lt;b&gt;{{STYLE}}&lt;/b&gt;</title>" in page.read_text(encoding="utf-8")


def test_a_missing_ledger_is_named(tmp_path):
    with pytest.raises(LedgerError, match=r"no ledger at .*none\.db"):
        write_report(tmp_path / "none.db", tmp_path / "page.html")


@pytest.mark.slow
def test_figures_become_files_in_the_formats_asked_for(tmp_path, made):
    written = write_report(made("one")[0], tmp_path / "page.html", formats=("svg,png", "pdf"))
    figures = len(build(AnnouncedSource(made("one")[0])).figures)
    assert figures == 5
    assert len(written) == 1 + 3 * figures
    assert all(path.stat().st_size > 1000 for path in written)
    assert {path.parent.name for path in written[1:]} == {"page-figures"}
    svg = next(path for path in written if path.suffix == ".svg").read_text(encoding="utf-8")
    assert "validation accuracy (%)" in svg  # text stays text


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["fair", "analyses", "paper"])
def test_every_kind_of_figure_can_be_a_file(tmp_path, made, kind):
    written = write_report(made(kind)[0], tmp_path / "page.html", formats=("svg",))
    assert len(written) == 1 + len(build(AnnouncedSource(made(kind)[0])).figures)
    assert all(path.stat().st_size > 1000 for path in written)


def test_an_unknown_format_is_named(tmp_path, made):
    with pytest.raises(ValueError, match="Invalid format: 'gif', expected some of svg, pdf, png"):
        write_report(made("one")[0], tmp_path / "page.html", formats=("gif",))
    assert not (tmp_path / "page.html").exists()


def test_without_matplotlib_the_page_says_what_to_install(tmp_path, made, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'critgrad\[lab\]'"):
        write_report(made("one")[0], tmp_path / "page.html")


@pytest.mark.slow
def test_ten_thousand_rows_make_a_small_page_from_few_curves(tmp_path, monkeypatch):
    path = tmp_path / "runs.db"
    roles = (Role("train", "Adam", "Adam_C", "report"),)
    lrs = [1e-4 * 1.02**k for k in range(400)]
    with Ledger.open(path, write=True, create=True) as book:
        for task in ("mnist-mlp", "mnist-logreg"):
            helpers.add(book, paper_grid(task, settings={"epochs": 10}).plan(book))
        trials = [Trial("digits-mlp", n, {"lr": lr}, s) for n in ("Adam", "Adam_C") for lr in lrs for s in range(3)]
        helpers.add(book, [(trial, roles) for trial in trials])
    unpacked = []
    unpack = ledger_records.unpack
    monkeypatch.setattr(ledger_records, "unpack", lambda *packed: unpacked.append(1) or unpack(*packed))
    page = write_report(path, tmp_path / "page.html")[0]
    data = helpers.data_of(page)
    assert data["facts"]["runs"] == "10,400"
    assert page.stat().st_size < 6_000_000
    assert len(unpacked) < 300
    grid = {row["optimizer"]: row["settings_tried"] for row in data["tables"]["table-paper-grid-mnist-mlp-10"]}
    assert grid["Adam"] == 45
    assert grid["Adam_C"] == 405


def test_without_scripts_figures_and_tables_are_there_and_the_page_says_what_is_missing(made):
    text = made("compare")[1].read_text(encoding="utf-8")
    assert '<noscript><p class="warning">JavaScript is off' in text
    assert len(re.findall(r"<tr>.*?</tr>", text)) > 20
    for figure in re.findall(r"<figure .*?</figure>", text, re.DOTALL):
        assert re.search(r"<svg .*<path .*</svg>", figure, re.DOTALL)


def test_runs_whose_plan_is_unknown_are_counted_and_left_out(tmp_path):
    path = tmp_path / "runs.db"
    with Ledger.open(path, write=True, create=True) as book:
        trial = Trial("digits-mlp", "Adam", {"lr": 1e-3}, 0, {"epochs": 3}, registration="f" * 32)
        helpers.add(book, [(trial, (Role("fair", "Adam", "base", "tune"),))])
    report = build(AnnouncedSource(path))
    assert any("1 runs carry a registration (ffffffffffff)" in text for text in report.banners)
    assert [section.id for section in report.sections] == ["provenance"]


def test_two_tasks_are_corrected_together_as_well(made, tmp_path):
    plan = helpers.plan_of_sweep()
    outcome = tables(AnnouncedSource(made("fair")[0]), plan)
    assert suite_table([outcome]) is None
    twin = replace(
        outcome,
        registration=replace(plan, task="mnist-mlp"),
        pairs=tuple(replace(pair, task="mnist-mlp") for pair in outcome.pairs),
    )
    found = suite_table([outcome, twin])
    assert len(found.records) == 8
    assert {record["task"] for record in found.records} == {"digits-mlp", "mnist-mlp"}
    alone = {(row.family, row.p_holm) for row in outcome.primary}
    assert all((r["family"], r["p_holm"]) not in alone or r["p_holm"] == 1 for r in found.records)
    later = replace(twin, registration=replace(plan, task="mnist-mlp", question="finer"))
    asked = suite_table([outcome, twin, later])
    told = {(r["task"], r["family"]): r["note"] for r in asked.records if "asked again" in r["note"]}
    assert told.keys() == {("mnist-mlp", row.family) for row in later.primary}
    assert all(
        f"asked again in mnist-mlp+finer: {row.verdict}" in told["mnist-mlp", row.family] for row in later.primary
    )


def test_unreachable_is_asked_of_one_memory_at_a_time():
    values = [1.0 + 0.1 * k for k in range(7)]
    pairs = [
        Pair("t", f"{base}_{m}", m, "base", values, [0.0] * 7, primary=True) for m in "CF" for base in ("SGD", "Adam")
    ]
    assert notes_of([row for m in (pairs[:2], pairs[2:]) for row in judge(m)]) == [""] * 4
    six = [Pair("t", f"{base}_C", "C", "base", values[:6], [0.0] * 6, primary=True) for base in ("SGD", "Adam")]
    assert all("unreachable" in note for note in notes_of(judge(six)))


def test_a_page_with_too_many_figures_keeps_some_of_every_task():
    def figure(task, number):
        return Figure(f"{task}-{number}", f"{task}, fair: {number}", FigureAxis("x"), FigureAxis("y"), ())

    figures = [figure("a", k) for k in range(6)] + [figure("b", k) for k in range(2)]
    assert parts.of_every_task(figures, 5) == {"a-0", "b-0", "a-1", "b-1", "a-2"}
    assert parts.shares([3, 100, 10], 33) == [3, 20, 10]
    assert parts.shares([3, 4], 33) == [3, 4]
