"""A memory that did well in one setting of a task, checked in another: an announcement made from a finished experiment.

What the first experiment chose for each arm (the memory's own options, the tuned momentum) is fixed; the learning rate,
which depends on the batch size, is searched again by every arm alike. The file is committed before it is run, like any
other:

    python -m critgrad.paper.protocol.confirm runs.db ptb-lstm@b420 ptb-lstm --epochs 20
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from critgrad.lab.errors import LabError
from critgrad.lab.spaces import Axis
from critgrad.lab.tasks import task_of

from .arms import ARMS
from .outcome import tables
from .records import ArmResult, Outcome
from .registration import FOLDER, Primary, Registration, find

MEMORIES = ("F", "F-rival", "F-tensor", "C")
QUESTION = "check"  # under which such an experiment is announced: TASK+check
SEEDS = 7  # with fewer than six no exact test is below .05


def confirmation(
    outcome: Outcome, task: str, *, family: str | None = None, trials: int | None = None, epochs: int | None = None
) -> Registration:
    """The experiment that checks the winner of ``outcome`` on ``task``, which is the same task in another setting.

    The winner is the memory with the best value on the tuning seeds, of ``family`` or of all. The reported values play no
    part, so the first experiment's report stays what it was.

    Args:
        outcome: a finished experiment.
        task: where to check; its own batch size is taken.
        family: to check another family's memory than the best one's.
        trials, epochs: instead of the first experiment's; at most 7 fresh seeds are reported.
    """
    plan = outcome.registration
    if not outcome.decided:
        raise LabError(
            f"The experiment on {outcome.task} is not finished: run it to its end before its winner is checked"
        )
    if task.split("@")[0] != outcome.task.split("@")[0] or task == outcome.task:
        raise LabError(f"Invalid task to check {outcome.task} on: {task!r}, expected the same task in another setting")
    winner = _winner(outcome, family)
    rivals = [arm for arm in ("base", "rival", "momentum") if outcome.arm(winner.family, arm) is not None]
    arms = tuple(name for name in plan.arms if name in (winner.arm, *rivals))
    note = (
        f"Checks {winner.label} of {outcome.task} (registration {plan.hash[:12]}), the memory with the best value on its "
        "tuning seeds. What was chosen there beside the learning rate is fixed for every arm; the learning rate is searched "
        "again, with as many points for each arm."
    )
    timing = plan.timing and replace(plan.timing, arms=tuple(arm for arm in plan.timing.arms if arm in arms))
    return replace(
        plan,
        task=task,
        question=QUESTION,
        batch_size=task_of(task).batch_size,
        epochs=epochs or plan.epochs,
        trials=trials or plan.trials,
        report_seeds=plan.report_seeds[:SEEDS],
        rungs=(),
        timing=timing,
        families=(winner.family,),
        lr={winner.family: plan.lr[winner.family]},
        arms=arms,
        primary=(Primary(winner.arm, tuple(rivals)),),
        axes=_fixed(outcome, winner.family, arms),
        notes={
            "confirms": note,
            "seeds": "The first of the report seeds of that experiment; another batch size makes other runs of them.",
            **{name: plan.notes[name] for name in ("target", "precision") if name in plan.notes},
        },
        path=None,
    )


def _winner(outcome: Outcome, family: str | None) -> ArmResult:
    found = [
        row for row in outcome.arms if row.arm in MEMORIES and family in (None, row.family) and row.valid is not None
    ]
    if not found:
        known = ", ".join(outcome.registration.families)
        raise LabError(f"Invalid family: {family!r}, expected one with a memory that was tuned, of {known}")
    sign = 1 if outcome.registration.higher_is_better else -1
    return max(found, key=lambda row: sign * (row.valid if row.valid is not None else 0.0))


def _fixed(outcome: Outcome, family: str, arms: Sequence[str]) -> dict[str, dict[str, Axis]]:
    """The axes of the arms, each of a single value: what the arm's search chose."""
    axes: dict[str, dict[str, Axis]] = {}
    for name in arms:
        row = outcome.arm(family, name)
        assert row is not None  # decided: every tuned arm has numbers
        for group, axis in ARMS[name].search[family].axes:
            axes.setdefault(group, {})[axis] = Axis("choice", choices=(row.hyper[axis],))
    return axes


def main(argv: Sequence[str] | None = None) -> int:
    """Write the announcement; what a user can put right is one line."""
    from critgrad.lab.ledger import LedgerError

    from .announced import AnnouncedSource

    parser = argparse.ArgumentParser(
        prog="python -m critgrad.paper.protocol.confirm", description=__doc__.split("\n")[0]
    )
    parser.add_argument("ledger", type=Path)
    parser.add_argument("done", help="the task of the finished experiment")
    parser.add_argument("task", help="the same task in another setting")
    parser.add_argument("--family", help="instead of the one whose memory did best")
    parser.add_argument("--trials", type=int)
    parser.add_argument("--epochs", type=int)
    parser.add_argument("--out", type=Path, help="default: the folder of registrations")
    args = parser.parse_args(argv)
    try:
        outcome = tables(AnnouncedSource(args.ledger), find(args.done))
        made = confirmation(outcome, args.task, family=args.family, trials=args.trials, epochs=args.epochs)
        path = args.out or FOLDER / f"{made.name}.json"
        if path.exists():
            raise FileExistsError(f"{path} is there already: an announcement is not changed once it is made")
        path.write_text(made.dumps(), encoding="utf-8")
    except (ValueError, OSError, LedgerError) as error:
        print(f"Error: {error}", file=sys.stderr)
        return 1
    print(f"{path}: {made.notes['confirms']} Commit it, then: critgrad sweep {made.name}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
