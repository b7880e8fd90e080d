"""Arms and answers that nobody ran: plain values, deterministic and quick to make."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from critgrad.lab.study.answer import Answer, Arm, Replicate, Run
from critgrad.lab.study.verdict import claims_of, default_margin


def arm(
    name: str,
    values: Sequence[float],
    valids: Sequence[float] | None = None,
    *,
    untrained: Mapping[int, str] | None = None,
    near_end: Mapping[str, int] | None = None,
    first: int = 1,
    **more: Any,
) -> Arm:
    """An arm of which only the values per replicate are known."""
    reasons = untrained or {}
    replicates = tuple(
        Replicate(number, (), {}, (), valid=valid, value=value, untrained=reasons.get(number, ""))
        for number, (value, valid) in enumerate(zip(values, valids or values), start=first)
    )
    return Arm(name, f"torch.optim:{name}", {}, {}, replicates, near_end or {}, **more)


def arms(*all_of_them: Arm) -> dict[str, Arm]:
    return {one.name: one for one in all_of_them}


# -- whole answers -----------------------------------------------------------------------------------------------------

LR = "log 1e-4 1e-1"
FILE = """format = 1
title = "made up"
task = "task.py"
direction = "min"
"""


def run(rng: np.random.Generator, lr: float, best: float, top: float, epochs: int, spread: float) -> Run:
    """Losses that fall from ``top``; learning rates far from 3e-3 are worse, and those far above diverge."""
    off = math.log10(lr / 3e-3)
    if off > 1.35:
        return Run("", 1, {}, failed="the loss is not finite (epoch 1)", seconds=0.1)
    end = best + 0.12 * off**2 + spread * float(rng.normal())
    curve = tuple(
        end + (top - end) * math.exp(-3.0 * k / epochs) + 0.2 * spread * float(rng.normal())
        for k in range(1, epochs + 1)
    )
    best = min(curve)
    return Run("", 1, {}, best, best + 0.01, "", curve, 0.11 + 0.02 * float(rng.random()), 1.4, 0)


def searched_arm(
    name: str, best: float, replicates: int, trials: int, *, seed: int = 0, epochs: int = 10, fails: Sequence[int] = ()
) -> Arm:
    """An arm with all its runs. ``fails``: numbers of replicates whose report runs failed."""
    rng, whole, near = np.random.default_rng([seed, *name.encode()]), [], 0
    for number in range(1, replicates + 1):
        luck = 0.02 * float(np.random.default_rng([7, number]).normal())  # shared by all arms: the replicate's seed
        found = []
        for _ in range(trials):
            lr, decay = (float(f"{10 ** rng.uniform(*ends):.4g}") for ends in ((-4, -1), (-4, 0)))
            made = run(rng, lr, best + luck, 1.0, epochs, 0.01)
            found.append(replace(made, point={"lr": lr, "weight_decay": decay}))
        top = min(found, key=lambda r: r.valid if r.valid == r.valid else math.inf)
        near += not 2e-4 < top.point["lr"] < 5e-2
        reports = tuple(
            replace(run(rng, top.point["lr"], best + luck, 1.0, epochs, 0.01), point=top.point) for _ in range(2)
        )
        untrained = ""
        if number in fails:
            untrained = "failed"
            reports = tuple(
                replace(
                    r, valid=math.nan, test=math.nan, curve=r.curve[:2], failed="RuntimeError: singular (mine.py:31)"
                )
                for r in reports
            )
        value = 1.0 if untrained else sum(r.test for r in reports) / 2
        whole.append(Replicate(number, tuple(found), top.point, reports, top.valid, value, untrained))
    search = {"lr": LR, "weight_decay": "log 1e-4 1"}
    return Arm(name, "torch.optim:AdamW", {"betas": [0.9, 0.95]}, search, tuple(whole), {"lr": near})


def untuned_arm(name: str, best: float, replicates: int) -> Arm:
    rng, whole = np.random.default_rng([3, *name.encode()]), []
    for number in range(1, replicates + 1):
        reports = tuple(run(rng, 1e-3, best, 1.0, 10, 0.02) for _ in range(2))
        value = sum(r.test for r in reports) / 2
        whole.append(Replicate(number, (), {}, reports, sum(r.valid for r in reports) / 2, value))
    return Arm(name, "schedulefree:AdamWScheduleFree", {"lr": 1e-3}, {}, tuple(whole))


def answer(made: Mapping[str, Arm], asked: Sequence[tuple[str, tuple[str, ...]]], planned: int, **more: Any) -> Answer:
    margin = default_margin(next(iter(made.values())), 1.0)
    facts = {"file": "study.toml", "file sha256": "ab" * 32, "torch": "2.13.0", "machine": "a CPU with 2 cores",
             "command": ["critgrad", "study", "run", "study.toml"], "text of the file": FILE}  # fmt: skip
    defaults = {"title": "Schedule-free or not, on my regression", "task": "task.py", "direction": "min", "epochs": 10,
                "planned": planned, "trials": 8, "report_seeds": 2, "seed": 1, "margin": margin, "initial": 1.0,
                "arms": made, "claims": claims_of(made, asked, "min", margin, planned), "provenance": facts}  # fmt: skip
    return Answer(**{**defaults, **more})


SEVEN = ("adamw", "free", "sgd", "nadam", "lion", "muon", "adam with a long name that somebody liked")


def one_claim() -> Answer:
    made = arms(searched_arm("adamw", 0.30, 10, 8), searched_arm("free", 0.27, 10, 8))
    return answer(made, [("free", ("adamw",))], 10)


def six_claims() -> Answer:
    ends = (0.30, 0.27, 0.34, 0.305, 0.29, 0.296, 0.301)
    made = arms(*(searched_arm(name, best, 10, 8) for name, best in zip(SEVEN, ends)))
    asked = [(name, ("adamw",)) for name in SEVEN[1:6]] + [(SEVEN[6], ("adamw", "free", "sgd"))]
    return answer(made, asked, 10)


def failures() -> Answer:
    made = arms(searched_arm("adamw", 0.30, 8, 8), searched_arm("mine", 0.28, 8, 8, fails=(2, 6)))
    return answer(made, [("mine", ("adamw",))], 8)


def untuned() -> Answer:
    made = arms(searched_arm("adamw", 0.30, 8, 8), untuned_arm("free", 0.33, 8))
    return answer(made, [("free", ("adamw",))], 8)


def not_final() -> Answer:
    made = arms(searched_arm("adamw", 0.30, 4, 8), searched_arm("free", 0.27, 4, 8))
    notes = ("replicates grew from 6 to 10 after a verdict: adding replicates after a look doubles the false alarms",)
    return answer(made, [("free", ("adamw",))], 10, notes=notes)


def thousand_runs() -> Answer:
    made = arms(*(searched_arm(name, 0.3, 20, 8, epochs=40) for name in SEVEN[:5]))
    return answer(made, [(name, ("adamw",)) for name in SEVEN[1:5]], 20, epochs=40)


def nothing_yet() -> Answer:
    made = arms(searched_arm("adamw", 0.30, 1, 8), searched_arm("free", 0.27, 0, 8))
    return answer(made, [("free", ("adamw",))], 10)


def accuracy() -> Answer:
    """Higher is better; axes of every kind but a learning rate; on a GPU, with far apart claims."""
    search = {"topC": "choice 2 5 10", "betas.0": "one-minus 0.5 0.99", "steps": "log-int 1 100", "share": "linear 0 1"}

    def turned(one: Arm, gain: float) -> Arm:
        rng, whole = np.random.default_rng([5, *one.name.encode()]), []
        for replicate in one.replicates:
            points = [
                {"topC": int(rng.choice([2, 5, 10])), "betas.0": float(rng.uniform(0.5, 0.99)),
                 "steps": int(rng.integers(1, 101)), "share": float(rng.random())}
                for _ in replicate.trials
            ]  # fmt: skip
            runs = tuple(
                replace(
                    r,
                    point=p,
                    valid=1 - r.valid,
                    test=1 - r.test,
                    curve=tuple(1 - v for v in r.curve),
                    peak_bytes=2**28,
                )
                for r, p in zip(replicate.trials, points)
            )
            reports = tuple(
                replace(r, point=points[0], valid=1 - r.valid, curve=tuple(1 - v for v in r.curve))
                for r in replicate.reports
            )
            whole.append(
                replace(replicate, trials=runs, reports=reports, chosen=points[0], value=gain + 1 - replicate.value)
            )
        return replace(one, search=search, replicates=tuple(whole), near_end={"share": 5})

    made = arms(
        *(turned(searched_arm(n, 0.3, 8, 6), gain) for n, gain in (("adam", 0.0), ("mine", 0.3), ("twin", 0.001)))
    )
    asked = [("mine", ("adam",)), ("twin", ("adam",))]
    margin = default_margin(made["adam"], 0.1)
    claims = claims_of(made, asked, "max", margin, 8)
    return answer(made, asked, 8, direction="max", initial=0.1, margin=margin, claims=claims)


ANSWERS = {
    f.__name__: f for f in (accuracy, one_claim, six_claims, failures, untuned, not_final, thousand_runs, nothing_yet)
}
