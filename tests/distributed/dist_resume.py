"""What two ranks claim about checkpoints of one, two and four, and about a job that was killed."""

from __future__ import annotations

import dist_checkpoint as checkpoint
import dist_killed
import dist_problem as problem
import torch.distributed as dist
from dist_problem import assert_same_on_all_ranks, claim
from dist_two import ranks, sharded
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)

CLAIMS: dict = {}


@claim(CLAIMS, case=checkpoint.FROM_ONE)
def one_rank_to_two_resumed_equals_uninterrupted(folder, case):
    kind, flat = checkpoint.parse(case)
    model, decisions = checkpoint.second_half(kind, sharded, folder.parent / "one" / case, flat, **ranks())
    checkpoint.assert_resumed_equals_uninterrupted(kind, model, decisions)


@claim(CLAIMS, case=checkpoint.FROM_FOUR)
def four_ranks_to_two_resumed_equals_uninterrupted(folder, case):
    kind, flat = checkpoint.parse(case)
    model, decisions = checkpoint.second_half(kind, sharded, folder.parent / "dist_four" / case, flat, **ranks())
    checkpoint.assert_resumed_equals_uninterrupted(kind, model, decisions)


@claim(CLAIMS, case=checkpoint.CASES)
def a_checkpoint_of_two_ranks_is_saved(folder, case):
    """Loaded by one: test_resharding.py."""
    kind, flat = checkpoint.parse(case)
    checkpoint.first_half(kind, sharded, folder / case, flat, **ranks())


@claim(CLAIMS, kind=("mean", "fisher"))
def two_ranks_to_two_resumed_equals_uninterrupted_bit_for_bit(folder, kind):
    whole, opt = checkpoint.make(kind, sharded)
    problem.train(whole, opt, problem.data(2 * checkpoint.HALF), **ranks())
    model, _ = checkpoint.second_half(kind, sharded, folder / f"{kind}-nested", False, **ranks())
    assert problem.distance(problem.weights(model), problem.weights(whole)) == 0.0


@claim(CLAIMS)
def a_job_whose_rank_was_killed_in_a_step_reaches_the_same_weights_from_its_last_checkpoint(folder):
    whole, opt = checkpoint.make(dist_killed.KIND, sharded)
    problem.train(whole, opt, problem.data(2 * checkpoint.HALF), **ranks())
    last = folder.parent / "dist_killed" / "last"
    model, _ = checkpoint.second_half(dist_killed.KIND, sharded, last, False, **ranks())
    assert problem.distance(problem.weights(model), problem.weights(whole)) == 0.0


@claim(CLAIMS, kind=("mean", "fisher", "adagrad"))
def a_full_state_dict_of_one_process_is_broadcast_to_the_shards(folder, kind):
    """Not flattened: torch itself cannot broadcast a flattened one (``KeyError: 'param_groups'`` in 2.13)."""
    options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
    states = ({}, {})
    if dist.get_rank() == 0:
        plain, opt = checkpoint.make(kind, lambda model: model)
        problem.train(plain, opt, problem.data(checkpoint.HALF))
        form = StateDictOptions(full_state_dict=True)
        states = plain.state_dict(), get_optimizer_state_dict(plain, opt, options=form)
    model, opt = checkpoint.make(kind, sharded, seed=99)
    set_model_state_dict(model, states[0], options=options)
    set_optimizer_state_dict(model, opt, states[1], options=options)
    for p in model.parameters():
        slots = opt.state[p]["critical_slots"]
        assert slots.to_local().numel() == slots.shape[0] * p.to_local().numel()
    decisions = problem.train(model, opt, problem.data(2 * checkpoint.HALF)[checkpoint.HALF :], **ranks())
    checkpoint.assert_resumed_equals_uninterrupted(kind, model, decisions)
    assert_same_on_all_ranks(problem.tables(opt))


@claim(CLAIMS)
def a_full_state_dict_gathered_from_the_shards_loads_in_one_process(folder):
    model, opt = checkpoint.make("fisher", sharded)
    problem.train(model, opt, problem.data(checkpoint.HALF), **ranks())
    options = StateDictOptions(full_state_dict=True, cpu_offload=True)
    gathered = get_optimizer_state_dict(model, opt, options=options)
    weights = {name: w.clone() for name, w in problem.weights(model).items()}
    if dist.get_rank() == 0:  # cpu_offload gives the dictionary to rank 0 alone
        plain, alone = checkpoint.make("fisher", lambda model: model, seed=99)
        plain.load_state_dict(weights)
        set_optimizer_state_dict(plain, alone, gathered, options=StateDictOptions(full_state_dict=True))
        decisions = problem.train(plain, alone, problem.data(2 * checkpoint.HALF)[checkpoint.HALF :])
        checkpoint.assert_resumed_equals_uninterrupted("fisher", plain, decisions)


@claim(CLAIMS)
def getting_the_state_of_a_fresh_optimizer_takes_no_slot(folder):
    """torch steps it once with zero gradients."""
    model, opt = checkpoint.make("fisher", sharded)
    get_optimizer_state_dict(model, opt)
    for p in model.parameters():
        assert not opt.state[p]["critical_born"].any()
        assert not opt.state[p]["critical_slots"].full_tensor().any()
