"""What a study's words are worth, by simulation: ``python -m critgrad.lab.study.simulate``.

A made-up optimizer has one learning rate whose best value nobody knows. A replicate searches it with a few points on one seed,
takes the best by validation, and reports the mean test value of fresh seeds, as studies do. An optimizer against itself must be
called better or worse in at most 5 % of studies; a planted difference must be found as often as the plan's power says; the
interval must hold the true difference of the whole procedure in 95 %. Beside it stands what is usually done: one search per
arm, its choice run on many seeds, as many runs in all, judged by the same test.
"""

from __future__ import annotations

import argparse
import tempfile
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np

from ..stats.bootstrap import Floats, generator
from ..stats.signed_rank import power, spread
from .answer import Arm, Claim, Replicate
from .verdict import claims_of

STUDIES = 10_000
TRIALS, REPORT_SEEDS = 8, 2
REPLICATES = (6, 8, 10, 13)
INITIAL = 100.0  # the value before training, which a failed run counts as
AT_THE_EDGE = 0.02  # share of replicates whose chosen point fails on the report seeds, in the setting that has it


@dataclass(frozen=True)
class World:
    """How the luck of the search compares with the luck of the report seeds, as standard deviations of a replicate's value."""

    name: str
    luck: float
    edge: float = 0.0


WORLDS = (
    World("none", 0.0),
    World("as that of the seeds", 1.0),
    World("three times that of the seeds", 3.0),
    World("the same, 1 in 50 fails", 1.0, AT_THE_EDGE),
)


def searched(rng: np.random.Generator, steepness: float, shape: tuple[int, ...]) -> Floats:
    """The true value of the point that each of so many searches chose, by validation values with the noise of one seed.

    The value is a parabola around a best place, which lies somewhere else in each search's own luck of points.
    """
    places = rng.uniform(-1.0, 1.0, size=(*shape, TRIALS))
    true = steepness * places**2
    best = np.argmin(true + rng.normal(size=true.shape), axis=-1)
    found: Floats = np.take_along_axis(true, best[..., None], -1)[..., 0]
    return found


@lru_cache(maxsize=16)
def steepness_of(luck: float) -> float:
    """How steep the parabola must be for the search's luck to have so many times the spread of two report seeds' mean."""
    if luck == 0:
        return 0.0
    low, high = 0.1, 1e5
    for _ in range(40):
        middle = (low * high) ** 0.5
        spread = searched(generator(), middle, (4000,)).std()
        low, high = (middle, high) if spread < luck / REPORT_SEEDS**0.5 else (low, middle)
    return high


@lru_cache(maxsize=16)
def spread_of(world: World) -> float:
    """The spread of a replicate's difference, as plans measure it."""
    arm, rival = drawn(generator(1), world, 1500, 1)[..., 0].T
    return spread(rival - arm)


def drawn(rng: np.random.Generator, world: World, studies: int, replicates: int, shift: float = 0.0) -> Floats:
    """Values (studies, arms, replicates), lower is better: the first arm is better by ``shift``, and else the same."""
    shape = (studies, 2, replicates)
    shared = rng.normal(size=(studies, 1, replicates))  # the seeds of a replicate are those of both arms
    values = searched(rng, steepness_of(world.luck), shape) + shared + rng.normal(size=shape) / REPORT_SEEDS**0.5
    values[:, 0] -= shift
    return np.where(rng.random(shape) < world.edge, INITIAL, values)


def one_search(rng: np.random.Generator, world: World, studies: int, replicates: int) -> Floats:
    """The same values where each arm searches once, and its choice runs on a seed for every run that the study would make."""
    seeds = replicates * (TRIALS + REPORT_SEEDS) - TRIALS
    once = searched(rng, steepness_of(world.luck), (studies, 2, 1))
    # Whether a chosen point fails is the luck of the search, too.
    fails = (rng.random((studies, 2, 1)) < world.edge) & (rng.random((studies, 2, seeds)) < 0.5)
    return np.where(fails, INITIAL, once + rng.normal(size=(studies, 1, seeds)) + rng.normal(size=(studies, 2, seeds)))


def judged(values: Floats, margin: float = 0.0) -> list[Claim]:
    """The claim "arm against rival" of every study."""
    out: list[Claim] = []
    for study in values:
        arms = {name: _arm(name, row) for name, row in zip(("arm", "rival"), study.tolist())}
        out += claims_of(arms, [("arm", ("rival",))], "min", margin, len(study[0]))
    return out


def _arm(name: str, values: Sequence[float]) -> Arm:
    replicates = (Replicate(i, (), {}, (), value, value) for i, value in enumerate(values, start=1))
    return Arm(name, "", {}, {}, tuple(replicates))


@dataclass(frozen=True)
class Shares:
    """What became of so many simulated studies."""

    called: float  # an optimizer against itself: better or worse
    covered: float  # of a planted difference, by its interval
    found: float  # the planted difference is called better
    planned: float  # as often as the plan's power said
    called_once: float  # one search with many seeds, an optimizer against itself
    covered_once: float


