"""How the outcome depends on the options: sensitivity, ablations, label noise, convex tasks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from critgrad.lab.ledger import Planned, Row
from critgrad.lab.stats import mean_interval
from critgrad.lab.tasks import task_of
from critgrad.lab.train.optimizers import OPTIMIZERS, recipe_of

from ..protocol.arms import FAMILIES, PAPER
from .base import Arm, Options, by_arm, grid, planned, tuned, with_memory

DECAYS = (0.0, 0.5, 0.7, 0.9, 0.95, 0.99, 1.0)
TOPCS = (2, 5, 10, 20, 50, 100)
FLIPS = tuple(round(0.1 * k, 1) for k in range(11))

# Figure 5 and the appendix: what is varied, around the memory's default (KotH: largest norms in, lowest priority out).
ABLATIONS: dict[str, tuple[tuple[str, dict[str, Any]], ...]] = {
    "selection": tuple((name, {"policy": name}) for name in ("KotH", "CSS", "CDS", "MNDS", "random")),
    "replacement": tuple((name, {"policy": name}) for name in ("KotH", "RR", "NCPR", "FIFO", "bottomC")),
    "aggregation": tuple((name, {"aggr": name}) for name in ("mean", "sum", "mid", "min", "median", "max")),
}


def _outcome(members: Sequence[Row]) -> dict[str, Any]:
    """Test value with its interval (a diverged run counts as the worst value), how many diverged, and how many have the worst
    value without that: a perplexity is at most that of guessing.
    """
    values = [float(row.summary["test"]) for row in members]
    found = mean_interval(values)
    known = [loss for row in members if (loss := row.summary["final_train_loss"]) is not None]
    kept = [row.summary for row in members if not row.summary["diverged"]]
    return {
        "runs": len(members),
        "test": found.mean,
        "low": found.low,
        "high": found.high,
        "values": values,
        "diverged": len(members) - len(kept),
        "at_worst": sum(summary["test"] == summary.get("worst") for summary in kept),
        "train_loss": float(np.mean(known)) if known else None,
    }


def sensitivity_trials(task: str, options: Options) -> list[Planned]:
    optimizer = with_memory("sensitivity", options.optimizer or "Adam_C")
    cells = [(topC, decay) for topC in TOPCS for decay in DECAYS]
    if options.lines:
        at = _chosen(task, optimizer)
        cells = [(at["topC"], decay) for decay in DECAYS] + [(topC, at["decay"]) for topC in TOPCS]
    return planned("sensitivity", task, options, grid(task, optimizer, dict.fromkeys(cells)))


def _chosen(task: str, optimizer: str | None) -> dict[str, Any]:
    """Where the two lines of the paper's figures meet."""
    own = {} if optimizer is None else {**recipe_of(optimizer).defaults, **tuned(task, optimizer)}
    return {"topC": own.get("topC", 5), "decay": own.get("decay", 0.7)}  # as the class has them


def sensitivity(task: str, rows: Sequence[Row]) -> dict[str, Any]:
    """The outcome in each cell of topC x decay; its row and column at the chosen values are the paper's two figures."""
    cells = [
        {"topC": members[0].trial.hyper["topC"], "decay": members[0].trial.hyper["decay"], **_outcome(members)}
        for members in by_arm(rows, "sensitivity").values()
    ]
    optimizer, metric = rows[0].trial.optimizer if rows else None, task_of(task).metric
    return {
        "task": task,
        "optimizer": optimizer,
        "metric": metric.name,
        "higher_is_better": metric.higher_is_better,
        "chosen": _chosen(task, optimizer),
        "cells": sorted(cells, key=lambda cell: (cell["topC"], cell["decay"])),
    }


def ablation_trials(task: str, options: Options) -> list[Planned]:
    found: dict[str, Planned] = {}
    for study, variants in ABLATIONS.items():
        bases = [f"{family}_C" for family in FAMILIES] if study == "aggregation" else ["Adam_C", "SGD_C"]
        if options.optimizer:
            # A damping memory has one way to be used; what it holds can be varied all the same.
            recipe = recipe_of(with_memory("ablation", options.optimizer))
            bases = [] if study == "aggregation" and recipe.role == "F" else [recipe.name]
        arms: list[Arm] = [
            (f"{study}: {optimizer} {name}", optimizer, tuned(task, optimizer, **change), {})
            for optimizer in bases
            for name, change in variants
        ]
        for item in planned("ablation", task, options, arms):
            # KotH stands in two studies: one run, two roles.
            known = found.get(item.trial.key)
            found[item.trial.key] = Planned(item.trial, (*(known.roles if known else ()), *item.roles))
    return list(found.values())


