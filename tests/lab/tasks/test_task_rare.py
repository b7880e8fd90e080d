"""Tasks whose signal is rare: long tails of classes, and phases of training."""

from __future__ import annotations

import pytest
import torch

from critgrad.lab.run.spec import Trial
from critgrad.lab.tasks import problem_of, task_of
from critgrad.lab.train.loop import train

LONG, CONTINUAL = "digits-mlp@longtail", "digits-mlp@continual"


def counts(problem, split="train"):
    return torch.bincount(problem.splits[split][1], minlength=10)


def test_a_long_tail_falls_evenly_to_its_last_class():
    thinned, whole = problem_of(LONG, {"imbalance": 20.0}), problem_of("digits-mlp")
    numbers = counts(thinned)
    assert (numbers.diff() < 0).all()
    assert numbers[0] == counts(whole).min()
    assert numbers[0] / numbers[-1] == pytest.approx(20, rel=0.1)
    assert len(thinned.splits["train"][0]) == thinned.train_size == numbers.sum()


def test_a_long_tail_leaves_validation_and_test_as_they_are():
    thinned, whole = problem_of(LONG), problem_of("digits-mlp")
    for split in ("valid", "test"):
        assert torch.equal(thinned.splits[split][0].x, whole.splits[split][0].x)
        assert torch.equal(counts(thinned, split), counts(whole, split))


def test_the_rows_of_a_long_tail_keep_their_labels():
    thinned, whole = problem_of(LONG), problem_of("digits-mlp")
    known = {tuple(x.tolist()): int(y) for x, y in zip(*(part for part in _rows(whole)))}
    x, y = _rows(thinned)
    assert all(known[tuple(row.tolist())] == int(label) for row, label in zip(x, y))


def _rows(problem):
    rows, labels = problem.splits["train"]
    return rows.x, labels


def test_no_imbalance_leaves_classes_of_one_size():
    assert len(set(counts(problem_of(LONG, {"imbalance": 1})).tolist())) == 1


def test_each_phase_trains_on_its_own_pixels_alone():
    problem = problem_of(CONTINUAL, {"epochs": 10})
    assert [problem.phase(epoch) for epoch in range(1, 11)] == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]
    for epoch in (1, 2, 3, 10):
        plan = problem.plan(0, epoch)
        assert plan.shape == (problem.steps, problem.batch_size)
        assert (plan // problem.train_size == problem.phase(epoch)).all()


def test_phases_differ_by_the_order_of_pixels_and_the_first_is_the_plain_task():
    problem, plain = problem_of(CONTINUAL), problem_of("digits-mlp")
    n = plain.train_size
    x, y = _rows(problem)
    first, second = x[:n], x[n : 2 * n]
    assert torch.equal(first, plain.splits["train"][0].x)
    assert not torch.equal(first, second)
    assert torch.equal(first.flatten(1).sort(1).values, second.flatten(1).sort(1).values)
    assert torch.equal(y[:n], y[n : 2 * n])
    # Two phases are shuffled in two ways.
    assert not torch.equal(second, x[2 * n : 3 * n])


def test_what_is_reported_is_the_mean_over_all_phases():
    problem = problem_of(CONTINUAL, {"phases": 3})
    assert len(problem.splits["test"][1]) == 3 * len(problem_of("digits-mlp").splits["test"][1])


@pytest.mark.parametrize("task", [LONG, CONTINUAL, "mnist-mlp@longtail@tiny", "mnist-mlp@continual@tiny"])
def test_they_train_alike_in_both_engines(task):
    from critgrad.lab.train.bank import run_bank

    trials = [Trial(task, "Adam_F", {"lr": 3e-3}, seed, {"epochs": 2, "batch_size": 32}) for seed in (0, 1)]
    bank = run_bank([trial.replace(engine="bank") for trial in trials])
    for trial, found in zip(trials, bank):
        single = train(trial)
        assert found.curves["train_loss"] == pytest.approx(single.curves["train_loss"], rel=1e-4)


def test_a_phase_is_forgotten_in_the_next():
    """Or the task would ask nothing of a memory."""
    settings = {"epochs": 20, "phases": 2, "batch_size": 16}
    trial = Trial(CONTINUAL, "Adam", {"lr": 3e-3}, 0, settings)
    valid = train(trial).curves["valid"]
    alone = train(trial.replace(settings={**settings, "phases": 1})).curves["valid"][-1]
    assert alone > 90
    assert valid[-1] < alone - 10


@pytest.mark.parametrize(
    "task, setting, value", [(LONG, "imbalance", 0.5), (CONTINUAL, "phases", 0), (CONTINUAL, "phases", 2.0)]
)
def test_a_bad_setting_is_named(task, setting, value):
    with pytest.raises(ValueError, match=f"Invalid {setting} of {task}: {value}"):
        problem_of(task, {setting: value})


def test_the_plain_tasks_do_not_know_the_settings():
    with pytest.raises(ValueError, match="imbalance"):
        task_of("digits-mlp", {"imbalance": 2})
