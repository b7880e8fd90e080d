"""A study from its file to its answer, in each form of a task."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch
from study_helpers import FILE, LOOP, PIECES, arms, call, keys, made, process, run, write

from critgrad.lab import study
from critgrad.lab.errors import LabError
from critgrad.lab.ledger import Ledger
from critgrad.lab.ledger.merge import merge
from critgrad.lab.run.spec import StudyTrial
from critgrad.lab.study.file import read
from critgrad.lab.study.forms import BuiltInTask, load_task

MINE = """
import torch

class Mine(torch.optim.SGD):
    def __init__(self, params, lr=0.05, kind=""):
        super().__init__(params, lr=lr)
        self.kind = kind

    def step(self, closure=None):
        if self.kind == "raises":
            raise RuntimeError("it never works")
        if self.kind == "nan":
            self.param_groups[0]["params"][0].data.fill_(float("nan"))
        if self.kind == "away":
            self.param_groups[0]["params"][0].data.add_(100.0)
        return super().step(closure)
"""


def reasons(answer: study.Answer) -> set[str]:
    """Why runs failed, of all arms."""
    every = [run for arm in answer.arms.values() for r in arm.replicates for run in (*r.trials, *r.reports)]
    return {run.failed for run in every if run.failed}


SIX = arms("first", "raises", "nan", "away").replace("replicates = 2", "replicates = 8")


def test_pieces_are_searched_chosen_by_validation_and_reported_by_test(tmp_path: Path) -> None:
    answer, count = made(write(tmp_path))
    assert count == 2 * 2 * (2 + 1)
    assert answer.final
    assert (answer.direction, answer.planned, answer.epochs) == ("min", 2, 2)
    for arm in answer.arms.values():
        for replicate in arm.replicates:
            assert len(replicate.trials) == 2
            best = min(replicate.trials, key=lambda trial: trial.valid)
            assert replicate.chosen == best.point
            assert replicate.valid == best.valid
            assert replicate.value == replicate.reports[0].test
            assert len(best.curve) == 2
            assert best.valid == min(best.curve)
            assert best.test == pytest.approx(best.valid + 1)
            assert replicate.reports[0].seed not in {trial.seed for trial in replicate.trials}
    first, second = (answer.arms[name].replicates for name in ("sgd", "adam"))
    assert [r.reports[0].seed for r in first] == [r.reports[0].seed for r in second]
    assert [t.point["lr"] for t in first[0].trials] == [t.point["lr"] for t in second[0].trials]
    # The value before training is that of the shared seeds, before the first step.
    initial = [r.reports[0].initial for r in first]
    assert initial == [r.reports[0].initial for r in second]
    assert answer.initial == pytest.approx(sum(initial) / 2)
    assert answer.claims[0].arm == "adam"


def test_the_same_study_again_makes_no_run(tmp_path: Path) -> None:
    path = write(tmp_path)
    first, _ = made(path)
    again, count = made(path)
    assert count == 0
    assert again.claims == first.claims
    assert study.report(path).claims == first.claims


def test_a_loop_of_ones_own_with_its_value_before_training(tmp_path: Path) -> None:
    answer, count = made(write(tmp_path, LOOP))
    assert count == 2 * 2 * (2 + 1) + 2  # and one epoch of each replicate whose steps do nothing
    torch.manual_seed(0)
    assert answer.initial > max(replicate.value for arm in answer.arms.values() for replicate in arm.replicates)
    assert made(tmp_path / "study.toml")[1] == 0


def test_a_built_in_task_knows_its_direction_and_takes_settings(tmp_path: Path) -> None:
    file = FILE.replace('"task.py"', '"digits-mlp@tiny"').replace('direction = "min"\n', "").replace("epochs = 2\n", "")
    file = file.replace("torch.optim:Adam", "Adam_C").replace("betas.0", "beta1")
    path = write(tmp_path, file=file.replace("seed = 7", "seed = 7\nsettings = { batch_size = 8, epoch_steps = 4 }"))
    (tmp_path / "task.py").unlink()
    answer, count = made(path)
    assert (answer.direction, answer.epochs, count) == ("max", 3, 12)
    assert all(replicate.value > 10 for arm in answer.arms.values() for replicate in arm.replicates)
    assert math.isfinite(answer.initial)


def test_train_and_eval_of_an_optimizer_are_called_around_epochs_and_evaluations(tmp_path: Path) -> None:
    module = """
