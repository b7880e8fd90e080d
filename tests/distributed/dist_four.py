"""What four ranks claim: two mesh dimensions."""

from __future__ import annotations

import dist_checkpoint as checkpoint
import dist_problem as problem
import torch
import torch.distributed as dist
from dist_problem import OPTIMIZERS, alone, assert_equals_one_process, assert_same_on_all_ranks, claim, data, net, train
from dist_two import ranks, reductions
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

import critgrad

CLAIMS: dict = {}
AGGREGATIONS = tuple(OPTIMIZERS)


class Wide(nn.Module):
    """Sizes that tensor parallelism can divide, and a norm that it leaves alone."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(6, 8)
        self.down = nn.Linear(8, 4)
        self.norm = nn.LayerNorm(4)
        self.last = nn.Linear(4, 1)

    def forward(self, x):
        return self.last(self.norm(self.down(torch.tanh(self.up(x)))))


def on_rows(mesh) -> dict:
    """This rank's share of a batch: by its place in the data dimension."""
    return {"rank": mesh.get_local_rank(), "world": mesh.size()}


@claim(CLAIMS, aggr=AGGREGATIONS)
def hsdp_equals_one_process_over_60_steps_and_replicas_stay_bitwise_equal(folder, aggr):
    cls, given = OPTIMIZERS[aggr]
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    model = fully_shard(net(), mesh=mesh)
    opt = cls(model.parameters(), **given)
    decisions = train(model, opt, data(), **ranks())
    assert_equals_one_process(model, decisions, alone(aggr))
    assert_same_on_all_ranks(problem.tables(opt))
    shards = [p.to_local().detach() for p in model.parameters()]
    shards += [opt.state[p]["critical_slots"].to_local() for p in model.parameters()]
    assert_same_on_all_ranks(shards, mesh.get_group("replicate"))
    held = sum(opt.state[p]["critical_slots"].to_local().numel() for p in model.parameters())
    assert held == given["topC"] * sum(p.to_local().numel() for p in model.parameters())
    assert reductions(opt, model, data(1)[0])[0] in ([1], [given["topC"] + 2])


def tensor_parallel(model: nn.Module, mesh) -> nn.Module:
    return parallelize_module(model, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})


@claim(CLAIMS, aggr=AGGREGATIONS)
def fsdp2_with_tensor_parallel_equals_one_process_over_60_steps(folder, aggr):
    """Some parameters lie over both dimensions (one of them strided), some over the data dimension only."""
    cls, given = OPTIMIZERS[aggr]
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "tensor"))
    model = fully_shard(tensor_parallel(net(build=Wide), mesh["tensor"]), mesh=mesh["data"])
    assert {p.device_mesh.ndim for p in model.parameters()} == {1, 2}
    opt = cls(model.parameters(), **given)
    decisions = train(model, opt, data(), **on_rows(mesh["data"]))
    assert_equals_one_process(model, decisions, alone(aggr, build=Wide))
    assert_same_on_all_ranks(problem.tables(opt))
    for p in model.parameters():
        slots = opt.state[p]["critical_slots"]
        assert slots.to_local().numel() == given["topC"] * p.to_local().numel()
        assert slots.full_tensor().shape == (
            given["topC"],
            *p.shape,
        )  # raises where a strided placement was not shifted
    sizes, total = reductions(opt, model, data(1)[0])
    assert sizes in ([1], [given["topC"] + 2])
    assert total == 1


@claim(CLAIMS)
def tensor_parallel_alone_counts_replicated_parameters_once(folder):
    mesh = init_device_mesh("cpu", (4,), mesh_dim_names=("tensor",))
    model = tensor_parallel(net(build=Wide), mesh)  # norm, last and a bias are whole on every rank
    cls, given = OPTIMIZERS["fisher"]
    opt = cls(model.parameters(), foreach=False, **given)  # torch's own lists take no mixture of DTensor and Tensor
    decisions = train(model, opt, data(25))
    assert_equals_one_process(model, decisions, alone("fisher", steps=25, build=Wide))
    assert_same_on_all_ranks([p.detach() for p in model.last.parameters()] + problem.tables(opt))


@claim(CLAIMS)
def gradients_left_as_partial_sums_are_summed_first(folder):
    """Sequence parallelism: the norm's weights are whole, their gradients one partial sum per rank."""

    class Sequence(Wide):
        def forward(self, x):
            return super().forward(x.unsqueeze(0)).squeeze(0)

    mesh = init_device_mesh("cpu", (4,), mesh_dim_names=("tensor",))
    plan = {
        "up": ColwiseParallel(),
        "down": RowwiseParallel(output_layouts=Shard(1)),
        "norm": SequenceParallel(),
        "last": PrepareModuleInput(
            input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),), use_local_output=True
        ),
    }
    model = parallelize_module(net(build=Sequence), mesh, plan)
    cls, given = OPTIMIZERS["mean"]
    opt = cls(model.parameters(), foreach=False, **given)
    seen = set()
    decisions = []
    for batch in data(25):
        opt.zero_grad()
        problem.backward(model, batch)
        seen.add(str(model.norm.weight.grad.placements[0]))
        opt.step()
        decisions.append(problem.births(opt))
    assert seen == {"P(sum)"}, seen  # otherwise this shows nothing
    assert_equals_one_process(model, decisions, alone("mean", steps=25, build=Wide))
    assert_same_on_all_ranks(problem.tables(opt))


