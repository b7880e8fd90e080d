"""The page of results with what the large tasks will bring, on made-up runs: every cell is there, or named as missing."""

from __future__ import annotations

import json
import re
from dataclasses import asdict
from pathlib import Path

import pytest
from report_helpers import add

from critgrad.lab.ledger import Ledger
from critgrad.lab.ledger.committed import Standing, document_name
from critgrad.paper.analyses import ANALYSES, Options
from critgrad.paper.protocol import Fair, find, paper_best, paper_grid
from critgrad.paper.protocol.paper_values import OPTIMIZERS, RUN_TIMES
from critgrad.paper.results_page import render_results
from critgrad.paper.results_page.claims import Verdict, verdicts
from critgrad.paper.results_page.findings import gather
from critgrad.paper.results_page.rules import NOT_SEEN, NOT_TESTED


def section(pages: dict[str, str], title: str) -> str:
    """A section of whichever page has it, to the next one of its level or above."""
    level = title.split()[0]
    (text,) = [text for path, text in pages.items() if path != "results/README.md" and f"\n{title}\n" in f"\n{text}"]
    _, _, rest = f"\n{text}".partition(f"\n{title}\n")
    return re.split(rf"\n#{{1,{len(level)}}} ", rest)[0]


def lines_of(text: str, first: str) -> list[list[str]]:
    """The rows of a table that begin with a word."""
    cells = [[cell.strip() for cell in line.strip("| ").split(" | ")] for line in text.splitlines() if line[:1] == "|"]
    return [row for row in cells if row[0] == first]


def claim(ledgers: list[Path], number: str) -> Verdict:
    return next(row for row in verdicts(gather(ledgers)) if row.number == number)


