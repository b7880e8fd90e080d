"""How the outcome depends on the options: sensitivity, ablations, noise, convex tasks."""

from __future__ import annotations

import pytest
from analysis_helpers import collected, real, rows

from critgrad.lab.ledger import Role
from critgrad.lab.tasks import task_of
from critgrad.memory.policies import POLICIES
from critgrad.paper.analyses import ANALYSES, Options, outcomes
from critgrad.paper.analyses.base import DRAWING
from critgrad.paper.analyses.outcomes import default_aggregation
from critgrad.paper.protocol import PAPER
from critgrad.paper.report.analysis_figures import DRAW

# -- sensitivity -------------------------------------------------------------------------------------------------------


def test_sensitivity_can_be_the_papers_two_lines_alone():
    data = collected("sensitivity", "cifar10-convnet", lambda trial: {"test": 1.0}, Options(2, lines=True))
    cells = {(cell["topC"], cell["decay"]) for cell in data["cells"]}
    assert data["chosen"] == {"topC": 5, "decay": 0.7}  # the paper's best
    assert cells == {(5, d) for d in (0.0, 0.5, 0.7, 0.9, 0.95, 0.99, 1.0)} | {
        (c, 0.7) for c in (2, 5, 10, 20, 50, 100)
    }
    assert {cell["runs"] for cell in data["cells"]} == {2}
    drawn = DRAW["sensitivity"](data, "cifar10-convnet")
    assert [figure.title.partition(", ")[2] for figure in drawn.figures] == ["decay at topC 5", "topC at decay 0.7"]


def test_sensitivity_is_the_whole_grid_of_the_two_figures():
    data = collected("sensitivity", "ptb-lstm", lambda trial: {"test": trial.hyper["topC"] + trial.hyper["decay"]})
    cells = {(cell["topC"], cell["decay"]): cell for cell in data["cells"]}
    assert len(cells) == len(data["cells"]) == 42
    assert {key[0] for key in cells} == {2, 5, 10, 20, 50, 100}
    assert {key[1] for key in cells} == {0, 0.5, 0.7, 0.9, 0.95, 0.99, 1}
    assert all(cell["test"] == topC + decay for (topC, decay), cell in cells.items())
    assert (data["metric"], data["higher_is_better"], data["optimizer"]) == ("perplexity", False, "Adam_C")


def test_other_values_stand_at_the_tables_best():
    trial = ANALYSES["sensitivity"].trials("ptb-lstm", Options(1))[0].trial
    assert trial.hyper["lr"] == 0.0001
    data = collected("sensitivity", "ptb-lstm", lambda trial: {})
    assert data["chosen"] == {"topC": 5, "decay": 0.9}


def test_a_dampers_own_defaults_are_where_it_starts_from():
    data = collected("sensitivity", "snli-lstm", lambda trial: {}, Options(1, optimizer="Adam_F"))
    assert data["chosen"] == {"topC": 10, "decay": 0.99}


def test_diverged_runs_count_and_are_told():
    data = collected("sensitivity", "ptb-lstm", lambda trial: {"diverged": trial.seed == 1, "test": 100.0 * trial.seed})
    assert {(cell["diverged"], cell["test"], cell["runs"]) for cell in data["cells"]} == {(1, 50.0, 2)}


# -- ablations ---------------------------------------------------------------------------------------------------------


def test_ablations_vary_one_thing_at_a_time():
    trials = [item.trial for item in ANALYSES["ablation"].trials("ptb-lstm", Options(1))]
    assert {trial.hyper.get("policy") for trial in trials} == {
        *("KotH", "CSS", "CDS", "MNDS", "random", "RR", "NCPR", "FIFO", "bottomC", None)
    }
    varied = {trial.hyper["aggr"] for trial in trials if "policy" not in trial.hyper}
    assert varied == {"mean", "sum", "mid", "min", "median", "max"}
    assert len({trial.key for trial in trials}) == len(trials) == 2 * 9 + 4 * 6


