from __future__ import annotations

import numpy as np
import pytest

from critgrad.lab.screen.console import console
from critgrad.lab.tasks import TASKS
from critgrad.lab.tasks.data import DATASETS
from critgrad.lab.train.optimizers import TRAINED
from critgrad.memory.aggregations import AGGREGATIONS
from critgrad.memory.policies import POLICIES


@pytest.fixture
def narrow(monkeypatch):
    monkeypatch.setattr(console, "_width", 80)


def test_tasks_lists_all_of_them_with_what_they_are(cli):
    text = cli("tasks")
    for task in TASKS.values():
        line = next(line for line in text.splitlines() if line.startswith(f"{task.name} "))
        assert task.summary in line
        assert task.metric.name in line
    assert "mnist-logreg@convex" in text


def test_tasks_fits_eighty_columns_in_two_lines_each(cli, narrow):
    lines = cli("tasks").splitlines()
    assert max(map(len, lines)) <= 80
    table = lines[: lines.index("")] if "" in lines else lines
    assert len(table) <= 1 + 2 * len(TASKS)


def test_long_tells_every_setting_and_every_difference(cli):
    text = " ".join(cli("tasks", "--long").split())
    for task in TASKS.values():
        assert f"batch {task.batch_size}; epochs {task.epochs}" in text
        assert " ".join(task.differs.split()) in text
    assert "metric=training loss" in text
    assert "Metric(" not in text


def test_long_tells_of_a_variant_what_it_changes(cli):
    text = " ".join(cli("tasks", "--long").split())
    assert "@longtail: imbalance=50.0; @continual: phases=5" in text
    assert "<class" not in text
    assert "{" not in text


def test_optimizers_lists_the_registry_policies_and_aggregations(cli):
    text = cli("optimizers")
    for recipe in TRAINED.values():
        assert f"\n{recipe.name} " in text
    told = set(text.replace(",", " ").split())
    assert set(TRAINED) <= told
    assert f"policy: {', '.join(POLICIES)}" in " ".join(text.split())
    assert f"aggr: {', '.join(AGGREGATIONS)}" in " ".join(text.split())


def test_data_list_names_state_and_licence(cli):
    text = cli("data", "list")
    for record in DATASETS.values():
        line = next(line for line in text.splitlines() if line.startswith(f"{record.name} "))
        assert record.state in line
        assert record.licence in line


def test_data_list_tells_what_is_here(cli, monkeypatch):
    def here():
        return {line.split()[0]: line.split()[1] for line in cli("data", "list").splitlines() if line.split()}

    assert here()["digits"] == here()["noise"] == "yes"
    assert here()["mnist"] == "no"
    monkeypatch.delenv("CRITGRAD_OFFLINE")
    assert here()["mnist"] == "download"


def test_data_check_has_one_line_for_each(cli, narrow):
    lines = cli("data", "check").splitlines()
    for name in DATASETS:
        assert sum(line.startswith(f"{name} ") for line in lines) == 1
    assert next(line for line in lines if line.startswith("digits ")).split()[1] == "ok"
    assert "4 missing" in next(line for line in lines if line.startswith("mnist "))


def test_data_check_of_one_says_where_to_put_it(cli):
    text = cli("data", "check", "mnist-mlp", code=1)
    assert "missing mnist/train-images-idx3-ubyte.gz" in text
    assert str(cli.folder / "data" / "mnist") in text


def test_data_check_of_what_is_computed_needs_no_file(cli):
    assert "needs no file" in cli("data", "check", "noise")
    assert "needs no file" in cli("data", "fetch", "noise@0.3")


def test_data_prepare_takes_a_task_and_writes_its_own_data(cli):
    path = cli("data", "prepare", "ptb-lstm@tiny", "--out", "here").strip()
    assert path == "here/ptb@tiny.npz"
    with np.load(path) as file:
        assert "train" in file.files


def test_a_damaged_file_is_found(cli):
    folder = cli.folder / "data" / "prepared"
    folder.mkdir(parents=True)
    (folder / "digits.npz").write_bytes(b"not a zip")
    assert "corrupt" in cli("data", "check", "digits", code=1)
    assert "1 corrupt" in cli("data", "check", code=1)
