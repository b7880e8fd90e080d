"""The setting ``tf32``: part of a trial only where it is given, in effect for that trial only."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import torch

from critgrad.lab.run.spec import Trial
from critgrad.lab.tasks import TASKS, task_of
from critgrad.lab.train.bank import run_bank
from critgrad.lab.train.loop import train
from critgrad.lab.train.precision import at_its_precision, tf32_allowed

TORCHS_OWN = (False, True)


def flags() -> tuple[bool, bool]:
    return torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32


@at_its_precision
def an_engine(work, *, device="cpu", raises=False):
    if raises:
        raise KeyError("in the middle")
    return flags()


@pytest.mark.parametrize("several", [False, True])
@pytest.mark.parametrize(
    "settings, device, expected",
    [
        ({}, "cuda", TORCHS_OWN),
        ({"tf32": True}, "cuda:0", (True, True)),
        ({"tf32": False}, "cuda", (False, False)),
        ({"tf32": True}, "cpu", TORCHS_OWN),
    ],
)
def test_an_engine_computes_as_the_setting_says_and_leaves_no_trace(settings, device, expected, several):
    trial = Trial("digits-mlp@tiny", "SGD", {"lr": 0.1}, settings=settings)
    work = [trial, trial.replace(seed=1)] if several else trial
    assert flags() == TORCHS_OWN
    assert an_engine(work, device=device) == expected
    assert flags() == TORCHS_OWN
    with pytest.raises(KeyError):
        an_engine(work, device=device, raises=True)
    assert flags() == TORCHS_OWN


def test_one_trial_inside_of_another_gives_back_what_it_found():
    with tf32_allowed(True, "cuda"):
        with tf32_allowed(False, "cuda"), tf32_allowed(None, "cuda"):
            assert flags() == (False, False)
        assert flags() == (True, True)
    assert flags() == TORCHS_OWN


@pytest.mark.parametrize("engine", ["single", "bank"])
def test_both_engines_take_it_and_on_a_cpu_nothing_changes(engine):
    def curves(settings):
        trial = Trial("digits-mlp@tiny", "SGD_C", {"lr": 0.1}, settings={"epochs": 1, **settings}, engine=engine)
        return (train(trial) if engine == "single" else run_bank([trial])[0]).curves["train_loss"]

    np.testing.assert_array_equal(curves({"tf32": True}), curves({}))


@pytest.mark.parametrize("name", TASKS)
def test_every_task_has_it_and_none_has_a_default(name):
    assert task_of(f"{name}@tiny").tf32 is None
    assert task_of(name, {"tf32": False}).tf32 is False


def test_another_value_is_refused():
    with pytest.raises(ValueError, match="Invalid tf32 of ptb-lstm: 1, expected True or False"):
        task_of("ptb-lstm", {"tf32": 1})


def test_it_is_part_of_a_key_only_where_it_is_given():
    trial = Trial("ptb-lstm", "Adam", {"lr": 0.001})
    assert trial.key == "48e8087334d6df935e701455165ad13a"
    keys = {trial.key, *(trial.replace(settings={"tf32": value}).key for value in (True, False))}
    assert len(keys) == 3


def test_it_works_where_flags_must_not_be_assigned():
    script = (
        "import torch\n"
        "from critgrad.lab.train.precision import tf32_allowed\n"
        "torch.backends.disable_global_flags()\n"
        "with tf32_allowed(False, 'cuda'):\n"
        "    print(torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32)\n"
        "print(torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False", "False", "True"]
