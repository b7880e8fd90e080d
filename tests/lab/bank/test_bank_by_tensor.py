"""A memory for each tensor, in a bank: what the single engine does with ``scope="tensor"``."""

from __future__ import annotations

import pytest
import torch
from bank_problem import assert_same, trial
from test_bank import bank_of

from critgrad.lab.train import loop as single
from critgrad.lab.train.bank import run_bank
from critgrad.lab.train.bank.members import member

ONE_EPOCH = {"epochs": 1}


@pytest.mark.parametrize("name, lr", [("SGDM_F", 0.03), ("NAdam_F", 0.01), ("RMSprop_F", 0.003)])
@pytest.mark.parametrize("policy", ["KotH", "random", "sparse"])
def test_it_is_the_librarys_scope_tensor(name, lr, policy):
    one = trial(name, lr=lr, topC=3, decay=0.9, policy=policy, scope="tensor", settings=ONE_EPOCH)
    assert_same(run_bank([one])[0], single.train(one.replace(engine="single")))


def test_nadam_is_the_same_in_both_engines():
    one = trial("NAdam_F", lr=0.003, settings=ONE_EPOCH)
    assert_same(run_bank([one])[0], single.train(one.replace(engine="single")))


def test_a_step_leaves_every_tensor_in_its_place():
    bank = bank_of([trial("Adam_F", lr=0.01, scope="tensor"), trial("SGD_F", lr=0.1, scope="tensor")])
    (block,) = bank.blocks
    tables = [thing for thing in vars(block.memories).values() if isinstance(thing, torch.Tensor)]
    places = [table.data_ptr() for table in tables]
    for _ in range(3):
        bank.step()
    now = [thing for thing in vars(block.memories).values() if isinstance(thing, torch.Tensor)]
    assert [table.data_ptr() for table in now] == places


@pytest.mark.parametrize(
    "changes, said", [({"probe": ("memory",)}, "Invalid memory"), ({"donor_seed": 3}, "Invalid donor_seed")]
)
def test_what_needs_one_memory_over_all_parameters_is_refused(changes, said):
    with pytest.raises(ValueError, match=said):
        member(trial("Adam_F", lr=0.01, scope="tensor", **changes), 0.0)
