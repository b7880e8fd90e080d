"""Made-up runs, deterministic and quick to make: what a ledger would hold after training."""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from critgrad.lab.ledger import Ledger, Role
from critgrad.lab.ledger.committed import Standing, document_name
from critgrad.lab.run.results import Result
from critgrad.lab.run.spec import Trial
from critgrad.lab.tasks import task_of
from critgrad.lab.train.optimizers import recipe_of
from critgrad.paper import compare
from critgrad.paper.analyses import ANALYSES, Options
from critgrad.paper.protocol import ARMS, Fair, Registration, find, paper_best
from critgrad.paper.protocol.registration import Timing

GOOD_LR = {"SGD": 0.1, "SGDM": 0.03, "RMSprop": 1e-3, "Adam": 1e-3, "AdamW": 1e-3}
SEEDS = 7


def noise(*what: object) -> float:
    """A number in [-.5, .5) that only depends on what it is for."""
    return int.from_bytes(hashlib.sha256(repr(what).encode()).digest()[:4], "big") / 2**32 - 0.5


def result(trial: Trial, epochs: int = 6) -> Result:
    """What training would give."""
    task = task_of(trial.task)
    epochs = trial.settings.get("epochs", epochs)
    recipe = recipe_of(trial.optimizer)
    off = math.log10(trial.hyper["lr"] / GOOD_LR[recipe.family])
    diverged = off > 2.5
    top = (
        90
        + {"C": -1.0, "F": 1.5}.get(recipe.role, 0.0)
        - 4 * off**2
        + 1.5 * noise(trial.seed, trial.task)
        + noise(trial.key)
    )
    n = 1 if diverged else epochs
    learnt = 1 - np.exp(-np.arange(1, n + 1) / 1.2)
    accuracy = 10 + (max(top, 12) - 10) * learnt
    higher = task.metric.higher_is_better
    valid = accuracy if higher else 1000 / accuracy
    curves: dict[str, Any] = {
        "valid": valid,
        "test": valid - 0.3,
        "valid_loss": 5 - learnt,
        "train_loss": np.exp(-4 * learnt),
    }
    if trial.engine == "single":
        curves["seconds"] = np.arange(1, n + 1) * (0.5 if recipe.has_memory else 0.3)
    if "update" in trial.probe:
        curves["update_rms"] = np.full(n, trial.hyper["lr"] * (2.0 if recipe.has_memory else 1.0))
    slots = trial.hyper.get("topC", 5)
    if "memory" in trial.probe:
        curves["ages"] = np.tile(np.arange(1, slots + 1) * 3, (n, 1))
        curves |= {"g_norm": 1 + learnt, "gc_norm": 2 + learnt, "accepted": learnt / 2}
    if "damping" in trial.probe:
        curves |= {
            "span_share": learnt / 2,
            "damped_ratio": 1 - learnt / 3,
            "spectrum": np.tile(0.5 ** np.arange(slots), (n, 1)),
        }
    if "decisions" in trial.probe:
        curves["decisions"] = np.arange(4 * n) % slots
    worst = 0.0 if higher else 1000.0
    summary = {
        "metric": task.metric.name,
        "higher_is_better": higher,
        "diverged": diverged,
        "initial_valid": 10.0 if higher else 100.0,
        "epochs": n,
        "steps": 40 * n,
        "parameters": 2410,
        "data_state": "synthetic" if "tiny" in trial.task else "whole",
        "data_sha256": "ab" * 32,
        "weights": "random",
        "best_epoch": None if diverged else n,
        "valid": worst if diverged else float(valid[-1]),
        "test": worst if diverged else float(valid[-1] - 0.3),
        "final_train_loss": None if diverged else float(curves["train_loss"][-1]),
    }
    if trial.engine == "single":
        summary |= {"step_ms": 0.1 + 0.01 * slots, "step_ms_low": 0.09, "step_ms_high": 0.2, "train_seconds": 0.3 * n}
    machine = {
        "critgrad": "0.1.0",
        "torch": "2.13.0",
        "cpu": "a CPU",
        "accelerator": None,
        "command": ["critgrad", "test"],
    }
    return Result(curves, summary, machine)


def add(book: Ledger, planned: Any) -> None:
    with book.transaction():
        for trial, roles in planned:
            book.add(trial, result(trial), roles)


def one_run(path: Path) -> None:
    trial = Trial("digits-mlp", "Adam_C", {"lr": 1e-3, "topC": 5}, 3, {"epochs": 8}, probe=("memory",))
    with Ledger.open(path, write=True, create=True) as book:
        add(book, [(trial, (Role("train", "Adam", "Adam_C", "report"),))])


def comparison(path: Path) -> None:
    optimizers = {"base": "{}", "C": "{}_C", "F": "{}_F", "C-step": "{}", "F-step": "{}"}
    planned = []
    for seed in range(compare.FIRST_SEED, compare.FIRST_SEED + SEEDS):
        for family in ("SGD", "Adam"):
            for arm, name in [*optimizers.items(), ("rival", {"SGD": "Nesterov", "Adam": "NAdam"}[family])]:
                lr = GOOD_LR[family] * {"C-step": 2.0, "F-step": 0.5}.get(arm, 1.0)
                trial = Trial("digits-mlp", name.format(family), {"lr": lr}, seed, {"epochs": 6})
                planned.append((trial, (Role(compare.TRACK, family, arm, "report"),)))
    with Ledger.open(path, write=True, create=True) as book:
        add(book, planned)
        lost = Trial("digits-mlp", "RMSprop", {"lr": 1e-3}, 500, {"epochs": 6})
        book.fail(
            lost,
            "Traceback ...\nRuntimeError: out of <memory> & luck",
            (Role(compare.TRACK, "RMSprop", "base", "report"),),
        )


def plan_of_sweep() -> Registration:
    return find("digits-mlp").changed(
        epochs=5,
        trials=4,
        tuning_seeds=(1000, 1001),
        report_seeds=tuple(range(SEEDS)),
        families=("SGD", "Adam"),
        arms=tuple(ARMS),
        timing=Timing((2000,), 4),
    )


def fair_sweep(path: Path, commit: str | None = None) -> None:
    track = Fair(plan_of_sweep())
    with Ledger.open(path, write=True, create=True) as book:
        standing = Standing(commit, "" if commit else "values were changed on the command line")
        text = json.dumps({**asdict(standing), "registration": track.registration.to_dict()})
        book.put_document(document_name(track.registration.hash), text)
        while planned := track.plan(book):
            add(book, planned)


def every_analysis(path: Path, task: str = "digits-mlp@tiny") -> None:
    with Ledger.open(path, write=True, create=True) as book:
        for name, analysis in ANALYSES.items():
            if analysis.measure is not None:
                book.put_analysis(name, task, "", analysis.measure(task), {}, [])
            else:
                where = "noise-logreg@tiny" if name == "noise" else task
                add(book, analysis.plan(book, where, Options(3, {"epochs": 4})))


def paper_tracks(path: Path) -> None:
    with Ledger.open(path, write=True, create=True) as book:
        add(book, paper_best("ptb-lstm").plan(book))
        add(book, paper_best("cifar10-convnet", seeds=3).plan(book))


def data_of(page: Path) -> dict[str, Any]:
    """What the page embeds."""
    text = page.read_text(encoding="utf-8")
    begin = text.index('<script type="application/json" id="data">')
    return json.loads(text[text.index(">", begin) + 1 : text.index("</script>", begin)])