@pytest.fixture(scope="module")
def paper(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("paper") / "paper.db"
    with Ledger.open(path, write=True, create=True) as book:
        add(book, paper_best("ptb-lstm", seeds=3).plan(book))
        fast = paper_best("ptb-lstm@b420", seeds=1, settings={"tf32": True}).plan(book)
        add(book, [planned for planned in fast if planned.trial.optimizer != "SGD_C"])
        add(book, paper_best("snli-conv", seeds=2).plan(book))
        few = paper_best("multiwoz-roberta", seeds=1).plan(book)
        add(book, [planned for planned in few if planned.trial.optimizer in ("Adam", "Adam_C")])
        add(book, paper_grid("mnist-mlp", seeds=2, trials=2).plan(book))
    return path


def test_the_papers_table_stands_beside_both_batch_sizes_with_their_seeds(paper: Path) -> None:
    text = section(render_results([paper]), "## ptb-lstm, paper-best")
    assert "| ptb-lstm (3 seeds) | ptb-lstm@b420, tf32 True (1 seed) | the paper's |" in text
    (row,) = lines_of(text, "Adam")
    assert row[-1] == "153.54 ± 1.65"
    assert "±" in row[2]
    assert "±" not in row[3]  # one seed has no interval
    assert len([line for name in OPTIMIZERS for line in lines_of(text, name)]) == 8
    assert lines_of(text, "SGD_C")[0][3] == "missing"
    assert "Missing: ptb-lstm@b420, tf32 True: SGD_C." in text
    assert "Where the setting is not the paper's: the paper gives neither batch size nor epochs" in text


def test_the_page_says_which_batch_size_fits_the_papers_table(paper: Path) -> None:
    text = section(render_results([paper]), "## ptb-lstm, paper-best")
    (fit,) = [line for line in text.splitlines() if line.startswith("Mean distance")]
    assert "ptb-lstm " in fit
    assert "ptb-lstm@b420, tf32 True " in fit
    assert "rank correlation" in fit
    assert "Nearest: ptb-lstm" in fit
    alone = section(render_results([paper]), "## snli-conv, paper-best")
    assert "Mean distance" in alone
    assert "Nearest" not in alone


def test_a_twin_stands_beside_its_task(tmp_path: Path) -> None:
    path = tmp_path / "twins.db"
    with Ledger.open(path, write=True, create=True) as book:
        add(book, paper_best("sgd-bilstm", seeds=3).plan(book))
        add(book, paper_best("multiwoz-bilstm", seeds=2).plan(book))
    text = section(render_results([path]), "## multiwoz-bilstm, paper-best")
    assert "| multiwoz-bilstm (2 seeds) | sgd-bilstm (3 seeds) | the paper's |" in text
    assert "multiwoz-bilstm (2 seeds)" in claim([path], "1").ran
    assert "sgd-bilstm" not in claim([path], "1").ran


def test_roberta_is_shown_and_not_held_against_the_paper(paper: Path) -> None:
    text = section(render_results([paper]), "## multiwoz-roberta, paper-best")
    assert "multiwoz-roberta (1 seed)" in text
    assert "the paper's (not comparable)" in text
    assert "Not comparable with the paper's column: from random weights" in text
    assert "Mean distance" not in text
    assert "Missing: multiwoz-roberta: " in text
    for number in ("1", "2"):
        assert "multiwoz-roberta" not in claim([paper], number).ran


def test_what_the_paper_settings_say_of_claims_1_and_2_is_told_with_its_seeds(paper: Path) -> None:
    first, second = claim([paper], "1"), claim([paper], "2")
    assert first.ran == second.ran == "paper-best: ptb-lstm (3 seeds), snli-conv (2 seeds)"
    assert (first.verdict, second.verdict) == (NOT_TESTED, NOT_TESTED)
    assert re.fullmatch(r"at the paper's settings a memory is best on \d of 2 tasks", first.effect)
    assert second.more.endswith("tuned alike: SGD_C on ptb-lstm not run, SGD_C on wikitext2-lstm not run.")


def test_the_papers_gains_stand_beside_ours_with_what_is_missing(paper: Path) -> None:
    text = section(render_results([paper]), "# The paper's gains, and what tuning leaves of them")
    rows = {row[1]: row for row in lines_of(text, "ptb-lstm")}
    assert list(rows) == ["SGD_C", "SGDM_C", "RMSprop_C", "Adam_C"]
    assert rows["SGD_C"][2] == "386.6, 295.3 (+23.6%)"  # a perplexity that falls is a gain
    base, mine = (_mean(paper, name) for name in ("SGD", "SGD_C"))
    assert rows["SGD_C"][3] == f"{base:.4g}, {mine:.4g} ({(base - mine) / base:+.1%}; 3 seeds)"
    assert rows["SGD_C"][4] == "not run"
    assert not lines_of(text, "multiwoz-roberta")  # not comparable
    assert not lines_of(text, "cifar100-convnet")  # nothing was run
    assert "pairs that have all three" not in text


def _mean(ledger: Path, optimizer: str) -> float:
    with Ledger.open(ledger) as book:
        found = [row.summary["test"] for row in book.rows(task="ptb-lstm") if row.trial.optimizer == optimizer]
    return sum(found) / len(found)


def test_the_gain_that_tuning_leaves_is_that_of_the_fair_experiment() -> None:
    published = Path(__file__).parents[3] / "results" / "language.db.xz"
    text = section(render_results([published]), "# The paper's gains, and what tuning leaves of them")
    (row,) = [row for row in lines_of(text, "ptb-lstm") if row[1] == "SGD_C"]
    with Ledger.open(published) as book:
        reported = {"base": [], "C": []}
        for found in book.rows(task="ptb-lstm", registration=find("ptb-lstm+paper").hash):
            for role in found.roles:
                if (role.family, role.purpose) == ("SGD", "report") and role.arm in reported:
                    reported[role.arm].append(found.summary["test"])
    base, mine = (sum(values) / len(values) for values in reported.values())
    assert row[4].startswith(f"ptb-lstm+paper: {base:.4g}, {mine:.4g} ({(base - mine) / base:+.1%}; ")
    assert row[4].endswith("; 7 seeds)")


def test_a_question_asked_again_is_corrected_over_all_of_its_kind_and_has_every_rival() -> None:
    published = Path(__file__).parents[3] / "results" / "language.db.xz"
    pages = render_results([published])
    text = section(pages, "### ptb-lstm+check: announced comparisons")
    (row,) = lines_of(text, "NAdam_F")
    p, over_all = float(row[5]), float(row[6])
    assert p < over_all <= 1  # one of several of its kind
    (each,) = [line for line in text.splitlines() if line.startswith("- NAdam_F minus ")]
    names = [part.rsplit(" ", 3)[0] for part in each.removeprefix("- NAdam_F minus ").split(", ")]
    assert names == ["Adam", "NAdam", "Adam tuned beta1"]
    assert f"{row[3]} {row[2]}" in each  # the announced one is among them
    (same,) = lines_of(section(pages, "## On the rival: all tasks but the rare ones"), "ptb-lstm+check")
    assert same[2] == row[1]  # one comparison has one word


def test_the_grid_says_its_seeds(paper: Path) -> None:
    assert "on the same seeds (2 seeds)" in section(render_results([paper]), "## mnist-mlp, paper-grid")


# -- fair experiments --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def fair_runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The two language models as announced, on made-up runs."""
    path = tmp_path_factory.mktemp("fair") / "fair.db"
    with Ledger.open(path, write=True, create=True) as book:
        for task in ("ptb-lstm@b420", "wikitext2-lstm@b420"):
            announced(book, Fair(find(task)))
    return path


def announced(book: Ledger, track: Fair) -> None:
    """All made-up runs of a committed registration."""
    text = json.dumps({**asdict(Standing("c" * 40)), "registration": track.registration.to_dict()})
    book.put_document(document_name(track.registration.hash), text)
    while planned := track.plan(book):
        add(book, planned)


def test_a_variant_stands_for_its_task(fair_runs: Path) -> None:
    first, second = claim([fair_runs], "1"), claim([fair_runs], "2")
    assert first.ran == second.ran == "fair: ptb-lstm@b420, wikitext2-lstm@b420"
    assert first.effect == "tuned alike a memory is best on 0 of 2 tasks"
    assert first.verdict == NOT_TESTED  # two of nine
    assert second.verdict == NOT_TESTED  # the paper saw its 23 % on these two, with SGD


def test_experiments_that_differ_in_their_question_alone_stand_for_a_task_together(
    fair_runs: Path, tmp_path: Path
) -> None:
    """The pair without momentum was asked for later, with the same epochs and batch size."""
    path = tmp_path / "later.db"
    with Ledger.open(path, write=True, create=True) as book:
        announced(book, Fair(find("wikitext2-lstm@b420+sgd")))
    first, second = claim([fair_runs, path], "1"), claim([fair_runs, path], "2")
    assert first.ran == "fair: ptb-lstm@b420, wikitext2-lstm@b420+sgd, wikitext2-lstm@b420"
    assert "tuned alike: SGD_C on ptb-lstm not run, SGD_C on wikitext2-lstm " in second.more
    assert second.verdict == NOT_TESTED  # one of the two pairs
    assert "SGD_C on wikitext2-lstm not run" in claim([fair_runs], "2").more


def test_the_sections_of_the_fair_experiments_and_the_decomposition_are_there(fair_runs: Path) -> None:
    text = render_results([fair_runs])
    assert "10 report seeds" in section(text, "## ptb-lstm@b420")
    assert "7 report seeds" in section(text, "## wikitext2-lstm@b420")
    parts = section(text, "# What the differences are made of")
    assert {row[1] for row in lines_of(parts, "ptb-lstm@b420")} == {"SGDM_C", "Adam_C", "SGDM_F", "Adam_F"}
    rows = lines_of(section(text, "## Damping: the suite's tasks"), "wikitext2-lstm@b420")
    assert len(rows) == 2
    assert not any("not testable" in row[2] for row in rows)  # seven seeds, two families


def test_tasks_of_a_track_that_have_other_numbers_of_seeds_are_not_told_as_one(paper: Path) -> None:
    (row,) = lines_of(section(render_results([paper]), "# What was run"), "4 tasks")
    assert (row[1], row[6]) == ("paper-best", "1 to 3")


def test_what_has_not_been_run_is_named(fair_runs: Path, paper: Path, tmp_path: Path) -> None:
    text = section(render_results([fair_runs, paper]), "## What has not been run")
    said = {line.split("**")[1]: line for line in text.splitlines() if line.startswith("- **")}
    fair, settings, ablations = (
        re.fullmatch(
            r"- .*?\. Run: (.*?)\. Not run: (.*?)\.|- .*?\. Run: (.*?)\. Nothing is missing\.", said[label]
        ).groups()
        for label in (
            "test table and curves, all tuned alike",
            "test table and curves, at the paper's settings",
            "ablations",
        )
    )
    assert fair[0] == "ptb-lstm@b420, wikitext2-lstm@b420"
    assert fair[1].startswith("cifar10-convnet, cifar100-convnet, multiwoz-roberta")
    assert settings[0].split(", ") == ["ptb-lstm", "ptb-lstm@b420", "multiwoz-roberta", "snli-conv"]
    assert ablations[:2] == ("nothing", "ptb-lstm, cifar10-convnet")
    waiting = text.partition("Announced, without a run so far: ")[2]
    assert "`cifar100-convnet`, " in waiting
    assert "`mnist-mlp` in the search `damping-variants`" in waiting
    assert "`wikitext2-lstm@b420`, " not in waiting
    begun = tmp_path / "begun.db"
    with Ledger.open(begun, write=True, create=True) as book:
        add(book, Fair(find("snli-lstm")).plan(book)[:3])
    text = section(render_results([begun]), "## What has not been run")
    assert "(`fair`). Run: nothing. Not run: " in text
    assert "snli-lstm (not finished)." in text


# -- analyses ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def analysed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("analysed") / "analysed.db"
    with Ledger.open(path, write=True, create=True) as book:
        for name in ("sensitivity", "ablation", "gt-vs-gc"):
            add(book, ANALYSES[name].plan(book, "ptb-lstm@b420", Options(3, {"epochs": 4, "tf32": True})))
        add(book, ANALYSES["gt-vs-gc"].plan(book, "multiwoz-roberta", Options(1)))
        for task in ("ptb-lstm", "multiwoz-roberta"):
            add(book, ANALYSES["runtime"].plan(book, task, Options(2)))
    return path


def test_analyses_have_tables_with_their_settings_and_seeds(analysed: Path) -> None:
    text = render_results([analysed])
    cells = section(text, "# Sensitivity to topC and decay")
    assert "## ptb-lstm@b420, epochs 4, tf32 True" in cells
    assert "3 seeds" in cells
    (row,) = lines_of(cells, "5")
    assert len(row) == 8
    assert row[4].startswith("**")  # the paper's best: topC 5, decay .9
    variants = section(text, "# Ablations")
    assert len(lines_of(variants, "selection")) == 10
    assert len(lines_of(variants, "aggregation")) == 24
    assert sum("the default" in row for row in lines_of(variants, "aggregation")) == 4
    norms = section(text, "# Norms of the stored gradients")
    assert [row[1] for row in lines_of(norms, "ptb-lstm@b420, epochs 4, tf32 True")] == ["5", "10", "20", "50", "100"]
    assert lines_of(norms, "multiwoz-roberta")[0][2] == "1"


def test_a_task_on_which_every_gradient_is_clipped_is_named(analysed: Path) -> None:
    """Made-up norms are not the length to which RoBERTa's gradients are clipped; the published ones are."""
    published = Path(__file__).parents[3] / "results" / "analyses.db.xz"
    said = "had been clipped to the same length"
    assert said not in section(render_results([analysed]), "# Norms of the stored gradients")
    text = section(render_results([published]), "# Norms of the stored gradients")
    assert f"\nOn multiwoz-roberta (at 1) every gradient that was looked at, stored or current, {said}" in text


def test_the_chosen_cell_is_bold_where_two_lines_were_run_too(tmp_path: Path) -> None:
    path = tmp_path / "lines.db"
    with Ledger.open(path, write=True, create=True) as book:
        add(book, ANALYSES["sensitivity"].plan(book, "ptb-lstm@b420", Options(1, {"epochs": 4}, lines=True)))
    text = section(render_results([path]), "# Sensitivity to topC and decay")
    assert "have decay 0.9, topC 5 (bold)" in text
    bold = [line for line in text.splitlines() if "**" in line]
    assert [line.split("|")[1:3] for line in bold] == [[" 5 ", " 0.9 "]]


def test_the_run_time_table_has_the_papers_eleven_rows_beside_ours(analysed: Path) -> None:
    times = section(render_results([analysed]), "# Run times")
    for task in RUN_TIMES:
        rows = lines_of(times, task)
        assert [row[1].split(",")[0].split(" (")[0] for row in rows] == ["here", "paper"]
        assert all(len(row) == 8 for row in rows)
    ours, theirs = lines_of(times, "ptb-lstm")
    assert ours[1] == "here, s (2 seeds)"
    assert ours[2:4] == ["0.3", "0.5 (1.67)"]
    assert theirs[2:] == ["0.08", "0.4 (5.00)", "0.6 (7.50)", "0.9 (11.25)", "2 (25.00)", "6 (75.00)"]
    assert lines_of(times, "multiwoz-roberta")[1][-1] == "NA"
    assert lines_of(times, "snli-conv")[0][2] == "not run"


def test_claim_13_is_judged_on_the_tasks_that_were_timed(analysed: Path) -> None:
    row = claim([analysed], "13")
    assert row.ran == "runtime: ptb-lstm, multiwoz-roberta"
    assert row.verdict == NOT_SEEN  # the made-up epochs take the same time for every topC
