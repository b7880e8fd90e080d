"""What the pages say can be followed: links lead somewhere, code runs, commands exist, every public name is documented.

Every ```python block of a page runs, in order and with the names of ``given``; a line ``<!-- not run: why -->`` before a
block leaves it out. ```pycon blocks are doctests. In ```sh blocks each command is parsed, not run.
"""

from __future__ import annotations

import doctest
import importlib.util
import json
import re
import shlex
import subprocess
import sys
import unicodedata
from pathlib import Path

import pytest
import torch
from lab.browser import browser

import critgrad
from critgrad.memory.aggregations import AGGREGATIONS
from critgrad.memory.policies import POLICIES
from critgrad.optimizers import MEMORY_OPTIONS

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted(DOCS.rglob("*.md"))]

FENCE = re.compile(r"^(?:<!-- (not run): .+ -->\n+)?```([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"(?<!\!)\[[^\]]*\]\(([^)\s]+)\)|!\[[^\]]*\]\(([^)\s]+)\)|(?:<img src|srcset)=\"([^\"]+)\"")
COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


def blocks(page: Path, *languages: str) -> list[str]:
    """The code blocks in one of the languages, without those that are left out or only include a file."""
    found = FENCE.findall(page.read_text(encoding="utf-8"))
    return [code for skip, kind, code in found if kind.strip() in languages and not skip and "--8<--" not in code]


def pages_with(*languages: str) -> list[Path]:
    return [page for page in PAGES if blocks(page, *languages)]


# -- links -------------------------------------------------------------------------------------------------------------


def slug(heading: str) -> str:
    """The anchor of a heading, as the site makes it."""
    text = unicodedata.normalize("NFKD", heading).encode("ascii", "ignore").decode()
    return re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", text).strip().lower())


def anchors(page: Path) -> set[str]:
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    return {slug(heading) for heading in re.findall(r"^#+ +(.+)$", text, re.MULTILINE)}


def links(page: Path) -> list[str]:
    text = COMMENT.sub("", FENCE.sub("", page.read_text(encoding="utf-8")))
    found = ["".join(groups) for groups in LINK.findall(text)]
    return [link for link in found if not re.match(r"[a-z]+:", link)]


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_and_anchors_lead_somewhere(page):
    for link in links(page):
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{name(page)}: {link}"
        if anchor:
            assert anchor in anchors(target), f"{name(page)}: {link}, there are {sorted(anchors(target))}"
        if DOCS in page.parents and target.suffix == ".md":
            assert DOCS in target.parents, f"{name(page)}: {link} leads out of the site"


