import math

import pytest
import torch

pytest.importorskip("numpy")

from critgrad.lab import compare, digits


def sgd(params):
    return torch.optim.SGD(params, lr=0.1)


def test_the_split_is_disjoint_and_complete():
    parts = digits.load().rows
    assert [len(rows) for rows in parts] == [1197, 300, 300]
    assert sorted(row for rows in parts for row in rows) == list(range(1797))


def test_every_part_holds_every_digit_and_pixels_in_the_unit_interval():
    data = digits.load()
    for images, labels in (data.train, data.valid, data.test):
        assert labels.unique().tolist() == list(range(10))
        assert images.min() == 0
        assert images.max() == 1


def test_the_same_seed_gives_the_same_curves_and_another_seed_gives_others():
    first, again, other = (digits.train(sgd, seed, epochs=1) for seed in (0, 0, 1))
    assert first.train_loss == again.train_loss
    assert first.test_accuracy == again.test_accuracy
    assert first.train_loss != other.train_loss


def test_training_leaves_the_global_generator_alone():
    before = torch.get_rng_state()
    digits.train(sgd, seed=0, epochs=1)
    assert torch.equal(torch.get_rng_state(), before)


def test_start_and_batches_do_not_depend_on_the_optimizer():
    seen = {}

    def recorder(name, lr):
        def make(params):
            params = list(params)
            opt = torch.optim.SGD(params, lr=lr)
            start = [p.detach().clone() for p in params]
            # At lr=0 the weights stay at the start, so equal gradients mean equal batches.
            grads = []
            opt.register_step_pre_hook(lambda *_: grads.append(params[0].grad.clone()))
            seen[name] = start, grads
            return opt

        return make

    digits.train(recorder("a", 0.0), seed=3, epochs=1)
    digits.train(recorder("b", 0.5), seed=3, epochs=1)
    (start_a, grads_a), (start_b, grads_b) = seen["a"], seen["b"]
    assert all(torch.equal(p, q) for p, q in zip(start_a, start_b))
    assert torch.equal(grads_a[0], grads_b[0])
    assert not torch.equal(grads_a[-1], grads_b[-1])


def test_a_diverged_run_counts_as_the_worst():
    run = digits.train(lambda params: torch.optim.SGD(params, lr=1e30), seed=0, epochs=2)
    assert run.diverged
    assert run.at_best() == (0.0, math.inf, 0.0)


def test_the_best_epoch_is_chosen_on_validation_alone():
    run = digits.Run(0, valid_loss=[0.3, 0.2, 0.1], valid_accuracy=[0.8, 0.9, 0.9], test_accuracy=[1.0, 0.5, 0.6])
    assert run.best_epoch == 2
    assert run.at_best() == (0.9, 0.1, 0.6)


# Two-sided 95 % points from the usual tables.
@pytest.mark.parametrize("df,expected", [(1, 12.7062), (2, 4.3027), (3, 3.1824), (4, 2.7764), (29, 2.0452)])
def test_t_quantiles_match_the_tables(df, expected):
    assert compare.t_quantile(df) == pytest.approx(expected, abs=5e-5)


@pytest.mark.parametrize(
    "difference,half_width,word",
    [(0.5, 0.4, "win"), (-0.5, 0.4, "loss"), (0.5, 0.6, "tie"), (0.0, 0.0, "tie")],
)
def test_a_verdict_needs_an_interval_without_zero(difference, half_width, word):
    assert compare.verdict(difference, half_width) == word


def test_learning_rates_are_chosen_by_accuracy_and_then_by_loss():
    def run(accuracy, loss):
        return digits.Run(0, valid_loss=[loss], valid_accuracy=[accuracy], test_accuracy=[0.0])

    trials = [(0.1, run(0.9, 0.5)), (0.2, run(0.9, 0.4)), (0.3, run(0.8, 0.1))]
    assert compare.choose_lr(trials) == 0.2


def test_every_tuned_arm_gets_equal_trials_and_the_control_twice_the_lr_of_its_memory_twin():
    jobs = []

    def fake(todo):
        jobs.append(todo)
        return [
            digits.Run(
                j.seed,
                valid_loss=[abs(j.lr - 0.1)],
                valid_accuracy=[0.5],
                test_accuracy=[0.5],
                step_seconds=1.0,
            )
            for j in todo
        ]

    rows = compare.compare(fake, seeds=3, tuning_seeds=2, epochs=1, lrs=dict.fromkeys(compare.LRS, (0.01, 0.1, 1.0)))
    tuning, reported = jobs
    counts = {name: sum(job.arm == name for job in tuning) for name in compare.ARMS}
    assert counts == {name: 0 if arm.role == "control" else 6 for name, arm in compare.ARMS.items()}
    assert not {job.seed for job in tuning} & {job.seed for job in reported}
    assert {row.arm.name: row.lr for row in rows}["SGD 2x lr"] == 0.2


@pytest.mark.parametrize("arm", [a for a in compare.ARMS.values() if a.role in "CF"], ids=lambda arm: arm.name)
def test_a_memory_twin_leaves_the_path_of_its_base(arm):
    base = compare.ARMS[arm.family]
    runs = [digits.train(lambda p, a=a: a.optimizer(p, 0.01), seed=0, epochs=1) for a in (arm, base)]
    assert runs[0].train_loss != runs[1].train_loss


def test_an_arm_that_repeats_its_base_is_called_identical_and_not_a_tie():
    runs = [digits.train(sgd, seed, epochs=1) for seed in (0, 1)]
    row = compare._row(compare.ARMS["SGD_F"], 0.1, [0.1], runs, runs)
    assert row.identical
    assert "identical" in compare.table([compare._row(compare.ARMS["SGD"], 0.1, [0.1], runs, runs), row])


def test_the_report_names_all_arms_and_says_that_it_is_a_toy(capsys):
    args = ["--seeds", "2", "--tuning-seeds", "1", "--epochs", "1", "--lrs", "0.01", "--jobs", "1"]
    assert compare.main(args) == 0
    text = capsys.readouterr().out
    for arm in compare.ARMS.values():
        assert any(line.startswith(arm.name + " ") for line in text.splitlines()), arm.name
    assert text.count("(experimental)") == 4
    assert "toy" in text
    assert "2 seeds" in text


def test_bad_counts_are_refused(capsys):
    with pytest.raises(SystemExit):
        compare.main(["--seeds", "0"])
    assert "expected a whole number >= 1" in capsys.readouterr().err
