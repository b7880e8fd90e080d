"""A small problem that every rank can also solve alone: the run that the others must equal."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor, nn

import critgrad

STEPS = 60
# In float64 a wrong norm, a wrong slot or a part counted twice shows as 1e-3 and more; the order of a sum as 1e-13.
TOLERANCE = 1e-9

OPTIMIZERS = {
    "mean": (critgrad.Adam_C, {"lr": 0.01, "topC": 5, "decay": 0.97}),
    "sum": (critgrad.SGD_C, {"lr": 0.02, "momentum": 0.9, "topC": 5, "decay": 0.97}),
    "fisher": (critgrad.AdamW_F, {"lr": 0.01, "topC": 4, "decay": 0.97}),
}


class Net(nn.Module):
    """Rows that two ranks cannot share evenly (7, 5), and a layer of which one rank holds nothing (1)."""

    def __init__(self, unused: bool = False) -> None:
        super().__init__()
        self.first = nn.Linear(6, 7)
        self.second = nn.Linear(7, 5)
        self.last = nn.Linear(5, 1)
        if unused:
            self.unused = nn.Linear(3, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.tanh(self.second(torch.tanh(self.first(x)))))


def net(unused: bool = False, seed: int = 0, build=Net) -> nn.Module:
    torch.manual_seed(seed)
    return build(unused).double() if build is Net else build().double()


def data(steps: int = STEPS, rows: int = 8) -> list[tuple[Tensor, Tensor]]:
    """Batches whose size wanders over a decade, so that some gradients are stored and some are not."""
    generator = torch.Generator().manual_seed(7)
    out = []
    for _ in range(steps):
        size = 10 ** (float(torch.rand((), generator=generator)) - 0.5)
        x = torch.randn(rows, 6, generator=generator, dtype=torch.float64) * size
        out.append((x, torch.randn(rows, 1, generator=generator, dtype=torch.float64)))
    return out


def mine(batch: tuple[Tensor, Tensor], rank: int, world: int) -> tuple[Tensor, Tensor]:
    x, y = batch
    return x.chunk(world)[rank], y.chunk(world)[rank]


def backward(model: nn.Module, batch: tuple[Tensor, Tensor]) -> None:
    x, y = batch
    out = model(x)
    nn.functional.mse_loss(out, y.to(out.dtype)).backward()


def train(model, opt, batches, rank: int = 0, world: int = 1) -> list[list[int]]:
    """Train, and return for each step when each slot was filled: the decisions."""
    decisions = []
    for batch in batches:
        opt.zero_grad()
        backward(model, mine(batch, rank, world))
        opt.step()
        decisions.append(births(opt))
    return decisions


def parameters(opt) -> list[Tensor]:
    return [p for group in opt.param_groups for p in group["params"]]


def births(opt) -> list[int]:
    inner = getattr(opt, "optim", opt)  # ZeroRedundancyOptimizer keeps its optimizer there
    return inner.state[parameters(inner)[0]]["critical_born"].tolist()


def tables(opt) -> list[Tensor]:
    """Everything that is decided by, of every parameter."""
    keys = ("critical_priority", "critical_norm", "critical_born", "critical_clock", "critical_gram")
    return [opt.state[p][key].clone() for p in parameters(opt) for key in keys if key in opt.state[p]]


def full(tensor: Tensor) -> Tensor:
    tensor = tensor.detach()
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def weights(model: nn.Module) -> dict[str, Tensor]:
    return {name.removeprefix("module."): full(p).clone() for name, p in model.named_parameters()}


def alone(aggr: str | tuple, steps: int = STEPS, build=Net, unused: bool = False, **options):
    """One process with the whole batch: ``(weights, decisions)``."""
    cls, given = OPTIMIZERS[aggr] if isinstance(aggr, str) else aggr
    model = net(unused, build=build)
    opt = cls(model.parameters(), **{**given, **options})
    return weights(model), train(model, opt, data(steps)), weights(model), opt


def distance(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> float:
    assert ours.keys() == theirs.keys(), (ours.keys(), theirs.keys())
    return max(float((ours[name] - theirs[name]).abs().max()) for name in ours)


def assert_equals_one_process(model, decisions, reference, tolerance: float = TOLERANCE) -> None:
    before, expected_decisions, expected, opt = reference
    apart, moved = distance(weights(model), expected), distance(before, expected)
    assert moved > 0.05, f"the problem is too dull: weights moved by {moved:.1e}"
    report = critgrad.inspect(opt).memories[0]
    assert 5 < report.inserted < report.steps, f"{report.inserted} of {report.steps} stored: nothing is decided here"
    assert decisions == expected_decisions
    assert apart < tolerance, f"weights {apart:.2e} from the single process's"


def assert_same_on_all_ranks(tensors: list[Tensor], group=None) -> None:
    """Bit for bit."""
    gathered: list = [None] * dist.get_world_size(group)
    dist.all_gather_object(gathered, [t.numpy().tobytes() for t in tensors], group=group)
    assert all(other == gathered[0] for other in gathered), "ranks differ"


def claim(claims: dict, **cases):
    """Register a claim, once per case if there are any: ``claim(CLAIMS, aggr=("mean", "sum"))``."""

    def register(function):
        if not cases:
            claims[function.__name__] = lambda folder: function(folder)
        for name, values in cases.items():
            for value in values:
                claims[f"{function.__name__}[{value}]"] = lambda folder, n=name, v=value: function(folder, **{n: v})
        return function

    return register