def shares(world: World, replicates: int, studies: int = STUDIES, effect: float = 1.0) -> Shares:
    """Simulate so many studies three times: without a difference, with one of ``effect`` spreads, and with one search."""
    shift = effect * spread_of(world)
    rng = generator(zlib.crc32(f"{world.name} {replicates}".encode()))
    null = judged(drawn(rng, world, studies, replicates))
    planted = judged(drawn(rng, world, studies, replicates, shift))
    once = judged(one_search(rng, world, studies, replicates))
    return Shares(
        called=_share(claim.word in ("better", "worse") for claim in null),
        covered=_share(claim.low <= shift <= claim.high for claim in planted),
        found=_share(claim.word == "better" for claim in planted),
        planned=power(effect, replicates),
        called_once=_share(claim.word in ("better", "worse") for claim in once),
        covered_once=_share(claim.low <= 0 <= claim.high for claim in once),
    )


def _share(holds: Iterable[bool]) -> float:
    return float(np.mean(list(holds)))


def table(studies: int = STUDIES, replicates: Sequence[int] = REPLICATES) -> str:
    """The table of the documentation, in percent."""
    lines = [
        "| luck of the search | replicates | called, nothing there | interval covers | one spread found | plan says "
        "| one search: called | one search: covers |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for world in WORLDS:
        for n in replicates:
            found = shares(world, n, studies)
            cells = (found.called, found.covered, found.found, found.planned, found.called_once, found.covered_once)
            lines.append(f"| {world.name} | {n} | " + " | ".join(f"{100 * cell:.1f}" for cell in cells) + " |")
    return "\n".join(lines)


# The same through the whole machine: files, search, runs, ledger, answer. Few studies, since each makes some seventy runs.

_TASK = """
import math, random, torch

def train(make_optimizer, seed, epochs, report):
    weight = torch.nn.Parameter(torch.zeros(1))
    optimizer = make_optimizer([weight])
    weight.grad = torch.ones(1)
    optimizer.step()
    group, draw = optimizer.param_groups[0], random.Random(f"{seed} {optimizer.param_groups}")
    true = 3 * math.log10(group["lr"] / 1e-2) ** 2 - group["shift"]
    moved = weight.item() != 0
    report(valid=true + draw.gauss(0, 1) if moved else 100.0, test=true + draw.gauss(0, 1) if moved else 100.0)
"""
_OPTIMIZER = """
import torch

class Known(torch.optim.Optimizer):
    def __init__(self, params, lr=0.01, shift=0.0):
        super().__init__(params, {"lr": lr, "shift": shift})

    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                p.data -= group["lr"]
"""
_FILE = """
format = 1
title = "simulated"
task = "task.py"
direction = "min"
epochs = 1
replicates = {replicates}
trials = 4
report_seeds = 1
seed = {seed}
[arms.rival]
optimizer = "known.py:Known"
search = {{ lr = "log 1e-4 1" }}
[arms.arm]
optimizer = "known.py:Known"
fixed = {{ shift = {shift} }}
search = {{ lr = "log 0.99e-4 1.0101" }}
[[claims]]
arm = "arm"
against = "rival"
"""


def through_runs(studies: int, replicates: int = 6, shift: float = 0.0) -> list[Claim]:
    """The claims of so many studies made by ``study.run``: one optimizer on ranges that differ so little that points do."""
    from . import run

    out: list[Claim] = []
    for seed in range(1, studies + 1):
        with tempfile.TemporaryDirectory(prefix="critgrad-simulated-") as folder:
            text = _FILE.format(replicates=replicates, seed=seed, shift=shift)
            for name, content in (("task.py", _TASK), ("known.py", _OPTIMIZER), ("study.toml", text)):
                Path(folder, name).write_text(content, encoding="utf-8")
            out += run(Path(folder, "study.toml"), executor="inline", device="cpu").claims
    return out


def main(argv: Sequence[str] | None = None) -> int:
    """Print both tables."""
    parser = argparse.ArgumentParser(prog="critgrad.lab.study.simulate", description=__doc__.split("\n")[0])
    parser.add_argument("--studies", type=int, default=STUDIES, help=f"per line (default {STUDIES})")
    parser.add_argument("--runs", type=int, default=100, help="studies through study.run (default 100)")
    args = parser.parse_args(argv)
    if args.studies < 100 or args.runs < 0:
        parser.error(f"--studies {args.studies} --runs {args.runs}: expected at least 100, and 0 or more")
    print(table(args.studies), flush=True)
    if args.runs:
        for shift, what in ((0.0, "an optimizer against itself"), (3.0, "a planted difference of 3")):
            claims = through_runs(args.runs, shift=shift)
            words = {word: sum(claim.word == word for claim in claims) for word in ("better", "worse", "same", "open")}
            covered = 100 * _share(claim.low <= shift <= claim.high for claim in claims)
            said = ", ".join(f"{count} {word}" for word, count in words.items())
            print(f"through study.run, {args.runs} studies of 6 replicates, {what}: {said}; covered {covered:.0f} %")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
