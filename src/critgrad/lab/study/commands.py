"""What the commands ``critgrad study new | check | run | report`` do and show. Each returns an exit code."""

from __future__ import annotations

import os
import shlex
import shutil
from argparse import Namespace
from pathlib import Path

from ..run.executors.base import default_workers
from ..screen.console import prose, say, show, table
from ..screen.progress import duration, shown
from ..words import listed, pairs
from . import runner
from .answer import Answer, Arm
from .file import StudyError, StudyFile, read

TEMPLATE = Path(__file__).parent / "template"


def new(args: Namespace) -> int:
    """Write a study that runs as it is."""
    if args.folder.exists() and not args.folder.is_dir():
        raise StudyError(f"{args.folder} is a file, expected a folder, there or not")
    names = [path.name for path in sorted(TEMPLATE.iterdir()) if path.suffix in (".py", ".toml")]
    for name in names:
        if (args.folder / name).exists():
            raise StudyError(f"{args.folder / name} is there already, expected a folder without it")
    args.folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        shutil.copyfile(TEMPLATE / name, args.folder / name)
    file = args.folder / "study.toml"
    written = " and ".join(str(args.folder / name) for name in names)
    say(f"{written}: look into them, then critgrad study run {shlex.quote(str(file))}")
    return 0


def check(args: Namespace) -> int:
    """Tell what is wrong, or the plan."""
    found = runner.check(args.file, ledger=args.ledger, device=args.device)
    study = found.study
    made = table(study.title, "arm", "optimizer", "searched", "a run takes", right=("a run takes",))
    for name, arm in study.arms.items():
        made.add_row(name, arm.optimizer, listed(arm.texts) or "nothing", f"{show(found.seconds[name], 3)} s")
    made.put()
    workers = args.workers or default_workers(found.device)
    time = duration(found.total_seconds / workers)
    say(
        f"{study.replicates} replicates, {study.trials} trials and {study.report_seeds} reports each: {found.remaining} runs "
        f"to make, about {time} with {workers} {'worker' if workers == 1 else 'workers'} on {found.device}"
    )
    if found.replicates:
        say(f"{found.replicates} replicates are whole")
    for line in found.lines:
        say(line)
    return 0


def run(args: Namespace) -> int:
    """Run what is missing; verdict and page."""
    study = read(args.file)
    page = _places(study, args)
    with shown(study.title) as on_event:
        answer = runner.run(
            args.file,
            ledger=args.ledger,
            workers=args.workers,
            executor=args.executor,
            options=pairs(args.executor_opt, "--executor-opt"),
            device=args.device,
            minutes=args.minutes,
            trial_timeout=args.trial_timeout,
            retry=args.retry,
            on_event=on_event,
        )
    _tell(answer, page, args.json)
    return 0


def report(args: Namespace) -> int:
    """The verdict and the page of what has been run."""
    page = _places(read(args.file), args)
    _tell(runner.report(args.file, ledger=args.ledger), page, args.json)
    return 0


def _places(study: StudyFile, args: Namespace) -> Path:
    """Where the page goes: beside the study's file, or its ledger where nothing can be written there.

    What cannot be written is told now, and not after an hour of runs.
    """
    ledger = runner.ledger_of(study, args.ledger).absolute()
    pages = [folder / runner.PAGE for folder in (study.folder, ledger.parent)]
    page = next((page for page in pages if os.access(page.parent, os.W_OK) and not page.is_dir()), None)
    if page is None:
        raise StudyError(f"{runner.PAGE} can be written neither beside {study.path.name} nor beside its ledger")
    if args.json is not None:
        target = args.json.absolute()
        if target.is_dir() or not target.parent.is_dir():
            raise StudyError(f"Invalid --json: {args.json}, expected a file in a folder that is there")
        if target.resolve() in {path.resolve() for path in (study.path, ledger, *pages)} or target.suffix == ".py":
            raise StudyError(f"Invalid --json: {args.json} is a file of the study, expected another")
    return page


def _tell(answer: Answer, page: Path, json: Path | None) -> None:
    from .verdict import said_of

    made = table(None, "arm", "chosen, of the last replicate", "mean", "replicates", right=("mean", "replicates"))
    for arm in answer.arms.values():
        values = [replicate.value for replicate in arm.replicates]
        mean = sum(values) / len(values) if values else float("nan")
        made.add_row(arm.name, _chosen(arm), show(mean), f"{len(values)}/{answer.planned}")
    made.put()
    if answer.claims:
        prose("Differences are Hodges and Lehmann's estimate over the replicates, not those of these means.")
    for claim in answer.claims:
        say(said_of(claim, answer), "bold")
        if claim.remark and claim.replicates:
            prose(claim.remark, 2)
    for note in answer.notes:
        prose(note)
    if json is not None:
        json.write_text(answer.to_json() + "\n", encoding="utf-8")
        say(str(json))
    try:
        from .page import write_page

        write_page(answer, page)
    except ModuleNotFoundError as error:  # a bare machine: the ledger has all that a page needs elsewhere
        say(f"no page: {error}")
    else:
        say(str(page))


def _chosen(arm: Arm) -> str:
    return listed(arm.replicates[-1].chosen) if arm.replicates and arm.search else "-"
