"""What two ranks claim."""

from __future__ import annotations

import copy
import functools
import pickle
import warnings

import dist_problem as problem
import torch
import torch.distributed as dist
from dist_problem import OPTIMIZERS, alone, assert_equals_one_process, assert_same_on_all_ranks, claim, data, net, train
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecisionPolicy, StateDictType, fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor.debug import CommDebugMode
from torch.nn.parallel import DistributedDataParallel

import critgrad

CLAIMS: dict = {}
AGGREGATIONS = tuple(OPTIMIZERS)


def sharded(model: nn.Module, **options) -> nn.Module:
    for layer in model.children():
        fully_shard(layer, **options)
    return fully_shard(model, **options)


def ranks() -> dict:
    return {"rank": dist.get_rank(), "world": dist.get_world_size()}


def fsdp2(aggr, steps=problem.STEPS, shard=None, **options):
    cls, given = OPTIMIZERS[aggr] if isinstance(aggr, str) else aggr
    model = (shard or sharded)(net())
    opt = cls(model.parameters(), **{**given, **options})
    return model, opt, train(model, opt, data(steps), **ranks())


# -- DDP and FSDP2 ---------------------------------------------------------------------------------------------------


@claim(CLAIMS, aggr=AGGREGATIONS)
def ddp_equals_one_process_over_60_steps_and_replicas_stay_bitwise_equal(folder, aggr):
    cls, given = OPTIMIZERS[aggr]
    model = DistributedDataParallel(net())
    opt = cls(model.parameters(), **given)
    decisions = train(model, opt, data(), **ranks())
    assert_equals_one_process(model, decisions, alone(aggr))
    assert_same_on_all_ranks([p.detach() for p in model.parameters()] + problem.tables(opt))


@claim(CLAIMS)
def ddp_with_gradients_as_bucket_views_stores_copies(folder):
    cls, given = OPTIMIZERS["mean"]
    model = DistributedDataParallel(net(), gradient_as_bucket_view=True)
    opt = cls(model.parameters(), **given)
    decisions = train(model, opt, data(), **ranks())
    assert_equals_one_process(model, decisions, alone("mean"))


@claim(CLAIMS, aggr=AGGREGATIONS)
def fsdp2_with_uneven_shards_equals_one_process_over_60_steps(folder, aggr):
    model, opt, decisions = fsdp2(aggr)
    assert_equals_one_process(model, decisions, alone(aggr))
    assert_same_on_all_ranks(problem.tables(opt))


