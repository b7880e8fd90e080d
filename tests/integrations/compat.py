"""Other people's optimizers with a memory: what is tried, and the table that comes of it.

``PYTHONPATH=src python tests/integrations/compat.py --write`` writes the table into docs/compatibility.md. The tests
run the same trials and compare.
"""

from __future__ import annotations

import argparse
import importlib
import io
import logging
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).parents[1]))
import critgrad
from critgrad import reference

PAGE = Path(__file__).parents[2] / "docs" / "compatibility.md"
BEGIN, END = "<!-- optimizers:begin -->", "<!-- optimizers:end -->"
STEPS, TOLERANCE = 12, 1e-5
OPTIONS = {"topC": 3, "decay": 0.9, "aggr": "mean"}


@dataclass(frozen=True)
class Candidate:
    """An optimizer class of a package. ``around`` makes an instance, for those that wrap another one."""

    package: str
    path: str  # module:class
    arguments: tuple[tuple[str, object], ...] = (("lr", 1e-2),)
    matrices_only: bool = False
    trains: bool = False  # has a train() that must be called before the first step
    around: Callable | None = None
    large: bool = False  # quantises its state only for tensors of 4096 values and more
    by_class: bool = True
    hint: str = ""  # what to do where it does not work

    @property
    def name(self) -> str:
        return self.path.split(":")[1]

    @property
    def cls(self) -> type:
        module, name = self.path.split(":")
        return getattr(importlib.import_module(module), name)

    def installed(self) -> str | None:
        try:
            return metadata.version(self.package)
        except metadata.PackageNotFoundError:
            return None

    def make(self, params, cls=None, **more):
        cls = cls or self.cls
        if self.around is not None:
            return cls(self.around(params), **dict(self.arguments), **more)
        return cls(params, **dict(self.arguments), **more)


def _adamw(params):
    return torch.optim.AdamW(params, lr=1e-2)


def _sgd(params):
    return torch.optim.SGD(params, lr=1e-2)


NO_OPTIMIZER = "; put the memory inside, `ScheduleFreeWrapper(critgrad.SGD_C(...))`"
INSIDE = "; it saves in a form of its own: put the memory inside, `Lookahead(critgrad.AdamW_C(...))`"

CANDIDATES = [
    Candidate("torch", "torch.optim:Muon", matrices_only=True),
    Candidate("schedulefree", "schedulefree:AdamWScheduleFree", trains=True),
    Candidate("schedulefree", "schedulefree:SGDScheduleFree", trains=True),
    Candidate("schedulefree", "schedulefree:RAdamScheduleFree", trains=True),
    Candidate(
        "schedulefree",
        "schedulefree:ScheduleFreeWrapper",
        (),
        trains=True,
        around=_sgd,
        by_class=False,
        hint=NO_OPTIMIZER,
    ),
    Candidate("pytorch_optimizer", "pytorch_optimizer:Lion"),
    Candidate("pytorch_optimizer", "pytorch_optimizer:Lookahead", (), around=_adamw, by_class=False, hint=INSIDE),
    Candidate("pytorch_optimizer", "pytorch_optimizer:AdEMAMix"),
    Candidate("pytorch_optimizer", "pytorch_optimizer:SOAP"),
    Candidate("pytorch_optimizer", "pytorch_optimizer:Prodigy", (("lr", 1.0),)),
    Candidate("pytorch_optimizer", "pytorch_optimizer:AdaBelief"),
    Candidate("bitsandbytes", "bitsandbytes.optim:AdamW8bit", large=True),
    Candidate("bitsandbytes", "bitsandbytes.optim:Lion8bit", large=True),
    Candidate("bitsandbytes", "bitsandbytes.optim:AdamW32bit"),
    Candidate("torchao", "torchao.optim:AdamW8bit", large=True),
    Candidate("torchao", "torchao.optim:AdamW4bit", large=True),
    Candidate("torchao", "torchao.optim:AdamWFp8", large=True),
]
WAYS = ("critical(cls)", "CriticalGradients(instance)")


def parameters(candidate: Candidate) -> list[nn.Parameter]:
    generator = torch.Generator().manual_seed(0)
    shapes = [(64, 72), (6, 4)] if candidate.large else [(5, 4), (6, 3)]
    if not candidate.matrices_only:
        shapes.append((7,))
    return [nn.Parameter(torch.randn(shape, generator=generator)) for shape in shapes]


