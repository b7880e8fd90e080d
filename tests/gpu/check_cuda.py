"""What can only be seen on a real GPU: ``PYTHONPATH=src python tests/gpu/check_cuda.py [-k WORDS]``.

Prints one PASS or FAIL line per claim and leaves with 1 if any failed. Needs torch with CUDA and nothing else; one GPU.
``--device cpu`` runs what makes sense there: no graph, no synchronisation check.
"""

from __future__ import annotations

import argparse
import os
import socket
import sys
import time
import traceback
import warnings
from collections.abc import Callable
from contextlib import contextmanager, nullcontext

import torch
from torch import nn

import critgrad

DEVICE = torch.device("cuda")
CHECKS: dict[str, Callable[[], str]] = {}

# Every kind of step: adding and damping; with torch's operations alone, with the memory's kernels and the base's own foreach
# loop, and with kernels that make the base's update, too.
OPTIMIZERS = {
    "Adam_C": (critgrad.Adam_C, {"lr": 1e-2, "decay": 0.97}),
    "SGD_C": (critgrad.SGD_C, {"lr": 1e-2, "momentum": 0.9, "decay": 0.97}),
    "AdamW_F": (critgrad.AdamW_F, {"lr": 1e-2, "topC": 4, "decay": 0.97}),
    "RMSprop_C": (critgrad.RMSprop_C, {"lr": 1e-3, "decay": 0.97}),
    "NAdam_F": (critgrad.NAdam_F, {"lr": 1e-2, "topC": 4, "decay": 0.97}),
    "NAdam_F by tensor": (critgrad.NAdam_F, {"lr": 1e-2, "topC": 4, "decay": 0.97, "scope": "tensor"}),
}
PATHS = {"plain": {"foreach": True, "fused": False}, "beside": {"foreach": True}, "fused": {"fused": True}}


def check(name: str) -> Callable[[Callable[[], str]], Callable[[], str]]:
    def register(function: Callable[[], str]) -> Callable[[], str]:
        CHECKS[name] = function
        return function

    return register


def for_each(names=tuple(OPTIMIZERS), only: tuple[str, ...] = ("plain", "beside", "fused")):
    """Register one check per optimizer and path."""

    def register(function):
        for name in names:
            for path, flags in PATHS.items():
                if path in only:
                    cls, options = OPTIMIZERS[name]
                    CHECKS[f"{function.__name__}[{name}-{path}]"] = lambda c=cls, o=options, f=flags: function(
                        c, {**o, **f}
                    )
        return function

    return register


def model(device=None, seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(16, 33), nn.Tanh(), nn.Linear(33, 7), nn.Tanh(), nn.Linear(7, 3)).to(
        device or DEVICE
    )


