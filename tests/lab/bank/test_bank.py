"""What a bank does beside training: splitting trials, leaving diverged models alone, refusing what it cannot do."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from bank_problem import assert_same, trial
from torch.utils._python_dispatch import TorchDispatchMode

from critgrad.lab.run.spec import Trial
from critgrad.lab.train import loop as single
from critgrad.lab.train.bank import bank_groups, run_bank
from critgrad.lab.train.bank.members import crew
from critgrad.lab.train.bank.step import WARM_UP_STEPS, Bank, Stepper

ONE_EPOCH = {"epochs": 1}


def bank_of(trials: list[Trial]) -> Bank:
    bank = Bank(single.problem_for(trials[0], "cpu"), crew(trials, 0.0))
    bank.begin_epoch(1)
    return bank


def test_a_diverged_model_is_reported_and_disturbs_nobody():
    # The penalty of the second multiplies its weights by about -1000 in each step: they overflow in the second epoch.
    settings = {"epochs": 3}
    trials = [
        trial("SGD_C", lr=0.05, settings=settings, probe=("memory",)),
        trial("SGD", lr=0.1, weight_decay=10010.0, settings=settings),
        trial("Adam_F", lr=0.01, settings=settings),
        trial("SGD_F", lr=1e200, settings=settings, probe=("memory", "damping", "decisions")),
    ]
    results = run_bank(trials)
    for i in (0, 2):
        assert_same(results[i], single.train(trials[i].replace(engine="single")))
    late, at_once = results[1], results[3]
    assert late.summary["diverged"]
    assert (late.summary["epochs"], late.summary["steps"], len(late.curves["valid"])) == (1, 100, 1)
    assert (late.summary["valid"], late.summary["test"], late.summary["best_epoch"]) == (0.0, 0.0, None)
    assert at_once.summary["diverged"]
    assert at_once.curves == {}


def test_a_bank_of_diverged_models_stops(monkeypatch):
    begun, begin = [], Bank.begin_epoch
    monkeypatch.setattr(Bank, "begin_epoch", lambda bank, epoch: (begun.append(epoch), begin(bank, epoch)))
    results = run_bank([trial("SGD", lr=1e200, seed=seed) for seed in range(2)])
    assert begun == [1]
    assert all(result.summary["diverged"] for result in results)


def test_models_without_a_memory_and_with_an_empty_one_agree_bit_for_bit():
    plain, empty = run_bank(
        [trial("Adam", lr=0.01, settings=ONE_EPOCH), trial("Adam_C", lr=0.01, topC=0, settings=ONE_EPOCH)]
    )
    np.testing.assert_array_equal(plain.curves["train_loss"], empty.curves["train_loss"])


def test_a_trial_gets_its_result_whatever_its_place():
    trials = [trial(name, lr=0.01, seed=3, settings=ONE_EPOCH) for name in ("SGD_F", "Adam", "SGD_C", "SGD")]
    there = run_bank(trials)
    back = run_bank(trials[::-1])[::-1]
    for a, b in zip(there, back):
        np.testing.assert_allclose(a.curves["train_loss"], b.curves["train_loss"], rtol=1e-12)
    assert len({float(result.curves["train_loss"][0]) for result in there}) == 4


def test_results_say_how_they_were_made():
    result = run_bank([trial("SGD_C", lr=0.05, donor_seed=1, settings=ONE_EPOCH)])[0]
    assert result.provenance["models"] == 2  # the donor is there, too
    assert result.provenance["graph"] is False
    assert "seconds" not in result.curves
    assert result.summary["parameters"] == 6 * 8 + 8 + 8 * 3 + 3


# -- the step ----------------------------------------------------------------------------------------------------------

EVERY_KIND = [
    trial("Adam", lr=0.01),
    trial("Nesterov_C", lr=0.03, topC=2, dampening=0.0),
    trial("SGD_C", lr=0.03, policy="CDS", topC=4, aggr="max"),
    trial("RMSprop_C", lr=0.01, policy="NCPR", max_age=9, aggr="median", momentum=0.5),
    trial("AdamW_F", lr=0.01, probe=("decisions",)),
    trial("NAdam", lr=0.01),
    trial("AggMo_C", lr=0.01, seed=4, donor_seed=1),
]


class _Ops(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.append(func.overloadpacket._qualified_op_name.split("::")[-1])
        if self.names[-1] in ("index", "index_put_"):
            assert all(index is None or index.dtype != torch.bool for index in args[1]), "a mask as an index"
        return func(*args, **(kwargs or {}))


def test_a_step_never_waits_for_the_device(monkeypatch):
    bank = bank_of(EVERY_KIND)

    def waits_for_the_device(*args):
        raise AssertionError("a value was looked at on the host")

    for name in ("tolist", "numpy", "cpu"):  # on a CPU these pass by the dispatcher
        monkeypatch.setattr(torch.Tensor, name, waits_for_the_device)
    with _Ops() as ops:
        bank.step()
    waits = {"_local_scalar_dense", "nonzero", "equal", "is_nonzero", "masked_select", "unique", "item"}
    assert not waits & set(ops.names)
    assert len(ops.names) > 100  # the mode has seen the step


def test_a_step_leaves_every_tensor_in_its_place():
    bank = bank_of(EVERY_KIND)

    def tensors(thing: object, seen: set[int]) -> list[torch.Tensor]:
        if isinstance(thing, torch.Tensor):
            return [thing]
        if id(thing) in seen or isinstance(thing, type):
            return []
        seen.add(id(thing))
        inside = list(thing) if isinstance(thing, (list, tuple)) else []
        if type(thing).__module__.startswith("critgrad.lab.train.bank"):
            inside = list(vars(thing).values())
        return [tensor for item in inside for tensor in tensors(item, seen)]

    before = tensors(bank, set())
    places = [tensor.data_ptr() for tensor in before]
    for _ in range(3):
        bank.step()
    assert [tensor.data_ptr() for tensor in tensors(bank, set())] == places
    assert len(places) > 60


def test_when_a_graph_cannot_be_captured_the_steps_go_on():
    stepper, other = (Stepper(bank_of(EVERY_KIND), graph=True) for _ in range(2))
    assert not stepper.wanted  # not on a CPU
    for _ in range(WARM_UP_STEPS):
        stepper()
    stepper.wanted = not torch.cuda.is_available()  # as if this were CUDA: the capture fails
    for _ in range(2):
        stepper()
    for _ in range(WARM_UP_STEPS + 2):
        other()
    assert stepper.graph is None
    if not torch.cuda.is_available():
        assert stepper.warning.startswith("no CUDA graph: ")
        assert "\n" not in stepper.warning
    assert torch.equal(stepper.bank.theta, other.bank.theta)


def test_running_sums_are_refreshed_once_round():
    bank = bank_of([trial("SGD_C", lr=0.05, topC=3, policy="FIFO", seed=seed) for seed in range(2)])
    memories = bank.blocks[0].memories
    bank.step()
    memories.sum.add_(1.0)  # an error that only summing anew can take away
    for _ in range(8):
        bank.step()
    torch.testing.assert_close(memories.sum, memories.by_model.sum(1), rtol=1e-12, atol=1e-12)


# -- groups and errors -------------------------------------------------------------------------------------------------


def test_groups_are_even_whole_and_of_one_task():
    trials = [trial(name, lr=0.01, seed=seed) for seed in range(5) for name in ("Adam", "Adam_C", "SGD_F")]
    trials += [trial("Adam", lr=0.01, seed=seed, settings=ONE_EPOCH) for seed in range(3)]
    groups = bank_groups(trials, 4)
    assert sorted(t.key for group in groups for t in group) == sorted(t.key for t in trials)
    assert [len(group) for group in groups] == [3, 4, 4, 4, 3]
    assert all(len({(t.task, str(t.settings)) for t in group}) == 1 for group in groups)


def test_groups_keep_alike_together():
    trials = [trial(name, lr=0.01, seed=seed) for seed in range(4) for name in ("Adam", "SGD", "Adam_C")]
    assert [{t.optimizer for t in group} for group in bank_groups(trials, 4)] == [{"Adam"}, {"SGD"}, {"Adam_C"}]


def test_groups_keep_a_yoked_trial_beside_its_donor():
    donors = [trial("SGD_C", lr=lr, seed=1) for lr in (0.1, 0.2, 0.3)]
    yoked = [trial("SGD_C", lr=lr, seed=2, donor_seed=1) for lr in (0.3, 0.1, 0.2)]
    for group in bank_groups([*donors, *yoked], 2):
        assert len({t.hyper["lr"] for t in group}) == 1


@pytest.mark.parametrize(
    "bad, message",
    [
        ([], "none, expected at least one"),
        ([trial("Adam", lr=0.1), trial("Adam", lr=0.1, settings=ONE_EPOCH)], "bank_groups"),
        ([trial("Adam", lr=0.1).replace(engine="single")], 'Invalid engine: .single., expected "bank"'),
        ([trial("Adam_C", lr=0.1, scope="tensor")], "Invalid scope of Adam_C.*--engine single"),
        ([trial("Adam_C", lr=0.1, memory_dtype="int8")], "Invalid memory_dtype of Adam_C.*--engine single"),
        ([trial("Adam", lr=0.1, amsgrad=True)], "Invalid amsgrad of Adam in a bank: True.*--engine single"),
        ([trial("RMSprop", lr=0.1, centered=True)], "Invalid centered of RMSprop.*--engine single"),
        ([trial("Adam", lr=0.1, donor_seed=3)], "Invalid donor_seed for Adam"),
        ([trial("Adam_C", lr=0.1, topC=0, donor_seed=3)], "Invalid donor_seed for Adam_C"),
        ([trial("Adam", lr=0.1, settings={"carries": True})], "tiny hands a state.*--engine single"),
        ([trial("Adam", lr=0.1).replace(task="tiny-single")], "cannot be run there; use --engine single"),
    ],
)
def test_what_a_bank_cannot_do_is_refused_with_a_cure(bad, message):
    with pytest.raises(ValueError, match=message):
        run_bank(bad)


def test_groups_of_nothing_are_refused():
    with pytest.raises(ValueError, match="Invalid size of a bank: 0"):
        bank_groups([trial("Adam", lr=0.1)], 0)
