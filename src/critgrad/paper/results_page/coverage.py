"""What of the paper has been run, and what has not: every missing cell has its name on the page."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..analyses import cost, inside, outcomes
from ..protocol import registered
from ..protocol.paper_values import RUN_TIMES, name_of
from ..search import find, searches, tasks_of
from .findings import Findings
from .goal import NINE
from .text import table

FAIR = "fair"
# What the paper shows, the purpose under which a ledger keeps it, and the tasks that it shows it on.
ITEMS: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    ("test table and curves, all tuned alike", FAIR, NINE),
    ("test table and curves, at the paper's settings", "paper-best", NINE),
    ("the whole grid", "paper-grid", ("mnist-mlp", "mnist-logreg")),
    ("staleness", "staleness", ("mnist-mlp", "mnist-logreg")),
    ("ablations", "ablation", ("ptb-lstm", "cifar10-convnet")),
    (
        "sensitivity",
        "sensitivity",
        (
            "mnist-mlp",
            "cifar10-convnet",
            "cifar100-convnet",
            "ptb-lstm",
            "wikitext2-lstm",
            "snli-lstm",
            "multiwoz-bilstm",
        ),
    ),
    (
        "stored against current gradients",
        "gt-vs-gc",
        ("cifar10-convnet", "cifar100-convnet", "ptb-lstm", "snli-lstm", "multiwoz-roberta"),
    ),
    ("label noise", "noise", ("noise-logreg",)),
    ("convex problems", "convex", ("mnist-logreg", "covtype-logreg", "rcv1-logreg")),
    ("run times", "runtime", tuple(RUN_TIMES)),
)


def coverage_section(findings: Findings) -> str:
    """A row for each thing that the paper shows, then the announcements without a run."""
    there = _tasks_run(findings)
    begun = {name_of(outcome.task) for outcome in findings.outcomes if not outcome.decided}
    rows = []
    for label, purpose, tasks in ITEMS:
        found = there.get(purpose, {})
        lacking = _lacking_cells(findings, purpose)
        named = {task: [name + lacking.get(name, "") for name in sorted(found.get(task, ()))] for task in tasks}
        run = [", ".join(names) for names in named.values() if names]
        missing = [
            f"{task} (not finished)" if purpose == FAIR and task in begun else task
            for task in tasks
            if task not in found
        ]
        rows.append([label, f"`{purpose}`", ", ".join(run) or "-", ", ".join(missing) or "-"])
    text = "\n## What has not been run\n\nWhat the paper shows, by the tasks that it shows it on (of its grid of 36,000 runs: "
    text += "MNIST's). A variant or a twin stands for its\ntask. RoBERTa has random weights here: no row of it is comparable "
    text += "with the paper's.\n\n" + table(("the paper's", "track", "run", "not run"), rows)
    if waiting := _announced(findings):
        text += f"\nAnnounced, without a run so far: {', '.join(waiting)}.\n"
    return text


def _tasks_run(findings: Findings) -> dict[str, dict[str, set[str]]]:
    """By purpose and the paper's name of a task: under which names it was run. Fair experiments count once they are decided."""
    out: dict[str, dict[str, set[str]]] = {}

    def add(purpose: str, task: str) -> None:
        out.setdefault(purpose, {}).setdefault(name_of(task), set()).add(task)

    for outcome in findings.claimable:
        add(FAIR, outcome.task)
    for row in findings.books.done:
        if row.trial.registration is None:
            for role in row.roles:
                add(
                    (role.purpose if role.track == "analysis" else role.track).removeprefix("analysis:"), row.trial.task
                )
    return out


def _lacking_cells(findings: Findings, purpose: str) -> dict[str, str]:
    """By task, what an analysis has not: `` (without topC 50, 100)``. Of several settings the most complete one counts."""
    if purpose not in CELLS:
        return {}
    found: dict[str, list[list[str]]] = {}
    for study in findings.studies(purpose):
        found.setdefault(study.task, []).append(CELLS[purpose](study.data))
    fewest = {task: min(lists, key=len) for task, lists in found.items()}
    return {task: f" (without {', '.join(missing)})" for task, missing in fewest.items() if missing}


def _of_grid(data: Mapping[str, Any]) -> list[str]:
    """Values of topC and of decay that no run has, on the whole grid or on the paper's two lines."""
    there = {name: {cell[name] for cell in data["cells"]} for name in ("topC", "decay")}
    wanted = (("topC", outcomes.TOPCS), ("decay", outcomes.DECAYS))
    return [f"{name} {value:g}" for name, values in wanted for value in values if value not in there[name]]


def _of_sizes(name: str, sizes: Sequence[int]) -> Callable[[Mapping[str, Any]], list[str]]:
    def missing(data: Mapping[str, Any]) -> list[str]:
        there = {entry["topC"] for entry in data[name]}
        return [f"topC {topC}" for topC in sizes if topC not in there]

    return missing


# What an analysis should have on a task, and has not.
CELLS: Mapping[str, Callable[[Mapping[str, Any]], list[str]]] = {
    "sensitivity": _of_grid,
    "gt-vs-gc": _of_sizes("lines", inside.NORMS_TOPC),
    "runtime": _of_sizes("points", cost.TOPCS),
}


def _announced(findings: Findings) -> list[str]:
    """Registrations and searches of which no ledger has a run."""
    begun = {outcome.name for outcome in findings.outcomes}
    out = [f"`{name}`" for name in registered() if name not in begun]
    hashes = {row.trial.registration for row in findings.books.done}
    for name in searches():
        out += [f"`{task}` in the search `{name}`" for task in tasks_of(name) if find(name, task).hash not in hashes]
    return out