def test_the_check_of_links_sees_what_it_must(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("# One, `two`\n[a](gone.md#x) ![b](gone.svg) [c](https://elsewhere.org)\n```sh\n# not this\n```\n")
    assert links(page) == ["gone.md#x", "gone.svg"]
    assert anchors(page) == {"one-two"}


def test_the_menu_has_every_page_that_is_written_by_hand_behind_seven_doors():
    text = (ROOT / "mkdocs.yml").read_text()
    menu = set(re.findall(r": (\S+\.md)$", text, re.MULTILINE))
    pages = {str(page.relative_to(DOCS)) for page in PAGES if DOCS in page.parents}
    assert menu == {page for page in pages if not page.startswith("results/")} | {"results/README.md"}
    assert len(re.findall(r"^  - \w+:$", text.split("nav:\n")[1].split("\n\n")[0], re.MULTILINE)) == 7


def test_every_page_of_results_is_listed():
    listed = set(links(DOCS / "results" / "README.md"))
    made = {page.name for page in (DOCS / "results").glob("*.md")} - {"README.md"}
    assert made == {link for link in listed if "/" not in link and "#" not in link}


# -- size --------------------------------------------------------------------------------------------------------------


def words(page: Path) -> int:
    """As ``wc -w`` counts them, code not among them."""
    return len(FENCE.sub("", page.read_text(encoding="utf-8")).split())


@pytest.mark.parametrize("page, most", [("README.md", 800), ("docs/results.md", 1500), ("CONTRIBUTING.md", 500)])
def test_what_is_read_first_stays_short(page, most):
    assert words(ROOT / page) <= most


@pytest.mark.parametrize("page", sorted((DOCS / "results").glob("*.md")), ids=name)
def test_generated_pages_can_be_read(page):
    assert words(page) <= 4000


@pytest.mark.parametrize("page", [DOCS / "results.md", *sorted((DOCS / "results").glob("*.md"))], ids=name)
def test_no_cell_of_a_generated_table_is_long(page):
    rows = [line for line in page.read_text(encoding="utf-8").splitlines() if line.startswith("|")]
    cells = [cell.strip() for row in rows for cell in re.split(r"(?<!\\)\|", row)]
    assert max(map(len, cells), default=0) <= 120, max(cells, key=len)


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_a_number_that_ends_a_sentence_makes_no_list(page):
    """A line that begins with ``12. That is in epochs`` would be shown as an entry of a list."""
    numbers = [0]
    for line in FENCE.sub("", page.read_text(encoding="utf-8")).splitlines():
        if found := re.match(r"\s*(\d+)\. ", line):
            numbers.append(int(found[1]))
            assert numbers[-1] in (1, numbers[-2] + 1), f"{name(page)}: {line}"


def opens_with_a_summary(page: Path) -> bool:
    """Whether the first paragraph of prose begins with "In short" or "In five lines"."""
    paragraphs = COMMENT.sub("", page.read_text(encoding="utf-8")).split("\n\n")
    first = next(text.strip() for text in paragraphs if text.strip() and not text.strip().startswith("#"))
    return first.startswith(("In short:", "In five lines:"))


def test_long_pages_open_with_a_summary():
    by_hand = [page for page in PAGES if page.parent == DOCS and page.name != "results.md"]
    long = [page for page in by_hand if words(page) > 1500]
    assert long
    assert not [name(page) for page in long if not opens_with_a_summary(page)]


def test_the_words_are_better_worse_same_and_open():
    house = re.compile(r"\b(ties? by the rule|a tie|ties|not seen|F-rival)\b", re.IGNORECASE)
    # Arms as registrations have them, where they are explained: the protocol, the searches, the glossary.
    names_of_arms = {DOCS / page: {"F-rival"} for page in ("protocol.md", "research.md", "results/README.md")}
    for page in PAGES:
        if page.name != "CHANGELOG.md":
            found = set(house.findall(FENCE.sub("", page.read_text(encoding="utf-8"))))
            assert not found - names_of_arms.get(page, set()), name(page)


# -- code --------------------------------------------------------------------------------------------------------------


def given() -> dict[str, object]:
    """What a block may take for granted."""
    model = torch.nn.Linear(4, 2)
    opt = critgrad.Adam_C(model.parameters())
    existing = torch.optim.RAdam(model.parameters())
    return {
        "torch": torch,
        "critgrad": critgrad,
        "model": model,
        "opt": opt,
        "existing": existing,
        "path": "checkpoint.pt",
    }


@pytest.mark.parametrize("page", pages_with("python"), ids=name)
def test_python_blocks_run(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = given()
    for code in blocks(page, "python"):
        exec(compile(code, f"{name(page)}:\n{code}", "exec"), names)


@pytest.mark.parametrize("page", [page for page in pages_with("pycon") if page.name != "theory.md"], ids=name)
def test_examples_print_what_stands_there(page):
    # theory.md has a test of its own, in tests/theory.
    result = doctest.testfile(str(page), module_relative=False, optionflags=doctest.NORMALIZE_WHITESPACE)
    assert result.attempted > 0
    assert result.failed == 0


# -- commands ----------------------------------------------------------------------------------------------------------


def commands(page: Path) -> list[list[str]]:
    lines = "".join(blocks(page, "sh")).replace("\\\n", " ").splitlines()
    return [words for words in (shlex.split(line, comments=True) for line in lines) if words]


def parse_critgrad(words: list[str]) -> None:
    """Have the command line parsed as ``critgrad`` would."""
    from critgrad.cli import parse

    code = 0
    try:
        parse(words)
    except SystemExit as end:  # argparse's: --help and --version end well
        code = end.code
    assert not code, f"critgrad does not take {words}"


def parse_python(words: list[str]) -> None:
    if words[0] != "-m":
        assert (ROOT / words[0]).exists(), f"there is no {words[0]}"
    elif words[1] == "critgrad.lab":
        parse_critgrad(words[2:])
    else:
        assert importlib.util.find_spec(words[1]), f"there is no module {words[1]}"


def parse_make(words: list[str]) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert {word for word in words if "=" not in word} <= targets


def parse_torchrun(words: list[str]) -> None:
    assert any((ROOT / word).is_file() for word in words)


ELSEWHERE = ("pip", "mkdocs", "export")
PARSERS = {"critgrad": parse_critgrad, "python": parse_python, "make": parse_make, "torchrun": parse_torchrun}


@pytest.mark.parametrize("page", pages_with("sh"), ids=name)
def test_commands_exist_and_take_these_options(page):
    for first, *rest in commands(page):
        if first not in ELSEWHERE:
            assert first in PARSERS, f"{name(page)}: {first} {rest}"
            PARSERS[first](rest)


def test_a_wrong_option_is_noticed():
    with pytest.raises(AssertionError, match="does not take"):
        parse_critgrad(["train", "digits-mlp", "--topc", "5"])


# -- the gallery -------------------------------------------------------------------------------------------------------


def script(path: Path, monkeypatch: pytest.MonkeyPatch):
    """A script as a module."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, path.stem, module)  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def gallery(monkeypatch):
    return script(DOCS / "make_gallery.py", monkeypatch)


def test_the_gallery_shows_every_analysis_and_names_its_command(gallery):
    from critgrad.paper.analyses import ANALYSES

    assert {shot.analysis for shot in gallery.SHOTS} == set(ANALYSES) == set(gallery.WORDS) == set(gallery.TABLES)
    for shot in gallery.SHOTS:
        parse_critgrad(shlex.split(shot.command)[1:])


def test_the_gallery_is_written_from_data(gallery):
    shot = gallery.Shot("spectrum", "digits-mlp", 1)
    data = {"rows": [{"label": "Adam", "bytes": 8.0}], "machine": "a machine"}
    text = gallery.page({shot: data}, {shot: [Path("gallery/spectrum-digits-mlp.svg")]})
    assert "| Adam | 8 |" in text
    assert '<img src="gallery/spectrum-digits-mlp.svg"' in text
    assert "a machine" in text


# -- the reference -----------------------------------------------------------------------------------------------------


def test_every_public_name_has_its_place_in_the_reference():
    from critgrad import integrations, theory
    from critgrad.lab import stats

    text = "\n".join(page.read_text() for page in (DOCS / "api").glob("*.md"))
    for module in (critgrad, theory, stats, integrations):
        for public in module.__all__:
            if not public.startswith("__"):
                assert re.search(rf"\b{re.escape(public)}\b", text), f"{module.__name__}.{public}"


@pytest.mark.parametrize("table", [POLICIES, AGGREGATIONS], ids=["policies", "aggregations"])
def test_every_built_in_rule_is_documented_wherever_rules_are(table):
    pages = [DOCS / "reference.md", DOCS / "api" / ("policies.md" if table is POLICIES else "aggregations.md")]
    for text in (MEMORY_OPTIONS, *(page.read_text(encoding="utf-8") for page in pages)):
        assert [rule for rule in table if f'"{rule}"' not in text] == []


def test_the_reference_can_be_read_in_a_clone(monkeypatch):
    api = script(DOCS / "make_api.py", monkeypatch)
    for page in sorted((DOCS / "api").glob("*.md")):
        assert page.read_text() == api.made_anew(page.read_text()), f"{name(page)}: python docs/make_api.py"
        assert len(api.names(page.read_text())) > 0


def test_the_tables_of_times_are_what_was_measured(monkeypatch):
    render = script(ROOT / "benchmarks" / "render.py", monkeypatch)
    for page, text in render.pages().items():
        assert page.read_text() == text, f"{name(page)}: python benchmarks/render.py --write"


@pytest.mark.slow
def test_readme_says_what_a_step_on_a_cpu_was_measured_to_take():
    rows = json.loads((ROOT / "benchmarks" / "results" / "cpu_any_base.json").read_text())["any_base"]
    times: dict[str, list[float]] = {"mean": [], "fisher": []}
    for row in rows:
        if row["base_name"] == "Adam fused" and row["model"] != "digits":
            times[row["aggr"]].append(row["with_memory"]["median"] / row["base"]["median"])
    adding, damping = (f"{min(found):.1f} to {max(found):.1f}" for found in times.values())
    assert f"`Adam_C` takes {adding} times torch's fused Adam, `Adam_F` {damping}." in (ROOT / "README.md").read_text()


def test_the_simulation_prints_the_protocols_table():
    from critgrad.lab.stats.simulate import verdict_table

    printed = [re.split(r"\s{2,}", line) for line in verdict_table().splitlines()[1:]]
    table = (DOCS / "protocol.md").read_text().split("<!-- simulate:begin -->\n")[1].split("<!-- simulate:end -->")[0]
    shown = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()[2:]]
    assert shown == [[*row[:3], *row[5:]] for row in printed]


@pytest.mark.slow
def test_the_site_builds_without_a_warning(tmp_path):
    pytest.importorskip("mkdocs", reason="the site needs mkdocs: pip install -e '.[docs]'")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    # Nothing is fetched from elsewhere when a page is read.
    for page in (tmp_path / "site").rglob("*.html"):
        loaded = re.findall(r'<(?:script|img|link|iframe)[^>]*(?:src|href)="(https?:[^"]+)"', page.read_text())
        assert not loaded, f"{page.name}: {loaded}"
    with browser() as chromium:  # figures follow the page's own switch, and the logo leads to a page
        page = chromium.open_page(tmp_path / "site" / "results.html")
        for scheme in ("light", "dark", "light"):
            page.wait_for(f"document.querySelector('picture img').currentSrc.endsWith('-{scheme}.svg')")
            page.click("label[for=__palette_1]" if scheme == "light" else "label[for=__palette_0]")
        assert page.evaluate("document.querySelector('a.md-logo').href.endsWith('/site/index.html')")
