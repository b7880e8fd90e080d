"""Registrations: what the committed files say, what is refused, and what counts as committed."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from protocol_helpers import ToyLedger, registration, result

from critgrad.lab.ledger import committed
from critgrad.lab.run.spec import Trial
from critgrad.paper.protocol.registration import Primary, Timing, find, from_dict, load, registered
from critgrad.paper.protocol.rungs import Rung
from critgrad.paper.protocol.tuning import searches

SMALL = ("digits-mlp", "mnist-logreg", "mnist-mlp", "covtype-logreg", "rcv1-logreg", "reuters-logreg")


def test_the_small_tasks_and_cifar10_are_registered():
    assert {*SMALL, "cifar10-convnet"} <= set(registered())


@pytest.mark.parametrize("task", [*SMALL, "cifar10-convnet"])
def test_a_committed_registration_is_whole(task: str):
    r = find(task)
    assert r.task == task
    assert r.families == ("SGD", "SGDM", "RMSprop", "Adam")
    assert len(r.report_seeds) == (20 if task in SMALL else 10)
    assert not set(r.report_seeds) & set(r.tuning_seeds)
    assert not set(r.timing.seeds) & {*r.report_seeds, *r.tuning_seeds}
    assert {p.arm for p in r.primary} == {"F", "C"}
    assert all(axis.decades >= 4 and axis.widen for axis in r.lr.values())
    assert {"C-step", "C-momentum", "C-yoked", "C-longer", "F-step", "F-longer"} <= set(r.arms)


@pytest.mark.parametrize("task", [*SMALL, "cifar10-convnet"])
def test_a_registration_names_the_metric_and_direction_of_its_task(task: str):
    tasks = pytest.importorskip("critgrad.lab.tasks")
    r, metric = find(task), tasks.task_of(task, {}).metric
    assert (r.metric, r.higher_is_better) == (metric.name, metric.higher_is_better)
    assert r.engine == "single" or tasks.task_of(task, {}).bankable


def test_the_file_gives_back_what_was_written_and_its_hash_depends_on_every_value(tmp_path: Path):
    r = registration(rungs=(Rung(4, seeds=1),), notes={"why": "because"})
    path = tmp_path / "toy.json"
    path.write_text(json.dumps(r.to_dict()))
    assert load(path) == r
    assert load(path).hash == r.hash
    for change in (
        {"trials": 9},
        {"report_seeds": (1, 2)},
        {"rungs": (Rung(3, seeds=1),)},
        {"notes": {}},
        {"engine": "bank"},
    ):
        assert r.changed(**change).hash != r.hash


def test_the_hash_does_not_depend_on_the_order_of_entries():
    values = registration().to_dict()
    assert from_dict(dict(reversed(list(values.items())))).hash == registration().hash


def test_hashes_of_the_committed_files_do_not_depend_on_the_process():
    r = find("digits-mlp")
    assert from_dict(json.loads(json.dumps(r.to_dict()))).hash == r.hash
    assert len(r.hash) == 32


@pytest.mark.parametrize(
    "changes, names",
    [
        ({"report_seeds": (100, 1)}, "fresh"),
        ({"direction": "up"}, "direction"),
        ({"engine": "warp"}, "warp"),
        ({"arms": ("base", "Shampoo")}, "Shampoo"),
        ({"arms": ("C", "F")}, "base"),
        ({"arms": ("base", "C-yoked"), "primary": (), "timing": None}, "C-yoked"),
        ({"arms": ("base", "rival"), "primary": (Primary("F", ("base",)),), "timing": None}, "primary"),
        ({"primary": (Primary("F", ("base",)), Primary("F", ("rival",)))}, "one primary"),
        ({"families": ("SGD", "Lion")}, "Lion"),
        ({"trials": 0}, "trials"),
        ({"rungs": (Rung(4, seeds=2),)}, "Invalid rung: .*fewer than 2 seeds"),
        ({"timing": Timing((1,), 1)}, "2 epochs"),
        ({"timing": Timing((1,), 2, ("C-step",))}, "C-step"),
        ({"axes": {"momentum": {}, "C": {}, "F": {}}}, "topC"),
    ],
)
def test_a_bad_registration_is_refused_and_the_value_named(changes: dict[str, Any], names: str):
    with pytest.raises(ValueError, match=names):
        registration(**changes)


def test_a_learning_rate_over_less_than_four_decades_is_refused():
    axis = registration().lr["SGD"]
    narrow = {**registration().lr, "SGD": type(axis)("log", 1e-3, 1.0)}
    with pytest.raises(ValueError, match="4 decades"):
        registration(lr=narrow)


def test_unknown_and_missing_entries_of_a_file_are_named(tmp_path: Path):
    values = registration().to_dict()
    with pytest.raises(ValueError, match="colour"):
        from_dict({**values, "colour": "red"})
    with pytest.raises(ValueError, match="trials"):
        from_dict({name: value for name, value in values.items() if name != "trials"})
    with pytest.raises(ValueError, match="format"):
        from_dict({**values, "format": 2})
    (tmp_path / "bad.json").write_text("{")
    with pytest.raises(ValueError, match=r"bad\.json is not JSON"):
        load(tmp_path / "bad.json")


def test_a_task_without_registration_says_which_have_one():
    with pytest.raises(FileNotFoundError, match="digits-mlp"):
        find("multiwoz-roberta")


def test_every_tuned_arm_of_a_family_has_the_same_number_of_trials():
    r = registration()
    for family in r.families:
        assert len(searches(r, family)) == (9 if family == "SGD" else 8)


# -- commits -----------------------------------------------------------------------------------------------------------


def _git(folder: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=a", "-c", "user.email=a@b.c"]
    done = subprocess.run(["git", *identity, *arguments], cwd=folder, check=True, capture_output=True, text=True)
    return done.stdout.strip()


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    _git(tmp_path, "init", "-q")
    (tmp_path / "toy.json").write_text(json.dumps(registration().to_dict()))
    return tmp_path


def test_a_file_is_registered_from_its_commit_until_it_is_changed(checkout: Path):
    path = checkout / "toy.json"
    assert not committed.require_committed(path).registered
    _git(checkout, "add", "toy.json")
    assert not committed.require_committed(path).registered
    _git(checkout, "commit", "-qm", "announce")
    standing = committed.require_committed(path)
    assert standing.commit == _git(checkout, "rev-parse", "HEAD")
    assert "registered in commit" in standing.text
    path.write_text(json.dumps(registration(trials=9).to_dict()))
    assert "changed" in committed.require_committed(path).reason


def test_outside_of_a_checkout_nothing_is_registered_and_the_reason_is_said(tmp_path: Path, monkeypatch):
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    (tmp_path / "toy.json").write_text(json.dumps(registration().to_dict()))
    standing = committed.require_committed(tmp_path / "toy.json")
    assert not standing.registered
    assert not standing.checkout
    assert "not registered" in standing.text
    assert "command line" in committed.require_committed(None).text


def _run(ledger: ToyLedger, r) -> None:
    trial = Trial("toy", "SGD", {"lr": 0.1}, 0, r.trial_settings, registration=r.hash)
    ledger.add(trial, result(trial))


def test_a_moved_file_keeps_the_commit_that_announced_it(checkout: Path):
    _git(checkout, "add", "toy.json")
    _git(checkout, "commit", "-qm", "announce")
    announced = _git(checkout, "rev-parse", "HEAD")
    (checkout / "house").mkdir()
    _git(checkout, "mv", "toy.json", "house/toy.json")
    _git(checkout, "commit", "-qm", "move")
    assert committed.require_committed(checkout / "house" / "toy.json").commit == announced


def test_the_ledger_keeps_the_commit(checkout: Path):
    _git(checkout, "add", "toy.json")
    _git(checkout, "commit", "-qm", "announce")
    r, ledger = load(checkout / "toy.json"), ToyLedger()
    assert committed.record(ledger, r).registered
    _run(ledger, r)
    assert committed.record(ledger, r).registered
    assert committed.standing(ledger, r).commit == _git(checkout, "rev-parse", "HEAD")
    assert json.loads(ledger.document(committed.document_name(r.hash)))["registration"] == r.to_dict()


def test_a_plan_committed_after_its_runs_stays_unregistered(checkout: Path):
    r, ledger = load(checkout / "toy.json"), ToyLedger()
    assert not committed.record(ledger, r).registered
    _run(ledger, r)
    for row in ledger.rows():
        row.finished -= 60  # git counts whole seconds
    _git(checkout, "add", "toy.json")
    _git(checkout, "commit", "-qm", "announce, late")
    assert "older than its commit" in committed.record(ledger, r).reason


def test_runs_from_a_box_without_git_are_registered_once_a_checkout_names_the_commit(checkout: Path, monkeypatch):
    _git(checkout, "add", "toy.json")
    _git(checkout, "commit", "-qm", "announce")
    r, ledger = load(checkout / "toy.json"), ToyLedger()
    with monkeypatch.context() as patch:
        patch.setattr(committed, "_git", lambda *_: None)
        assert not committed.record(ledger, r).registered
    _run(ledger, r)
    assert committed.record(ledger, r).registered


def test_an_override_is_another_experiment_that_no_file_announced(checkout: Path):
    r = load(checkout / "toy.json")
    assert r.changed(trials=r.trials) is r
    assert r.changed(trials=None) is r
    assert r.changed(trials=4).path is None
