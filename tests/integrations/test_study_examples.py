"""Every study of examples/ runs as it is but for its size: few epochs, replicates and trials."""

import re
import shutil
from pathlib import Path

import pytest
import torch

from critgrad.lab import study

EXAMPLES = Path(__file__).parents[2] / "examples"
FOLDERS = sorted(path.parent.name for path in EXAMPLES.glob("study-*/study.toml"))
NEEDS = {"study-trainer": ("transformers", "accelerate"), "study-lightning": ("lightning",)}
SMALL = {"epochs": 1, "replicates": 2, "trials": 2, "report_seeds": 1}


def test_there_is_one_of_each_kind():
    assert FOLDERS == ["study-built-in", "study-lightning", "study-optimizer", "study-trainer"]


@pytest.mark.parametrize("name", FOLDERS)
def test_a_study_of_the_examples_runs(name, tmp_path, monkeypatch):
    for package in NEEDS.get(name, ()):
        pytest.importorskip(package, reason=f"{package} is not installed: pip install critgrad[integrations]")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    shutil.copytree(EXAMPLES / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__", "study.db"))
    file = tmp_path / name / "study.toml"
    text = file.read_text()
    for key, value in SMALL.items():
        text, count = re.subn(rf"^{key} = \d+", f"{key} = {value}", text, flags=re.MULTILINE)
        assert count == 1
    file.write_text(text)
    answer = study.run(file, executor="inline", device="cpu")
    assert answer.final
    assert answer.notes == ()
    for arm in answer.arms.values():
        for replicate in arm.replicates:
            assert [run.failed for run in (*replicate.trials, *replicate.reports)] == [""] * 3
    assert all(claim.word == "open" and "too few" in claim.remark for claim in answer.claims)