def batches(steps: int, device=None) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Inputs whose size wanders, so that gradients are admitted in some steps and refused in others."""
    generator = torch.Generator().manual_seed(1)
    out = []
    for _ in range(steps):
        size = 10 ** (float(torch.rand((), generator=generator)) - 0.5)
        x = torch.randn(8, 16, generator=generator) * size
        out.append((x.to(device or DEVICE), torch.randn(8, 3, generator=generator).to(device or DEVICE)))
    return out


def loss_of(net: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return nn.functional.mse_loss(net(x), y)


def train(net: nn.Module, opt: torch.optim.Optimizer, data) -> None:
    for x, y in data:
        opt.zero_grad()
        loss_of(net, x, y).backward()
        opt.step()


def memory(opt) -> dict[str, torch.Tensor]:
    return {
        f"{i}.{key}": (value.full_tensor() if hasattr(value, "full_tensor") else value).detach().clone()
        for i, p in enumerate(p for group in opt.param_groups for p in group["params"])
        for key, value in opt.state[p].items()
        if key.startswith("critical_")
    }


def weights(net: nn.Module) -> list[torch.Tensor]:
    return [(p.full_tensor() if hasattr(p, "full_tensor") else p).detach().clone() for p in net.parameters()]


def distance(ours, theirs) -> float:
    return max(float((a.double().cpu() - b.double().cpu()).abs().max()) for a, b in zip(ours, theirs))


def expect(condition: bool, what: str) -> None:
    if not condition:
        raise AssertionError(what)


def live(opt) -> str:
    report = critgrad.inspect(opt).memories[0]
    expect(0 < report.inserted < report.steps, f"memory too dull: {report.inserted} of {report.steps} stored")
    return f"{report.inserted} of {report.steps} stored"


@contextmanager
def no_synchronisation():
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


# -- claims ----------------------------------------------------------------------------------------------------------


@for_each()
def same_as_the_cpu_over_60_steps(cls, options) -> str:
    """Weights to 1e-4, and the very same decisions."""
    runs = {}
    for device in ("cpu", DEVICE):
        net = model("cpu").to(device)
        opt = cls(net.parameters(), **options)
        train(net, opt, batches(60, device))
        runs[str(device)] = weights(net), memory(opt)["0.critical_born"].cpu()
        said = live(opt)
    (w_cpu, born_cpu), (w_gpu, born_gpu) = runs["cpu"], runs[str(DEVICE)]
    expect(torch.equal(born_cpu, born_gpu), f"other slots: {born_cpu.tolist()} against {born_gpu.tolist()}")
    expect(distance(w_cpu, w_gpu) < 1e-4, f"weights {distance(w_cpu, w_gpu):.2e} apart")
    return f"{distance(w_cpu, w_gpu):.1e} apart, {said}"


ANY_BASE = {
    "RAdam": lambda net, **o: critgrad.critical(torch.optim.RAdam)(net.parameters(), lr=1e-2, **o),
    "Adagrad": lambda net, **o: critgrad.critical(torch.optim.Adagrad)(net.parameters(), lr=1e-2, **o),
    "Adamax": lambda net, **o: critgrad.critical(torch.optim.Adamax)(net.parameters(), lr=1e-2, **o),
    "wrapped": lambda net, **o: critgrad.CriticalGradients(torch.optim.RAdam(net.parameters(), lr=1e-2), **o),
    "Adam_CM": lambda net, **o: critgrad.Adam_CM(net.parameters(), lr=1e-3, **o),
}
if hasattr(torch.optim, "Muon"):
    ANY_BASE["Muon"] = lambda net, **o: critgrad.critical(torch.optim.Muon)(
        [p for p in net.parameters() if p.dim() == 2], lr=1e-3, **o
    )


def any_base(make, memory_options, engine) -> str:
    """Weights to 1e-4, and the very same decisions, as on a CPU."""
    os.environ["CRITGRAD_ENGINE"] = engine
    runs = {}
    try:
        for device in ("cpu", DEVICE):
            net = model("cpu").to(device)
            opt = make(net, decay=0.97, **memory_options)
            train(net, opt, batches(60, device))
            runs[str(device)] = weights(net), memory(opt)["0.critical_born"].cpu()
            used = critgrad.inspect(opt).engine
    finally:
        del os.environ["CRITGRAD_ENGINE"]
    expect(used == engine or DEVICE.type == "cpu", f"the engine was {used}")
    (w_cpu, born_cpu), (w_gpu, born_gpu) = runs["cpu"], runs[str(DEVICE)]
    expect(torch.equal(born_cpu, born_gpu), f"other slots: {born_cpu.tolist()} against {born_gpu.tolist()}")
    close = 5e-3 if make is ANY_BASE.get("Muon") else 1e-4  # Muon works in bfloat16
    expect(distance(w_cpu, w_gpu) < close, f"weights {distance(w_cpu, w_gpu):.2e} apart")
    return f"{distance(w_cpu, w_gpu):.1e} apart"


for _name, _make in ANY_BASE.items():
    for _how, _options in {"adding": {"topC": 5}, "damping": {"topC": 4, "aggr": "fisher"}}.items():
        for _engine in ("triton", "torch"):
            CHECKS[f"any_base[{_name}-{_how}-{_engine}]"] = lambda m=_make, o=_options, e=_engine: any_base(m, o, e)


@for_each(names=("Adam_C", "AdamW_F"))
def grad_scaler_skips_an_infinite_step_and_the_memory_never_sees_it(cls, options) -> str:
    net, data = model(), batches(12)
    opt = cls(net.parameters(), **options)
    scaler = torch.amp.GradScaler(DEVICE.type, init_scale=2.0**10, growth_interval=3)
    for t, (x, y) in enumerate(data):
        before = weights(net)
        opt.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16, enabled=DEVICE.type == "cuda"):
            loss = loss_of(net, x, y)
        scaler.scale(loss * (float("inf") if t == 5 else 1.0)).backward()
        scaler.step(opt)
        scaler.update()
        moved = distance(before, weights(net)) > 0
        expect(moved == (t != 5), f"step {t}: weights {'moved' if moved else 'stayed'}")
    held = memory(opt)
    expect(int(held["0.critical_clock"]) == 11, f"clock {int(held['0.critical_clock'])}, expected 11")
    expect(all(bool(torch.isfinite(v).all()) for v in held.values() if v.is_floating_point()), "not finite in memory")
    # The memory holds unscaled gradients: norms of the size that the loss has, whatever the scale is.
    largest = float(held["0.critical_norm"].max())
    expect(largest < 100, f"a stored norm of {largest:.3g}: scaled gradients in the memory")
    return f"largest stored norm {largest:.2g}"


@for_each()
def a_cuda_graph_of_forward_backward_step_equals_eager_over_60_steps(cls, options) -> str:
    """Bit for bit: the same kernels in the same order."""
    if not issubclass(cls, torch.optim.SGD):
        options = {**options, "capturable": True}
    data = batches(60)
    eager = model()
    opt_eager = cls(eager.parameters(), **options)
    train(eager, opt_eager, data)

    net = model()
    opt = cls(net.parameters(), **options)
    x, y = (t.clone() for t in data[0])
    warm_up = 3
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for t in range(warm_up):
            x.copy_(data[t][0])
            y.copy_(data[t][1])
            opt.zero_grad()
            loss_of(net, x, y).backward()
            opt.step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    opt.zero_grad()
    with torch.cuda.graph(graph):
        loss_of(net, x, y).backward()
        opt.step()
    for t in range(warm_up, len(data)):
        x.copy_(data[t][0])
        y.copy_(data[t][1])
        graph.replay()
    torch.cuda.synchronize()
    said = live(opt)
    apart = distance(weights(net), weights(eager))
    a, b = memory(opt), memory(opt_eager)
    expect(torch.equal(a["0.critical_born"], b["0.critical_born"]), "other slots than eager")
    expect(apart == 0.0, f"weights {apart:.2e} apart")
    worst = max(distance([a[key]], [b[key]]) for key in a)
    expect(worst == 0.0, f"memory {worst:.2e} apart")
    return said


@for_each(names=("Adam_C", "AdamW_F"), only=("plain",))
def a_compiled_step_equals_eager(cls, options) -> str:
    """To 1e-5 over 20 steps; no recompilation once the memory stands."""
    import torch._dynamo

    torch._dynamo.reset()
    on_gpu = DEVICE.type == "cuda"
    options = {**options, "lr": torch.tensor(1e-2, device=DEVICE), "capturable": on_gpu, "foreach": on_gpu}
    data = batches(20)
    eager, net = model(), model()
    opt_eager, opt = cls(eager.parameters(), **options), cls(net.parameters(), **options)
    train(eager, opt_eager, data)
    step = torch.compile(opt.step)
    torch._dynamo.utils.counters.clear()
    for t, (x, y) in enumerate(data):
        opt.zero_grad()
        loss_of(net, x, y).backward()
        # The first step allocates: compiling it would be compiling it for nothing.
        opt.step() if t == 0 else step()
        if t == 3:
            frames = torch._dynamo.utils.counters["stats"].get("unique_graphs", 0)
    later = torch._dynamo.utils.counters["stats"].get("unique_graphs", 0) - frames
    apart = distance(weights(net), weights(eager))
    expect(apart < 1e-5, f"weights {apart:.2e} apart")
    expect(later == 0, f"{later} graphs compiled after step 4")
    born, other = memory(opt)["0.critical_born"], memory(opt_eager)["0.critical_born"]
    expect(torch.equal(born, other), f"other slots: {born.tolist()} against {other.tolist()}")
    breaks = sum(torch._dynamo.utils.counters["graph_break"].values())
    return f"{apart:.1e} apart, {frames} graphs, {breaks} graph breaks"


@for_each(names=("Adam_C", "RMSprop_C", "AdamW_F", "NAdam_F"))  # torch's own fused SGD knows no DTensor
def fsdp2_on_one_gpu_equals_a_plain_model(cls, options) -> str:
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import DTensor

    if not dist.is_initialized():
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(free.getsockname()[1]), RANK="0", WORLD_SIZE="1")
        dist.init_process_group("nccl" if DEVICE.type == "cuda" else "gloo")
    mesh = init_device_mesh(DEVICE.type, (1,))
    data = batches(30)
    plain, net = model(), model()
    for layer in net:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh)
    fully_shard(net, mesh=mesh)
    opt_plain, opt = cls(plain.parameters(), **options), cls(net.parameters(), **options)
    train(plain, opt_plain, data)
    train(net, opt, data)
    slots = opt.state[next(net.parameters())]["critical_slots"]
    expect(isinstance(slots, DTensor), "the slots are no DTensor")
    apart = distance(weights(net), weights(plain))
    expect(apart < 1e-5, f"weights {apart:.2e} apart")
    return f"{apart:.1e} apart, slots {slots.placements}"


@for_each()
def a_step_never_waits_for_the_device(cls, options) -> str:
    """``set_sync_debug_mode("error")`` around every step after the first two."""
    if not issubclass(cls, torch.optim.SGD):
        options = {**options, "capturable": True}
    return _steps_without_waiting(cls, options)


def _steps_without_waiting(cls, options, steps: int = 8) -> str:
    net, data = model(), batches(steps)
    opt = cls(net.parameters(), **options)
    for t, (x, y) in enumerate(data):
        opt.zero_grad()
        loss_of(net, x, y).backward()
        with no_synchronisation() if t >= 2 else nullcontext():
            opt.step()
    return f"{steps - 2} steps"


def _register_policies() -> None:
    variants = {
        f"policy={p}": {"policy": p} for p in ("bottomC", "FIFO", "random", "MNDS", "CDS", "RR", "NCPR", "sparse")
    }
    variants |= {f"aggr={a}": {"aggr": a} for a in ("sum", "mid", "median", "fisher")}
    variants |= {f"memory_dtype={d}": {"memory_dtype": d} for d in ("bfloat16", "int8", "float8")}
    variants |= {"scope=tensor": {"scope": "tensor"}, "max_age=2": {"max_age": 2}}
    variants |= {"fisher, scope=tensor": {"aggr": "fisher", "scope": "tensor"}}
    for label, options in variants.items():
        for path, flags in PATHS.items():
            both = {"lr": 1e-2, "capturable": True, **flags, **options}
            CHECKS[f"a_step_never_waits_for_the_device[{label}-{path}]"] = lambda o=both: _steps_without_waiting(
                critgrad.Adam_C, o
            )


_register_policies()


@check("slots_in_host_memory_equal_slots_on_the_device")
def _offload() -> str:
    data = batches(40)
    runs = []
    for place in (None, "cpu"):
        net = model()
        opt = critgrad.Adam_C(net.parameters(), lr=1e-2, memory_device=place, foreach=True)
        train(net, opt, data)
        runs.append(weights(net))
        slots = opt.state[next(net.parameters())]["critical_slots"]
    expect(slots.device.type == "cpu", f"slots on {slots.device}")
    expect(DEVICE.type == "cpu" or slots.is_pinned(), "slots not pinned")
    expect(distance(*runs) < 1e-6, f"weights {distance(*runs):.2e} apart")
    return f"{distance(*runs):.1e} apart"


@check("a_run_resumed_on_the_gpu_continues_bit_for_bit")
def _resume() -> str:
    import io

    data = batches(40)
    names = ("Adam_C", "AdamW_F", "NAdam_F")
    for cls, options in (OPTIMIZERS[name] for name in names):
        whole = model()
        opt_whole = cls(whole.parameters(), **options)
        train(whole, opt_whole, data)
        first = model()
        opt = cls(first.parameters(), **options)
        train(first, opt, data[:20])
        file = io.BytesIO()
        torch.save({"net": first.state_dict(), "opt": opt.state_dict()}, file)
        file.seek(0)
        saved = torch.load(file, weights_only=True, map_location="cpu")
        net = model(seed=1)
        net.load_state_dict(saved["net"])
        opt = cls(net.parameters(), **options)
        opt.load_state_dict(saved["opt"])
        train(net, opt, data[20:])
        apart = distance(weights(net), weights(whole))
        expect(apart == 0.0, f"{cls.__name__}: weights {apart:.2e} apart")
    return ", ".join(names)


ONLY_ON_CUDA = ("cuda_graph", "never_waits")


def main() -> int:
    global DEVICE
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-k", default="", help="only checks whose name contains one of these words (comma-separated)")
    parser.add_argument("--device", default="cuda")
    arguments = parser.parse_args()
    DEVICE = torch.device(arguments.device)
    if DEVICE.type == "cuda" and not torch.cuda.is_available():
        print("no CUDA device")
        return 2
    warnings.simplefilter("ignore")
    torch.backends.cuda.matmul.allow_tf32 = False
    name = torch.cuda.get_device_name() if DEVICE.type == "cuda" else "CPU"
    print(f"critgrad {critgrad.__version__}, torch {torch.__version__}, {name}", flush=True)
    failed = done = 0
    for label, run in CHECKS.items():
        if arguments.k and not any(word in label for word in arguments.k.split(",")):
            continue
        if DEVICE.type != "cuda" and any(word in label for word in ONLY_ON_CUDA):
            continue
        began = time.perf_counter()
        try:
            said = f"PASS {label}: {run()}"
        except Exception as error:
            failed += 1
            said = f"FAIL {label}: {type(error).__name__}: {str(error).strip().splitlines()[0] if str(error) else ''}"
            print("".join(traceback.format_tb(error.__traceback__)[-3:]), flush=True)
        done += 1
        print(f"{said} ({time.perf_counter() - began:.1f} s)", flush=True)
    import torch.distributed as dist

    if dist.is_available() and dist.is_initialized():
        dist.destroy_process_group()
    print(f"{done - failed} of {done} passed")
    return 1 if failed or not done else 0


if __name__ == "__main__":
    sys.exit(main())
