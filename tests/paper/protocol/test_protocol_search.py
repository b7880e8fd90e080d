"""A search of variants: the same points for all, rungs by seeds, every loser listed, the winner confirmed on other seeds."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from protocol_helpers import ToyLedger, finish, noise
from protocol_helpers import result as toy_result
from search_runs import SearchRuns

from critgrad.lab.run.results import Result
from critgrad.lab.run.spec import Trial
from critgrad.lab.tasks import task_of
from critgrad.paper.search import find, searches, standings
from critgrad.paper.search.file import FOLDER, from_dict
from critgrad.paper.search.track import ArmState
from critgrad.paper.tables import print_standings

NAME = "damping-variants"
AXIS = {"scale": "log", "low": 1e-4, "high": 1e-2}
VALUES: dict[str, Any] = {
    "format": 1,
    "engine": "bank",
    "space": {"seed": 5, "memory": {"rho": {"scale": "log", "low": 1e-5, "high": 3.0}}},
    "fixed": {"decay": 0.99, "topC": 10},
    "confirm": {"keep": 1, "against": ["base", "F"]},
    "tasks": {
        "toy": {
            "direction": "max",
            "epochs": 3,
            "batch_size": 8,
            "trials": 8,
            "tuning_seeds": [10, 11, 12, 13],
            "race": [{"seeds": 1, "keep": 4}, {"seeds": 2, "keep": 2}],
            "confirm_seeds": [20, 21, 22],
            "lr": {"Adam": AXIS, "SGDM": AXIS},
        }
    },
    "arms": [
        {"name": "base", "why": "", "optimizer": {"Adam": "Adam", "SGDM": "SGDM"}},
        {"name": "F", "why": "", "optimizer": {"Adam": "Adam_F"}},
        {"name": "root", "why": "", "optimizer": {"Adam": "Adam_X"}, "options": {"power": 0.5}},
        {"name": "noise", "why": "", "optimizer": {"Adam": "Adam_X"}, "options": {"rho_rule": "noise", "rho": 1.0}},
        {"name": "layers", "why": "", "optimizer": {"Adam": "Adam_X"}, "options": {"blocks": "layers"}},
    ],
}


def changed(**changes: Any) -> dict[str, Any]:
    values = json.loads(json.dumps(VALUES))
    values["tasks"]["toy"] |= {k: v for k, v in changes.items() if k not in values}
    return {**values, **{k: v for k, v in changes.items() if k in values}}


def run(trial: Trial) -> Result:
    """A made-up task on which ``power=0.5`` is two points better than the base, and the other variants one."""
    gain = {"X": 1.0, "F": 0.5}.get(trial.optimizer[-1], 0.0) + (1.0 if trial.hyper.get("power") == 0.5 else 0.0)
    plain = trial.replace(optimizer="SGDM" if trial.optimizer == "SGDM" else "Adam")
    return toy_result(plain, score=lambda t: 80 + gain - abs(t.hyper["lr"] * 1000 - 1) + noise(t.seed))


@pytest.fixture
def toy() -> SearchRuns:
    return SearchRuns(from_dict("toy-search", "toy", VALUES))


def test_arms_share_their_points(toy):
    search = toy.search
    points = {arm.name: search.points("Adam", arm) for arm in search.arms}
    assert {tuple(p["lr"] for p in of_arm) for of_arm in points.values()} == {tuple(p["lr"] for p in points["base"])}
    assert [p["rho"] for p in points["root"]] == [p["rho"] for p in points["F"]]
    assert "rho" not in points["base"][0]
    assert "rho" not in points["noise"][0]  # it has fixed it
    trial = search.trial("Adam", search.arms[3], points["noise"][0], 10)
    assert trial.hyper == {"decay": 0.99, "topC": 10, "rho_rule": "noise", "rho": 1.0, "lr": points["base"][0]["lr"]}
    assert trial.registration == search.hash


def test_the_rungs_spend_what_it_says_and_the_same_on_every_arm(toy):
    ledger = ToyLedger()
    plans = finish(toy, ledger, run)
    assert [len(plan) for plan in plans] == [5 * 8 + 8, 6 * 4, 6 * 2 * 2]
    assert len(ledger.kept) == 6 * 16
    assert {role.purpose for row in ledger.kept.values() for role in row.roles} == {"tune"}
    assert not toy.plan(ledger)


def test_a_search_that_was_stopped_goes_on_where_it_was(toy):
    whole, broken = ToyLedger(), ToyLedger()
    finish(toy, whole, run)
    for planned in toy.plan(broken)[:7]:
        broken.add(planned.trial, run(planned.trial), planned.roles)
    finish(SearchRuns(toy.search), broken, run)
    assert set(whole.kept) == set(broken.kept)
    assert standings(toy, whole).lines == standings(toy, broken).lines


def test_every_variant_is_listed_with_its_rank_and_the_number_tried_stands_beside_the_winner(toy, capsys):
    ledger = ToyLedger()
    finish(toy, ledger, run)
    found = standings(toy, ledger)
    adam = {line.name: line for line in found.lines if line.family == "Adam"}
    assert set(adam) == {"base", "F", "root", "noise", "layers"}
    assert adam["root"].rank == 1
    assert adam["base"].rank == 5
    assert adam["root"].minus["base"] == pytest.approx(2.0, abs=0.3)
    assert adam["root"].minus["F"] == pytest.approx(1.5, abs=0.3)
    assert adam["root"].better["base"] == 4
    assert adam["root"].runs == adam["base"].runs == 16
    assert found.winner("Adam").name == "root"
    assert found.winner("SGDM") is None
    assert "best of 3 variants of 8 points each, 80 runs: root" in found.verdict("Adam")
    print_standings(found, None)
    text = capsys.readouterr().out
    assert all(name in text for name in ("root", "noise", "layers", "not registered"))


def test_an_unfinished_search_names_no_winner(toy, capsys):
    ledger = ToyLedger()
    for planned in toy.plan(ledger):
        ledger.add(planned.trial, run(planned.trial), planned.roles)
    found = standings(toy, ledger)
    assert all(len(line.pending) == 4 and line.rank is None for line in found.lines)
    assert found.winner("Adam") is None
    assert "Adam: not finished, 20 runs are next" in found.verdict("Adam")
    print_standings(found, None)
    assert "(+4 next)" in " ".join(capsys.readouterr().out.split())


def test_confirmation_runs_the_best_and_what_it_is_held_against_on_other_seeds(toy, capsys):
    ledger = ToyLedger()
    finish(toy, ledger, run)
    confirming = SearchRuns(toy.search, confirm=True)
    plan = confirming.plan(ledger)
    assert {(p.roles[0].family, p.roles[0].arm) for p in plan} == {
        ("Adam", "base"),
        ("Adam", "F"),
        ("Adam", "root"),
        ("SGDM", "base"),
    }
    assert {p.trial.seed for p in plan} == {20, 21, 22}
    assert {p.roles[0].purpose for p in plan} == {"report"}
    assert not standings(toy, ledger).confirmed
    finish(confirming, ledger, run)
    assert len(ledger.kept) == 6 * 16 + 4 * 3
    found = {(c.family, c.arm): c for c in standings(confirming, ledger).confirmed}
    assert found["Adam", "root"].minus["base"].mean == pytest.approx(2.0, abs=0.3)
    assert found["Adam", "root"].test.n == 3
    print_standings(standings(confirming, ledger), None)
    assert "minus base +" in capsys.readouterr().out


def all_alike(trial: Trial) -> Result:
    """Every run of a seed has the same accuracy; losses that fall with the learning rate decide."""
    made = toy_result(trial.replace(optimizer="Adam"), score=lambda t: 80 + noise(t.seed))
    made.curves["valid_loss"] = [1 - trial.hyper["lr"]] * len(made.curves["valid"])
    return made


def without_losses(ledger: ToyLedger) -> None:
    """What an earlier version left of a screen when it published it."""
    for row in ledger.kept.values():
        if row.roles[0].purpose == "tune":
            row.curves.clear()
            row.summary["valid_loss"] = None


def test_a_point_that_was_confirmed_stays_the_chosen_one_when_the_losses_are_lost(toy):
    ledger, confirming = ToyLedger(), SearchRuns(toy.search, confirm=True)
    finish(confirming, ledger, all_alike)
    before = standings(confirming, ledger)
    first = {arm.name: toy.search.points("Adam", arm)[0] for arm in toy.search.arms}
    assert any(line.point != first[line.name] for line in before.lines)  # or the order of the draw would do
    without_losses(ledger)
    after = standings(confirming, ledger)
    report = [row for row in ledger.kept.values() if row.roles[0].purpose == "report"]
    assert sum(row.done for row in after.confirmed) == len(report)
    assert after.confirmed == before.confirmed
    chosen = {(row.family, row.arm) for row in after.confirmed}
    points = [[line.point for line in found.lines if (line.family, line.name) in chosen] for found in (before, after)]
    assert points[0] == points[1]
    assert not confirming.plan(ledger)


def test_without_losses_and_confirmation_the_order_of_the_draw_decides(toy):
    ledger = ToyLedger()
    finish(toy, ledger, all_alike)
    without_losses(ledger)
    for line in standings(toy, ledger).lines:
        arm = next(arm for arm in toy.search.arms if arm.name == line.name)
        assert line.point == toy.search.points(line.family, arm)[0]


def test_an_arm_that_was_to_be_confirmed_and_has_no_run_is_listed(toy, capsys):
    ledger, confirming = ToyLedger(), SearchRuns(toy.search, confirm=True)
    finish(confirming, ledger, run)
    for key, row in list(ledger.kept.items()):
        if row.roles[0][1:] == ("Adam", "F", "report") or row.roles[0][1::2] == ("SGDM", "report"):
            del ledger.kept[key]
    found = {(c.family, c.arm): (c.done, c.seeds) for c in standings(confirming, ledger).confirmed}
    assert found == {("Adam", "base"): (3, 3), ("Adam", "F"): (0, 3), ("Adam", "root"): (3, 3)}  # of SGDM no arm was
    print_standings(standings(confirming, ledger), None)
    assert "Adam F: 0 of 3 confirming runs" in capsys.readouterr().out


def test_arms_that_differ_by_rounding_alone_are_ranked_by_their_losses(toy):
    arms = {arm.name: arm for arm in toy.search.arms}
    means = {"root": (98.8888888888889, 0.2), "noise": (98.88888888888887, 0.1), "base": (98.9, 0.3)}
    states = [
        ArmState(toy.search, "Adam", arms[name], [], valid=value, values=(value,), loss=loss)
        for name, (value, loss) in means.items()
    ]
    assert [state.name for state in toy.ranked(states)] == ["base", "noise", "root"]
    lower = replace(toy.search, direction="min")
    assert [state.name for state in SearchRuns(lower).ranked(states)] == ["noise", "root", "base"]


def test_a_diverged_run_counts_as_the_worst_and_is_counted(toy):
    ledger = ToyLedger()

    def diverges(trial: Trial) -> Result:
        made = run(trial)
        if trial.hyper.get("power") == 0.5:
            made.summary.update(diverged=True, valid=0.0, test=0.0, best_epoch=None)
        return made

    finish(toy, ledger, diverges)
    root = next(line for line in standings(toy, ledger).lines if line.name == "root")
    assert (root.valid, root.diverged, root.rank) == (0.0, 16, 5)


def test_other_tasks_of_the_file_are_not_part_of_a_tasks_hash(toy):
    more = changed()
    more["tasks"]["other"] = more["tasks"]["toy"]
    assert from_dict("toy-search", "toy", more).hash == toy.search.hash
    assert from_dict("toy-search", "toy", changed(trials=9)).hash != toy.search.hash


def test_a_file_of_another_format_is_refused():
    with pytest.raises(ValueError, match="Invalid format"):
        from_dict("toy-search", "toy", changed(format=2))


# -- the search that is committed --------------------------------------------------------------------------------------

TASKS = list(json.loads((FOLDER / f"{NAME}.json").read_text())["tasks"])


@pytest.mark.parametrize("task", TASKS)
def test_the_committed_search_can_be_read(task):
    search = find(NAME, task)
    assert task_of(task).bankable
    for family in search.families:
        for arm in search.arms_of(family):
            assert arm.why
            trial = search.trial(family, arm, search.points(family, arm)[0], 0)
            assert search.is_variant(arm) == trial.optimizer.endswith("_X")
    assert {"base", "F"} <= {arm.name for arm in search.arms}


def test_the_committed_search_names_what_is_missing():
    assert NAME in searches()
    with pytest.raises(FileNotFoundError, match=f"No search 'damping', expected one of .*{NAME}"):
        find("damping", "digits-mlp")
    with pytest.raises(ValueError, match="Invalid task of the search damping-variants: 'ptb-lstm'"):
        find(NAME, "ptb-lstm")


@pytest.mark.parametrize("task", ["digits-mlp", "mnist-mlp"])
def test_a_search_in_the_single_engine_has_variants_too(task):
    """There they are options of the library's own classes."""
    search = find("other-bases", task)
    assert [arm.name for arm in search.arms if search.is_variant(arm)] == ["tensors", "sparse"]
    assert search.families == ("Muon", "ScheduleFree")
