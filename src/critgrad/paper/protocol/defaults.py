"""The hyper-parameters that ``critgrad compare`` starts from: what a fair sweep chose, kept with its registration's hash."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from critgrad.lab.errors import LabError, MissingFileError
from critgrad.lab.train.optimizers import STARTING_LR, recipe_of

from . import paper_values
from .arms import ARMS
from .records import Outcome

FOLDER = Path(__file__).parents[1] / "defaults"
FORMAT = 1


@dataclass(frozen=True)
class Default:
    """One arm's hyper-parameters."""

    family: str
    arm: str
    label: str
    optimizer: str
    hyper: dict[str, Any]
    trials: int  # points tried; 0 for an arm that was derived
    edges: dict[str, str]


@dataclass(frozen=True)
class Defaults:
    """All arms of a task, and the experiment that chose them."""

    task: str
    command: str
    registration: str
    commit: str | None
    trials: int
    tuning_seeds: tuple[int, ...]
    settings: dict[str, Any]
    engine: str
    arms: tuple[Default, ...]

    def arm(self, family: str, name: str) -> Default | None:
        """One arm, if the sweep had it."""
        return next((row for row in self.arms if (row.family, row.arm) == (family, name)), None)


_WRITTEN = ("family", "arm", "optimizer", "hyper", "trials", "edges")  # of an arm


def write_defaults(outcome: Outcome, path: Path | None = None) -> Path:
    """Write the chosen hyper-parameters of a finished sweep; an unfinished one is refused.

    Arms that train for longer are left out: their epochs were measured on the sweep's machine.
    """
    if not outcome.complete:
        raise LabError(
            f"The sweep of {outcome.task} is not finished ({sum(outcome.pending.values())} runs to go): "
            "run it to its end before its choices become defaults"
        )
    registration = outcome.registration
    rows = [row for row in outcome.arms if row.epochs == registration.epochs and not row.arm.endswith("-longer")]
    values = {
        "format": FORMAT,
        "task": outcome.task,
        "command": f"critgrad sweep {outcome.task} --track fair",
        "registration": registration.hash,
        "commit": outcome.standing.commit,
        "trials": registration.trials,
        "tuning_seeds": list(registration.tuning_seeds),
        "settings": registration.trial_settings,
        "engine": registration.engine,
    }
    path = path or FOLDER / f"{outcome.task}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    arms = ",\n".join(f"    {json.dumps({name: getattr(row, name) for name in _WRITTEN})}" for row in rows)
    head = json.dumps(values, indent=2).removesuffix("\n}")
    path.write_text(f'{head},\n  "arms": [\n{arms}\n  ]\n}}\n', encoding="utf-8")
    return path


def load_defaults(task: str, path: Path | None = None) -> Defaults:
    """The defaults of a task, or an error that says which command writes them."""
    path = path or FOLDER / f"{task}.json"
    if not path.exists():
        there = sorted(p.stem for p in FOLDER.glob("*.json"))
        raise MissingFileError(
            f"No hyper-parameters for {task!r}: `critgrad sweep {task} --track fair` finds them. There are {there}"
        )
    values = json.loads(path.read_text(encoding="utf-8"))
    if values.get("format") != FORMAT:
        raise LabError(f"{path}: invalid format {values.get('format')!r}, expected {FORMAT}")
    arms = tuple(Default(**row, label=ARMS[row["arm"]].label_in(row["family"])) for row in values["arms"])
    plain = {name: value for name, value in values.items() if name not in ("format", "arms", "tuning_seeds")}
    return Defaults(**plain, tuning_seeds=tuple(values["tuning_seeds"]), arms=arms)


def chosen_hyper(task: str, optimizer: str) -> dict[str, Any]:
    """Hyper-parameters to start from: the fair sweep's, else the paper's, else a learning rate for the family.

    >>> chosen_hyper("ptb-lstm", "SGDM_C")
    {'lr': 0.1, 'topC': 10, 'decay': 0.9, 'momentum': 0.9, 'aggr': 'sum'}
    """
    family = recipe_of(optimizer).family
    name = task.split("@")[0]
    # What was chosen for the variant itself comes first: another batch size wants another learning rate.
    for known in dict.fromkeys((task.replace("@tiny", ""), name)):
        if (FOLDER / f"{known}.json").exists():
            rows = [row for row in load_defaults(known).arms if row.optimizer == optimizer and row.arm in _OWN_ARMS]
            rows.sort(key=lambda row: (row.family != family, _OWN_ARMS.index(row.arm)))
            if rows:
                return dict(rows[0].hyper)
    best = (row.hyper for row in paper_values.BEST if (row.task, row.optimizer) == (name, optimizer))
    return dict(next(best, {"lr": STARTING_LR[family]}))


# The arms in which an optimizer stands for itself; in the others it is a control with options to match.
_OWN_ARMS = ("base", "C", "F", "rival", "F-rival", "F-tensor", "AggMo")