def default_aggregation(optimizer: str) -> str:
    """What an optimizer of the ``_C`` kind does when nothing is said: the paper's choice.

    >>> default_aggregation("SGDM_C"), default_aggregation("Adam_C")
    ('sum', 'mean')
    """
    made = recipe_of(optimizer).make([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
    return str(made.param_groups[0]["aggr"])


def ablation(task: str, rows: Sequence[Row]) -> dict[str, Any]:
    """The outcome of every variant, by study and optimizer, with its paired difference to the default variant."""
    arms = by_arm(rows, "ablation")
    metric = task_of(task).metric
    sign = 1 if metric.higher_is_better else -1
    order = {f"{study}: {name}": place for study, of in ABLATIONS.items() for place, (name, _) in enumerate(of)}
    studies: dict[str, list[dict[str, Any]]] = {}
    for arm, members in arms.items():
        study, _, rest = arm.partition(": ")
        optimizer, _, name = rest.partition(" ")
        usual = "KotH" if study != "aggregation" else default_aggregation(optimizer)
        reference = {row.trial.seed: row.summary["test"] for row in arms.get(f"{study}: {optimizer} {usual}", [])}
        pairs = [sign * (r.summary["test"] - reference[r.trial.seed]) for r in members if r.trial.seed in reference]
        found = mean_interval(pairs) if pairs and name != usual else None
        difference = None if found is None else {"mean": found.mean, "low": found.low, "high": found.high}
        varied = {"optimizer": optimizer, "variant": name, "reference": usual, "difference": difference}
        studies.setdefault(study, []).append({**varied, **_outcome(members)})
    for study, found_rows in studies.items():
        found_rows.sort(key=lambda row: (_place(row["optimizer"]), order[f"{study}: {row['variant']}"]))
    ordered = {study: studies[study] for study in ABLATIONS if study in studies}
    return {"task": task, "metric": metric.name, "higher_is_better": metric.higher_is_better, "studies": ordered}


def _place(optimizer: str) -> int:
    """The paper's eight in the order of its tables, then the others."""
    return PAPER.index(optimizer) if optimizer in PAPER else len(PAPER) + list(OPTIMIZERS).index(optimizer)


def noise_trials(task: str, options: Options) -> list[Planned]:
    # The appendix fixes these for all optimizers.
    hyper = {"lr": 1e-3}, {"lr": 1e-3, "topC": 5, "decay": 0.5}
    names = [options.optimizer] if options.optimizer else PAPER
    arms = [
        (f"{name} flip_y={flip:g}", name, hyper[recipe_of(name).has_memory], {"flip_y": flip})
        for flip in FLIPS
        for name in names
    ]
    return planned("noise", task, options, arms)


def noise(task: str, rows: Sequence[Row]) -> dict[str, Any]:
    """Accuracy against the share of flipped labels, for each optimizer."""
    lines: dict[str, list[dict[str, Any]]] = {}
    for members in by_arm(rows, "noise").values():
        trial = members[0].trial
        lines.setdefault(trial.optimizer, []).append({"flip_y": trial.settings["flip_y"], **_outcome(members)})
    return {
        "task": task,
        "lines": [
            {"optimizer": name, "points": sorted(points, key=lambda point: point["flip_y"])}
            for name, points in sorted(lines.items(), key=lambda item: _place(item[0]))
        ],
    }


def convex_trials(task: str, options: Options) -> list[Planned]:
    # The paper's figure has 25 epochs, MNIST's other tables 10. @convex is the same training, judged by its loss.
    settings = {"epochs": 25} if task == "mnist-logreg" and "epochs" not in options.settings else {}
    names = [options.optimizer] if options.optimizer else PAPER
    return planned("convex", task, options, [(name, name, tuned(task, name), settings) for name in names])


def convex(task: str, rows: Sequence[Row]) -> dict[str, Any]:
    """Training loss over the epochs. An optimizer whose runs have all diverged has no line: ``lost`` names it."""
    lines, lost = [], []
    for optimizer, members in sorted(by_arm(rows, "convex").items(), key=lambda item: _place(item[0])):
        finished = [row for row in members if not row.summary["diverged"]]
        if not finished:
            lost.append({"optimizer": optimizer, "runs": len(members)})
            continue
        loss = np.stack([row.curves["train_loss"] for row in finished])
        lines.append(
            {
                "optimizer": optimizer,
                "runs": len(members),
                "diverged": len(members) - len(finished),
                "mean": loss.mean(0).tolist(),
                "low": loss.min(0).tolist(),
                "high": loss.max(0).tolist(),
            }
        )
    return {"task": task, "lines": lines, "lost": lost}
