"""A bank is the single engine, many times at once: the same numbers over 200 steps, in float64, to 1e-9."""

from __future__ import annotations

import numpy as np
import pytest
from bank_problem import assert_bank_equals_single, trial

from critgrad.lab.run.spec import Trial
from critgrad.lab.train.optimizers import OPTIMIZERS
from critgrad.memory.options import AGGREGATIONS
from critgrad.memory.policies import POLICIES

# 200 steps, alone and in a bank, of dozens of models: seconds.
slow = pytest.mark.slow

LR = {"SGD": 0.1, "SGDM": 0.03, "RMSprop": 0.003, "Adam": 0.01, "AdamW": 0.01}


def test_one_epoch_of_each_kind_of_model_in_one_bank():
    one_epoch = {"epochs": 1, "clip": 2.0}
    trials = [
        trial("Adam", lr=0.01, settings=one_epoch),
        trial("SGDM_C", lr=0.03, topC=2, decay=0.9, probe=("memory", "decisions"), settings=one_epoch),
        trial("SGDM_C", seed=1, lr=0.03, topC=5, policy="RR", aggr="median", settings=one_epoch),
        trial("RMSprop_F", lr=0.003, topC=4, probe=("damping", "update"), settings=one_epoch),
        trial("SGD_C", seed=1, lr=0.05, decay=0.97, donor_seed=2, probe=("decisions",), settings=one_epoch),
    ]
    assert_bank_equals_single(trials)


@slow
@pytest.mark.parametrize("policy", POLICIES)
def test_every_policy_with_every_aggregation(policy):
    trials = [
        trial("SGD_C", seed=i, lr=0.05, topC=4, decay=0.9, policy=policy, aggr=aggr, probe=("decisions", "memory"))
        for i, aggr in enumerate(AGGREGATIONS)
    ]
    results = assert_bank_equals_single(trials)
    assert all((result.curves["decisions"] >= 0).any() for result in results)


@slow
def test_every_optimizer_of_the_registry():
    trials = [
        trial(name, seed=i % 3, lr=LR[recipe.family], probe=("update",))
        for i, (name, recipe) in enumerate(OPTIMIZERS.items())
    ]
    assert_bank_equals_single(trials)


@slow
def test_mixed_numbers_of_slots_in_one_bank():
    trials = [
        trial("SGD_C", seed=1, lr=0.05, topC=topC, decay=decay, policy=policy, aggr=aggr, probe=("decisions",))
        for topC, decay, aggr in (
            (1, 0.9, "sum"),
            (3, 0.0, "max"),
            (7, 0.99, "fisher"),
            (12, 1.0, "mean"),
            (0, 0.7, "mean"),
        )
        for policy in ("KotH", "FIFO", "MNDS", "RR", "NCPR", "bottomC", "CDS")
    ]
    trials += [trial("Adam_C", lr=0.01, topC=2), trial("SGD", lr=0.1)]
    assert_bank_equals_single(trials)


@slow
@pytest.mark.parametrize("settings", [{"weight_decay": 0.01}, {"clip": 0.3, "weight_decay": 0.05}, {"norm": True}])
def test_weight_decay_clipping_and_buffers(settings):
    trials = [
        trial("SGD", lr=0.1, settings=settings),
        trial("SGDM", lr=0.03, dampening=0.2, settings=settings),
        trial("Nesterov_F", lr=0.03, settings=settings),
        trial("SGDM_C", lr=0.03, momentum=0.5, decay=0.8, settings=settings),
        trial("RMSprop_C", lr=0.003, momentum=0.3, alpha=0.9, eps=1e-6, decay=0.8, settings=settings),
        trial("RMSprop", lr=0.003, settings=settings),
        trial("Adam_F", seed=3, lr=0.01, beta1=0.8, eps=1e-6, settings=settings),
        trial("AdamW", lr=0.01, settings=settings),
        trial("AdamW_C", lr=0.01, weight_decay=0.1, decay=0.8, settings=settings),
        trial("NAdam", lr=0.01, momentum_decay=0.01, settings=settings),
        trial("AggMo", lr=0.03, settings=settings),
        trial("AggMo_C", lr=0.03, betas=[0.0, 0.5], settings=settings),
    ]
    assert_bank_equals_single(trials)