import torch

class Mine(torch.optim.SGD):
    training = False
    def __init__(self, params, lr=0.1, kind=""):
        super().__init__(params, lr=lr)
    def train(self):
        self.training = True
    def eval(self):
        self.training = False
    def step(self, closure=None):
        assert self.training
        LAST.append(self)
        super().step(closure)

LAST = []
"""
    task = PIECES.replace("import torch\n", "import torch\nimport mine\n", 1).replace(
        "    model =", "    mine.LAST.clear()\n    model ="
    )
    task = task.replace("    error =", "    assert not mine.LAST or not mine.LAST[-1].training\n    error =")
    answer = run(write(tmp_path, task, arms("one", "two"), mine=module))
    assert reasons(answer) == set()


def test_schedule_free_of_its_own_package_runs_in_both_places_where_the_lab_trains(tmp_path: Path) -> None:
    pytest.importorskip("schedulefree", reason="needs schedulefree")
    file = FILE.replace("torch.optim:Adam", "schedulefree:AdamWScheduleFree")
    for name, task in (("pieces", '"task.py"'), ("built-in", '"digits-mlp@tiny"')):
        changed = file.replace('"task.py"', task).replace('"min"', '"min"' if name == "pieces" else '"max"')
        answer = run(write(tmp_path / name, file=changed))
        assert reasons(answer) == set()


def test_runs_that_fail_count_as_untrained_and_a_raising_optimizer_is_worse(tmp_path: Path) -> None:
    answer = run(write(tmp_path, file=SIX, mine=MINE))
    words = {claim.arm: claim.word for claim in answer.claims}
    assert words == {"raises": "worse", "nan": "worse", "away": "worse"}
    untrained = {name: {r.untrained for r in arm.replicates} for name, arm in answer.arms.items()}
    assert untrained == {
        "first": {""},
        "raises": {"RuntimeError: it never works (mine.py, line 11)"},
        "nan": {"not finite after epoch 1"},
        "away": {"worse than no training"},
    }
    assert {r.value for name in ("raises", "nan") for r in answer.arms[name].replicates} == {answer.initial}
    away = answer.arms["away"].replicates
    assert [r.value for r in away] == [sum(run.initial for run in r.reports) / len(r.reports) for r in away]
    with Ledger.open(tmp_path / "study.db") as book:
        failed = [row for row in map(book.row, keys(tmp_path / "study.toml")) if row.status == "failed"]
    assert len(failed) == 8
    assert "Traceback" in failed[0].error
    assert 'mine.py", line 11, in step' in failed[0].error


def test_a_search_whose_points_all_fail_counts_as_untrained(tmp_path: Path) -> None:
    file = arms("first", "raises", search='lr = "log 1e-3 1e-1"')
    answer, count = made(write(tmp_path, file=file, mine=MINE))
    assert count == 2 * (2 + 1) + 2 * 2
    found = answer.arms["raises"].replicates
    assert [r.reports for r in found] == [(), ()]
    assert found[0].untrained.startswith("all 2 points failed: RuntimeError: it never works")
    assert {r.value for r in found} == {answer.initial}


def test_a_study_in_which_nothing_works_says_why(tmp_path: Path) -> None:
    path = write(tmp_path, PIECES.replace("((model", "1 / 0 + ((model"), arms("first", "second"), mine=MINE)
    code, _, err = call("study", "run", path, "--executor", "inline")
    assert code == 1
    assert "No run of the study gave a value" in err
    assert "--retry" in err
    assert "ZeroDivisionError: division by zero (task.py, line 16)" in err


def test_a_loop_that_never_reports_has_failed(tmp_path: Path) -> None:
    task = LOOP.replace("        report(", "        if make_optimizer([weight]).kind == 'first': report(")
    answer = run(write(tmp_path, task, arms("first", "silent"), mine=MINE))
    assert "never called report" in answer.arms["silent"].replicates[0].untrained
    assert not answer.arms["first"].replicates[0].untrained


def test_a_loop_that_takes_an_optimizer_of_its_own_has_failed(tmp_path: Path) -> None:
    """Else every arm would be that optimizer, and the verdict "same"."""
    task = LOOP.replace("make_optimizer([weight])", "torch.optim.SGD([weight], lr=0.1)")
    assert task != LOOP
    code, _, err = call("study", "check", write(tmp_path, task, arms("first", "second"), mine=MINE))
    assert (code, "never called make_optimizer" in err) == (2, True)
    with pytest.raises(LabError, match=r"No run .* never called make_optimizer"):
        run(tmp_path / "study.toml")


def test_a_loop_has_no_schedule_of_the_studys(tmp_path: Path) -> None:
    file = arms("first", "second").replace("[arms.first]", '[schedule]\nkind = "cosine"\n\n[arms.first]')
    code, _, err = call("study", "run", write(tmp_path, LOOP, file, mine=MINE))
    assert (code, "study.toml: schedule: expected none" in err) == (2, True)
    assert not (tmp_path / "study.db").exists()


def test_what_a_function_gave_is_told_without_a_line_of_the_labs(tmp_path: Path) -> None:
    wrong = PIECES.replace("def loss(", "def loss(model, batch):\n    return torch.ones(2)\n\n\ndef other(")
    code, _, err = call("study", "check", write(tmp_path, wrong, arms("first", "second"), mine=MINE))
    assert code == 2
    assert "loss() gave a tensor of shape (2,), expected a scalar" in err
    assert ".py, line" not in err


@pytest.mark.parametrize("given", ["'good'", "'0.3'", "{'valid': 1}", "None", "torch.ones(2)", "torch.ones(5000)"])
def test_a_report_that_is_no_number_says_what_is_expected(given: str, tmp_path: Path) -> None:
    task = PIECES.replace('return {"valid": float(error), "test": float(error) + 1}', f"return {given}")
    path = write(tmp_path, task)
    with pytest.raises(ValueError, match="expected a number, or") as raised:
        run(path)
    assert len(str(raised.value)) < 400


@pytest.mark.parametrize("given", ["1.0, test=2.0", "valid=1.0, test=2.0", "{'valid': 1.0, 'test': 2.0}"])
def test_a_report_loses_neither_of_two_numbers(given: str, tmp_path: Path) -> None:
    start = LOOP.partition("report(valid=")[0]
    answer = run(write(tmp_path, f"{start}report({given})\n"))
    trial = answer.arms["sgd"].replicates[0].trials[0]
    assert (trial.valid, trial.test) == (1.0, 2.0)


def test_one_number_is_both_valid_and_test(tmp_path: Path) -> None:
    task = PIECES.replace('return {"valid": float(error), "test": float(error) + 1}', "return error")
    answer = run(write(tmp_path, task))
    for replicate in answer.arms["sgd"].replicates:
        assert all(trial.valid == trial.test for trial in replicate.trials)


def test_the_best_of_several_rivals_is_chosen_anew_in_each_replicate(tmp_path: Path) -> None:
    file = FILE.replace('against = "sgd"', 'against = ["sgd", "still"]').replace("replicates = 2", "replicates = 4")
    file = file.replace(
        "[[claims]]", '[arms.still]\noptimizer = "torch.optim:SGD"\nfixed = { lr = 0.05 }\n\n[[claims]]'
    )
    answer = run(write(tmp_path, file=file))
    claim = answer.claims[0]
    assert claim.against == ("sgd", "still")
    for place, rival in enumerate(claim.rivals):
        values = {name: answer.arms[name].replicates[place].valid for name in claim.against}
        assert rival == min(values, key=lambda name: values[name])
        difference = answer.arms[rival].replicates[place].value - answer.arms["adam"].replicates[place].value
        assert claim.differences[place] == pytest.approx(difference)


def test_replicates_arms_and_axes_can_be_added_without_moving_what_is_there(tmp_path: Path) -> None:
    path = write(tmp_path)
    run(path)
    before = keys(path)
    file = FILE.replace("replicates = 2", "replicates = 3").replace(
        "[arms.sgd]", '[arms.new]\noptimizer = "Adam"\n\n[arms.sgd]'
    )
    answer, count = made(write(tmp_path, file=file))
    assert count == 6 + 3  # the third replicate of the two, and the reports of the new arm
    assert set(before) < set(keys(path))
    assert answer.final


def test_a_file_that_shrank_after_its_verdict_says_so(tmp_path: Path) -> None:
    run(write(tmp_path, file=FILE.replace("replicates = 2", "replicates = 3")))
    (note,) = run(write(tmp_path)).notes
    assert "asked for 3 replicates when there was a verdict, and asks for 2 now" in note


def test_a_file_that_grew_after_its_verdict_says_so(tmp_path: Path) -> None:
    path = write(tmp_path)
    assert run(path).notes == ()
    answer = run(write(tmp_path, file=FILE.replace("replicates = 2", "replicates = 3")))
    assert any("asked for 2 replicates when there was a verdict" in note for note in answer.notes)
    assert study.report(path).notes == answer.notes
    # Whatever is asked beside it, the claim is the same.
    more = FILE.replace("replicates = 2", "replicates = 3").replace("seed = 7", "seed = 7\nmargin = 0.5")
    more = more.replace(
        "[[claims]]", '[arms.new]\noptimizer = "Adam"\n\n[[claims]]\narm = "new"\nagainst = "sgd"\n\n[[claims]]'
    )
    assert run(write(tmp_path, file=more)).notes == answer.notes
    fresh = FILE.replace("replicates = 2", "replicates = 3").replace("seed = 7", "seed = 8")
    assert run(write(tmp_path, file=fresh)).notes == ()


def test_failed_runs_are_made_again_when_asked_for(tmp_path: Path) -> None:
    flag = tmp_path / "works"
    works = f'import os\n        if self.kind == "raises" and not os.path.exists({str(flag)!r}):'
    module = MINE.replace('if self.kind == "raises":', works)
    path = write(tmp_path, file=arms("first", "raises"), mine=module)
    assert all(r.untrained for r in run(path).arms["raises"].replicates)
    flag.touch()
    assert made(path)[1] == 0
    answer, count = made(path, retry=True)
    assert count == 2
    assert not any(r.untrained for r in answer.arms["raises"].replicates)


def test_to_retry_leaves_runs_alone_that_ended_without_a_number(tmp_path: Path) -> None:
    path = write(tmp_path, file=arms("first", "nan", "raises", search='lr = "log 1e-3 1e-1"'), mine=MINE)
    first = run(path)
    again, count = made(path, retry=True)
    assert count == 2 * 2  # the points that raised
    assert again.final
    assert again.claims == first.claims


def test_a_time_limit_gives_whole_replicates_and_says_not_final(tmp_path: Path) -> None:
    path = write(tmp_path, file=FILE.replace("replicates = 2", "replicates = 50"))
    answer = run(path, minutes=1e-9)
    assert not answer.final
    assert {len(arm.replicates) for arm in answer.arms.values()} == {1}
    assert "not final: 1 of 50 replicates" in answer.claims[0].remark
    with Ledger.open(tmp_path / "study.db") as book:
        assert len(book.keys()) == 6
    assert len(run(path, minutes=1e-9).arms["sgd"].replicates) == 2  # it goes on


def test_a_schedule_changes_every_arms_learning_rate(tmp_path: Path) -> None:
    module = """
