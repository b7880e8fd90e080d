"""Captured training steps on a real GPU: ``PYTHONPATH=src python tests/gpu/check_capture.py [-k WORDS]``.

Trains with and without CUDA graphs and compares losses and weights: on the synthetic twins bit for bit, with torch's
deterministic algorithms; on real data (where ``$CRITGRAD_DATA`` has it) to rounding, with the speed of both. One OK, FAIL or
SKIP line per case; leaves with 1 if any failed. ``--device cpu`` shows that the script runs, no more.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
os.environ.setdefault("CRITGRAD_OFFLINE", "1")

import torch

from critgrad.lab.run.results import Result
from critgrad.lab.run.spec import Trial
from critgrad.lab.tasks.models import DeepConvNet
from critgrad.lab.train import capture
from critgrad.lab.train import loop as engine

DEVICE = "cuda"
LR = {"Adam": 1e-3, "Adam_C": 5e-4, "Adam_F": 1e-3, "SGDM": 1e-2, "NAdam": 1e-3, "RMSprop_C": 2e-4}
TWINS: dict[str, dict[str, Any]] = {
    "ptb-lstm@tiny": {"epochs": 8, "batch_size": 32},
    "snli-lstm@tiny": {"epochs": 4},
    "multiwoz-bilstm@tiny": {"epochs": 2},
    "cifar100-convnet@tiny": {"epochs": 3},
}
# Epochs, steps of an epoch at most, how far the losses of the last epoch may be apart (the weights' orbits part slowly).
REAL = {"ptb-lstm@b420": (6, 63, 1e-2), "cifar100-convnet": (3, 120, 5e-2)}
# Their capturable step computes its corrections in float32 on the device, not in Python's doubles.
ROUNDS = {"NAdam": 1e-4}
NUDGE = 1 + 1e-5  # of a learning rate: 1 - .999 ** 10 in float32 is off by as much

Run = tuple[Result, list[torch.Tensor]]
CASES: dict[str, Callable[[], str]] = {}


class Missing(Exception):
    """What a case needs is not here."""


@contextmanager
def patched(**values: Any) -> Iterator[None]:
    """Constants of the engine or of its capture changed for a while."""
    places: dict[str, Any] = {"EAGER_STEPS": engine, "MOST_GRAPHS": capture}
    before = {name: getattr(places[name], name) for name in values}
    for name, value in values.items():
        setattr(places[name], name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(places[name], name, value)


def run(trial: Trial, graph: bool, **options: Any) -> Run:
    last: list[torch.Tensor] = []

    def keep(progress: engine.Progress) -> None:
        last[:] = [p.detach().clone() for group in progress.optimizer.param_groups for p in group["params"]]

    result = engine.train(trial, device=DEVICE, graph=graph, on_epoch=keep, **options)
    return result, last


def apart(a: Run, b: Run) -> float:
    """The largest difference of losses and weights, relative to the largest of each."""
    worst = 0.0
    pairs = list(zip(a[1], b[1], strict=True))
    pairs += [(torch.as_tensor(a[0].curves[n]), torch.as_tensor(b[0].curves[n])) for n in ("train_loss", "valid_loss")]
    for x, y in pairs:
        scale = float(y.double().abs().max()) or 1.0
        difference = float((x.double() - y.double()).abs().max()) / scale
        worst = max(worst, difference if difference == difference else float("inf"))
    return worst


def expect(condition: bool, what: str) -> None:
    if not condition:
        raise AssertionError(what)


def captured(result: Result) -> None:
    if DEVICE != "cpu":
        expect(result.provenance["graph"] is True, str(result.provenance.get("graph_warning", "no graph was made")))
        expect("graph_warning" not in result.provenance, str(result.provenance.get("graph_warning")))


def equal(trial: Trial, bound: float = 0.0, **patches: Any) -> str:
    """A run with graphs against one without; with a bound, or what a nudge of the learning rate does, if that is more.

    Small steps apart may end far apart: the convolutions' biases before a batch norm feel nothing but rounding errors.
    """
    with patched(EAGER_STEPS=8, **patches):
        eager, graphs = run(trial, False), run(trial, True)
        captured(graphs[0])
        difference = apart(graphs, eager)
        if difference > bound:  # is it the graph, or does no run repeat itself here?
            bound = max(bound, 10 * apart(run(trial, False), eager))
        if difference > bound > 0:
            nudged = trial.replace(hyper={**trial.hyper, "lr": trial.hyper["lr"] * NUDGE})
            bound = max(bound, 3 * apart(run(nudged, False), eager))
    expect(difference <= bound, f"{difference:.2e} apart, at most {bound:.0e} expected")
    return f"{difference:.1e} apart over {eager[0].summary['steps']} steps"


def twin(task: str, optimizer: str) -> str:
    return equal(Trial(task, optimizer, {"lr": LR[optimizer]}, settings=TWINS[task]), ROUNDS.get(optimizer, 0.0))


def real(task: str, optimizer: str) -> str:
    epochs, most, bound = REAL[task]
    trial = Trial(task, optimizer, {"lr": LR[optimizer]}, settings={"epochs": epochs})
    try:
        problem = engine.problem_for(trial, DEVICE)
    except Exception as error:  # whatever a reader says about files that are not there
        raise Missing(f"no data: {str(error).splitlines()[0][:100]}") from error
    plan = type(problem).plan
    problem.plan = lambda seed, epoch: plan(problem, seed, epoch)[:most]  # type: ignore[method-assign]
    with patched(EAGER_STEPS=most):
        eager, graphs = run(trial, False), run(trial, True)
    captured(graphs[0])
    steps = eager[0].summary["steps"] // epochs
    speed = [steps / float(r.curves["seconds"][-1] - r.curves["seconds"][-2]) for r, _ in (eager, graphs)]
    losses = [float(r.curves["train_loss"][-1]) for r, _ in (eager, graphs)]
    difference = abs(losses[0] - losses[1]) / abs(losses[0])
    expect(difference <= bound, f"last losses {difference:.2e} apart, at most {bound:.0e} expected")
    memory = max(r.summary.get("peak_bytes", 0) for r, _ in (eager, graphs)) / 2**30
    return (
        f"loss {difference:.1e}, all {apart(graphs, eager):.1e} apart; steps/s eager {speed[0]:.0f}, "
        f"captured {speed[1]:.0f} ({speed[1] / speed[0]:.1f} x); {memory:.1f} GiB"
    )


def resumed(optimizer: str) -> str:
    """Left alone, against stopped after some epochs and resumed: both with graphs."""
    trial = Trial("ptb-lstm@tiny", optimizer, {"lr": LR[optimizer]}, settings=TWINS["ptb-lstm@tiny"])
    with patched(EAGER_STEPS=8), tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run.pt"
        whole = run(trial, True)
        run(trial, True, checkpoint=path, stop_after=3)
        second = run(trial, True, checkpoint=path)
        captured(second[0])
        path.unlink()
        run(trial, True, checkpoint=path, stop_after=3)
        third = run(trial, False, checkpoint=path)  # the same checkpoint without graphs
    difference, without = apart(second, whole), apart(third, whole)
    expect(difference == 0.0, f"{difference:.2e} apart")
    expect(without <= ROUNDS.get(optimizer, 0.0), f"resumed without graphs {without:.2e} apart")
    return f"{difference:.1e} apart, without graphs {without:.1e}"


def fails() -> str:
    """A loss that waits for the device: no capture, and dropout goes on as if nothing had been."""
    trial = Trial("snli-lstm@tiny", "Adam_C", {"lr": 1e-3}, settings=TWINS["snli-lstm@tiny"])
    problem = engine.problem_for(trial, DEVICE)
    loss = type(problem).loss

    def waits(*arguments: Any) -> Any:
        value, carry = loss(problem, *arguments)
        value.item()
        return value, carry

    with patched(EAGER_STEPS=8):
        eager = run(trial, False)
        problem.loss = waits  # type: ignore[method-assign]
        try:
            graphs = run(trial, True)
        finally:
            del problem.loss
        captured(run(trial, True)[0])  # the process can capture after it
    said = graphs[0].provenance.get("graph_warning", "")
    expect(DEVICE == "cpu" or bool(said), "captured, though a step waits for the device")
    expect(apart(graphs, eager) == 0.0, f"{apart(graphs, eager):.2e} apart")
    return said[:90]


def mixed() -> str:
    """CIFAR-100's network in bfloat16: activations are, weights, gradients and logits are not; captured as well."""
    torch.manual_seed(0)
    plain, half = (DeepConvNet(width=8, bf16=bf16).to(DEVICE).eval() for bf16 in (False, True))
    half.load_state_dict(plain.state_dict())
    x = torch.randn(16, 3, 32, 32, device=DEVICE)
    seen: list[torch.dtype] = []
    half.blocks[3].register_forward_hook(lambda module, inputs, out: seen.append(out.dtype))
    logits, exact = half(x), plain(x)
    logits.sum().backward()
    kinds = {logits.dtype, *(p.grad.dtype for p in half.parameters() if p.grad is not None)}
    expect(kinds == {torch.float32}, str(kinds))
    expect(seen == ([torch.float32] if DEVICE == "cpu" else [torch.bfloat16]), str(seen))
    difference = float((logits - exact).norm() / exact.norm())
    expect(difference < 0.05, f"logits {difference:.1e} apart")
    settings = {**TWINS["cifar100-convnet@tiny"], "bf16": True}
    return f"logits {difference:.1e} apart; " + equal(
        Trial("cifar100-convnet@tiny", "Adam_F", {"lr": 1e-3}, 0, settings)
    )


