"""The page "Which memory helps?": what the studies' ledgers say and nothing else."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from critgrad.lab.study.file import read
from critgrad.lab.study.runner import report

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def page() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_memory_page", ROOT / "docs" / "make_memory_page.py")
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = made  # dataclasses look there
    spec.loader.exec_module(made)
    return made


@pytest.fixture(scope="module")
def answers(page: ModuleType) -> dict[str, Any]:
    folder = ROOT / "studies"
    files = {file: file for file in (*(shown.file for shown in page.SHOWN), *page.SCHEDULED)}
    files |= {name: f"untried/{name}" for name in page.UNTRIED}
    return {name: report(folder / f"{file}.toml", ledger=folder / f"{file}.db.xz") for name, file in files.items()}


def test_page_and_figures_are_exactly_what_the_command_writes(page: ModuleType, tmp_path: Path) -> None:
    written = page.write(tmp_path)
    assert len(written) == 1 + 2 * len(page.SHOWN)
    for path in written:
        name = path.relative_to(tmp_path)
        right = path.read_bytes() == (ROOT / "docs" / name).read_bytes()
        assert right, f"docs/{name} is not current: python docs/make_memory_page.py"


def test_the_page_can_be_read_at_once() -> None:
    text = (ROOT / "docs" / "which-memory-helps.md").read_text(encoding="utf-8")
    seen = re.sub(
        r"<[^>]*>|^```.*?^```", " ", text, flags=re.M | re.S
    )  # neither tags, which stand for figures, nor code
    assert len(seen.replace("|", " ").split()) <= 2000
    summary = text.split("-->\n\n")[1].split("\n\n")[0]
    assert summary.startswith("In short: **")
    assert len(summary.splitlines()) <= 5
    advice = text.split("## Advice\n")[1].split("\n## ")[0]
    assert len(re.findall(r"^\d\. ", advice, re.MULTILINE)) <= 5


def test_every_run_of_a_published_study_is_there_and_none_failed(page: ModuleType, answers: dict[str, Any]) -> None:
    runs = {}
    for file, answer in answers.items():
        assert answer.final
        found = [run for arm in answer.arms.values() for r in arm.replicates for run in (*r.trials, *r.reports)]
        assert not [run for run in found if run.failed]
        runs[file] = len({run.key for run in found})
        assert not answer.notes  # the files that were run are those that lie there
    studied = {"memory-pycode-gpt": 384, "memory-small-gpt": 240, "memory-cifar10-resnet": 384}
    studied |= {"memory-mnist": 1020, "memory-digits": 1020}
    scheduled = {"memory-mnist-cosine": 384, "memory-digits-cosine": 480}
    assert runs == {**studied, **scheduled, "digits": 210, "mnist": 144, "gpt": 180}


def test_a_schedule_brings_more_on_mnist_than_any_optimizer_does_without(
    page: ModuleType, answers: dict[str, Any]
) -> None:
    said = page.scheduled(answers)
    gained = max(claim.difference for claim in answers["memory-mnist"].claims)
    assert float(said["mnist_scheduled"]) - float(said["mnist_constant"]) > gained


def test_readme_says_what_the_studies_found(page: ModuleType, answers: dict[str, Any]) -> None:
    text = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    gpt, net = answers["memory-pycode-gpt"], answers["memory-cifar10-resnet"]
    lost = page.claim_of(gpt, "adamw_c")
    assert f"`AdamW_C` {-lost.difference:.2f} nats worse ({-lost.high:.2f} to {-lost.low:.2f})" in text
    won = page.claim_of(answers["memory-small-gpt"], "muon")
    assert f"Muon gained {won.difference:.2f} ({won.low:.2f} to {won.high:.2f}) on a smaller one" in text
    assert page.claim_of(gpt, "adamw_f").word == "open"
    assert len(gpt.claims) == 6
    assert "no memory of six shown better" in text
    assert "damping open" in text
    assert {claim.word for claim in (*gpt.claims, *net.claims)} == {"worse", "same", "open"}
    adding, damping = (-page.claim_of(net, arm).difference for arm in ("adamw_c", "adamw_f"))
    assert f"`AdamW_C` lost {adding:.1f}, `AdamW_F` {damping:.1f}" in text


def test_every_optimizer_of_every_study_has_its_place_in_the_frame(page: ModuleType) -> None:
    arms = {arm for file in (ROOT / "studies").glob("memory-*.toml") for arm in read(file).arms}
    assert arms == set(page.FRAME)
    assert set(json.loads(page.AGES.read_text(encoding="utf-8"))["arms"]) == arms


def test_other_words_ask_for_other_sentences(page: ModuleType, answers: dict[str, Any]) -> None:
    page.require_words(answers)
    first, *rest = answers["memory-mnist"].claims
    changed = dataclasses.replace(answers["memory-mnist"], claims=(dataclasses.replace(first, word="open"), *rest))
    with pytest.raises(SystemExit, match="memory-mnist"):
        page.require_words({**answers, "memory-mnist": changed})


@pytest.mark.parametrize("r, n, low, high", [(0.0, 15, -0.525, 0.525), (0.5, 103, 0.3342, 0.6358)])
def test_the_interval_of_a_rank_correlation(page: ModuleType, r: float, n: int, low: float, high: float) -> None:
    assert page.around(r, n) == pytest.approx((low, high), abs=1e-3)