import torch
class Mine(torch.optim.SGD):
    def __init__(self, params, lr=0.1, kind=""):
        super().__init__(params, lr=lr)
    def step(self, closure=None):
        with open("rates", "a") as file:
            print(self.param_groups[0]["lr"], file=file)
        super().step(closure)
"""
    file = arms("one", "two").replace("[arms.one]", '[schedule]\nkind = "linear"\nwarmup = 0.34\n\n[arms.one]')
    run(write(tmp_path, file=file, mine=module))
    rates = [float(line) for line in (tmp_path / "rates").read_text().split()]
    assert len(rates) == 4 * 2 * 3
    assert rates[:6] == pytest.approx([0.05, 0.1, 0.1, 0.075, 0.05, 0.025])


@pytest.mark.parametrize("asked, kind", [("", "cosine"), ('[schedule]\nkind = "constant"\n', "constant")])
def test_a_constant_rate_that_is_asked_for_is_one_of_a_built_in_task_too(asked: str, kind: str, tmp_path: Path) -> None:
    file = FILE.replace('"task.py"', '"pycode-gpt@tiny"').replace("[arms.sgd]", f"{asked}[arms.sgd]")
    path = tmp_path / "study.toml"
    path.write_text(file)
    found = read(path)
    task = load_task(found.task, found.folder, found.settings)
    assert isinstance(task, BuiltInTask)
    assert task.record.schedule == kind
    assert (task.record.warmup > 0) == (kind == "cosine")


def test_an_optimizer_that_needs_a_closure_gets_one(tmp_path: Path) -> None:
    file = FILE.replace("torch.optim:SGD", "torch.optim:LBFGS").replace("momentum = 0.5", "max_iter = 2")
    answer = run(write(tmp_path, file=file))
    assert reasons(answer) == set()


def test_groups_of_parameters_may_be_the_tasks_own(tmp_path: Path) -> None:
    task = (
        PIECES
        + "\ndef parameters(model):\n    return [{'params': [model.weight], 'lr': 0.0}, {'params': [model.bias]}]\n"
    )
    answer = run(write(tmp_path, task))
    assert reasons(answer) == set()


def test_json_has_the_claims_and_no_number_that_json_does_not_know(tmp_path: Path) -> None:
    path = write(tmp_path, file=SIX.replace("replicates = 8", "replicates = 2"), mine=MINE)
    code, out, err = call("study", "run", path, "--executor", "inline", "--json", tmp_path / "answer.json")
    assert code == 0, err
    found = json.loads((tmp_path / "answer.json").read_text(), parse_constant=lambda name: pytest.fail(name))
    assert found["final"] is True
    wanted = {"arm", "against", "word", "remark", "difference", "mean", "low", "high", "p", "p_holm", "replicates"}
    assert wanted <= set(found["claims"][0])
    assert found["claims"][0]["against"] == ["first"]
    assert json.loads(study.report(path).to_json())["claims"] == found["claims"]
    assert "raises" in out


def test_study_rows_are_not_among_those_of_other_experiments(tmp_path: Path) -> None:
    path = write(tmp_path)
    run(path)
    with Ledger.open(tmp_path / "study.db") as book:
        assert book.rows(status=None) == []
        row = book.row(keys(path)[0])
        assert isinstance(row.trial, StudyTrial)
        assert row.trial.key == row.key
        assert {role.arm for key in keys(path) for role in book.row(key).roles} == {"sgd", "adam"}
    code, out, _ = call("status", "--ledger", tmp_path / "study.db")
    assert code == 0
    assert "task.py" in out


def test_what_study_new_writes_is_a_study(tmp_path: Path) -> None:
    assert call("study", "new", tmp_path / "mine")[0] == 0
    path = tmp_path / "mine" / "study.toml"
    path.write_text(path.read_text().replace("replicates = 10", "replicates = 2").replace("trials = 8", "trials = 1"))
    assert run(path).final


def test_check_tells_the_plan_and_writes_nothing(tmp_path: Path) -> None:
    path = write(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    code, out, err = call("study", "check", path, "--workers", 2)
    assert code == 0, err
    assert sorted(tmp_path.rglob("*")) == before
    assert "12 runs to make" in out
    assert "2 replicates are too few for 1 claim, at least 6 are needed" in out
    assert "arms.adam fails at its first steps" not in out


def test_check_says_where_arms_that_give_no_weight_decay_have_different_ones(tmp_path: Path) -> None:
    path = write(tmp_path, file=FILE.replace("torch.optim:Adam", "torch.optim:AdamW"))
    code, out, _ = call("study", "check", path, "--device", "cpu")
    assert code == 0
    assert "sgd=0, adam=0.01" in out
    path.write_text(path.read_text().replace("momentum = 0.5", "weight_decay = 0.1"))
    assert "weight_decay" not in call("study", "check", path, "--device", "cpu")[1]


def test_a_screen_that_knows_few_letters_does_not_cost_the_verdict(tmp_path: Path) -> None:
    path = write(tmp_path, file=FILE.replace("[arms.adam]", '[arms."ädäm"]').replace('arm = "adam"', 'arm = "ädäm"'))
    run(path)
    found = process("study", "report", path, "--json", tmp_path / "answer.json", PYTHONIOENCODING="ascii")
    out, err = found.communicate(timeout=240)
    assert found.returncode == 0, err
    assert "?d?m against sgd is open" in out
    assert json.loads((tmp_path / "answer.json").read_text(encoding="utf-8"))["claims"][0]["arm"] == "ädäm"
    assert (tmp_path / "report.html").exists()


def test_a_packed_ledger_gives_the_same_answer(tmp_path: Path) -> None:
    path = write(tmp_path)
    full = run(path)
    packed = tmp_path / "published.db.xz"
    assert merge(packed, [tmp_path / "study.db"], compact=True).added == len(keys(path))
    found = study.report(path, ledger=packed)
    assert found.final
    assert found.claims == full.claims
    assert [arm.replicates[0].value for arm in found.arms.values()] == [
        arm.replicates[0].value for arm in full.arms.values()
    ]