def collect() -> None:
    for task in TWINS:
        for optimizer in LR:
            CASES[f"{task} {optimizer}"] = lambda t=task, o=optimizer: twin(t, o)
    ptb = Trial("ptb-lstm@tiny", "Adam_C", {"lr": 1e-3}, settings=TWINS["ptb-lstm@tiny"])
    probes = ("memory", "decisions", "update")
    CASES["eager steps between replays"] = lambda: equal(ptb, MOST_GRAPHS=1)
    CASES["eager steps between replays, damping"] = lambda: equal(ptb.replace(optimizer="Adam_F"), MOST_GRAPHS=1)
    CASES["probes"] = lambda: equal(ptb.replace(probe=probes))
    # Decisions from a list are the plain path's, and torch's own Adam takes the step: it rounds like NAdam.
    CASES["yoked"] = lambda: equal(ptb.replace(hyper={"lr": 1e-3, "donor_seed": 3}), ROUNDS["NAdam"])
    offloaded = {"lr": 1e-3, "memory_device": "cpu"}
    CASES["slots in host memory"] = lambda: equal(ptb.replace(hyper=offloaded), ROUNDS["NAdam"])
    CASES["AggMo_C"] = lambda: equal(ptb.replace(optimizer="AggMo_C", hyper={"lr": 1e-2}))
    for optimizer in ("Adam_C", "NAdam"):
        CASES[f"resumed {optimizer}"] = lambda o=optimizer: resumed(o)
    CASES["a capture that fails"] = fails
    CASES["mixed precision"] = mixed
    for task in REAL:
        for optimizer in LR:
            CASES[f"{task} {optimizer}"] = lambda t=task, o=optimizer: real(t, o)