def gradients(params, t: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(100 + t)
    size = 10 ** (float(torch.rand((), generator=generator)) - 0.5)
    return [torch.randn(p.shape, generator=generator) * size for p in params]


def started(candidate: Candidate, opt):
    if candidate.trains:
        getattr(opt, "optimizer", opt).train() if isinstance(opt, critgrad.CriticalGradients) else opt.train()
    return opt


def with_memory(candidate: Candidate, way: str, params, **options):
    if way == "critical(cls)":
        return started(candidate, candidate.make(params, critgrad.critical(candidate.cls), **options))
    return started(candidate, critgrad.CriticalGradients(candidate.make(params), **options))


def run(opt, params, steps) -> None:
    for t in steps:
        for p, g in zip(params, gradients(params, t)):
            p.grad = g
        opt.step()


def distance(ours, theirs) -> float:
    return max(float((a - b).detach().abs().max()) for a, b in zip(ours, theirs))


def without_a_memory_it_is_the_base(candidate: Candidate, way: str) -> None:
    """``topC=0``: bit for bit."""
    ours, theirs = parameters(candidate), parameters(candidate)
    run(with_memory(candidate, way, ours, topC=0), ours, range(STEPS))
    run(started(candidate, candidate.make(theirs)), theirs, range(STEPS))
    assert distance(ours, theirs) == 0.0, f"topC=0 differs from the base by {distance(ours, theirs):.1e}"


def it_equals_the_base_on_the_papers_directions(candidate: Candidate, way: str) -> None:
    """The reference memory in front of the bare base, and ours inside: the same weights."""
    ours, theirs = parameters(candidate), parameters(candidate)
    run(with_memory(candidate, way, ours, **OPTIONS), ours, range(STEPS))
    base, memory = started(candidate, candidate.make(theirs)), reference.ReferenceMemory(**OPTIONS)
    for t in range(STEPS):
        flat = torch.cat([g.flatten().double() for g in gradients(theirs, t)])
        d = memory.direction(flat)
        for p, part in zip(theirs, d.split([p.numel() for p in theirs])):
            p.grad = part.view_as(p).to(p.dtype)
        base.step()
        memory.insert(flat)
    assert distance(ours, parameters(candidate)) > 1e-3, "the weights did not move"
    apart = distance(ours, theirs)
    assert apart < TOLERANCE, f"{apart:.1e} from the base on the reference's directions"


def a_resumed_run_equals_the_uninterrupted_one(candidate: Candidate, way: str) -> None:
    whole, first, second = (parameters(candidate) for _ in range(3))
    run(with_memory(candidate, way, whole, **OPTIONS), whole, range(STEPS))
    opt = with_memory(candidate, way, first, **OPTIONS)
    run(opt, first, range(STEPS // 2))
    file = io.BytesIO()
    torch.save(opt.state_dict(), file)
    file.seek(0)
    saved = torch.load(file, weights_only=False)  # some packages save classes of their own
    with torch.no_grad():
        for p, q in zip(second, first):
            p.copy_(q)
    again = with_memory(candidate, way, second, **OPTIONS)
    again.load_state_dict(saved)
    run(again, second, range(STEPS // 2, STEPS))
    assert distance(second, whole) < TOLERANCE, f"resumed {distance(second, whole):.1e} from the uninterrupted run"


TRIALS = (
    without_a_memory_it_is_the_base,
    it_equals_the_base_on_the_papers_directions,
    a_resumed_run_equals_the_uninterrupted_one,
)


def bare_base_runs(candidate: Candidate) -> str:
    """What goes wrong with the optimizer alone, without any memory; empty if nothing does."""
    try:
        params = parameters(candidate)
        run(started(candidate, candidate.make(params)), params, range(2))
    except Exception as error:
        return f"{type(error).__name__}: {error}".splitlines()[0][:160]
    return ""


def verdict(candidate: Candidate, way: str) -> str:
    """``yes``, or what went wrong."""
    if way == "critical(cls)" and not candidate.by_class:
        return "no: it takes an optimizer, not parameters"
    alone = bare_base_runs(candidate)
    if alone:
        return f"no: does not run on this machine without a memory either ({alone})"
    for trial in TRIALS:
        try:
            trial(candidate, way)
        except Exception as error:
            said = f"{type(error).__name__}: {error}".splitlines()[0][:160]
            return f'no: "{trial.__name__.replace("_", " ")}" fails ({said}){candidate.hint}'
    return "yes"


def row(candidate: Candidate) -> str:
    cells = [verdict(candidate, way).replace("|", "\\|") for way in WAYS]
    return f"| {candidate.package} {candidate.installed()} | `{candidate.name}` | {cells[0]} | {cells[1]} |"


def table() -> list[str]:
    head = ["| package | optimizer | `critical(cls)` | `CriticalGradients(instance)` |", "|---|---|---|---|"]
    return head + [row(candidate) for candidate in CANDIDATES if candidate.installed()]


def quiet() -> None:
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help="put the table into docs/compatibility.md")
    arguments = parser.parse_args()
    quiet()
    lines = table()
    print("\n".join(lines))
    if arguments.write:
        before, rest = PAGE.read_text().split(BEGIN)
        after = rest.split(END)[1]
        PAGE.write_text(f"{before}{BEGIN}\n" + "\n".join(lines) + f"\n{END}{after}")


if __name__ == "__main__":
    main()
