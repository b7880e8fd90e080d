"""Models that torch's compiler has made: the same training, said in provenance, compiled once for all runs of a kind."""

import pytest
import torch
from torch._dynamo.utils import counters

from critgrad.lab.run.spec import Trial
from critgrad.lab.train import compiling
from critgrad.lab.train.loop import new_model, problem_for, train

TRIAL = Trial("cifar100-convnet@tiny", "Adam_F", {"lr": 1e-3}, settings={"epochs": 1, "dropout": 0.0, "dropout2d": 0.0})


@pytest.fixture
def asked(monkeypatch):
    torch._dynamo.reset()
    counters.clear()
    monkeypatch.setenv(compiling.ASKED, "1")
    monkeypatch.setattr(compiling, "BACKEND", "aot_eager")  # all of it but the code that is made at the end
    yield
    torch._dynamo.reset()


def test_a_compiled_run_is_the_same_run_and_says_so(asked, monkeypatch):
    ours = train(TRIAL)
    monkeypatch.delenv(compiling.ASKED)
    torchs = train(TRIAL)
    assert counters["stats"]["unique_graphs"] > 0
    assert ours.provenance["compiled"] is True
    assert "compiled" not in torchs.provenance
    assert ours.summary["final_train_loss"] == pytest.approx(torchs.summary["final_train_loss"], rel=1e-4)
    assert ours.summary["steps"] == torchs.summary["steps"]


def test_the_next_run_of_a_kind_compiles_nothing(asked):
    train(TRIAL)
    first = counters["stats"]["unique_graphs"]
    for seed in range(1, 11):  # more than the versions of a function that torch keeps
        train(TRIAL.replace(seed=seed, settings={**TRIAL.settings, "epoch_steps": 2}))
    assert counters["stats"]["unique_graphs"] == first


def test_the_names_of_the_parameters_stay(asked):
    problem = problem_for(TRIAL, "cpu")
    plain, made = new_model(problem, 0), new_model(problem, 0)
    assert compiling.compile_if_asked(made)
    assert list(plain.state_dict()) == list(made.state_dict())