@claim(CLAIMS)
def parameters_over_different_dimensions_of_one_mesh_make_one_memory(folder):
    """One layer over the data dimension, another over the tensor dimension, none over both."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "tensor"))
    a = nn.Parameter(distribute_tensor(torch.arange(8.0, dtype=torch.float64), mesh["data"], [Shard(0)]))
    b = nn.Parameter(distribute_tensor(torch.arange(6.0, dtype=torch.float64), mesh["tensor"], [Shard(0)]))
    c = nn.Parameter(distribute_tensor(torch.arange(4.0, dtype=torch.float64), mesh["tensor"], [Replicate()]))
    opt = critgrad.SGD_C([a, b, c], lr=0.1, foreach=False)
    for p in (a, b, c):
        p.grad = p.detach().clone()
    opt.step()
    norm = float(opt.state[a]["critical_norm"][0])
    expected = sum(i * i for n in (8, 6, 4) for i in range(n)) ** 0.5
    assert abs(norm - expected) < 1e-12, (norm, expected)


@claim(CLAIMS)
def a_mesh_of_some_ranks_has_a_memory_of_its_own(folder):
    """Two stages of a pipeline, each with a two-dimensional mesh: no rank of the other stage is asked."""
    mesh = init_device_mesh("cpu", (2, 2, 1), mesh_dim_names=("stage", "data", "tensor"))
    stage, inner = mesh["stage"].get_local_rank(), mesh["data", "tensor"]
    plain = nn.Parameter(torch.ones(2, dtype=torch.float64))
    whole = torch.full((6,), 1.0 + stage, dtype=torch.float64)
    p = nn.Parameter(distribute_tensor(whole, inner, [Shard(0), Shard(0)]))
    opt = critgrad.SGD_C([p, plain], lr=0.1, foreach=False)
    for _ in range(2 + stage):  # not the same number of steps
        p.grad, plain.grad = p.detach().clone(), torch.ones_like(plain)
        opt.step()
    assert opt._critical_memory().ready_stores[0].process_group.size() == 2
    norm = float(opt.state[p]["critical_norm"][0])
    assert abs(norm - (6 * (1 + stage) ** 2 + 2) ** 0.5) < 1e-12


@claim(CLAIMS)
def a_process_group_over_pipeline_stages_gives_the_norm_of_the_whole_model(folder):
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("stage", "data"))
    stage = mesh["stage"].get_local_rank()
    whole = torch.full((5,), 1.0 + stage, dtype=torch.float64)
    p = nn.Parameter(distribute_tensor(whole, mesh["data"], [Shard(0)]))
    q = nn.Parameter(distribute_tensor(whole, mesh["data"], [Replicate()]))
    opt = critgrad.SGD_C([p, q], lr=0.1, foreach=False, process_group=dist.group.WORLD)
    p.grad, q.grad = p.detach().clone(), q.detach().clone()
    opt.step()
    assert abs(float(opt.state[p]["critical_norm"][0]) - (2 * 5 * (1 + 4)) ** 0.5) < 1e-12


@claim(CLAIMS)
def a_nan_on_one_of_four_ranks_makes_all_refuse(folder):
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "tensor"))
    model = fully_shard(tensor_parallel(net(build=Wide), mesh["tensor"]), mesh=mesh["data"])
    cls, given = OPTIMIZERS["mean"]
    opt = cls(model.parameters(), **given)
    for number, batch in enumerate(data(4)):
        opt.zero_grad()
        problem.backward(model, problem.mine(batch, **on_rows(mesh["data"])))
        if number == 3 and dist.get_rank() == 3:
            model.norm.weight.grad.to_local().fill_(float("nan"))  # a copy: rank 2 is the one that counts it
        opt.step()
    assert int(problem.tables(opt)[3]) == 3
    assert_same_on_all_ranks(problem.tables(opt))


@claim(CLAIMS, case=checkpoint.FROM_FOUR)
def a_checkpoint_of_four_ranks_is_saved(folder, case):
    """Loaded by two: dist_resume.py."""
    kind, flat = checkpoint.parse(case)
    checkpoint.first_half(kind, fully_shard, folder / case, flat, **ranks())