def main() -> int:
    global DEVICE
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-k", default="", help="only cases whose name contains one of these words (comma-separated)")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--seconds", type=float, default=95.0, help="start no case after this time")
    arguments = parser.parse_args()
    DEVICE = arguments.device
    if DEVICE != "cpu" and not torch.cuda.is_available():
        print("no CUDA device")
        return 2
    warnings.simplefilter("ignore")
    torch.utils.deterministic.fill_uninitialized_memory = False
    name = "CPU" if DEVICE == "cpu" else torch.cuda.get_device_name()
    print(f"torch {torch.__version__}, {name}", flush=True)
    collect()
    begin = time.perf_counter()
    counts = dict.fromkeys(("OK", "FAIL", "SKIP"), 0)
    for label, case in CASES.items():
        if arguments.k and not any(word in label for word in arguments.k.split(",")):
            continue
        began = time.perf_counter()
        if began - begin > arguments.seconds:
            word, said = "SKIP", "no time left"
        else:
            # Real data: as users train, for the speed.
            torch.use_deterministic_algorithms(label.split()[0] not in REAL, warn_only=True)
            try:
                word, said = "OK", case()
            except Missing as error:
                word, said = "SKIP", str(error)
            except Exception as error:  # one broken case must not hide the others
                text = str(error).splitlines() or [""]
                where = traceback.extract_tb(error.__traceback__)[-1]
                word, said = (
                    "FAIL",
                    f"{type(error).__name__}: {text[0][:200]} ({Path(where.filename).name}:{where.lineno})",
                )
        counts[word] += 1
        print(f"{word:4} {label}: {said} [{time.perf_counter() - began:.1f} s]", flush=True)
    print(", ".join(f"{count} {word}" for word, count in counts.items()), f"in {time.perf_counter() - begin:.0f} s")
    return 1 if counts["FAIL"] else 0


if __name__ == "__main__":
    sys.exit(main())