def test_coins_differ_from_run_to_run():
    """Else all seeds would store at the same steps, and an interval over seeds would not know of it."""
    for trial, _ in ANALYSES["ablation"].trials("ptb-lstm", Options(3)):
        assert trial.hyper.get("seed") == (trial.seed if trial.hyper.get("policy") in DRAWING else None)
    assert POLICIES.keys() >= DRAWING


def test_koth_is_one_run_with_two_roles():
    planned = ANALYSES["ablation"].trials("ptb-lstm", Options(1))
    twice = [item for item in planned if len(item.roles) == 2]
    assert {item.trial.hyper["policy"] for item in twice} == {"KotH"}
    assert {role.arm.partition(":")[0] for item in twice for role in item.roles} == {"selection", "replacement"}


@pytest.mark.parametrize("task, sign", [("cifar10-convnet", 1), ("ptb-lstm", -1)])
def test_differences_to_the_default_are_paired_and_positive_is_better(task, sign):
    shift = {"random": 2.0, "CSS": -1.0}

    def give(trial):
        return {"test": 50 + 10 * trial.seed + sign * shift.get(trial.hyper.get("policy"), 0.0)}

    data = collected("ablation", task, give, Options(3))
    found = {(row["optimizer"], row["variant"]): row for row in data["studies"]["selection"]}
    for optimizer in ("Adam_C", "SGD_C"):
        assert found[optimizer, "KotH"]["difference"] is None
        assert found[optimizer, "random"]["difference"] == pytest.approx({"mean": 2, "low": 2, "high": 2})
        assert found[optimizer, "CSS"]["difference"]["mean"] == pytest.approx(-1)
        assert found[optimizer, "CSS"]["high"] - found[optimizer, "CSS"]["low"] > 10


def test_aggregations_are_compared_with_the_papers_choice():
    studies = collected("ablation", "ptb-lstm", lambda trial: {})["studies"]
    assert list(studies) == ["selection", "replacement", "aggregation"]
    usual = {row["optimizer"]: row["reference"] for row in studies["aggregation"]}
    assert usual == {"Adam_C": "mean", "RMSprop_C": "mean", "SGDM_C": "sum", "SGD_C": "sum"}
    assert default_aggregation("Nesterov_C") == "sum"
    assert default_aggregation("AggMo_C") == "mean"


@pytest.mark.parametrize("name", ["Adam_F", "SGDM_F"])
def test_a_damper_is_ablated_in_what_it_holds_alone(name):
    studies = collected("ablation", "ptb-lstm", lambda trial: {}, Options(1, optimizer=name))["studies"]
    assert list(studies) == ["selection", "replacement"]


# -- noise -------------------------------------------------------------------------------------------------------------


def test_noise_has_the_appendix_settings():
    trials = [item.trial for item in ANALYSES["noise"].trials("noise-logreg", Options(5))]
    assert len(trials) == 11 * 8 * 5
    assert {trial.settings["flip_y"] for trial in trials} == {k / 10 for k in range(11)}
    assert {trial.hyper["lr"] for trial in trials} == {1e-3}
    memories = [trial.hyper for trial in trials if trial.optimizer.endswith("_C")]
    assert {(hyper["topC"], hyper["decay"]) for hyper in memories} == {(5, 0.5)}


def test_lines_of_noise_are_sorted_as_the_papers_tables():
    data = collected("noise", "noise-logreg", lambda trial: {"test": 100 - 50 * trial.settings["flip_y"]})
    assert [line["optimizer"] for line in data["lines"]] == list(PAPER)
    for line in data["lines"]:
        flips = [point["flip_y"] for point in line["points"]]
        assert flips == sorted(flips)
        assert len(flips) == 11
        assert [point["test"] for point in line["points"]] == [100 - 50 * flip for flip in flips]


def test_one_optimizer_may_be_asked_for():
    data = collected("noise", "noise-logreg", lambda trial: {}, Options(1, optimizer="Adam_F"))
    assert [line["optimizer"] for line in data["lines"]] == ["Adam_F"]


# -- convex ------------------------------------------------------------------------------------------------------------