@claim(CLAIMS)
def fsdp2_with_a_mixed_precision_policy_equals_one_process_in_that_precision(folder):
    """Weights in float64, arithmetic in float32: the two ways of the same rounding stay within 1e-4."""
    aggr, policy = "mean", MixedPrecisionPolicy(param_dtype=torch.float32, reduce_dtype=torch.float64)
    cls, given = OPTIMIZERS[aggr]
    model = sharded(net(), mp_policy=policy)
    opt = cls(model.parameters(), **given)
    decisions = train(model, opt, data(), **ranks())

    class Rounded(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = net()

        def forward(self, x):
            single = {name: p.float() for name, p in self.inner.named_parameters()}
            return torch.func.functional_call(self.inner, single, (x.float(),))

    whole = Rounded()
    expected = train(whole, cls(whole.parameters(), **given), data())
    apart = problem.distance(
        problem.weights(model), {n.removeprefix("inner."): w for n, w in problem.weights(whole).items()}
    )
    assert decisions == expected
    assert apart < 1e-4, f"{apart:.1e}"
    assert_same_on_all_ranks(problem.tables(opt))


@claim(CLAIMS, policy=("random", "RR", "NCPR", "MNDS", "CDS", "CSS", "bottomC", "FIFO", "sparse"))
def every_policy_decides_and_draws_alike_on_all_ranks(folder, policy):
    aggr = "fisher" if policy == "CSS" else "mean"
    options = {"policy": policy, "every": 3, "seed": 5, "topC": 3}
    model, opt, decisions = fsdp2(aggr, steps=25, shard=fully_shard, **options)
    expected = alone(aggr, steps=25, **options)
    assert decisions == expected[1]
    assert problem.distance(problem.weights(model), expected[2]) < problem.TOLERANCE
    assert_same_on_all_ranks(problem.tables(opt))


@claim(CLAIMS, memory_dtype=("bfloat16", "float16"))
def half_slots_are_sharded_too_and_equal_one_process(folder, memory_dtype):
    for aggr in ("mean", "fisher"):
        model, opt, decisions = fsdp2(aggr, steps=25, shard=fully_shard, memory_dtype=memory_dtype)
        expected = alone(aggr, steps=25, memory_dtype=memory_dtype)
        assert decisions == expected[1]
        assert problem.distance(problem.weights(model), expected[2]) < problem.TOLERANCE
        for p in model.parameters():
            slots = opt.state[p]["critical_slots"]
            assert str(slots.dtype) == f"torch.{memory_dtype}"
            assert slots.to_local().numel() == opt.defaults["topC"] * p.to_local().numel()


@claim(CLAIMS)
def an_instance_in_the_wrapper_equals_one_process(folder):
    def wrapped(params, **options):
        return critgrad.CriticalGradients(torch.optim.NAdam(params, lr=0.01), topC=5, decay=0.97)

    model, _, decisions = fsdp2((wrapped, {}))
    assert_equals_one_process(model, decisions, alone((wrapped, {})))


@claim(CLAIMS)
def plain_parameters_beside_sharded_ones_count_once(folder):
    """The last layer is left out of FSDP and averaged by hand; every rank has all of it."""

    cls, given = OPTIMIZERS["fisher"]
    model = net()
    left_out = set(model.last.parameters())
    for layer in (model.first, model.second):
        fully_shard(layer)
    fully_shard(model, ignored_params=left_out)
    for p in left_out:
        p.register_post_accumulate_grad_hook(lambda p: dist.all_reduce(p.grad.div_(dist.get_world_size())))
    opt = cls(model.parameters(), **given)
    decisions = train(model, opt, data(), **ranks())
    assert_equals_one_process(model, decisions, alone("fisher"))
    assert_same_on_all_ranks([p.detach() for p in model.last.parameters()] + problem.tables(opt))


# -- what it holds and what it says ----------------------------------------------------------------------------------


@claim(CLAIMS, aggr=AGGREGATIONS)
def no_rank_holds_more_of_the_memory_than_of_the_parameters(folder, aggr):
    model, opt, _ = fsdp2(aggr, steps=2)
    topC = OPTIMIZERS[aggr][1]["topC"]
    held = critgrad.inspect(opt).bytes
    copies = topC + (0 if aggr == "fisher" else 1)  # slots, and the running sum
    own = sum(p.to_local().numel() * 8 for p in model.parameters())
    small = 8 * (3 * topC + 2 + (topC * topC if aggr == "fisher" else 0))  # priorities, norms, births, two counters, K
    assert held == copies * own + small, (held, copies * own + small)
    everything = torch.tensor([own])
    dist.all_reduce(everything)
    assert int(everything) == sum(p.numel() * 8 for p in model.parameters())
    for p in model.parameters():
        slots = opt.state[p]["critical_slots"]
        assert slots.placements[0].is_shard(p.placements[0].dim + 1)
        assert slots.full_tensor().shape == (topC, *p.shape)


def reductions(opt, model, batch) -> tuple[list[int], int]:
    """Sizes of the all-reduces in one step, and the number of collectives of any kind."""
    sizes: list[int] = []
    real = dist.all_reduce

    def counted(tensor, *args, **kwargs):
        sizes.append(tensor.numel())
        return real(tensor, *args, **kwargs)

    opt.zero_grad()
    problem.backward(model, problem.mine(batch, **ranks()))
    dist.all_reduce = counted
    try:
        with CommDebugMode() as communication:
            opt.step()
    finally:
        dist.all_reduce = real
    return sizes, communication.get_total_counts()


@claim(
    CLAIMS,
    case=("mean", "sum", "fisher", "fisher-bfloat16", "CDS", "CSS-fisher", "max_age", "scope=group", "scope=tensor"),
)
def a_step_makes_one_small_all_reduce_per_memory_and_nothing_else(folder, case):
    cls, given = OPTIMIZERS["fisher" if "fisher" in case else case if case in OPTIMIZERS else "mean"]
    options = dict(given)
    options["policy"] = case.split("-")[0] if case[:2] in ("CD", "CS") else "KotH"
    options["memory_dtype"] = "bfloat16" if "bfloat16" in case else None
    options["max_age"] = 3 if case == "max_age" else None
    options["scope"] = case.removeprefix("scope=") if "scope" in case else "global"
    model = sharded(net())
    groups = [{"params": list(model.first.parameters())}, {"params": list(model.second.parameters())}]
    opt = cls(groups, **options)
    train(model, opt, data(3), **ranks())
    limit = 2 * options["topC"] + 3
    expected = {"group": 2, "tensor": 2}.get(
        options["scope"], 1
    )  # memories; one of each group's tensors reduces at once
    rows = 2 if options["scope"] == "tensor" else 1
    for batch in data(8)[3:]:
        sizes, total = reductions(opt, model, batch)
        assert len(sizes) == total == expected, (sizes, total)
        assert max(sizes) <= rows * limit, (sizes, limit)
    if case in ("mean", "sum"):
        assert sizes == [1]


@claim(CLAIMS)
def ddp_needs_no_communication_in_the_step(folder):
    cls, given = OPTIMIZERS["fisher"]
    model = DistributedDataParallel(net())
    opt = cls(model.parameters(), **given)
    train(model, opt, data(3), **ranks())
    assert reductions(opt, model, data(4)[3]) == ([], 0)


@claim(CLAIMS, aggr=AGGREGATIONS)
def a_nan_on_one_rank_makes_all_ranks_refuse_the_gradient(folder, aggr):
    model, opt, _ = fsdp2(aggr, steps=8, shard=fully_shard)
    before = problem.tables(opt)
    slots = [opt.state[p]["critical_slots"].to_local().clone() for p in model.parameters()]
    opt.zero_grad()
    problem.backward(model, problem.mine(data(9)[8], **ranks()))
    if dist.get_rank() == 1:
        next(model.parameters()).grad.to_local().view(-1)[0] = float("nan")
    opt.step()
    assert all(torch.equal(a, b) for a, b in zip(before, problem.tables(opt)))
    assert all(torch.equal(a, opt.state[p]["critical_slots"].to_local()) for a, p in zip(slots, model.parameters()))
    assert_same_on_all_ranks(problem.tables(opt))


@claim(CLAIMS)
def a_nan_in_a_copy_that_another_rank_counts_is_refused_as_well(folder):
    cls, given = OPTIMIZERS["mean"]
    model = net()
    left_out = set(model.last.parameters())
    fully_shard(model, ignored_params=left_out)
    opt = cls(model.parameters(), **given)
    for number, batch in enumerate(data(4)):
        opt.zero_grad()
        problem.backward(model, batch)  # the same on all ranks: nothing to average
        if number == 3 and dist.get_rank() == 1:  # rank 0 is the one that counts it
            model.last.bias.grad.fill_(float("inf"))
        opt.step()
    assert int(opt.state[model.last.bias]["critical_clock"]) == 3
    assert_same_on_all_ranks(problem.tables(opt))


# -- engines that hide their sharding --------------------------------------------------------------------------------


def fsdp1(use_orig_params: bool) -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        wrap = functools.partial(
            FullyShardedDataParallel, use_orig_params=use_orig_params, device_id=torch.device("cpu")
        )
        model = net()
        model.first = wrap(model.first)
        return wrap(model)


def refusal(action) -> str:
    try:
        action()
    except RuntimeError as error:
        return str(error)
    raise AssertionError("nothing was raised")


@claim(CLAIMS, use_orig_params=(True, False))
def fsdp1_is_refused_with_a_hint(folder, use_orig_params):
    cls, given = OPTIMIZERS["mean"]
    model = fsdp1(use_orig_params)
    opt = cls(model.parameters(), **given)
    said = refusal(lambda: train(model, opt, data(1), **ranks()))
    assert "FSDP1" in said
    assert "process_group=" in said


@claim(CLAIMS, use_orig_params=(True, False))
def fsdp1_with_a_process_group_equals_one_process_over_60_steps(folder, use_orig_params):
    for aggr in ("sum", "fisher") if use_orig_params else ("fisher",):
        cls, given = OPTIMIZERS[aggr]
        model = fsdp1(use_orig_params)
        opt = cls(model.parameters(), **given, process_group=dist.group.WORLD)
        decisions = train(model, opt, data(), **ranks())
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with FullyShardedDataParallel.state_dict_type(model, StateDictType.FULL_STATE_DICT):
                trained = {name: w.clone() for name, w in model.state_dict().items()}
        _, expected_decisions, expected, _ = alone(aggr)
        assert decisions == expected_decisions
        assert problem.distance(trained, expected) < problem.TOLERANCE
        assert_same_on_all_ranks(problem.tables(opt))


def zero(cls, given, **options):
    model = DistributedDataParallel(net())
    opt = ZeroRedundancyOptimizer(model.parameters(), optimizer_class=functools.partial(cls, **options), **given)
    return model, opt


@claim(CLAIMS)
def zero_redundancy_optimizer_is_refused_with_a_hint(folder):
    model, opt = zero(*OPTIMIZERS["mean"])
    said = refusal(lambda: train(model, opt, data(1), **ranks()))
    assert "ZeroRedundancyOptimizer" in said
    assert "process_group=" in said


@claim(CLAIMS, aggr=AGGREGATIONS)
def zero_redundancy_optimizer_with_a_process_group_equals_one_process_over_60_steps(folder, aggr):
    model, opt = zero(*OPTIMIZERS[aggr], process_group=dist.group.WORLD)
    decisions = train(model, opt, data(), **ranks())
    assert_equals_one_process(model, decisions, alone(aggr))
    own = sum(p.numel() for group in opt.optim.param_groups for p in group["params"])
    assert own < sum(p.numel() for p in model.parameters())


@claim(CLAIMS)
def a_process_group_is_gone_after_pickle_and_deepcopy_and_its_absence_is_refused(folder):
    cls, given = OPTIMIZERS["sum"]
    model = net()
    opt = cls(model.parameters(), **given, process_group=dist.group.WORLD)
    wrapper = critgrad.CriticalGradients(torch.optim.Adam(net().parameters()), process_group=dist.group.WORLD)
    for p in problem.parameters(opt) + problem.parameters(wrapper):
        p.grad = torch.ones_like(p)
    for original in (opt, wrapper):
        original.step()
        for copied in (copy.deepcopy(original), pickle.loads(pickle.dumps(original))):
            for p in problem.parameters(copied):
                p.grad = torch.ones_like(p)
            again = pickle.loads(pickle.dumps(copied))
            assert "process_group=" in refusal(copied.step)
            for p in problem.parameters(again):
                p.grad = torch.ones_like(p)
            assert "process_group=" in refusal(again.step)
        original.step()


@claim(CLAIMS)
def deepspeed_zero_is_recognised_by_its_module(folder):
    """A stand-in: a class that says it is DeepSpeed's and steps an optimizer over its own partition."""

    class DeepSpeedZeroOptimizer:
        def __init__(self, inner):
            self.optimizer = inner

        def step(self):
            self.optimizer.step()

    DeepSpeedZeroOptimizer.__module__ = "deepspeed.runtime.zero.stage_1_and_2"
    for options, refused in (({}, True), ({"process_group": dist.group.WORLD}, False)):
        partition = nn.Parameter(torch.ones(4))
        partition.grad = torch.ones(4)
        engine = DeepSpeedZeroOptimizer(critgrad.Adam_C([partition], **options))
        if refused:
            assert "DeepSpeed" in refusal(engine.step)
        else:
            engine.step()
            norm = float(engine.optimizer.state[partition]["critical_norm"][0])
            assert abs(norm - 8**0.5) < 1e-6, f"{norm}: of one partition only, or of one counted twice"


@claim(CLAIMS)
def a_plain_model_on_every_rank_is_left_in_peace(folder):
    """Ensembles, or DDP: no sharding, nothing to refuse, nothing to send."""
    model = net()
    opt = critgrad.Adam_C(model.parameters())
    train(model, opt, data(2 + dist.get_rank()))
    assert opt._critical_memory().ready_stores[0].process_group is None