@slow
def test_options_of_the_memory_differ_from_model_to_model():
    trials = [
        trial("SGD_C", lr=0.05, max_age=6, decay=0.99, kappa=0.5, probe=("memory",)),
        trial("SGD_C", lr=0.05, decay=0.99, aggr="mid", kappa=2.0),
        trial("SGD_C", lr=0.05, policy="random", seed=1),
        trial("SGD_C", lr=0.05, policy="sparse", every=7, max_age=30),
        trial("SGD_F", lr=0.05, rho=1e-4, kappa=0.7, max_age=25),
        trial("SGD_F", lr=0.05, rho=3.0, policy="CSS"),
    ]
    bounded = assert_bank_equals_single(trials)[0]
    assert bounded.curves["ages"].max() <= 6


@slow
def test_draws_follow_the_seed_option_of_each_model():
    trials = [
        trial("SGD_C", lr=0.05, policy="random", probe=("decisions",)).replace(
            hyper={"lr": 0.05, "policy": "random", "seed": seed}
        )
        for seed in (0, 1, 2**40 + 3, 2**63 + 5)
    ]
    results = assert_bank_equals_single(trials)
    assert len({tuple(result.curves["decisions"]) for result in results}) == 4


@slow
@pytest.mark.parametrize("donor_present", [True, False])
def test_yoked_models_take_their_donors_decisions(donor_present):
    yoked = [
        trial("SGD_C", seed=seed, lr=0.05, decay=0.9, donor_seed=5, probe=("decisions", "memory")) for seed in (0, 1)
    ]
    yoked.append(trial("Adam_F", seed=2, lr=0.01, topC=3, policy="bottomC", donor_seed=4, probe=("decisions",)))
    donors = [trial("SGD_C", seed=5, lr=0.05, decay=0.9, probe=("decisions",))] if donor_present else []
    results = assert_bank_equals_single([*yoked, *donors])
    if donors:
        np.testing.assert_array_equal(results[0].curves["decisions"], results[-1].curves["decisions"])
    assert (results[0].curves["train_loss"] != results[1].curves["train_loss"]).all()


@slow
@pytest.mark.parametrize("aggr", ["sum", "max", "fisher"])
def test_probes_record_what_the_single_engine_records(aggr):
    probe = ("memory", "update", "damping", "decisions")
    trials = [trial("SGD_C", lr=0.05, topC=topC, decay=0.9, aggr=aggr, probe=probe) for topC in (3, 20)]
    trials += [trial("Adam", lr=0.01, probe=probe), trial("SGD_C", lr=0.05, aggr=aggr)]
    results = assert_bank_equals_single(trials)
    assert results[1].curves["spectrum"].shape == (4, 20)
    assert results[1].curves["ages"].shape == (4, 20)
    assert results[1].curves["decisions"].shape == (200,)
    assert set(results[2].curves) == {"train_loss", "valid_loss", "valid", "test", "update_rms"}


@slow
@pytest.mark.parametrize(
    "task, settings",
    [
        ("digits-mlp", {"epochs": 2}),
        ("cifar10-convnet@tiny", {"epochs": 1, "clip": 1.0}),
        ("mnist-logreg@convex@tiny", {"epochs": 2}),
        ("reuters-logreg@tiny", {"epochs": 2}),
        ("noise-logreg@tiny", {"epochs": 2, "flip_y": 0.2}),
    ],
)
def test_the_tasks_of_the_lab(task, settings):
    settings = {**settings, "dtype": "float64"}
    trials = [
        Trial(task, "Adam_C", {"lr": 0.003, "topC": 3}, 0, settings, "bank"),
        Trial(task, "SGDM_F", {"lr": 0.01, "topC": 4}, 1, settings, "bank"),
        Trial(task, "NAdam", {"lr": 0.003}, 1, settings, "bank"),
    ]
    assert_bank_equals_single(trials)