def test_the_convex_tasks_are_judged_by_their_training_loss():
    for task in ANALYSES["convex"].tasks:
        record = task_of(task)
        assert record.metric.name == "training loss"
        assert record.epochs == 25


def test_mnist_without_its_variant_still_has_25_epochs_unless_told_otherwise():
    trials = ANALYSES["convex"].trials
    assert trials("mnist-logreg", Options(1))[0].trial.settings == {"epochs": 25}
    assert trials("mnist-logreg", Options(1, {"epochs": 2}))[0].trial.settings == {"epochs": 2}
    assert trials("mnist-logreg@convex", Options(1))[0].trial.settings == {}


def test_what_has_diverged_throughout_is_named():
    def give(trial):
        lost = trial.optimizer == "SGD" or (trial.optimizer == "SGDM" and trial.seed == 0)
        return {"diverged": lost, "curves": {"train_loss": [0.9] if lost else [2.0 + trial.seed, 1.0 + trial.seed]}}

    data = collected("convex", "covtype-logreg", give)
    lines = {line["optimizer"]: line for line in data["lines"]}
    assert data["lost"] == [{"optimizer": "SGD", "runs": 2}]
    assert "SGD" not in lines
    assert lines["SGDM"]["diverged"] == 1
    assert lines["SGDM"]["mean"] == [3, 2]
    assert (lines["Adam"]["low"], lines["Adam"]["mean"], lines["Adam"]["high"]) == ([2, 1], [2.5, 1.5], [3, 2])


def test_real_convex_runs_lower_their_loss(tmp_path):
    data = real("convex", "mnist-logreg@convex@tiny", Options(1, {"epochs": 3}), tmp_path)
    assert [line["optimizer"] for line in data["lines"]] == list(PAPER)
    assert all(line["mean"][-1] < line["mean"][0] for line in data["lines"])


# -- all ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", list(ANALYSES))
def test_every_analysis_names_tasks_that_exist_and_plans_each_run_once(name):
    analysis = ANALYSES[name]
    for task in analysis.tasks:
        task_of(task)
        planned = analysis.trials(task, Options(1))
        assert len({item.trial.key for item in planned}) == len(planned)
        assert all(role.purpose == f"analysis:{name}" for item in planned for role in item.roles)
        assert bool(planned) == (analysis.measure is None)


@pytest.mark.parametrize("name", ["sensitivity", "ablation", "noise", "convex", "runtime"])
def test_a_run_that_serves_another_analysis_too_is_not_taken_for_its_arm(name):
    task = ANALYSES[name].tasks[0]

    def give(trial):
        return {"train_seconds": 1.0, "curves": {"train_loss": [1.0]}}

    plain = rows(name, task, give)
    shared = rows(name, task, give)
    for row in shared:
        row.roles = (*row.roles, Role("analysis", "Adam", "another arm 7", "analysis:timing"))
    assert ANALYSES[name].collect(task, shared) == ANALYSES[name].collect(task, plain)


@pytest.mark.parametrize("bad", [{"seeds": 0}, {"engine": "tank"}, {"optimizer": "Adan"}])
def test_bad_options_are_refused(bad):
    with pytest.raises(ValueError, match=f"Invalid {next(iter(bad))}: "):
        Options(**bad)


def test_no_rows_give_an_empty_answer():
    assert ANALYSES["sensitivity"].collect("ptb-lstm", [])["cells"] == []
    assert ANALYSES["ablation"].collect("ptb-lstm", [])["studies"] == {}
    assert ANALYSES["noise"].collect("noise-logreg", [])["lines"] == []
    assert ANALYSES["convex"].collect("covtype-logreg", [])["lines"] == []


def test_grids_are_module_values_that_a_test_may_shrink(monkeypatch):
    monkeypatch.setattr(outcomes, "TOPCS", (2,))
    monkeypatch.setattr(outcomes, "DECAYS", (0.5, 0.7))
    assert len(ANALYSES["sensitivity"].trials("ptb-lstm", Options(3))) == 6
